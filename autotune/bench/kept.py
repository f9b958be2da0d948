"""Finished replays in a file, so that a benchmark that was interrupted goes on where it was.

JSON objects, one replay a line, appended and synced as each one ends. A line that was torn by a crash is no replay, and
the next one begins a new line. A line counts for the replay whose key it has, and for no other, and not at all where
any of it is not what was written.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from autotune.bench.replay import MOST_LAUNCHES, Replay
from autotune.bench.summary import Study
from autotune.bench.surfaces import SurfaceKind
from autotune.errors import InvalidFile, StorageError

_MARK = b'{"format":"autotune-replay"'
_Share = Annotated[float, Field(ge=-1e-9, le=1 + 1e-9, allow_inf_nan=False)]
_Name = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9:._-]*$")]
_Minutes = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal["autotune-replay"] = "autotune-replay"
    version: Literal[2] = 2
    key: Annotated[str, Field(min_length=1, max_length=64)]
    surface: _Name
    kind: SurfaceKind
    sampler: _Name
    seed: Annotated[int, Field(ge=0)]
    gave_up: bool
    gap: Annotated[tuple[_Share, ...], Field(min_length=1, max_length=MOST_LAUNCHES)]
    infeasible: tuple[bool, ...]
    minutes: tuple[_Minutes, ...]
    check: str = ""
    """Of all the others, see `digest`; empty for one that is about to be written."""

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if not len(self.gap) == len(self.infeasible) == len(self.minutes):
            raise ValueError("gap, infeasible and minutes have one entry per launch")
        if self.check and self.check != self.digest():
            raise ValueError("not what was written")
        return self

    def digest(self) -> str:
        """Hash of all that the line says."""
        return hashlib.sha256(self.model_dump_json(exclude={"check"}).encode()).hexdigest()[:16]


class KeptReplays:
    """The file, opened for appending; made where it is missing, with its folders.

    Raises:
        InvalidFile: a file of something else, which is left as it is.
        StorageError: it cannot be read, made or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe nobody writes to: no wait
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, flags, 0o644)
        except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
            raise self._unusable(error) from error
        try:
            self._check()
        except BaseException:
            os.close(self._file)
            raise

    def _check(self) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise InvalidFile(str(self.path), "", "a device or a pipe", "a regular file, or none yet")
        try:
            head = os.pread(self._file, len(_MARK), 0)
        except OSError as error:
            raise self._unusable(error) from error
        line = head.split(b"\n")[0]  # may be torn within the mark
        if head and (not line or not _MARK.startswith(line)):
            seen = line.decode("utf-8", "replace")
            raise InvalidFile(str(self.path), "line 1", seen, "a file of finished replays, or none yet")

    def close(self) -> None:
        """Close the file; what was added is on the disk already."""
        os.close(self._file)

    def read(self, keys: Collection[str]) -> dict[str, Study]:
        """The replays of `keys` that are there, by key; lines that are torn or damaged are none.

        Raises:
            StorageError: cannot be read.
        """
        found: dict[str, Study] = {}
        wanted = frozenset(keys)
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise self._unusable(error) from error
        # What follows the last line feed may be half a line that another run is writing.
        for text in content.split(b"\n")[:-1]:
            try:
                line = _Line.model_validate_json(text)
            except ValidationError:
                continue
            if line.check and line.key in wanted:
                found.setdefault(line.key, _study(line))
        return found

    def add(self, key: str, study: Study) -> None:
        """Append one replay; it is on the disk when this returns.

        Raises:
            StorageError: read-only, full disk.
        """
        line = _Line(
            key=key,
            surface=study.surface,
            kind=study.kind,
            sampler=study.sampler,
            seed=study.seed,
            gave_up=study.replay.gave_up,
            gap=study.replay.gap,
            infeasible=study.replay.infeasible,
            minutes=study.replay.minutes,
        )
        content = line.model_copy(update={"check": line.digest()}).model_dump_json().encode() + b"\n"
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)  # two benchmarks may share a file
            try:
                size = os.fstat(self._file).st_size
                if size and os.pread(self._file, 1, size - 1) != b"\n":
                    content = b"\n" + content
                if os.write(self._file, content) != len(content):
                    raise OSError(0, "only a part could be written")
                os.fsync(self._file)
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> StorageError:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return StorageError(
            f"finished replays cannot be kept in {self.path}: {reason}", hint="Name another file with --replays."
        )


def _study(line: _Line) -> Study:
    replay = Replay(gap=line.gap, infeasible=line.infeasible, minutes=line.minutes, gave_up=line.gave_up)
    return Study(surface=line.surface, kind=line.kind, sampler=line.sampler, seed=line.seed, replay=replay)
