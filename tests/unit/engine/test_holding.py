"""A study's hold on its GPUs, over a fake NVML with several of them: leased node-wide, proven free, strangers named."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.engine.base import ServerIdentity
from autotune.engine.gpu_memory import GpuGuard
from autotune.engine.holding import NodeHold, Patience
from autotune.engine.reaping import ReapReport
from autotune.errors import NodeBusy
from autotune.node.leases import NodeLeases, gpu_resource, this_process
from autotune.node.nvml_probe import NvmlProbe
from autotune.node.probe import FakeGpuProbe, ProbedGpu
from autotune.records import Gpu
from autotune.units import GIB, MIB

GPUS = tuple(Gpu(index=index, name="NVIDIA H200", memory_bytes=140 * GIB, uuid=f"GPU-{index}") for index in range(4))
NothingLeft = Callable[..., bool]


class FakeNvml:
    """NVML's calls that tell who uses a GPU, for four of them; a test changes `used` and `pids`."""

    NVMLError = NVMLError_NotSupported = NVMLError_FunctionNotFound = RuntimeError
    nvmlMemory_v2 = 2

    def __init__(self) -> None:
        self.used = dict.fromkeys(range(4), 5 * MIB)
        self.pids: dict[int, set[int]] = {index: set() for index in range(4)}

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int) -> Any:
        return SimpleNamespace(total=143_771 * MIB, reserved=615 * MIB, used=self.used[handle])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.pids[handle]]


@dataclass
class World:
    """One node with its clock; every study on it has a hold of its own."""

    folder: Path
    nvml: FakeNvml = field(default_factory=FakeNvml)
    now_s: float = 0.0
    told: list[str] = field(default_factory=list)
    due: dict[float, Callable[[], None]] = field(default_factory=dict)

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for at in [at for at in self.due if at <= self.now_s]:
            self.due.pop(at)()
        await asyncio.sleep(0)

    def hold(
        self,
        limit_s: float = math.inf,
        gpus: tuple[Gpu, ...] = GPUS,
        study: str = "mine",
        stop: Callable[[ServerIdentity], ReapReport] | None = None,
    ) -> NodeHold:
        guard = GpuGuard(NvmlProbe(self.nvml), clock=lambda: self.now_s, sleep=self.sleep)
        patience = Patience(limit_s=limit_s, clock=lambda: self.now_s, sleep=self.sleep)
        leases = NodeLeases(self.folder, this_process(study))
        more = {} if stop is None else {"stop": stop}
        return NodeHold(gpus, leases, guard, tell=self.told.append, patience=patience, settles_s=10.0, **more)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(folder=tmp_path / "leases")


@contextlib.contextmanager
def sleeper(marker: str = "", seconds: float = 600.0) -> Iterator[subprocess.Popen[bytes]]:
    """A process that computes on a GPU for all that NVML tells; with a marker, one that a tuner once started."""
    environ = {**os.environ, **({"AUTOTUNE_MARKER": marker} if marker else {})}
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", f"import time; time.sleep({seconds})"], env=environ)
    while not Path(f"/proc/{process.pid}/environ").read_bytes():
        time.sleep(0.005)  # between fork and exec
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_two_studies_never_have_the_same_gpu_whatever_their_databases(world: World) -> None:
    first, second = world.hold(study="first"), world.hold(limit_s=0.0, study="second")
    await first.take()
    with pytest.raises(NodeBusy, match=r"GPU 0, 1, 2, 3 leased by study 'first'"):
        await second.take()
    first.close()
    await second.take()
    second.close()


async def test_disjoint_gpus_are_two_studies_that_know_of_each_other(world: World) -> None:
    first, second = world.hold(gpus=GPUS[:2], study="first"), world.hold(gpus=GPUS[2:], study="second")
    await first.take()
    assert first.neighbours() == ()
    await second.take()
    assert [record.study for record in first.neighbours() if record] == ["second", "second"]
    first.close()
    second.close()


async def test_waits_for_the_other_study_and_says_so_once(world: World) -> None:
    first, second = world.hold(study="first"), world.hold(study="second")
    await first.take()
    world.due[300.0] = first.close
    await second.take()
    assert world.now_s == 300.0
    assert [line.split(":")[0] for line in world.told] == [
        "waiting until the GPUs are free",
        "the GPUs are free after 300 s",
    ]
    second.close()


async def test_patience_ends(world: World) -> None:
    first, second = world.hold(study="first"), world.hold(limit_s=1800.0)
    await first.take()
    with pytest.raises(NodeBusy, match="waited 1800 s"):
        await second.take()
    assert len(world.told) == 3  # now, after ten and after twenty minutes
    first.close()


async def test_a_stranger_stops_the_study_or_is_waited_for(world: World) -> None:
    hold, stopping = world.hold(), world.hold(limit_s=0.0)
    await hold.take()
    with sleeper() as stranger:
        await hold.prove_free((0, 1, 2, 3))  # baselines
        await stopping.prove_free((0, 1, 2, 3))
        world.nvml.used[2], world.nvml.pids[2] = 70 * GIB, {stranger.pid}
        await stopping.prove_free((0, 1, 3))
        with pytest.raises(NodeBusy, match=rf"GPU 2: .*held by process {stranger.pid} \(python"):
            await stopping.prove_free((1, 2))
        assert world.now_s == 10.0  # a server that has just ended gets so long
        world.due[100.0] = lambda: (world.nvml.used.__setitem__(2, 5 * MIB), world.nvml.pids[2].clear())[0]
        await hold.prove_free((1, 2))
        assert world.now_s >= 100.0
        assert stranger.poll() is None  # never signalled
    assert "waiting until the GPUs are free: GPU 2" in world.told[0]
    hold.close()


