"""The file of an archive: its rows, its raw files, and a manifest with their sizes and hashes, as a ZIP.

| entry | holds |
|---|---|
| `study.jsonl` | one JSON document a line, see `archive_rows.py` |
| `files/trial-0007/level-64.jsonl.gz` ... | the raw files, under the names that this program writes |
| `manifest.json` | format, versions, and size and SHA-256 of each other entry |

Archives come from elsewhere. Nothing is written before every entry's name, kind and size has been looked at, nothing is
put in its place before every byte has been compared with its hash and every row been read, and no name in an archive is
ever used as a path: folders and files are made from numbers and names of our own form.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy.orm import Session

from autotune import __version__
from autotune.engine.redaction import redact_stream
from autotune.errors import InvalidFile, SchemaMismatch
from autotune.store.archive_rows import dump_study
from autotune.store.raw_files import FileKind, RawFile, is_raw_name, open_raw_file
from autotune.store.schema import HEAD

FORMAT, VERSION = "autotune-study", 1
MANIFEST, ROWS, FILES = "manifest.json", "study.jsonl", "files/"
MOST_MANIFEST_BYTES = 256 * 1024 * 1024
MOST_LINE_BYTES = 64 * 1024 * 1024
MOST_BYTES = 64 * 1024**3
"""Of an archive unpacked, unless the operator allows more."""

_ENTRY = re.compile(rf"{FILES}([^/]+)/([^/]+)")
_FIRST_MOMENT = (1980, 1, 1, 0, 0, 0)
"""Of every entry: the same study gives the same bytes."""

_COMPRESSIONS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_PIECE = 1024 * 1024
_WHAT = "an archive that `autotune export` wrote"


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: Annotated[str, Field(max_length=400)]
    size: Annotated[int, Field(ge=0, lt=2**62)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Manifest(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    format: Literal["autotune-study"]
    version: int
    revision: Annotated[str, Field(max_length=40)]
    autotune: Annotated[str, Field(max_length=100)]
    study: Annotated[str, Field(max_length=200)]
    entries: list[_Entry]


class ArchiveWriter:
    """Entries with their sizes and hashes."""

    def __init__(self, packed: zipfile.ZipFile) -> None:
        self._packed = packed
        self._entries: list[dict[str, Any]] = []

    def rows(self, session: Session, row: Any) -> int:
        trials = 0

        def lines() -> Iterator[bytes]:
            nonlocal trials
            for document in dump_study(session, row):
                trials += "trial" in document
                yield json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"

        self._add(ROWS, lines(), zipfile.ZIP_DEFLATED)
        return trials

    def raw_file(self, root: Path, file: RawFile) -> bool:
        """False where the file has gone meanwhile."""
        name = f"{FILES}{file.folder}/{file.name}"
        with open_raw_file(root, file) as stream:
            if stream is None:
                return False
            if file.kind is FileKind.LOG:
                self._add(name, redact_stream(stream), zipfile.ZIP_DEFLATED)
            else:
                self._add(name, iter(lambda: stream.read(_PIECE), b""), zipfile.ZIP_STORED)
        return True

    def manifest(self, study: str) -> None:
        found = {
            "format": FORMAT,
            "version": VERSION,
            "revision": HEAD,
            "autotune": __version__,
            "study": study,
            "entries": self._entries,
        }
        self._packed.writestr(_info(MANIFEST, zipfile.ZIP_DEFLATED), json.dumps(found, indent=1))

    def _add(self, name: str, pieces: Iterator[bytes], compression: int) -> None:
        digest, size = hashlib.sha256(), 0
        with self._packed.open(_info(name, compression), "w", force_zip64=True) as stream:
            for piece in pieces:
                stream.write(piece)
                digest.update(piece)
                size += len(piece)
        self._entries.append({"name": name, "size": size, "sha256": digest.hexdigest()})


def _info(name: str, compression: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _FIRST_MOMENT)
    info.compress_type = compression
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    return info


# Reading


class Archive:
    """An archive that was looked at from outside. Made by `open_archive`."""

    def __init__(self, path: Path, packed: zipfile.ZipFile, manifest: _Manifest) -> None:
        self.path = path
        self._packed = packed
        self._manifest = manifest

    @property
    def study(self) -> str:
        """The name that it was exported under: somebody else's word, to be checked as one."""
        return self._manifest.study

    @property
    def size_bytes(self) -> int:
        """Unpacked."""
        return sum(entry.size for entry in self._manifest.entries)

    def verify(self) -> None:
        """Compare every entry's bytes with its hash."""
        for entry in self._manifest.entries:
            for _ in self._pieces(entry):
                pass

    def documents(self) -> Generator[object]:
        """Of the rows, in order.

        Raises:
            InvalidFile: bytes that cannot be read, or are no JSON.
        """
        entry = next(entry for entry in self._manifest.entries if entry.name == ROWS)
        digest = hashlib.sha256()
        # What a reader of these raises does not come in here: a generator is not where its values are used.
        with _reading(str(self.path)), self._packed.open(ROWS) as stream:
            while line := stream.readline(MOST_LINE_BYTES + 1):
                digest.update(line)
                if len(line) > MOST_LINE_BYTES:
                    raise InvalidFile(str(self.path), ROWS, "a longer line", f"lines of {MOST_LINE_BYTES} bytes")
                yield json.loads(line, parse_constant=_no_constant)
        self._compare(entry, digest.hexdigest())

    def unpack(self, folder: Path) -> int:
        """Put the raw files below an empty folder of ours; how many."""
        count = 0
        for entry in self._manifest.entries:
            match = _ENTRY.fullmatch(entry.name)
            if match is None:
                continue
            place = folder / match[1]
            place.mkdir(exist_ok=True)
            with (place / match[2]).open("xb") as out:
                for piece in self._pieces(entry):
                    out.write(piece)
                out.flush()
                os.fsync(out.fileno())
            count += 1
        return count

    def _pieces(self, entry: _Entry) -> Iterator[bytes]:
        """An entry's bytes, compared with its hash after the last.

        Raises:
            InvalidFile: they cannot be read, or are others.
        """
        digest = hashlib.sha256()
        with _reading(str(self.path)), self._packed.open(entry.name) as stream:
            while piece := stream.read(_PIECE):
                digest.update(piece)
                yield piece
        self._compare(entry, digest.hexdigest())

    def _compare(self, entry: _Entry, found: str) -> None:
        if found != entry.sha256:
            raise InvalidFile(str(self.path), entry.name, f"SHA-256 {found}", f"{entry.sha256}, as the manifest says")


