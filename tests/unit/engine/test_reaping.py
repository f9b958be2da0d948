"""Reaping: what a killed tuner and its killed keeper left is found by proof and stopped; a stranger is left alone."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune.engine import reaping
from autotune.engine.base import ServerIdentity
from autotune.engine.processes import ProcStat
from autotune.engine.reaping import Proof, ReapReport, prove, reap

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")

HERE = Path(__file__).parent
CHILD = (sys.executable, "-I", "-S", str(HERE / "child_family.py"))


@pytest.fixture
def left_behind(tmp_path: Path) -> Iterator[Callable[..., ServerIdentity]]:
    """A server whose keeper and tuner were both killed with -9, in this order and at once."""
    tuners: list[subprocess.Popen[str]] = []

    def leave(*words: str) -> ServerIdentity:
        argv = [sys.executable, str(HERE / "tuner_side.py"), "running", str(tmp_path / "log"), *CHILD, *words]
        tuner = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        tuners.append(tuner)
        assert tuner.stdout is not None
        identity = ServerIdentity(**json.loads(tuner.stdout.readline()))
        os.kill(identity.pid, signal.SIGKILL)
        tuner.kill()
        tuner.wait()
        return identity

    yield leave
    for tuner in tuners:
        assert tuner.stdout is not None
        tuner.stdout.close()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process with the very same command line, started by somebody else."""
    process = subprocess.Popen([*CHILD], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_everything_left_is_found_and_stopped(
    left_behind: Callable[..., ServerIdentity],
    stranger: subprocess.Popen[bytes],
    nothing_left: Callable[..., bool],
) -> None:
    identity = left_behind(
        "ignore-term", "worker=same", "worker=new", "worker=orphan", "worker=bare", "worker=bare-new"
    )
    report = reap(identity, grace_s=0.2)
    proven = sorted(found.proof for found in report.found if found.pid != identity.pid)
    assert proven == sorted([*[Proof.MARKER] * 4, Proof.GROUP, Proof.DESCENT])
    assert report.killed >= 6
    assert report.remaining == ()
    assert nothing_left(identity.marker, 0.0)
    assert all(
        not psutil.pid_exists(found.pid) or psutil.Process(found.pid).status() == "zombie" for found in report.found
    )
    assert stranger.poll() is None


@pytest.mark.parametrize("after_s", [0.0, 1.0])
def test_who_stood_still_kills_all_the_same(
    left_behind: Callable[..., ServerIdentity], monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    """Before anybody is killed, and while the resource tracker is spared, which the only one left is here."""
    monkeypatch.setattr(reaping, "is_tracker", lambda _pid: True)
    monkeypatch.setattr(reaping, "TRACKER_S", 0.2)
    identity, now_s = left_behind("ignore-term"), [0.0]

    def stand_still(seconds: float) -> None:
        now_s[0] += 1000.0 if after_s <= now_s[0] < 1000.0 else seconds
        time.sleep(seconds)

    report = reap(identity, grace_s=1.0, clock=lambda: now_s[0], sleep=stand_still)
    assert (report.killed, report.remaining) == (1, ())


def hurried(identity: ServerIdentity) -> ReapReport:
    """Reaped by a clock that goes half a second forward at each look."""
    now_s = [0.0]

    def hurry(seconds: float) -> None:
        now_s[0] += 0.5
        time.sleep(min(seconds, 0.01))

    report = reap(identity, clock=lambda: now_s[0], sleep=hurry)
    assert (report.killed, report.remaining) == (1, ())
    return report


@pytest.mark.parametrize("grace_s", [0.0, 4.0, 40.0])
def test_a_deaf_server_has_the_grace_of_its_own_study(
    left_behind: Callable[..., ServerIdentity], grace_s: float
) -> None:
    assert hurried(replace(left_behind("ignore-term"), grace_s=grace_s)).seconds >= grace_s


@pytest.mark.parametrize("grace_s", [math.nan, math.inf, -math.inf, -1e9, 1e300])
def test_a_stored_grace_that_can_be_none_is_not_believed(
    left_behind: Callable[..., ServerIdentity], grace_s: float
) -> None:
    report = hurried(replace(left_behind("ignore-term"), grace_s=grace_s))
    assert reaping.GRACE_S <= report.seconds < reaping.GRACE_S + reaping.KILL_DEADLINE_S


def test_a_server_that_obeys_term_needs_no_kill(left_behind: Callable[..., ServerIdentity]) -> None:
    identity = left_behind()
    report = reap(identity, grace_s=600.0)  # the killed keeper's last deed: the server was sent TERM by the kernel
    assert (report.killed, report.remaining) == (0, ())
    assert report.seconds < 120.0


def test_nothing_left_is_fine(stranger: subprocess.Popen[bytes]) -> None:
    """A reused pid, a reused group id, an unknown marker: nothing is proven, nobody is touched."""
    started = psutil.Process(stranger.pid).create_time()
    for identity in (
        ServerIdentity(pid=stranger.pid, started=started - 5.0, pgid=stranger.pid, marker="never-used"),
        ServerIdentity(pid=2**22 - 3, started=0.0, pgid=None, marker=""),
    ):
        report = reap(identity, grace_s=0.1)
        assert report.found == ()
        assert report.killed == 0
    time.sleep(0.1)
    assert stranger.poll() is None


def test_a_living_keeper_is_told_to_stop(tmp_path: Path, nothing_left: Callable[..., bool]) -> None:
    argv = [sys.executable, str(HERE / "tuner_side.py"), "running", str(tmp_path / "log"), *CHILD, "worker=new"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as tuner:
        assert tuner.stdout is not None
        identity = ServerIdentity(**json.loads(tuner.stdout.readline()))
        report = reap(identity, grace_s=600.0)
        tuner.kill()
    assert {found.pid for found in report.found} >= {identity.pid, identity.pgid}
    assert nothing_left(identity.marker, 0.0)
    assert report.seconds < 120.0


def stat(pid: int, *, ppid: int = 1, pgid: int | None = None) -> ProcStat:
    return ProcStat(pid=pid, ppid=ppid, pgid=pgid or pid, state="S", started_ticks=pid)


def proofs(
    identity: ServerIdentity, processes: list[ProcStat], *, marked: set[int] = frozenset(), started: float | None = None
) -> dict[int, Proof]:  # fmt: skip
    return prove(
        identity,
        {process.pid: process for process in processes},
        carries=lambda pid, marker: pid in marked and marker == "m",
        started=lambda pid: started,
    )


IDENTITY = ServerIdentity(pid=10, started=1000.0, pgid=20, marker="m")


def test_pid_needs_its_start_time() -> None:
    assert proofs(IDENTITY, [stat(10)], started=1000.01) == {10: Proof.IDENTITY}
    assert proofs(IDENTITY, [stat(10)], started=1000.5) == {}
    assert proofs(IDENTITY, [stat(10)], started=None) == {}


def test_a_group_needs_a_marked_member() -> None:
    group = [stat(20), stat(21, pgid=20), stat(30)]
    assert proofs(IDENTITY, group) == {}
    assert proofs(IDENTITY, group, marked={21}) == {21: Proof.MARKER, 20: Proof.GROUP}
    assert proofs(dataclasses.replace(IDENTITY, pgid=None), group, marked={21}) == {21: Proof.MARKER}


def test_a_marked_process_elsewhere_proves_no_group() -> None:
    assert proofs(IDENTITY, [stat(20), stat(40)], marked={40}) == {40: Proof.MARKER}


def test_children_of_the_proven_are_proven() -> None:
    family = [stat(20), stat(21, ppid=20, pgid=21), stat(22, ppid=21, pgid=22), stat(50)]
    assert proofs(IDENTITY, family, marked={20}) == {20: Proof.MARKER, 21: Proof.DESCENT, 22: Proof.DESCENT}
