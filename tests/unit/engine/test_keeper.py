"""The keeper: what it starts it stops, whoever dies; nobody else is touched."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine import keeper as keeper_module
from autotune.engine.base import ServerIdentity
from autotune.engine.keeper_client import Keeper, KeeperLost, ServerNotStarted, ServerOrder
from autotune.engine.processes import TRACKER_S, ProcStat, descendants, parse_stat

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="subreaper and /proc are Linux's")

HERE = Path(__file__).parent
LONG_S = 600.0
"""A grace that no stop may use up: a test that needs it hangs."""

HANG_S = 120.0
CHILD = (sys.executable, "-I", "-S", str(HERE / "child_family.py"))
Alive = Callable[[int], bool]
Carrying = Callable[[str], list[int]]
NothingLeft = Callable[..., bool]


async def started(tmp_path: Path, *words: str, **more: object) -> tuple[Keeper, int]:
    """A keeper whose child and relatives are all up, and the child's pid."""
    keeper = await Keeper.spawn()
    up = tmp_path / "up"
    order = ServerOrder(argv=[*CHILD, *words, f"say={up}"], log=tmp_path / "log", env={}, grace_s=0.3)
    await keeper.order(order)
    while not up.exists():
        await asyncio.sleep(0.01)
    return keeper, int(up.read_text())


async def test_stop_by_term_needs_no_kill(tmp_path: Path, nothing_left: NothingLeft) -> None:
    keeper, pid = await started(tmp_path)
    assert keeper.identity.pgid == pid
    report = await asyncio.wait_for(keeper.stop(LONG_S), HANG_S)
    assert (report.status, report.killed, report.orphans, report.remaining) == (-signal.SIGTERM, 0, 0, ())
    assert await keeper.wait_exit() == -signal.SIGTERM
    assert nothing_left(keeper.identity.marker, 0.0)


