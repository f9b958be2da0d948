"""A database of studies as the verbs of the store use it: one short transaction at a time, rows by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from autotune.errors import StorageError, UnknownName
from autotune.life import Transition
from autotune.store import rows
from autotune.store.codec import UndecodableRecord
from autotune.store.connection import BUSY_TIMEOUT_S, WRITE, Location, connect, locate, translated
from autotune.store.schema import upgrade
from autotune.store.tables import AttemptRow, StudyRow, TransitionRow, TrialRow

MOST_NUMBER = 2**31 - 1
"""What the column of a trial's number holds in every database."""


def utc_now() -> datetime:
    """Now, aware, in UTC."""
    return datetime.now(UTC)


class Database:
    """What all verbs share. Every one raises StorageLocked when another program holds the database longer than the busy
    timeout, and StorageError (full disk, damaged file, read-only) with the path and the reason; verbs that name a study
    raise UnknownName when there is none.

    Attributes:
        engine: for `projection.py`, which looks at Optuna's tables; nobody else.
        busy_timeout_s: how long another program that holds the database is waited for.
    """

    def __init__(
        self, engine: Engine, location: Location, now: Callable[[], datetime], busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> None:
        self.engine = engine
        self.busy_timeout_s = busy_timeout_s
        self._writer = engine.execution_options(**WRITE)
        self._now = now
        self.location = location

    @classmethod
    def open(
        cls,
        url_or_path: str | Path,
        *,
        create: bool = True,
        migrate: bool = True,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        now: Callable[[], datetime] = utc_now,
    ) -> Self:
        """Open a database and bring its tables to this version.

        Args:
            url_or_path: a SQLite file, or a `postgresql://` URL.
            create: make a missing file; reviewing commands say False.
            migrate: make and change tables; without it, those of another version are refused.

        Raises:
            SchemaMismatch: the database is newer than this program, or older and must not be changed.
        """
        location = locate(url_or_path)
        engine = connect(location, create=create, busy_timeout_s=busy_timeout_s)
        try:
            upgrade(engine, location, migrate=migrate)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine, location, now, busy_timeout_s)

    def close(self) -> None:
        """Give the connections back."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def reading(self, study: str) -> Iterator[tuple[Session, StudyRow]]:
        """A study's rows as they are at one moment, for `archive.py` alone."""
        with self._read() as session:
            yield session, self._study(session, study)

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """One transaction, for `archive.py` alone: committed at its end, rolled back by whatever is raised."""
        with self._write() as session:
            yield session

    @contextmanager
    def _write(self) -> Iterator[Session]:
        with self._session(self._writer) as session:
            yield session

    @contextmanager
    def _read(self) -> Iterator[Session]:
        try:
            with self._session(self.engine) as session:
                yield session
        except (ValueError, RecursionError) as error:  # a column that holds no JSON, or too deep, or no time
            raise StorageError(f"{self.location.label}: holds a record that cannot be read: {error}") from error

    @contextmanager
    def _session(self, engine: Engine) -> Iterator[Session]:
        try:
            with translated(self.location), Session(engine, expire_on_commit=False) as session, session.begin():
                yield session
        except UndecodableRecord as error:
            raise StorageError(f"{self.location.label}: holds a record that cannot be read: {error}") from error

    def _study(self, session: Session, name: str, *, locked: bool = False) -> StudyRow:
        # A database takes text that is UTF-8; a name from the command line may be none, and then no study has it.
        utf8 = name.encode("utf-8", "replace").decode() == name
        wanted = select(StudyRow).where(StudyRow.name == name)
        row = session.scalar(wanted.with_for_update() if locked else wanted) if utf8 else None
        if row is None:
            known = session.scalars(select(StudyRow.name)).all()
            raise UnknownName("study", name, known, source=self.location.label)
        return row

    def _trial(self, session: Session, study: str, number: int) -> TrialRow:
        parent = self._study(session, study)
        one = select(TrialRow).where(TrialRow.study_id == parent.id, TrialRow.number == number)
        row = session.scalar(one) if number <= MOST_NUMBER else None  # a driver raises for what its column cannot hold
        if row is None:
            last = session.scalar(select(func.max(TrialRow.number)).where(TrialRow.study_id == parent.id))
            known = "no trial yet" if last is None else f"trials 0..{last}"
            raise UnknownName("trial", str(number), (), hint=f"Study {study!r} has {known}.")
        return row

    def _attempt(self, session: Session, study: str, trial: int, number: int) -> AttemptRow:
        row = self._trial(session, study, trial)
        found = next((attempt for attempt in row.attempts if attempt.number == number), None)
        if found is None:
            raise StorageError(f"{self.location.label}: trial {trial} of {study!r} has no attempt {number}")
        return found

    def _moves(self, move: Transition | None) -> list[TransitionRow]:
        return [] if move is None else [rows.transition_row(move, self._now())]
