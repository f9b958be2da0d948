"""Where the database is, how it is opened, and its errors in our words."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from autotune.errors import SchemaMismatch, StorageError, StorageLocked

BUSY_TIMEOUT_S = 60.0
"""How long a writer waits for another one. Our transactions take milliseconds; a dashboard's may take seconds."""

WRITE = {"autotune_write": True}
"""Execution options of a connection that is going to write: it takes the write lock when its transaction begins."""

_WAL_VERSIONS = b"\x02\x02"
"""Bytes 18 and 19 of a database in WAL mode (fileformat2.html 1.3)."""

NETWORK_FILESYSTEMS = frozenset({"nfs", "nfs3", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "beegfs"})
"""SQLite's WAL needs memory shared between processes and byte locks that work; these promise neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A database: `path` for SQLite, None otherwise; `label` names it in messages, without its password."""

    url: URL
    path: Path | None

    @property
    def label(self) -> str:
        return str(self.path) if self.path else self.url.render_as_string(hide_password=True)


def locate(url_or_path: str | Path) -> Location:
    """The database that a path or a URL (`sqlite:///FILE`, `postgresql://...`) means.

    Raises:
        StorageError: not a URL, or of a kind that is not supported.
    """
    text = str(url_or_path)
    if "://" not in text:
        path = Path(text)
        return Location(url=URL.create("sqlite", database=str(path)), path=path)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # ValueError: a port that is no number
        raise StorageError(
            "the database URL cannot be read", hint="Give a file, or postgresql://USER@HOST/NAME."
        ) from None
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        if not url.database or url.database == ":memory:":
            raise StorageError(f"{text}: a study needs a database that stays", hint="Give a file.")
        return Location(url=url, path=Path(url.database))
    if url.drivername in ("postgresql", "postgres"):
        return Location(url=url.set(drivername="postgresql+psycopg"), path=None)
    if url.get_backend_name() == "postgresql":
        return Location(url=url, path=None)
    raise StorageError(
        f"{url.render_as_string(hide_password=True)}: databases of kind {url.drivername} are not supported",
        hint="Give a file (SQLite), or postgresql://USER@HOST/NAME.",
    )


def filesystem_of(path: Path, mounts: str) -> str | None:
    """Type of the file system that holds `path` (absolute), read from the text of /proc/self/mounts."""
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " "))
        # A later mount on the same point hides the earlier one, hence >=.
        if path.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), fields[2])
    return best[1] if best else None