@contextmanager
def open_archive(path: Path, *, most_bytes: int = MOST_BYTES) -> Iterator[Archive]:
    """An archive whose entries and bytes are what its manifest says; its rows are looked at by whoever reads them.

    Raises:
        InvalidFile: no archive of ours: an unknown, repeated or missing entry, a name that leads elsewhere, a link, a
            device, a folder, more bytes than allowed, a wrong size or hash.
        SchemaMismatch: written by a newer version.
    """
    file = str(path)
    with ExitStack() as opened:
        with _reading(file):
            if not path.is_file():
                raise InvalidFile(file, "", "no regular file", _WHAT)
            packed = opened.enter_context(zipfile.ZipFile(path))
            archive = Archive(path, packed, _looked_at(file, packed, most_bytes))
        archive.verify()
        yield archive


@contextmanager
def _reading(file: str) -> Iterator[None]:
    """Around what reads an archive's bytes, and nothing else."""
    try:
        yield
    except NO_VALUES as error:
        raise unreadable(file, error) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError) as error:
        # RuntimeError: encrypted, or a compression or a version that Python does not know. OSError: places before the
        # file's beginning, or a file that cannot be read.
        raise InvalidFile(file, "", f"damaged or another format: {error}", _WHAT) from None


NO_VALUES = (ValueError, KeyError, TypeError, RecursionError)
"""No JSON, or no values of ours."""


def unreadable(file: str, error: Exception) -> InvalidFile:
    return InvalidFile(file, ROWS, f"{type(error).__name__}: {error}", "rows that this version can read")


def _looked_at(file: str, packed: zipfile.ZipFile, most_bytes: int) -> _Manifest:
    infos: dict[str, zipfile.ZipInfo] = {}
    for info in packed.infolist():
        kind = stat.S_IFMT(info.external_attr >> 16)
        if info.filename in infos:
            raise InvalidFile(file, _shown(info.filename), "an entry that is there twice", "each entry once")
        if kind not in (0, stat.S_IFREG) or info.is_dir():
            raise InvalidFile(file, _shown(info.filename), _KINDS.get(kind, "a folder"), "regular files only")
        if info.compress_type not in _COMPRESSIONS or info.flag_bits & 1:
            raise InvalidFile(file, _shown(info.filename), "encrypted, or of another compression", _WHAT)
        if not _is_ours(info.filename):
            raise InvalidFile(
                file,
                _shown(info.filename),
                "a name that studies do not have",
                f"{MANIFEST}, {ROWS}, {FILES}trial-0007/NAME",
            )
        infos[info.filename] = info
    total = sum(info.file_size for info in infos.values())
    if total > most_bytes:
        raise InvalidFile(
            file, "", f"{total} bytes unpacked", f"at most {most_bytes} bytes", hint="--max-size allows more."
        )
    manifest = _manifest(file, packed, infos)
    told = {entry.name: entry.size for entry in manifest.entries}
    if len(told) < len(manifest.entries):
        raise InvalidFile(file, MANIFEST, "an entry that is listed twice", "each entry once")
    if told.keys() | {MANIFEST} != infos.keys() or ROWS not in told or MANIFEST in told:
        odd = sorted((told.keys() | {MANIFEST, ROWS}) ^ infos.keys()) or [MANIFEST]
        raise InvalidFile(file, _shown(odd[0]), "in the manifest or in the archive alone", "in both")
    for name, size in told.items():
        if infos[name].file_size != size:
            raise InvalidFile(file, name, f"{infos[name].file_size} bytes", f"{size} bytes, as the manifest says")
    return manifest


_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _shown(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _is_ours(name: str) -> bool:
    match = _ENTRY.fullmatch(name)
    return name in (MANIFEST, ROWS) or (match is not None and is_raw_name(match[1], match[2]))


def _manifest(file: str, packed: zipfile.ZipFile, infos: dict[str, zipfile.ZipInfo]) -> _Manifest:
    if MANIFEST not in infos:
        raise InvalidFile(file, "", f"no {MANIFEST} in it", _WHAT)
    if infos[MANIFEST].file_size > MOST_MANIFEST_BYTES:
        raise InvalidFile(file, MANIFEST, f"{infos[MANIFEST].file_size} bytes", f"at most {MOST_MANIFEST_BYTES} bytes")
    try:
        manifest = _Manifest.model_validate_json(packed.read(MANIFEST))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidFile(file, f"{MANIFEST}, {place}", first.get("input"), first["msg"]) from None
    if manifest.version > VERSION or manifest.revision > HEAD:
        raise SchemaMismatch(
            f"{file}: was written by autotune {manifest.autotune!r}, whose archives or tables are newer "
            f"(format {manifest.version}, tables {manifest.revision!r}; this version reads {VERSION} and {HEAD!r})",
            hint="Upgrade with `pip install -U vllm-autotune`.",
        )
    return manifest


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
