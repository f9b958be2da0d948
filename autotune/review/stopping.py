"""Telling a running tuner to end, as Ctrl-C would."""

from __future__ import annotations

import os
import signal
import time

import psutil

from autotune.errors import StudyBusy
from autotune.store.folder import LockHolder

AGAIN_S = 0.2
"""Two signals that come at once are one."""


def is_alive(pid: int, started: float) -> bool:
    """Whether the pid still is the process that started then, and not a later one with its number."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):  # what is stored may be no pid
        return False


def tell_to_stop(study: str, holder: LockHolder, *, now: bool = False) -> None:
    """Ask the process that holds a study to end; with `now`, without finishing what it measures.

    Raises:
        StudyBusy: it is not on this machine, or belongs to somebody else.
    """
    if not is_alive(holder.pid, holder.started):
        raise StudyBusy(
            f"study {study!r} is held by process {holder.pid}, which is not on this machine or not a tuner",
            hint="Run `autotune stop` on the machine where the study was started.",
        )
    try:
        os.kill(holder.pid, signal.SIGTERM)
        if now:
            time.sleep(AGAIN_S)
            os.kill(holder.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it ended a moment ago
    except PermissionError:
        raise StudyBusy(
            f"study {study!r} is held by process {holder.pid} of another user, which may not be told to stop",
            hint="Run `autotune stop` as the user who started the study.",
        ) from None