async def test_the_server_runs_on_the_cores_that_it_was_given(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    keeper = await Keeper.spawn()
    up = tmp_path / "up"
    order = ServerOrder(argv=[*CHILD, f"say={up}"], log=tmp_path / "log", env={}, grace_s=0.3, cores=mine[:1])
    await keeper.order(order)
    while not up.exists():
        await asyncio.sleep(0.01)
    assert os.sched_getaffinity(int(up.read_text())) == set(mine[:1])
    assert sorted(os.sched_getaffinity(0)) == mine
    await keeper.stop(LONG_S)


async def test_what_ignores_term_is_killed_in_every_session(
    tmp_path: Path, carrying: Carrying, nothing_left: NothingLeft
) -> None:
    keeper, _ = await started(tmp_path, "ignore-term", "worker=same", "worker=new", "worker=orphan")
    assert len(carrying(keeper.identity.marker)) == 5  # keeper, child, three workers
    begun = time.monotonic()
    report = await keeper.stop(0.3)
    assert 0.3 <= time.monotonic() - begun < HANG_S
    assert report.killed == 4
    assert nothing_left(keeper.identity.marker, 0.0)


async def test_a_server_that_ends_by_itself_takes_its_orphans_along(tmp_path: Path, nothing_left: NothingLeft) -> None:
    keeper, pid = await started(tmp_path, "worker=same", "worker=new")
    os.kill(pid, signal.SIGKILL)
    assert await keeper.wait_exit() == -signal.SIGKILL
    assert nothing_left(keeper.identity.marker)  # without being told
    report = await keeper.stop(LONG_S)
    assert (report.status, report.killed, report.orphans) == (-signal.SIGKILL, 2, 2)


async def test_exit_status_is_the_servers(tmp_path: Path) -> None:
    keeper, _ = await started(tmp_path, "exit=7", "sleep=0.05")
    assert await keeper.wait_exit() == 7
    assert keeper.exited
    assert (await keeper.stop(1.0)).status == 7


async def test_a_second_stop_may_only_hurry(tmp_path: Path) -> None:
    keeper, _ = await started(tmp_path, "ignore-term")
    slow = asyncio.create_task(keeper.stop(LONG_S))
    await asyncio.sleep(0.1)
    hurried, first = await asyncio.wait_for(asyncio.gather(keeper.stop(0.0), slow), HANG_S)
    assert hurried.killed == first.killed == 1


async def test_environment_log_and_working_directory(tmp_path: Path) -> None:
    assert {"PATH", "HOME"} <= os.environ.keys()
    keeper = await Keeper.spawn()
    code = (
        "import os,sys; print(sorted(k for k in os.environ if k in sys.argv), os.getcwd(), flush=True)\n"
        "print('err', file=sys.stderr)"
    )
    names = ["PATH", "HOME", "ADDED", "AUTOTUNE_MARKER", "SPT_NOENV"]
    order = ServerOrder(
        argv=[sys.executable, "-I", "-S", "-c", code, *names],
        log=tmp_path / "log",
        env={"ADDED": "1"},
        unset=["HOME"],
        cwd=tmp_path,
    )
    await keeper.order(order)
    assert await keeper.wait_exit() == 0
    await keeper.stop(1.0)
    seen = (tmp_path / "log").read_text()
    assert seen.splitlines() == [f"['ADDED', 'AUTOTUNE_MARKER', 'PATH', 'SPT_NOENV'] {tmp_path}", "err"]


@pytest.mark.parametrize(
    ("argv", "errno"),
    [(["/nonexistent/vllm"], 2), (["/etc"], 13), (["nul\0byte"], None)],
)
async def test_a_command_that_cannot_start(
    tmp_path: Path, nothing_left: NothingLeft, argv: list[str], errno: int | None
) -> None:
    keeper = await Keeper.spawn()
    with pytest.raises(ServerNotStarted) as caught:
        await keeper.order(ServerOrder(argv=argv, log=tmp_path / "log", env={}))
    assert caught.value.number == errno
    assert caught.value.text
    assert nothing_left(keeper.identity.marker)


async def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    keeper = await Keeper.spawn()
    with pytest.raises(ServerNotStarted, match="No such file or directory") as caught:
        await keeper.order(ServerOrder(argv=list(CHILD), log=tmp_path / "no" / "log", env={}))
    assert "no/log" in caught.value.text


async def test_a_terminals_interrupt_does_not_reach_the_server(tmp_path: Path, alive: Alive) -> None:
    keeper, pid = await started(tmp_path)
    assert os.getsid(keeper.identity.pid) == keeper.identity.pid
    assert os.getsid(pid) == pid
    for deaf in (signal.SIGINT, signal.SIGHUP):
        os.kill(keeper.identity.pid, deaf)
    await asyncio.sleep(0.2)
    assert alive(pid)
    assert alive(keeper.identity.pid)
    await keeper.stop(1.0)


async def test_the_server_is_not_deaf_itself(tmp_path: Path) -> None:
    keeper, pid = await started(tmp_path)
    os.kill(pid, signal.SIGHUP)  # an ignored signal would have been inherited through exec
    assert await keeper.wait_exit() == -signal.SIGHUP
    await keeper.stop(1.0)


async def test_term_to_the_keeper_is_a_stop(tmp_path: Path, nothing_left: NothingLeft) -> None:
    keeper, _ = await started(tmp_path, "ignore-term", "worker=new")
    os.kill(keeper.identity.pid, signal.SIGTERM)
    assert nothing_left(keeper.identity.marker)
    assert (await keeper.stop(1.0)).killed == 2


async def test_a_killed_keeper_is_noticed_and_its_family_reaped(tmp_path: Path, nothing_left: NothingLeft) -> None:
    keeper, _ = await started(tmp_path, "ignore-term", "worker=new", "worker=same")
    os.kill(keeper.identity.pid, signal.SIGKILL)
    assert await keeper.wait_exit() is None
    report = await keeper.stop(1.0)
    assert (report.status, report.killed, report.remaining) == (None, 3, ())
    assert nothing_left(keeper.identity.marker, 0.0)


async def test_a_keeper_killed_before_its_order(tmp_path: Path) -> None:
    keeper = await Keeper.spawn()
    os.kill(keeper.identity.pid, signal.SIGKILL)
    with pytest.raises(KeeperLost):
        await keeper.order(ServerOrder(argv=list(CHILD), log=tmp_path / "log", env={}))


SHARING = (
    "import os, signal, sys, time\n"
    "from multiprocessing.shared_memory import SharedMemory\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "memory = SharedMemory(create=True, size=4096)\n"
    "print(memory.name, flush=True); time.sleep(600)\n"
)


async def _shared(tmp_path: Path) -> tuple[Keeper, Path]:
    keeper = await Keeper.spawn()
    argv = [sys.executable, "-c", SHARING]
    await keeper.order(ServerOrder(argv=argv, log=tmp_path / "log", env={}, grace_s=0.1))
    while not (name := (tmp_path / "log").read_text().strip()):
        await asyncio.sleep(0.01)
    return keeper, Path("/dev/shm") / name


async def test_shared_memory_of_a_server_that_had_to_be_killed_is_given_back(tmp_path: Path) -> None:
    keeper, memory = await _shared(tmp_path)
    assert memory.exists()
    assert (await keeper.stop(0.1)).killed == 1  # what tracks the memory went by itself
    assert not memory.exists()


async def test_shared_memory_is_given_back_though_the_keeper_was_killed(
    tmp_path: Path, nothing_left: NothingLeft
) -> None:
    keeper, memory = await _shared(tmp_path)
    os.kill(keeper.identity.pid, signal.SIGKILL)
    assert (await keeper.stop(0.1)).remaining == ()
    assert nothing_left(keeper.identity.marker, 0.0)
    assert not memory.exists()


def test_a_tracker_is_spared_as_long_by_a_keeper_that_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(keeper_module, "is_tracker", lambda pid: pid == 2)
    monkeypatch.setattr(keeper_module, "signal_exact", lambda process, _number: killed.append(process.pid))
    server, tracker = (ProcStat(pid=pid, ppid=1, pgid=1, state="S", started_ticks=0) for pid in (1, 2))
    keeper = keeper_module._Keeper()
    keeper._kill_at = 0.0
    keeper._kill([server, tracker], 1000.0)
    keeper._kill([tracker], 1000.0 + TRACKER_S - 0.1)
    assert killed == [1]
    keeper._kill([tracker], 1000.0 + TRACKER_S)
    assert killed == [1, 2]
    os.close(keeper._wake)
    os.close(keeper._wake_in)


@pytest.fixture
def tuner(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], ServerIdentity]]]:
    """Starts tuner_side.py and waits until it is in the phase."""
    running: list[subprocess.Popen[str]] = []

    def start(phase: str, *words: str) -> tuple[subprocess.Popen[str], ServerIdentity]:
        argv = [sys.executable, str(HERE / "tuner_side.py"), phase, str(tmp_path / "log"), *CHILD, *words]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        return process, ServerIdentity(**json.loads(process.stdout.readline()))

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("phase", ["spawned", "running", "stopping"])
def test_killing_the_tuner_leaves_nothing(
    phase: str,
    tuner: Callable[..., tuple[subprocess.Popen[str], ServerIdentity]],
    carrying: Carrying,
    nothing_left: NothingLeft,
) -> None:
    process, identity = tuner(phase, "ignore-term", "worker=same", "worker=new", "worker=orphan")
    assert len(carrying(identity.marker)) == (1 if phase == "spawned" else 5)
    process.kill()
    process.wait()
    assert nothing_left(identity.marker)


