"""A study in one file (`archive_file.py`): exported with its raw files, imported under a name, all of it or nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sqlalchemy.orm import Session

from autotune.errors import InvalidFile, StorageError
from autotune.store.archive_file import NO_VALUES, ROWS, Archive, ArchiveWriter, unreadable
from autotune.store.archive_rows import BadDocument, load_study
from autotune.store.raw_files import FileKind, list_raw_files
from autotune.store.repository import Store

STAGING = ".incoming-"
STALE_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What was exported or imported; `size_bytes` is the archive's."""

    study: str
    trials: int
    files: int
    size_bytes: int
    path: Path


def export_study(store: Store, root: Path, study: str, out: Path, *, replace: bool = False) -> Moved:
    """Write a study to one file, in place whole or not at all; it may be running meanwhile.

    Rows are those of one moment. Of a log that is being written, what is there. Secrets are taken out.

    Args:
        replace: a file that is there already.

    Raises:
        UnknownName: no such study.
        StorageError: something cannot be read, `out` cannot be written, or is there.
    """
    if not replace and out.exists():
        raise StorageError(f"{out}: is there already", hint="Choose another --out, or give --force to replace it.")
    draft = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with zipfile.ZipFile(draft, "x") as packed:
            writer = ArchiveWriter(packed)
            with store.reading(study) as (session, row):
                trials = writer.rows(session, row)
            files = [file for file in list_raw_files(root, study) if file.kind is not FileKind.DRAFT]
            written = sum(writer.raw_file(root, file) for file in files)
            writer.manifest(study)
        with draft.open("rb") as stream:
            os.fsync(stream.fileno())
        size_bytes = draft.stat().st_size
        draft.replace(out)
    except OSError as error:
        raise StorageError(
            f"{out}: cannot be written: {error.strerror or error}", hint="Choose a place with room that can be written."
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return Moved(study=study, trials=trials, files=written, size_bytes=size_bytes, path=out)


def import_study(store: Store, root: Path, archive: Archive, name: str) -> Moved:
    """Add an archive's study under a name; all of it or nothing.

    Args:
        root: of all studies; the raw files come to `root/name`.
        name: checked by the caller as a study's name.

    Raises:
        InvalidFile: rows that cannot be read, or do not fit each other.
        StorageError: the name is taken, there is no room, or something cannot be written.
    """
    target = root / name
    if any(study.name == name for study in store.studies()):
        raise StorageError(
            f"{store.location.label}: has a study {name!r} already", hint="Choose another --name for the imported one."
        )
    if target.exists():
        raise StorageError(f"{target}: is there already", hint="Choose another --name, or move that folder away.")
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        free = shutil.disk_usage(root).free
        if archive.size_bytes > free:
            raise StorageError(
                f"{root}: {archive.path} takes {archive.size_bytes} bytes unpacked, {free} are free", hint="Make room."
            )
        staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=root))
        staging.chmod(0o755)
        try:
            files = archive.unpack(staging)
            with store.writing() as session, closing(archive.documents()) as documents:
                trials = _loaded(session, name, documents, target, str(archive.path))
                session.flush()
                staging.rename(target)
        except BaseException:
            shutil.rmtree(target if not staging.exists() and target.exists() else staging, ignore_errors=True)
            raise
    except OSError as error:
        raise StorageError(
            f"{root}: cannot be written: {error.strerror or error}",
            hint="Choose a place with room that can be written.",
        ) from error
    return Moved(study=name, trials=trials, files=files, size_bytes=archive.path.stat().st_size, path=target)


def _loaded(session: Session, name: str, documents: Iterator[object], target: Path, file: str) -> int:
    try:
        return load_study(session, name, documents, PurePosixPath(target))
    except BadDocument as error:
        raise InvalidFile(file, f"{ROWS}, {error.place}", error.value, error.allowed) from None
    except NO_VALUES as error:
        raise unreadable(file, error) from None


def _sweep(root: Path) -> None:
    """What imports left that were killed; nobody else's names begin so."""
    for left in root.glob(f"{STAGING}*"):
        with suppress(OSError):
            if left.is_dir() and not left.is_symlink() and time.time() - left.lstat().st_mtime > STALE_S:
                shutil.rmtree(left, ignore_errors=True)
