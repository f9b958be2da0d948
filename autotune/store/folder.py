"""Where a study's raw files live (`studies/<name>/trial-0007/...`), and the lock that keeps two tuners apart."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from autotune.errors import StorageError, StudyBusy

DATABASE_NAME = "autotune.db"
"""In the studies folder, beside the studies' own: no study can have this name, or that of its journal."""


class HeldFor(StrEnum):
    """What a study's lock is held for."""

    STUDY = "study"
    VERIFICATION = "verification"
    CLEARING_UP = "clearing_up"
    OTHER = "other"
    """What another version of the program does."""

    @property
    def participle(self) -> str:
        """What is being done to the study, after `it is being`."""
        match self:
            case HeldFor.STUDY:
                return "run"
            case HeldFor.VERIFICATION:
                return "verified"
            case HeldFor.CLEARING_UP:
                return "cleared up"
            case HeldFor.OTHER:
                return "worked on"
            case _:
                assert_never(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """Who works on a study: pid and its start time (seconds since the epoch), so that a reused pid is not mistaken."""

    pid: int
    started: float
    held_for: HeldFor = HeldFor.STUDY


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFolder:
    """`root/name`, created on demand."""

    root: Path
    name: str

    @property
    def path(self) -> Path:
        return self.root / self.name

    def attempt(self, number: int, attempt: int) -> Path:
        """Folder of one attempt, created: `trial-0007`, then `trial-0007-attempt-2` and so on (attempts are 1-based).

        Raises:
            StorageError: it cannot be created.
        """
        suffix = "" if attempt == 1 else f"-attempt-{attempt}"
        path = self.path / f"trial-{number:04d}{suffix}"
        _make(path)
        return path

    @contextmanager
    def locked(self, holder: LockHolder) -> Iterator[None]:
        """Hold the study for this process; the kernel lets go when the process ends, however it ends.

        Raises:
            StudyBusy: another process holds it.
            StorageError: the lock file cannot be written.
        """
        _make(self.path)
        file = self.path / ".lock"
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        except OSError as error:
            raise StorageError(f"{file}: {error.strerror}", hint="The study's folder must be writable.") from None
        try:
            self._take(descriptor, holder)
            yield
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int, holder: LockHolder) -> None:
        for last in (False,) * 5 + (True,):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if last:
                    raise self._busy() from None
                time.sleep(0.05)  # `autotune status` holds the lock shared for an instant
        try:
            os.ftruncate(descriptor, 0)
            written = {"pid": holder.pid, "started": holder.started, "held_for": holder.held_for}
            os.pwrite(descriptor, json.dumps(written).encode(), 0)
        except OSError as error:
            raise StorageError(f"{self.path / '.lock'}: {error.strerror}") from None

    def _busy(self) -> StudyBusy:
        current = self.holder()
        who = f"process {current.pid}" if current else "another process"
        held_for = current.held_for if current else HeldFor.STUDY
        follow = f"Follow it with `autotune logs -f {self.name}`" if held_for is HeldFor.STUDY else "Wait for its end"
        return StudyBusy(
            f"study {self.name!r} is being {held_for.participle} by {who}",
            hint=f"{follow}, or end it with `autotune stop {self.name}`.",
        )

    def holder(self) -> LockHolder | None:
        """Who holds the study right now; None when nobody does, or is not known (yet), see `is_held`."""
        try:
            held = self._held()
        except PermissionError:
            return None
        return _parse_holder(held) if held is not None else None

    def is_held(self) -> bool | None:
        """Whether somebody works on the study now, as far as its lock tells; None where none lies here.

        One that may not be read counts as held: nobody can tell.
        """
        try:
            if self._held() is not None:
                return True
        except PermissionError:
            return True
        return False if (self.path / ".lock").is_file() else None

    def _held(self) -> bytes | None:
        """What stands in the lock that somebody holds; None where nobody does.

        Raises:
            PermissionError: it may not be read.
        """
        try:
            descriptor = os.open(self.path / ".lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except PermissionError:
            raise
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.pread(descriptor, 200, 0)
        finally:
            os.close(descriptor)
        return None


def _parse_holder(content: bytes) -> LockHolder | None:
    try:
        raw = json.loads(content)
        purpose = raw.get("held_for", HeldFor.STUDY)
        held_for = HeldFor(purpose) if purpose in set(HeldFor) else HeldFor.OTHER
        found = LockHolder(pid=int(raw["pid"]), started=float(raw["started"]), held_for=held_for)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None  # the holder has the lock but has not written its name yet
    return found if found.pid > 0 and math.isfinite(found.started) else None


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{path}: {error.strerror or error}",
            hint="Choose a writable place with --studies-dir (or AUTOTUNE_STUDIES_DIR).",
        ) from None