def test_a_forked_copy_of_the_tuner_does_not_hide_its_death(tmp_path: Path, nothing_left: NothingLeft) -> None:
    """A worker of the tuner (multiprocessing forks) holds the keeper's stdin open: the parent's pid tells."""
    marker = f"forked-copy-{uuid.uuid4().hex}"
    code = (
        "import os, subprocess, sys, time\n"
        "keeper = subprocess.Popen([sys.executable, '-I', '-S', sys.argv[1]], stdin=subprocess.PIPE,\n"
        "    stdout=subprocess.PIPE, start_new_session=True)\n"
        "order = sys.stdin.readline().replace('OWNER', str(os.getpid()))\n"
        "keeper.stdin.write(order.encode()); keeper.stdin.flush(); keeper.stdout.readline()\n"
        "child = os.fork()\n"
        "if child == 0:\n    time.sleep(600)\n"
        "print(child, keeper.pid, flush=True); time.sleep(600)\n"
    )
    tuner = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, keeper_module.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "AUTOTUNE_MARKER": marker},
    )
    order = {
        "argv": list(CHILD), "env": {}, "unset": [], "cwd": None, "log": str(tmp_path / "log"), "grace_s": 0.3,
        "owner": "OWNER", "cores": [], "folder": None,
    }  # fmt: skip
    assert tuner.stdin is not None
    assert tuner.stdout is not None
    tuner.stdin.write(json.dumps(order).replace('"OWNER"', "OWNER") + "\n")
    tuner.stdin.flush()
    copy = int(tuner.stdout.readline().split()[0])
    assert len(_marked(marker)) == 4  # tuner and copy, keeper and server
    tuner.kill()
    tuner.wait()
    try:
        deadline = time.monotonic() + HANG_S
        while len(_marked(marker)) > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _marked(marker) == [copy]
    finally:
        os.kill(copy, signal.SIGKILL)
        tuner.stdin.close()
        tuner.stdout.close()
    assert nothing_left(marker)


def _marked(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if f"AUTOTUNE_MARKER={marker}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def test_stat_line_with_a_hostile_name() -> None:
    line = (
        b"4242 (a) R 1 (b) c) S 17 4240 4239 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000 2 18446744073709551615"
    )
    assert parse_stat(line) == ProcStat(pid=4242, ppid=17, pgid=4240, state="S", started_ticks=987654)


@given(st.lists(st.integers(min_value=0, max_value=30), max_size=30))
def test_descendants_agree_with_walking_up(parents: list[int]) -> None:
    """Oracle: a process descends from the root when following its parents upwards reaches the root."""
    processes = {
        pid: ProcStat(pid=pid, ppid=ppid, pgid=pid, state="S", started_ticks=0)
        for pid, ppid in enumerate(parents, start=1)
    }

    def reaches_root(pid: int) -> bool:
        seen = set()
        while pid in processes and pid not in seen:
            seen.add(pid)
            pid = processes[pid].ppid
            if pid == 1:
                return True
        return False

    found = {stat.pid for stat in descendants(1, processes)}
    assert found == {pid for pid in processes if pid != 1 and reaches_root(pid)}
