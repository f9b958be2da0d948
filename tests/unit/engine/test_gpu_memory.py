"""GPU memory proof on a virtual clock and a fake probe."""

from __future__ import annotations

from collections.abc import Callable

from autotune.engine.gpu_memory import GpuGuard, gpus_busy
from autotune.node.probe import FakeGpuProbe
from autotune.records import FailureClass
from autotune.units import GIB, MIB


class VirtualTime:
    """A clock that only sleeping moves; `then` runs once at its time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.at: dict[float, Callable[[], None]] = {}

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for due in [due for due in self.at if due <= self.now_s]:
            self.at.pop(due)()


def guard(probe: FakeGpuProbe, time: VirtualTime) -> GpuGuard:
    return GpuGuard(probe, tolerance_bytes=512 * MIB, clock=time.clock, sleep=time.sleep)


async def test_free_at_first_sight_takes_no_time() -> None:
    time = VirtualTime()
    assert await guard(FakeGpuProbe(used_bytes={0: 600 * MIB}), time).wait_free((0,), 60.0) == ()
    assert time.now_s == 0.0


async def test_comes_back_within_the_tolerance_of_its_baseline() -> None:
    time, probe = VirtualTime(), FakeGpuProbe(used_bytes={0: 600 * MIB, 1: 0})
    watched = guard(probe, time)
    await watched.wait_free((0, 1), 60.0)
    probe.used_bytes |= {0: 70 * GIB, 1: 70 * GIB}
    time.at = {
        0.5: lambda: probe.used_bytes.__setitem__(1, 512 * MIB),
        3.0: lambda: probe.used_bytes.__setitem__(0, (600 + 512) * MIB),
    }
    assert await watched.wait_free((0, 1), 60.0) == ()
    assert time.now_s == 3.0


async def test_does_not_come_back() -> None:
    time, probe = VirtualTime(), FakeGpuProbe(used_bytes={0: 0})
    watched = guard(probe, time)
    await watched.wait_free((0,), 60.0)
    probe.used_bytes[0] = 512 * MIB + 1
    (held,) = await watched.wait_free((0,), 10.0)
    assert time.now_s == 10.0
    assert (held.index, held.used_bytes, held.baseline_bytes, held.holders) == (0, 512 * MIB + 1, 0, ())
    failure = gpus_busy([held])
    assert failure.kind is FailureClass.GPU_BUSY
    assert failure.facts == (("gpu_0_used_bytes", 512 * MIB + 1), ("gpu_0_baseline_bytes", 0))


async def test_a_stranger_at_first_sight_sets_no_baseline() -> None:
    time, probe = VirtualTime(), FakeGpuProbe(used_bytes={0: 8 * GIB}, pids={0: (2**22 - 7,)})
    watched = guard(probe, time)
    (held,) = await watched.wait_free((0,), 0.0)
    assert held.baseline_bytes is None
    assert held.holders == (f"{2**22 - 7} (not visible from here)",)
    probe.used_bytes[0], probe.pids[0] = 10 * MIB, ()
    assert await watched.wait_free((0,), 0.0) == ()


async def test_a_small_neighbour_is_no_reason_to_wait() -> None:
    time, probe = VirtualTime(), FakeGpuProbe(used_bytes={0: 300 * MIB}, pids={0: (1,)})
    assert await guard(probe, time).wait_free((0,), 0.0) == ()


async def test_nothing_to_watch_without_a_probe_or_gpus() -> None:
    assert await GpuGuard(None).wait_free((0, 1), 60.0) == ()
    assert await GpuGuard(FakeGpuProbe(used_bytes={0: GIB})).wait_free((), 60.0) == ()