def connect(location: Location, *, create: bool, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Engine:
    """An engine for `location`, proven to answer.

    Args:
        create: make a missing SQLite file and its folder, and have it in WAL mode, which a running study needs so that
            others may look on. Otherwise a missing file is an error, and to look at one changes no byte of it.

    Raises:
        StorageError: cannot be opened, is no database, cannot be written, lies on a network file system.
        StorageLocked: another program holds it longer than `busy_timeout_s`.
    """
    with translated(location):
        if location.path is not None:
            _prepare_file(location, location.path, create=create)
            closed = not create and not os.access(location.path.parent, os.W_OK)
            engine = _closed_sqlite(location.path, busy_timeout_s) if closed else _sqlite(location.url, busy_timeout_s)
        else:
            engine = _postgresql(location, busy_timeout_s)
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql("SELECT 1")
            if location.path is not None and create:
                _enter_wal(location, engine, busy_timeout_s)
        except BaseException:
            engine.dispose()
            raise
        return engine


def _prepare_file(location: Location, path: Path, *, create: bool) -> None:
    if not create and not path.exists():
        raise StorageError(f"{location.label}: there is no database", hint="`autotune study` makes one.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mounts = Path("/proc/self/mounts")
        kind = filesystem_of(path.resolve(), mounts.read_text()) if mounts.exists() else None
    except OSError as error:
        raise StorageError(f"{location.label}: {error.strerror}") from error
    if kind in NETWORK_FILESYSTEMS:
        raise StorageError(
            f"{location.label}: lies on a network file system ({kind}), where SQLite's locks cannot be trusted",
            hint="Put the database on a local disk, or give a postgresql:// URL.",
        )


def _closed_sqlite(path: Path, busy_timeout_s: float) -> Engine:
    """A database in a folder that cannot be written; each transaction finds out anew whether somebody else writes.

    To read one in WAL mode SQLite makes two files beside it (wal.html 5, "Read-Only Databases"), unless it is told that
    nobody writes. Who does has a `-wal` there for as long, and then it needs to be told nothing.
    """
    file = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro"

    def opened() -> sqlite3.Connection:
        still = "" if Path(f"{path}-wal").exists() or not _has_wal(path) else "&immutable=1"
        return sqlite3.connect(f"{file}{still}", uri=True, timeout=busy_timeout_s, check_same_thread=False)

    return _sqlite(URL.create("sqlite"), busy_timeout_s, creator=opened, poolclass=NullPool)


def _has_wal(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(20)[18:] == _WAL_VERSIONS
    except OSError:
        return False  # SQLite says what is wrong with it


def _sqlite(url: URL, busy_timeout_s: float, **further: Any) -> Engine:
    engine = create_engine(url, connect_args={"timeout": busy_timeout_s}, **further)

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        # The driver would begin transactions by itself, and never a read one; `on_begin` does it instead.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys=ON")
        # FULL, not NORMAL: a commit reaches the disk before we go on. A trial is minutes of GPU time and a commit
        # milliseconds, so surviving a power cut costs nothing that anybody would notice.
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        # A transaction that reads first and writes later cannot wait for the lock (its snapshot would be stale), so
        # writers take the lock at once.
        write = connection.get_execution_options().get("autotune_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


IN_UTF8 = {"client_encoding": "utf8"}
"""For psycopg: a database that was made under the C locale is in SQL_ASCII, and would answer with bytes."""


def _postgresql(location: Location, busy_timeout_s: float) -> Engine:
    try:
        return create_engine(
            location.url,
            pool_pre_ping=True,
            connect_args={**IN_UTF8, "options": f"-c lock_timeout={int(busy_timeout_s * 1000)}"},
        )
    except ImportError as error:
        raise StorageError(
            f"{location.label}: the PostgreSQL driver is not installed ({error.name})",
            hint="pip install 'vllm-autotune[postgres]'",
        ) from error


def _enter_wal(location: Location, engine: Engine, busy_timeout_s: float) -> None:
    """WAL is a property of the file: set once, then every program that opens it has it, Optuna's included."""
    deadline = time.monotonic() + busy_timeout_s
    while True:
        # The driver's own connection: the mode cannot change inside a transaction, and ours always begin one.
        raw = engine.raw_connection()
        try:
            cursor = raw.cursor()
            mode = cursor.execute("PRAGMA journal_mode").fetchone()[0]
            if mode != "wal":
                mode = cursor.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            # SQLite does not wait for its busy timeout when the journal mode changes.
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(0.02)
            continue
        finally:
            raw.close()
        if mode == "wal":
            return
        raise StorageError(f"{location.label}: SQLite refuses write-ahead logging here (it stays at {mode!r})")


@contextmanager
def translated(location: Location) -> Iterator[None]:
    """Turn whatever the database library raises into StorageError and its children."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise storage_error(location.label, error) from error


def storage_error(label: str, error: BaseException) -> StorageError:
    """`error` in our words: which database, what happened, what to do."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    reason = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
    for needles, kind, text, hint in _REASONS:
        if any(needle in reason.lower() for needle in needles):
            return kind(f"{label}: {text} ({reason})", hint=hint)
    return StorageError(f"{label}: {reason}")


_REASONS: tuple[tuple[tuple[str, ...], type[StorageError], str, str], ...] = (
    (
        ("is locked", "lock timeout", "deadlock detected"),
        StorageLocked,
        "another program holds the database",
        "Wait until it is done, or end it; everything stored so far is safe.",
    ),
    (
        ("unique constraint",),
        StorageLocked,
        "another program wrote the same thing at the same moment",
        "Only one tuner may run a study; let the other one finish, or end it with `autotune stop`.",
    ),
    (
        ("readonly", "read-only", "permission denied"),
        StorageError,
        "the database cannot be written",
        "Check the permissions of the file and of its folder.",
    ),
    (
        ("is full", "no space left", "quota exceeded"),
        StorageError,
        "the disk is full",
        "Make room and run the same command again; everything stored so far is safe.",
    ),
    (
        ("not a database",),
        StorageError,
        "this file is not a database",
        "Give another file, or move this one away.",
    ),
    (
        ("malformed", "corrupt"),
        StorageError,
        "the database is damaged",
        "`sqlite3 FILE .recover` saves what can be read; the raw results in the trial folders are not affected.",
    ),
    (
        ("unable to open",),
        StorageError,
        "the database cannot be opened",
        "Check that it is a file and that its folder can be written; one with a `-wal` beside it is read where both "
        "are copied to such a folder.",
    ),
    (
        ("disk i/o error",),
        StorageError,
        "the disk cannot be read or written",
        "Check the disk, its free space and its limits.",
    ),
    (
        ("no such table", "no such column", "undefinedtable", "undefinedcolumn"),
        SchemaMismatch,
        "the database does not have the tables of this version",
        "Use the autotune version that wrote it, or another database.",
    ),
)
