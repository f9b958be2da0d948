"""Jobs: what the service was asked to run on its node, as records and as the file that outlives it. No process here.

```
 queued ──► running ──► finished | failed | stopped
   ▲ │         │ └─stop──► stopping ──► stopped | finished
   │ └─stop──► stopped
   └────── interrupted ◄── the service ended under it
```
"""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.errors import ExitCode, StorageError

FORMAT = 1
MOST_ENDED = 200
"""Jobs that are remembered after their end."""


class JobKind(StrEnum):
    """What a job runs: `autotune study` or `autotune promote`."""

    STUDY = "study"
    PROMOTION = "promotion"


class JobState(StrEnum):
    """Where a job stands; `interrupted` goes on when the service does."""

    QUEUED = "queued"
    RUNNING = "running"
    STOPPING = "stopping"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


ACTIVE = frozenset({JobState.RUNNING, JobState.STOPPING})
OPEN = ACTIVE | {JobState.QUEUED, JobState.INTERRUPTED}
"""Not at their end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job.

    Attributes:
        words: of the command line after `autotune`; never a secret.
        needs_node: launches servers, so it waits until nothing else does.
        marker: in the environment of its process, so that it is found again whatever happened to the service.
        pid, pid_started: of its process; `pid_started` in seconds since the epoch.
        exit_code: None also where the service was not there to see it.
        message: one line on how it ended.
    """

    id: str
    kind: JobKind
    study: str
    words: tuple[str, ...]
    created_at: str
    marker: str
    state: JobState = JobState.QUEUED
    needs_node: bool = True
    started_at: str | None = None
    ended_at: str | None = None
    pid: int | None = None
    pid_started: float | None = None
    exit_code: int | None = None
    message: str | None = None
    trial: int | None = None
    deployment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """All jobs in the order in which they were asked for; a value, changed by making the next one.

    Attributes:
        last: number of the latest job.
    """

    last: int = 0
    jobs: tuple[Job, ...] = ()

    def added(
        self,
        *,
        kind: JobKind,
        study: str,
        words: Sequence[str],
        at: datetime,
        needs_node: bool = True,
        trial: int | None = None,
        deployment: str | None = None,
    ) -> Jobs:
        """With one more, which is the last."""
        job = Job(
            id=f"j-{self.last + 1:06d}",
            kind=kind,
            study=study,
            words=tuple(words),
            created_at=at.isoformat(),
            marker=secrets.token_hex(16),
            needs_node=needs_node,
            trial=trial,
            deployment=deployment,
        )
        return Jobs(last=self.last + 1, jobs=(*self._recent(), job))

    def _recent(self) -> tuple[Job, ...]:
        ended = [job for job in self.jobs if job.state not in OPEN]
        gone = {job.id for job in ended[: max(0, len(ended) - MOST_ENDED)]}
        return tuple(job for job in self.jobs if job.id not in gone)

    def find(self, job_id: str) -> Job | None:
        """The job of that id."""
        return next((job for job in self.jobs if job.id == job_id), None)

    def changed(self, job_id: str, **changes: Any) -> Jobs:
        """With something else of one job."""
        return replace(self, jobs=tuple(replace(job, **changes) if job.id == job_id else job for job in self.jobs))

    def of_study(self, study: str) -> Job | None:
        """The latest job of a study."""
        return next((job for job in reversed(self.jobs) if job.study == study), None)

    def open_for(self, study: str) -> Job | None:
        """A job that runs or will run this study, or a promotion of it."""
        return next((job for job in self.jobs if job.study == study and job.state in OPEN), None)

    def waiting(self) -> tuple[Job, ...]:
        """What is to run, in order: what was interrupted goes on before anything new begins."""
        found = [job for job in self.jobs if job.state in (JobState.INTERRUPTED, JobState.QUEUED)]
        return tuple(sorted(found, key=lambda job: job.state is JobState.QUEUED))

    def running(self) -> Job | None:
        """What has the node."""
        return next((job for job in self.jobs if job.state in ACTIVE and job.needs_node), None)

    def startable(self) -> tuple[Job, ...]:
        """What may begin now: whatever needs no node, and the first of the rest where the node is free."""
        waiting = self.waiting()
        beside = [job for job in waiting if not job.needs_node]
        first = [job for job in waiting if job.needs_node][:1] if self.running() is None else []
        return (*beside, *first)


class Fate(StrEnum):
    """How a process ended."""

    DONE = "done"
    FAILED = "failed"
    ASKED_TO_END = "asked to end"
    LOST = "lost"
    """With the machine, or with whatever killed it before it could say a word."""


def fate_of(exit_code: int) -> Fate:
    """By its exit status, which is negative for a signal."""
    if exit_code == ExitCode.OK:
        return Fate.DONE
    asked = (ExitCode.INTERRUPTED, -signal.SIGTERM, -signal.SIGINT)
    return Fate.ASKED_TO_END if exit_code in asked else Fate.FAILED


def ended(
    job: Job, fate: Fate, *, at: datetime, exit_code: int | None = None, message: str | None = None, closing: bool
) -> dict[str, Any]:
    """What changes of a job whose process has ended.

    Args:
        exit_code: None where nobody saw it.
        closing: the service is ending, so that a job it stopped goes on with the next one.
    """
    gone: dict[str, Any] = {"pid": None, "pid_started": None}
    asked = job.state is JobState.STOPPING
    if not asked and (fate is Fate.LOST or (fate is Fate.ASKED_TO_END and closing)):
        return {**gone, "state": JobState.INTERRUPTED}
    states = {Fate.DONE: JobState.FINISHED, Fate.FAILED: JobState.FAILED}
    if exit_code is not None and exit_code < 0 and fate is Fate.FAILED:
        message = f"its process was ended by signal {-exit_code}"
    return {
        **gone,
        "state": states.get(fate, JobState.STOPPED),
        "ended_at": at.isoformat(),
        "exit_code": exit_code,
        "message": None if fate is Fate.DONE else message,
    }


# --- the file -------------------------------------------------------------------------------------------------------


def save(path: Path, jobs: Jobs) -> None:
    """Replace the file; whole and on disk when this returns, or as it was.

    Raises:
        StorageError: it cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    document = {"format": FORMAT, "last": jobs.last, "jobs": [asdict(job) for job in jobs.jobs]}
    try:
        with part.open("w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from None


def load(path: Path) -> Jobs:
    """The jobs of the service before this one; none where there was none.

    Raises:
        StorageError: the file cannot be read, or is of another version.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Jobs()
    except (OSError, ValueError) as error:
        hint = "Move the file away to begin with an empty queue." if isinstance(error, ValueError) else ""
        raise StorageError(f"{path}: the queue cannot be read ({error})", hint=hint) from None
    try:
        if raw["format"] != FORMAT:
            raise ValueError(f"format {raw['format']!r}, expected {FORMAT}")
        return Jobs(last=int(raw["last"]), jobs=tuple(_jobs(raw["jobs"])))
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(
            f"{path}: the queue cannot be read ({error})", hint="Move the file away to begin with an empty queue."
        ) from None


def _jobs(raw: Iterable[Mapping[str, Any]]) -> Iterable[Job]:
    names = {field.name for field in fields(Job)}
    for one in raw:
        known = {key: value for key, value in one.items() if key in names}
        yield Job(
            **known
            | {"kind": JobKind(one["kind"]), "state": JobState(one["state"]), "words": tuple(map(str, one["words"]))}
        )