async def test_a_stranger_that_holds_hardly_any_memory_yet_counts(world: World) -> None:
    hold = world.hold(limit_s=0.0)
    await hold.prove_free((0,))
    with sleeper() as stranger:
        world.nvml.pids[0] = {stranger.pid}
        with pytest.raises(NodeBusy, match=str(stranger.pid)):
            await hold.prove_free((0,))


async def test_much_memory_that_nobody_shows_to_hold_is_no_baseline(world: World) -> None:
    world.nvml.used[1] = 60 * GIB
    with pytest.raises(NodeBusy, match="GPU 1: 60"):
        await world.hold(limit_s=0.0).prove_free((1,))


async def test_a_desktop_is_a_baseline(world: World) -> None:
    world.nvml.used[1] = 2 * GIB
    await world.hold(limit_s=0.0).prove_free((1,))


async def test_what_a_killed_tuner_left_under_its_lease_is_stopped(world: World, nothing_left: NothingLeft) -> None:
    marker = "ab" * 16
    with sleeper(marker) as orphan:
        leave_lease(world, marker, baseline_bytes=7 * MIB)
        hold = world.hold()
        await hold.take()
        assert orphan.wait(120) != 0
    assert nothing_left(marker)
    assert any("stopped what 'killed', whose tuner was killed, left running" in line for line in world.told)
    # Its memory is still there: what that tuner had seen before counts, not what is in use now.
    world.nvml.used[0] = 3 * GIB
    world.due[4.0] = lambda: world.nvml.used.__setitem__(0, 7 * MIB)
    await hold.prove_free((0,))
    assert world.now_s == 4.0
    hold.close()


async def test_an_orphan_on_a_leased_gpu_is_stopped_without_any_record(world: World, nothing_left: NothingLeft) -> None:
    marker = "cd" * 16
    hold = world.hold(limit_s=0.0)
    await hold.take()
    with sleeper(marker) as orphan:
        world.nvml.used[3], world.nvml.pids[3] = 70 * GIB, {orphan.pid}
        world.due[1.0] = lambda: (world.nvml.used.__setitem__(3, 5 * MIB), world.nvml.pids[3].clear())[0]
        await hold.prove_free((3,))
        assert orphan.wait(120) != 0
    assert nothing_left(marker)
    hold.close()


async def test_a_record_that_names_a_living_process_does_not_get_it_killed(world: World) -> None:
    """Any user can write into a lease's file: a process counts as ours by the marker in its own environment."""
    with sleeper() as innocent:
        leave_lease(world, "ef" * 16, pgid=os.getpgid(innocent.pid))
        hold = world.hold()
        await hold.take()
        assert innocent.poll() is None
        hold.close()


async def test_what_cannot_be_stopped_ends_the_study(world: World) -> None:
    leave_lease(world, "12" * 16)

    def stuck(_: ServerIdentity) -> ReapReport:
        return ReapReport(found=(), killed=1, remaining=(99,), seconds=20.0)

    with pytest.raises(NodeBusy, match="process 99"):
        await world.hold(stop=stuck).take()
    fresh = world.hold(limit_s=0.0)
    await fresh.take()  # the failed one gave everything back
    fresh.close()


async def test_strangers_beside_a_running_server_are_told_from_its_own(world: World) -> None:
    guard = GpuGuard(NvmlProbe(world.nvml), clock=lambda: world.now_s, sleep=world.sleep)
    world.nvml.pids[0] = {10}
    await guard.wait_free((0, 1), 0.0)
    world.nvml.pids = {0: {10, 20}, 1: {21, 99}, 2: set(), 3: set()}
    assert [(gpu.index, gpu.pids) for gpu in guard.strangers((0, 1), {20, 21})] == [(1, (99,))]
    # Another namespace's numbers: none of ours is among them, so nothing can be said.
    assert guard.strangers((0, 1), {1, 2}) == ()


def test_who_is_on_other_gpus_of_the_node_is_told_from_this_tuners_own() -> None:
    gpus = tuple(ProbedGpu(index=k, name="H200", uuid=f"GPU-{k}", memory_bytes=2**37) for k in range(4))
    probe = FakeGpuProbe(gpus=gpus, pids={0: (20,), 1: (21,), 2: (30, 99), 3: (31,)})
    guard = GpuGuard(probe)
    found = guard.neighbours((0, 1), own={20, 21}, tuner={20, 21, 30, 31})
    assert [(gpu.index, gpu.pids) for gpu in found] == [(2, (99,))]
    assert guard.neighbours((0, 1), own={1, 2}, tuner={1, 2}) == ()  # another namespace's numbers
    probe.pids[2] = (30,)
    assert guard.neighbours((0, 1), own={20, 21}, tuner={20, 21, 30, 31}) == ()


async def test_a_study_without_gpus_holds_nothing() -> None:
    hold = NodeHold()
    await hold.take()
    await hold.prove_free(())
    assert hold.neighbours() == hold.descriptors((0,)) == ()
    hold.close()


def leave_lease(world: World, marker: str, *, pgid: int | None = None, baseline_bytes: int | None = None) -> None:
    """The lease of GPU 0 as a tuner leaves it that was killed while its server ran."""
    before = NodeLeases(world.folder, this_process("killed")).take(gpu_resource(GPUS[0]))
    assert before is not None
    before.server_started(marker, pgid)
    if baseline_bytes is not None:
        before.seen_free(baseline_bytes)
    os.close(before.descriptor)
