"""Rendered files onto disk: all or none are refused or replaced, each atomically; nobody's work is overwritten."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from autotune.errors import InvalidOption, StorageError
from autotune.promote.quoting import comment_text
from autotune.promote.rendering import CHECKSUM, MARKER, RenderedFile, checksum


def write_files(
    files: Sequence[RenderedFile], out: Path, *, deployment: str, overwrite: bool = False
) -> tuple[Path, ...]:
    """Write `files` below `out`, creating it.

    A file that is already there is replaced when it is this deployment's own and nobody edited it, or when it is
    `overwrite`. All files are checked before the first is written, and all are on the disk before the first is put in
    its place: a full disk leaves the old ones, not some of both.

    Raises:
        InvalidOption: a file there is somebody else's, was edited, or a path would leave `out`.
        StorageError: the folder cannot be written.
    """
    targets = [(file, _inside(out, file.path)) for file in files]
    with _told(out):
        _refuse_foreign([path for _, path in targets], deployment, overwrite=overwrite)
        staged = list[tuple[Path, Path]]()
        try:
            for file, path in targets:
                path.parent.mkdir(parents=True, exist_ok=True)
                staged.append((_staged(path, file), path))
            for temporary, path in staged:
                temporary.replace(path)
            for folder in {path.parent for _, path in targets}:
                _kept(folder)
        finally:
            for temporary, _ in staged:
                temporary.unlink(missing_ok=True)
    return tuple(path for _, path in targets)


@contextmanager
def folder_held(out: Path) -> Iterator[None]:
    """No other promotion or rollback writes below `out` meanwhile, so that its files are the newest record's.

    Where the file system knows no locks there is none, and two at once may mix.

    Raises:
        StorageError: the folder cannot be made.
    """
    with _told(out):
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def check_files(files: Sequence[RenderedFile], out: Path, *, deployment: str, overwrite: bool = False) -> None:
    """What `write_files` would refuse, without leaving anything behind.

    Raises:
        InvalidOption, StorageError: as `write_files`.
    """
    paths = [_inside(out, file.path) for file in files]
    with _told(out):
        _refuse_foreign(paths, deployment, overwrite=overwrite)
        missing = [folder for folder in (out, *out.parents) if not folder.exists()]
        out.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            folder.rmdir()


@contextmanager
def _told(out: Path) -> Iterator[None]:
    """What the system refuses, as an error that says so.

    Raises:
        StorageError: it did.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{out}: cannot write the rendered files: {error.strerror or error}",
            hint="Choose a folder that can be written with --out.",
        ) from error


def is_own(text: str, deployment: str) -> bool:
    """Whether `text` is an unedited file that was rendered for this deployment."""
    head, found, rest = text.partition(f"\n{CHECKSUM}")
    if not found or not head:
        return False
    wanted, _, body = rest.partition("\n")
    lines = head.splitlines()
    opening = lines[1] if len(lines) > 1 and lines[0].startswith("#!") else lines[0]
    mine = opening.startswith(MARKER) and opening.endswith(f" for deployment {comment_text(deployment)}".rstrip())
    return mine and wanted == checksum(body)


def _inside(out: Path, relative: str) -> Path:
    parts = PurePosixPath(relative)
    if parts.is_absolute() or ".." in parts.parts:
        raise InvalidOption("--out", relative, "paths that stay inside the output folder")
    return out / parts


def _refuse_foreign(paths: Sequence[Path], deployment: str, *, overwrite: bool) -> None:
    """Refuse to replace what is not ours, unless that was asked for; folders and pipes are never replaced.

    Raises:
        InvalidOption: it would be.
    """
    for path in paths:
        if not path.exists():
            continue
        if not path.is_file():  # a pipe would be waited for
            raise InvalidOption("--out", str(path), "a folder where that is a file, or nothing")
        if not overwrite and not is_own(path.read_text(encoding="utf-8", errors="replace"), deployment):
            raise InvalidOption(
                "--out",
                str(path),
                f"a folder without that file, or with the unedited file of deployment {deployment!r}",
                hint="The file is somebody else's or was edited. Choose another --out, or give --overwrite.",
            )


def _kept(folder: Path) -> None:
    """Its names are on the disk: a power cut after the promotion was recorded brings no older file back."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _staged(path: Path, file: RenderedFile) -> Path:
    """The file under another name beside its place, whole and on the disk."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(file.text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(file.mode)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary
