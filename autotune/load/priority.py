"""The load client goes first on its core while a level runs.

A server that spins on every core (OpenMP's threads of vLLM on a CPU, busy pollers beside a GPU) makes whoever else
wakes up wait for the end of a time slice: 4 ms at the median of the late ones and tens where much runs. The client
would take that for the server's time. A thread of the real-time class is run within 0.1 ms. It takes no more CPU time
for that: the client sleeps nine tenths of its time, and a client that does not is void (caveats.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOWEST = 1
"""Of the real-time priorities: before all ordinary threads, after everything that is meant to be before those."""


@contextmanager
def ahead_of_others() -> Iterator[bool]:
    """Put the calling thread before ordinary ones, where the system lets it; yields whether it did.

    Linux lets root (CAP_SYS_NICE) and whoever has a limit of real-time priority (`ulimit -r`). What the thread starts
    meanwhile is ordinary.
    """
    before = _raise()
    try:
        yield before is not None
    finally:
        if before is not None:
            with suppress(OSError):
                # The mark stays: only root may take it away, and it does nothing to an ordinary thread.
                os.sched_setscheduler(0, before[0] | os.SCHED_RESET_ON_FORK, before[1])


def _raise() -> tuple[int, os.sched_param] | None:
    """The policy and parameter that were; None where all stays as it is."""
    try:
        policy, parameter = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, os.sched_getparam(0)
        if policy not in (os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE):
            return None  # somebody has chosen already
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(_LOWEST))
    except (AttributeError, OSError):  # not Linux, or not allowed
        return None
    return policy, parameter
