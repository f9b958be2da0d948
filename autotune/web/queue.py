"""Runs jobs, one after another on the node, each as a process of its own that outlives a killed service.

What is to happen is on disk before it does: a service that is killed at any moment finds its queue again, and what it
had begun. A process that it cannot find any more is begun anew, which a study takes as going on with itself.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any

from autotune.engine.redaction import redact
from autotune.errors import AutotuneError, StorageError, StudyBusy
from autotune.review.stopping import AGAIN_S, is_alive
from autotune.store.repository import Store
from autotune.store.study_record import StudyState
from autotune.web import job as jobs_file
from autotune.web.job import ACTIVE, Fate, Job, JobKind, Jobs, JobState
from autotune.web.job_process import BEGUN, MARKER, ask_to_end, gone, last_word, process_of, started_at
from autotune.web.problems import Refused
from autotune.web.reader import NoDatabase, Reader
from autotune.web.settings import ServeSettings
from autotune.web.tokens import TOKEN_VARIABLE

log = logging.getLogger("autotune.web")

POLL_S = 1.0
"""How often the end of a study that somebody else runs is looked for."""

PROGRAM = (sys.executable, "-m", "autotune")


class Queue:
    """The jobs of a service. `start` takes over what there is, `close` ends it.

    Args:
        reader: asked which studies run that are none of ours.
        now: aware, UTC.
        changed: called after each change.
        program: the words before a job's own; tests run something else.
    """

    def __init__(
        self,
        settings: ServeSettings,
        reader: Reader,
        *,
        now: Callable[[], datetime],
        changed: Callable[[], None] = lambda: None,
        program: tuple[str, ...] = PROGRAM,
    ) -> None:
        self._settings, self._reader, self._now, self._program = settings, reader, now, program
        self.changed = changed
        self._file = settings.folder / "jobs.json"
        self._jobs = Jobs()
        self._lock = asyncio.Lock()
        self._held: IO[str] | None = None
        self._wake = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._closing = False
        self._unsaved = False
        self.waiting_for: str | None = None

    @property
    def jobs(self) -> Jobs:
        """As they are now."""
        return self._jobs

    # Life of the service

    async def start(self) -> None:
        """Take the queue over from the service before, and go on with it.

        Raises:
            StudyBusy: another service has it.
            StorageError: its file cannot be read.
        """
        self._held = _locked(self._settings.folder)
        self._jobs = await asyncio.to_thread(jobs_file.load, self._file)
        for job in self._jobs.jobs:
            if job.state in ACTIVE:
                await self._take_over(job)
        self._worker = asyncio.create_task(self._work(), name="autotune-queue")

    async def close(self) -> None:
        """Begin nothing more, ask what runs to end, and wait for it; what does not end in time goes on by itself."""
        self._closing = True
        self._wake.set()
        if self._worker is not None:
            await self._worker  # not cancelled: a process that it is just beginning would be nobody's
        running = [job for job in self._jobs.jobs if job.state in ACTIVE and job.pid]
        for _ in range(2):  # a second signal: it need not finish what it measures, which the next service does anew
            for job in running:
                ask_to_end(job)
            await asyncio.sleep(AGAIN_S if running else 0)
        if self._watchers:
            await asyncio.wait(self._watchers.values(), timeout=self._settings.stop_s)
        for task in self._watchers.values():
            task.cancel()
        if self._unsaved:
            with suppress(StorageError):  # then the next service finds out by itself
                await self._store(self._jobs)
        if self._held is not None:
            self._held.close()

    async def _take_over(self, job: Job) -> None:
        pid = job.pid if job.pid and is_alive(job.pid, job.pid_started or 0.0) else None
        if pid is None:
            pid = await asyncio.to_thread(process_of, job, self._program)
        if pid is None:
            await self._end(job.id, None)
            return
        started = started_at(pid) or 0.0
        async with self._lock:
            await self._happened(job.id, pid=pid, pid_started=started)
        self._watch(job.id, partial(gone, pid, started))

    # What is asked of it

    async def add(self, *, kind: JobKind, study: str, words: tuple[str, ...], **more: Any) -> Job:
        """A job at the end of the queue.

        Raises:
            Refused: as `check_free`.
        """
        async with self._lock:
            self.check_free(study)
            await self._store(self._jobs.added(kind=kind, study=study, words=words, at=self._now(), **more))
        self._wake.set()
        return self._jobs.jobs[-1]

    def check_free(self, study: str) -> None:
        """Whether a job of this study may be added.

        Raises:
            Refused: the study has one already, or the queue is full.
        """
        there = self._jobs.open_for(study)
        if there is not None:
            raise Refused(
                HTTPStatus.CONFLICT,
                "already-queued",
                f"study {study!r} has job {there.id}, which is {there.state}",
                hint="Wait for its end, or stop it.",
            )
        if len(self._jobs.waiting()) >= self._settings.limits.queued:
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "queue-full",
                f"{self._settings.limits.queued} jobs wait already",
                headers={"Retry-After": "60"},
            )

    async def stop(self, job_id: str, *, now: bool = False) -> Job:
        """Take a job out of the queue, or ask it to end.

        Raises:
            Refused: there is no such job.
        """
        async with self._lock:
            job = self.found(job_id)
            if job.state in (JobState.QUEUED, JobState.INTERRUPTED):
                await self._store(self._jobs.changed(job_id, state=JobState.STOPPED, ended_at=self._now().isoformat()))
            elif job.state in ACTIVE:
                await self._happened(job_id, state=JobState.STOPPING)
                ask_to_end(job)
                if now:
                    await asyncio.sleep(AGAIN_S)
                    ask_to_end(job)
        self._wake.set()
        return self.found(job_id)

    def found(self, job_id: str) -> Job:
        """A job by its id.

        Raises:
            Refused: there is none.
        """
        job = self._jobs.find(job_id)
        if job is None:
            raise Refused(HTTPStatus.NOT_FOUND, "unknown-job", f"unknown job {job_id!r}")
        return job

    def log_file(self, job_id: str) -> Path:
        """Where a job's process writes what it prints."""
        return self._settings.folder / "jobs" / f"{job_id}.log"

    # Inside

    async def _store(self, jobs: Jobs) -> None:
        await asyncio.to_thread(jobs_file.save, self._file, jobs)
        self._jobs, self._unsaved = jobs, False
        self.changed()

    async def _happened(self, job_id: str, **changes: Any) -> None:
        """What a full disk cannot undo: known at once, and on disk before anything else begins. Call it locked."""
        jobs = self._jobs.changed(job_id, **changes)
        try:
            await self._store(jobs)
        except StorageError as error:
            log.error("what became of job %s cannot be kept yet: %s", job_id, error)
            self._jobs, self._unsaved = jobs, True
            self.changed()
        self._wake.set()

    async def _work(self) -> None:
        while not self._closing:
            self._wake.clear()
            try:
                waits = await self._begin_what_may()
            except Exception as error:  # noqa: BLE001 - whatever it meets, the queue is looked at again
                waits, why = True, redact(str(error) or repr(error))
                if self.waiting_for != why:
                    log.error("the queue waits: %s", why)
                    self.waiting_for = why
                    self.changed()
            if not self._closing:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), POLL_S if waits else None)

    async def _begin_what_may(self) -> bool:
        """Begin jobs; whether one waits for something that nobody tells of."""
        waits = False
        reason = None
        if self._unsaved:
            async with self._lock:
                await self._store(self._jobs)
        for job in self._jobs.startable():
            if self._closing:
                break
            if job.needs_node and (reason := await self._occupied()) is not None:
                waits = True
                continue
            await self._begin(job)
        if reason != self.waiting_for:
            self.waiting_for = reason
            self.changed()
        return waits

    async def _occupied(self) -> str | None:
        """Which study of this folder is being run by somebody else."""

        def look(store: Store) -> str | None:
            for study in store.studies():
                if study.state is StudyState.RUNNING:
                    holder = self._settings.places.folder(study.name).holder()
                    if holder is not None:
                        return f"study {study.name} is being {holder.held_for.participle} by process {holder.pid}"
            return None

        try:
            return await self._reader.ask(look)
        except NoDatabase:
            return None

    async def _begin(self, job: Job) -> None:
        async with self._lock:
            if self.found(job.id).state not in (JobState.QUEUED, JobState.INTERRUPTED):
                return  # it was stopped a moment ago
            # Marked before it is: a service that is killed here looks for the process, and finds it or none.
            started = job.started_at or self._now().isoformat()
            await self._store(self._jobs.changed(job.id, state=JobState.RUNNING, started_at=started))
        try:
            process = await self._launched(job)
        except OSError as error:
            message = f"{self._program[0]}: {error.strerror}"
            changes = jobs_file.ended(job, Fate.FAILED, at=self._now(), message=message, closing=self._closing)
            async with self._lock:
                await self._happened(job.id, **changes)
            return
        async with self._lock:
            await self._happened(job.id, pid=process.pid, pid_started=started_at(process.pid))
        self._watch(job.id, process.wait)
        if self.found(job.id).state is JobState.STOPPING:
            ask_to_end(self.found(job.id))  # it was asked to end before it had a process

    async def _launched(self, job: Job) -> asyncio.subprocess.Process:
        log_file = self.log_file(job.id)
        empty = self._settings.folder / "empty"  # no file in it can be taken for a name that a request gave
        for folder in (log_file.parent, empty):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with log_file.open("ab") as output:
            output.write(f"{BEGUN} {self._now().isoformat()}\n".encode())
            output.flush()
            return await asyncio.create_subprocess_exec(
                *self._program,
                *job.words,
                cwd=empty,
                env=self._environment(job),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _environment(self, job: Job) -> dict[str, str]:
        """What the operator gave the service, and where results are: a URL with a password is not for `ps` to show."""
        kept = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
        places = self._settings.places
        storage = {} if places.storage is None else {"AUTOTUNE_STORAGE": places.storage}
        return kept | storage | {"AUTOTUNE_STUDIES_DIR": str(places.root.absolute()), MARKER: job.marker}

    def _watch(self, job_id: str, end: Callable[[], Awaitable[int | None]]) -> None:
        async def watch() -> None:
            await self._end(job_id, await end())
            self._watchers.pop(job_id, None)
            self._wake.set()

        self._watchers[job_id] = asyncio.create_task(watch(), name=f"autotune-{job_id}")

    async def _end(self, job_id: str, code: int | None) -> None:
        message = await asyncio.to_thread(last_word, self.log_file(job_id))
        fate = await self._unseen(self.found(job_id), message) if code is None else jobs_file.fate_of(code)
        async with self._lock:
            changes = jobs_file.ended(
                self.found(job_id),
                fate,
                at=self._now(),
                exit_code=code,
                message=message,
                closing=self._closing,
            )
            await self._happened(job_id, **changes)

    async def _unseen(self, job: Job, message: str | None) -> Fate:
        """How a process ended whose exit status nobody got, from what it left in the store."""

        def look(store: Store) -> Fate | None:
            if job.kind is JobKind.PROMOTION:
                own = [one for one in store.promotions(job.study) if one.details.get("name") == job.deployment]
                begun = job.started_at or job.created_at
                return Fate.DONE if any(one.created_at.isoformat() > begun for one in own) else None
            return _FATES.get(store.study(job.study).state)

        try:
            found = await self._reader.ask(look)
        except (NoDatabase, AutotuneError):  # begun anew it says itself what is wrong with the database
            found = None
        return found or (Fate.LOST if message is None else Fate.FAILED)


_FATES = {StudyState.FINISHED: Fate.DONE, StudyState.STOPPED: Fate.ASKED_TO_END, StudyState.FAILED: Fate.FAILED}


def make_folder(folder: Path) -> None:
    """The service's own folder.

    Raises:
        StorageError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{path}: {error.strerror}",
        hint="The service keeps its queue there: give a --studies-dir that can be written, or --look-only, which "
        "writes nothing.",
    )


def _locked(folder: Path) -> IO[str]:
    """The service's folder, for this process alone; the kernel lets go when it ends, however that is.

    Raises:
        StudyBusy: another service has it.
        StorageError: nothing can be written there.
    """
    make_folder(folder)
    try:
        file = (folder / "lock").open("a", encoding="ascii")
    except OSError as error:
        raise _unwritable(folder / "lock", error) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StudyBusy(
            f"another `autotune serve` runs for {folder.parent}",
            hint="One service has a studies folder; end the other, or give --studies-dir.",
        ) from None
    return file
