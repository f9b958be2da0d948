"""The raw files of a study's trials: which there are, and how one is deleted.

Only names that this program writes count, only regular files, and only inside `root/<study>/trial-*/`. Folders are
opened one below the other without following links, so that no link, and no name in the database, leads elsewhere.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from autotune.errors import StorageError


class FileKind(StrEnum):
    """What a raw file is."""

    LEVEL = "level"
    LOG = "log"
    DRAFT = "draft"


_FOLDER = re.compile(r"trial-(\d{4,9})(?:-attempt-([1-9]\d{0,8}))?", re.ASCII)
_KINDS = {
    FileKind.LEVEL: re.compile(r"level-([A-Za-z0-9._=-]{1,200})\.jsonl\.gz", re.ASCII),
    FileKind.LOG: re.compile(r"server\.log"),
    FileKind.DRAFT: re.compile(r"\.level-[A-Za-z0-9._=-]{1,200}\.jsonl\.gz\.\d{1,10}", re.ASCII),
}
ANSWERS_NAME = "quality.json.gz"
"""What a server answered to the quality guard; a trial's stays with its figures."""

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_BELOW = _OPEN_FOLDER | os.O_NOFOLLOW


def _folder_name(trial: int, attempt: int) -> str:
    return f"trial-{trial:04d}" + ("" if attempt == 1 else f"-attempt-{attempt}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFile:
    """One file of one attempt.

    Attributes:
        attempt: 1-based.
        level: the load level whose requests it holds; None for other kinds.
        modified_at: UTC.
    """

    study: str
    trial: int
    attempt: int
    kind: FileKind
    name: str
    size_bytes: int
    modified_at: datetime
    level: str | None = None

    @property
    def folder(self) -> str:
        """Name of the attempt's folder; as `StudyFolder.attempt` makes it."""
        return _folder_name(self.trial, self.attempt)

    @property
    def path(self) -> str:
        """Below the folder of all studies."""
        return f"{self.study}/{self.folder}/{self.name}"


def list_raw_files(root: Path, study: str) -> tuple[RawFile, ...]:
    """The raw files of a study, by path; empty where its folder is missing or no folder of its own.

    Raises:
        StorageError: a folder cannot be read.
    """
    found: list[RawFile] = []
    for match, folder in folders_like(_FOLDER, root, study):
        attempt = (int(match[1]), int(match[2] or 1))
        found += [file for file in _files(folder, root, study, attempt) if file.folder == match[0]]
    return tuple(found)


def is_raw_file_name(name: str) -> bool:
    """Whether a launch leaves files of this name, answers to the quality guard included."""
    return name == ANSWERS_NAME or any(form.fullmatch(name) for form in _KINDS.values())


def is_attempt_folder(name: str) -> bool:
    """Whether `StudyFolder.attempt` makes folders of this name."""
    match = _FOLDER.fullmatch(name)
    # One name a folder: neither `trial-00007` nor `-attempt-1`, which would be another one's by its numbers.
    return match is not None and name == _folder_name(int(match[1]), int(match[2] or 1))


def is_raw_name(folder: str, name: str) -> bool:
    """Whether a finished attempt's folder and file may have these names."""
    return is_attempt_folder(folder) and any(
        form.fullmatch(name) for kind, form in _KINDS.items() if kind is not FileKind.DRAFT
    )


@contextmanager
def open_raw_file(root: Path, file: RawFile) -> Iterator[BinaryIO | None]:
    """A file's bytes; None where it is gone, or is no regular file any more.

    Raises:
        StorageError: it cannot be read.
    """
    with opened_folder(root, file.study) as study:
        if study is None:
            yield None
            return
        with opened_below(study, file.folder, root / file.path) as folder:
            descriptor = None if folder is None else _opened(folder, file.name, root / file.path)
    if descriptor is None:
        yield None
        return
    with os.fdopen(descriptor, "rb") as stream:
        yield stream


def _opened(folder: int, name: str, path: Path) -> int | None:
    try:
        # Not to wait for a pipe that was put there.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except PermissionError as error:
        raise StorageError(f"{path}: {error.strerror}") from None
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def delete_raw_file(root: Path, file: RawFile) -> bool:
    """Delete one file, and its attempt's folder where that is empty then; False where it is gone already.

    Raises:
        StorageError: it may not be deleted, or is no regular file any more.
    """
    path = root / file.path
    with opened_folder(root, file.study) as study:
        if study is None:
            return False
        with opened_below(study, file.folder, path.parent) as descriptor:
            if descriptor is None:
                return False
            if not unlinked(descriptor, file.name, path):
                return False
            empty = not names_in(descriptor, path.parent)
        if empty:
            remove_if_empty(study, file.folder)
        return True


def unlinked(folder: int, name: str, path: Path) -> bool:
    """Delete a regular file of an opened folder; False where it is gone already.

    Raises:
        StorageError: it may not be deleted, or is no regular file any more.
    """
    try:
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise StorageError(f"{path}: is no regular file any more; left alone")
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"{path}: cannot be deleted: {error.strerror}") from None
    return True


