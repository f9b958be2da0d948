"""The processes of this machine as /proc tells them, and a signal that reaches the very one it is meant for.

Standard library only: the keeper (keeper.py) imports it without its site-packages.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

TRACKER_S = 5.0
"""How much longer than those it works for a resource tracker lives, see `is_tracker`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcStat:
    """One line of /proc/PID/stat (proc(5)); `started_ticks` since boot tells a reused pid from the old one."""

    pid: int
    ppid: int
    pgid: int
    state: str
    started_ticks: int

    @property
    def zombie(self) -> bool:
        """Dead and holding nothing; only its parent has not asked yet."""
        return self.state in "ZX"


def parse_stat(text: bytes) -> ProcStat:
    """The fields needed of a stat line. The command name may itself hold spaces and brackets."""
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    return ProcStat(
        pid=int(head.split(b" ", 1)[0]),
        ppid=int(fields[1]),
        pgid=int(fields[2]),
        state=fields[0].decode("ascii", "replace"),
        started_ticks=int(fields[19]),
    )


def read_stat(pid: int) -> ProcStat | None:
    """The process now; None when it is gone (or there is no /proc)."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
    except OSError:
        return None


def snapshot() -> dict[int, ProcStat]:
    """Every process now, by pid; empty without /proc."""
    try:
        names = [entry.name for entry in os.scandir("/proc")]
    except OSError:
        return {}
    found = (read_stat(int(name)) for name in names if name.isdigit())
    return {stat.pid: stat for stat in found if stat is not None}


def descendants(root: int, processes: dict[int, ProcStat]) -> list[ProcStat]:
    """Everything below `root`, root not included, in no particular order."""
    children: dict[int, list[ProcStat]] = {}
    for stat in processes.values():
        children.setdefault(stat.ppid, []).append(stat)
    found: list[ProcStat] = []
    pending, seen = [root], {root}
    while pending:
        for child in children.get(pending.pop(), ()):
            if child.pid not in seen:
                seen.add(child.pid)
                found.append(child)
                pending.append(child.pid)
    return found


def signal_exact(process: ProcStat, signum: int) -> bool:
    """Signal this very process; False when it is gone, another one now, or not ours to signal.

    The pidfd pins the process before its start time is compared, so a pid reused in between is never hit.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = read_stat(process.pid)
        if now is None or now.started_ticks != process.started_ticks:
            return False
        signal.pidfd_send_signal(handle, signum)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def is_tracker(pid: int) -> bool:
    """Whether a process is the resource tracker of Python's multiprocessing.

    It alone knows which shared memory its family has (vLLM's queues take 160 MB of /dev/shm each), takes that away when
    the family is gone, and goes too: killed with the others, it would leave all of that until the machine restarts.
    """
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
