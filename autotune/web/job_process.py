"""The process of a job, as the system shows it: found again, asked to end, waited for."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil

from autotune.engine.redaction import redact
from autotune.review.stopping import is_alive
from autotune.web.job import Job

MARKER = "AUTOTUNE_JOB"
LOG_TAIL_BYTES = 16 * 1024
BEGUN = "--- begun at"
"""In the log of a job, before what each of its processes prints."""

POLL_S = 1.0
"""How often the end of a process that is none of our children is looked for."""


def last_word(path: Path) -> str | None:
    """The line by which the command line says why it failed; None where it said none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", "replace").rpartition(BEGUN)[2]
    except OSError:
        return None
    lines = text.splitlines()
    said = [line.removeprefix("autotune: ") for line in lines if line.startswith("autotune: ")]
    return redact(said[-1])[:500] if said else None


def process_of(job: Job, program: tuple[str, ...]) -> int | None:
    """The job's own process. Servers that it launched have its marker as well, but not its words."""
    words = [*program, *job.words]
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER) == job.marker and process.cmdline()[-len(words) :] == words:
                return process.pid
        except (psutil.Error, OSError):
            continue  # of another user, or gone
    return None


def started_at(pid: int) -> float | None:
    """When a process began, seconds since the epoch; None once it is gone."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


async def gone(pid: int, started: float) -> int | None:
    """The end of a process that is none of our children, whose exit status nobody gets."""
    while is_alive(pid, started):  # noqa: ASYNC110 - nobody tells of the end of a stranger's process
        await asyncio.sleep(POLL_S)
    return None


def ask_to_end(job: Job) -> None:
    """As Ctrl-C; nothing where the process is gone, or is another one by now."""
    if job.pid is not None and job.pid_started is not None and is_alive(job.pid, job.pid_started):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(job.pid, signal.SIGTERM)