def remove_if_empty(study: int, name: str) -> None:
    """Remove a folder of an opened one, where nothing is in it."""
    try:
        os.rmdir(name, dir_fd=study)
    except OSError:
        return  # something was put there meanwhile, or the folder above is read-only: an empty folder hurts nobody


@contextmanager
def opened_folder(root: Path, study: str) -> Iterator[int | None]:
    """The study's folder, opened; None where it is none of its own below `root`."""
    if not study or study in (".", "..") or "/" in study or "\0" in study:
        yield None
        return
    try:
        top = os.open(root, _OPEN_FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    except OSError as error:
        raise StorageError(f"{root}: {error.strerror}") from None
    try:
        with opened_below(top, study, root / study) as descriptor:
            yield descriptor
    finally:
        os.close(top)


@contextmanager
def opened_below(parent: int, name: str, path: Path) -> Iterator[int | None]:
    """A folder of an opened one; None where it is none, or a link.

    Raises:
        StorageError: it may not be read.
    """
    try:
        descriptor = os.open(name, _OPEN_BELOW, dir_fd=parent)
    except OSError as error:
        if isinstance(error, PermissionError):
            raise StorageError(f"{path}: {error.strerror}") from None
        yield None  # not there, no folder, or a link (ELOOP): not ours to follow
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def folders_like(form: re.Pattern[str], root: Path, study: str) -> Iterator[tuple[re.Match[str], int]]:
    """The folders of a study whose whole name has this form, by name, each open until the next is asked for.

    Raises:
        StorageError: a folder cannot be read.
    """
    with opened_folder(root, study) as descriptor:
        for name in [] if descriptor is None else sorted(names_in(descriptor, root / study)):
            match = form.fullmatch(name)
            if descriptor is None or match is None:
                continue
            with opened_below(descriptor, name, root / study / name) as inner:
                if inner is not None:
                    yield match, inner


def names_in(descriptor: int, path: Path) -> list[str]:
    """What an opened folder holds.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        return os.listdir(descriptor)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from None


def _files(descriptor: int, root: Path, study: str, attempt: tuple[int, int]) -> Iterator[RawFile]:
    for name in sorted(names_in(descriptor, root / study)):
        kind, match = next(
            ((kind, match) for kind, form in _KINDS.items() if (match := form.fullmatch(name))), (None, None)
        )
        if kind is None or match is None:
            continue
        try:
            found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except OSError:
            continue  # gone meanwhile
        if stat.S_ISREG(found.st_mode):
            yield RawFile(
                study=study,
                trial=attempt[0],
                attempt=attempt[1],
                kind=kind,
                name=name,
                size_bytes=found.st_size,
                modified_at=datetime.fromtimestamp(found.st_mtime, UTC),
                level=match[1] if kind is FileKind.LEVEL else None,
            )
