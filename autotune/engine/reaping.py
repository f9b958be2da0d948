"""Stops what an earlier tuner left, from its stored identity alone.

Needed only when both the tuner and the keeper were killed with -9: a keeper that lives stops everything by itself. A
process counts as ours by proof, never by its name: the keeper's pid with its start time, the marker in its environment,
membership in the server's process group while another member carries the marker, or descent from such a process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from autotune.engine.base import ServerIdentity
from autotune.engine.marker import marker_of
from autotune.engine.private_folders import remove_private_folder
from autotune.engine.processes import TRACKER_S, ProcStat, descendants, is_tracker, signal_exact, snapshot

POLL_S = 0.05
KILL_DEADLINE_S = 10.0
GRACE_S = 10.0
MOST_GRACE_S = 600.0
"""That a study can ask for; a stored one that is longer, negative or no number was never asked for."""
LOOK_S = 1.0
"""A look counts as so much time at most: who stood still (a paused machine) asked and killed nobody meanwhile."""
START_TOLERANCE_S = 0.05
"""psutil derives start times from clock ticks (10 ms) and the boot time."""


class Proof(StrEnum):
    """Why a process is known to be ours."""

    IDENTITY = "pid and start time"
    MARKER = "marker in its environment"
    GROUP = "process group of marked processes"
    DESCENT = "descends from a proven process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A process that an earlier tuner left; `name` is for the report only."""

    pid: int
    name: str
    proof: Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapReport:
    """What was found and what became of it; `remaining` pids survived KILL until the deadline."""

    found: tuple[Found, ...]
    killed: int
    remaining: tuple[int, ...]
    seconds: float


def reap(
    identity: ServerIdentity,
    *,
    grace_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ReapReport:
    """Find and stop what is left of `identity`: TERM, wait `grace_s`, KILL; then its private folder goes.

    Nothing left is fine.

    Args:
        grace_s: None for what the server was to have; GRACE_S where that can be no grace.

    Blocks for `grace_s` + KILL_DEADLINE_S seconds at most, those in which it stood still not counted; call it from a
    thread inside an event loop.
    """
    grace_s = identity.grace_s if grace_s is None else grace_s
    if not 0 <= grace_s <= MOST_GRACE_S:  # NaN is neither
        grace_s = GRACE_S
    begun = looked = clock()
    elapsed = 0.0
    known: dict[tuple[int, int], Found] = {}
    asked: set[tuple[int, int]] = set()
    killed: set[tuple[int, int]] = set()
    while True:
        alive = _alive(identity, known)
        now = clock()
        elapsed, looked = elapsed + min(now - looked, LOOK_S), now
        if not alive or elapsed > grace_s + KILL_DEADLINE_S:
            break
        for key, process in alive.items():
            if elapsed >= grace_s:
                if elapsed < grace_s + TRACKER_S and is_tracker(process.pid):
                    continue
                killed.add(key)
                signal_exact(process, signal.SIGKILL)
            elif key not in asked:
                asked.add(key)
                signal_exact(process, signal.SIGTERM)
        sleep(POLL_S)
    if not alive:
        remove_private_folder(identity.marker, os.environ, identity.folder)
    return ReapReport(
        found=tuple(known.values()),
        killed=len(killed),
        remaining=tuple(sorted(pid for pid, _ in alive)),
        seconds=clock() - begun,
    )


def _alive(identity: ServerIdentity, known: dict[tuple[int, int], Found]) -> dict[tuple[int, int], ProcStat]:
    """Live processes proven to be ours, now or in an earlier look; new ones are added to `known`."""
    processes = {pid: stat for pid, stat in snapshot().items() if not stat.zombie and pid != os.getpid()}
    for pid, proof in prove(identity, processes, carries=_carries_marker, started=_started).items():
        key = (pid, processes[pid].started_ticks)
        if key not in known:
            known[key] = Found(pid=pid, name=_name(pid), proof=proof)
    return {(pid, stat.started_ticks): stat for pid, stat in processes.items() if (pid, stat.started_ticks) in known}


def prove(
    identity: ServerIdentity,
    processes: Mapping[int, ProcStat],
    *,
    carries: Callable[[int, str], bool],
    started: Callable[[int], float | None],
) -> dict[int, Proof]:
    """Which of `processes` are ours, each with its proof.

    Args:
        carries: whether the environment of a pid holds the marker.
        started: start time of a pid, seconds since the epoch; None when it is gone.
    """
    proofs: dict[int, Proof] = {}
    for pid in processes:
        if carries(pid, identity.marker):
            proofs[pid] = Proof.MARKER
    keeper = processes.get(identity.pid)
    began = started(identity.pid) if keeper else None
    if began is not None and abs(began - identity.started) <= START_TOLERANCE_S:
        proofs.setdefault(identity.pid, Proof.IDENTITY)
    if identity.pgid is not None:
        members = [pid for pid, stat in processes.items() if stat.pgid == identity.pgid]
        if any(proofs.get(pid) is Proof.MARKER for pid in members):
            for pid in members:
                proofs.setdefault(pid, Proof.GROUP)
    for root in tuple(proofs):
        for child in descendants(root, dict(processes)):
            proofs.setdefault(child.pid, Proof.DESCENT)
    return proofs


def marked(marker: str, pgid: int | None = None) -> ServerIdentity:
    """What can be told of a server of which only the marker is known: no pid is believed that others may have written.

    A process group counts only while a member carries the marker (`prove`).
    """
    return ServerIdentity(pid=0, started=0.0, pgid=pgid, marker=marker)


def abandoned_marker(pid: int) -> str | None:
    """The marker of a process that a tuner started, and nobody looks after any more; None for any other process.

    A keeper that lives stops its server by itself when its tuner ends, so what it still has is not abandoned.
    """
    marker = marker_of(pid)
    if marker is None:
        return None
    kept = any(_is_keeper(one) and marker_of(one) == marker for one in snapshot())
    return None if kept else marker


def _is_keeper(pid: int) -> bool:
    try:
        return any(Path(word).name == "keeper.py" for word in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def _carries_marker(pid: int, marker: str) -> bool:
    return bool(marker) and marker_of(pid) == marker


def _started(pid: int) -> float | None:
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "?"
