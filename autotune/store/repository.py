"""The store: what `study.py`, `trial.py` and the review commands remember, as verbs.

Each verb is one short transaction and returns when it is on disk, so a kill -9 between two verbs loses nothing and
within one verb loses that verb whole. One object may be used by one thread at a time; several programs may hold the
same database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from sqlalchemy import Engine, Select, func, select
from sqlalchemy.orm import Session, selectinload

from autotune.engine.base import ServerIdentity
from autotune.errors import StorageError, StudyBusy, StudyMismatch, UnknownName
from autotune.life import Transition
from autotune.records import ClockKind, Config, LoadPlan, Origin, Trial, TrialResult
from autotune.store import rows
from autotune.store.codec import UndecodableRecord, decode
from autotune.store.connection import BUSY_TIMEOUT_S, WRITE, Location, connect, locate, translated
from autotune.store.listing import Tally, read_tallies
from autotune.store.outlines import Pulse, read_outlines, read_pulses
from autotune.store.schema import upgrade
from autotune.store.study_record import (
    AttemptRecord,
    AttemptState,
    PromotionRecord,
    StudyRecord,
    StudySpec,
    StudyState,
)
from autotune.store.tables import AttemptRow, PromotionRow, StudyRow, TransitionRow, TrialRow

IDS_PER_QUERY = 500
MOST_NUMBER = 2**31 - 1
"""What the column of a trial's number holds in every database."""
"""SQLite takes 32,766 values in a statement, older ones 999."""


def utc_now() -> datetime:
    """Now, aware, in UTC."""
    return datetime.now(UTC)


class Store:
    """A database of studies. Open it with `Store.open`, close it with `close` or as a context manager.

    Every verb raises StorageLocked when another program holds the database longer than the busy timeout, and
    StorageError (full disk, damaged file, read-only) with the path and the reason; verbs that name a study raise
    UnknownName when there is none.

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
        self._finished: dict[int, Trial] = {}
        self.location = location

    @classmethod
    def open(
        cls,
        url_or_path: str | Path,
        *,
        create: bool = True,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        now: Callable[[], datetime] = utc_now,
    ) -> Store:
        """Open a database and bring its tables to this version.

        Args:
            url_or_path: a SQLite file, or a `postgresql://` URL.
            create: make a missing file; reviewing commands say False.

        Raises:
            SchemaMismatch: the database is newer than this program.
        """
        location = locate(url_or_path)
        engine = connect(location, create=create, busy_timeout_s=busy_timeout_s)
        try:
            upgrade(engine, location)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine, location, now, busy_timeout_s)

    def close(self) -> None:
        """Give the connections back."""
        self.engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Studies

    def create_or_resume_study(self, wanted: StudySpec) -> StudyRecord:
        """The study of this name: made now, or the stored one when it asks the same question.

        The stored target and spec stay; `set_target` changes the target.

        Raises:
            StudyMismatch: the stored study differs in engine, clock, seed or identity; lists every difference.
        """
        with self._write() as session:
            row = session.scalar(select(StudyRow).where(StudyRow.name == wanted.name))
            if row is None:
                row = rows.study_row(wanted, self._now())
                session.add(row)
                session.flush()
                return rows.study_record(row)
            stored = rows.study_record(row)
            differing = rows.differences(stored, wanted)
            if differing:
                raise StudyMismatch(wanted.name, differing)
            return stored

    def study(self, name: str) -> StudyRecord:
        """One study."""
        with self._read() as session:
            return rows.study_record(self._study(session, name))

    def studies(self) -> tuple[StudyRecord, ...]:
        """All studies, oldest first."""
        with self._read() as session:
            found = session.scalars(select(StudyRow).order_by(StudyRow.created_at, StudyRow.id))
            return tuple(rows.study_record(row) for row in found)

    def set_target(self, study: str, target_trials: int) -> None:
        """How many counted trials the study should reach (`--trials 40`, `--trials +10`)."""
        with self._write() as session:
            self._study(session, study).target_trials = target_trials

    def set_study_state(self, study: str, state: StudyState) -> None:
        """Where the study stands."""
        with self._write() as session:
            self._study(session, study).state = state.value

    def set_load_plan(self, study: str, plan: LoadPlan) -> None:
        """Fix the study's load, found on the baseline.

        Raises:
            StorageError: another plan is stored already; its trials would not be comparable.
        """
        with self._write() as session:
            row = self._study(session, study)
            wanted = rows.encoded(plan)
            if row.load_plan is not None and row.load_plan != wanted:
                raise StorageError(f"{self.location.label}: study {study!r} has a load plan, which cannot change")
            row.load_plan = wanted

    def get_load_plan(self, study: str) -> LoadPlan | None:
        """The study's load; None until the baseline's capacity is known."""
        with self._read() as session:
            stored = self._study(session, study).load_plan
            return None if stored is None else decode(LoadPlan, stored)

    # Trials and attempts

    def begin_trial(
        self,
        study: str,
        *,
        config: Config,
        origin: Origin,
        gpus: int,
        number: int | None = None,
        repeat_of: int | None = None,
        why: str = "",
    ) -> Trial:
        """A new trial. Numbers are 0-based and without gaps, because Optuna's numbers must equal ours.

        Args:
            number: what the caller takes for the next number; None takes whichever it is.
            why: one line that says why it is launched.

        Raises:
            StudyBusy: `number` is not the next one: another tuner is adding trials to this study.
        """
        with self._write() as session:
            # PostgreSQL has no writers' lock as SQLite has: the study's row is it, or two would take one number.
            parent = self._study(session, study, locked=True)
            count = session.scalar(select(func.count()).where(TrialRow.study_id == parent.id)) or 0
            if number not in (None, count):
                raise StudyBusy(
                    f"study {study!r} has {count} trials, so the next one is not number {number}",
                    hint="Another tuner is running this study; let it finish or end it with `autotune stop`.",
                )
            row = TrialRow(
                study_id=parent.id,
                number=count,
                config_hash=config.hash,
                config=rows.encoded(config),
                origin=origin.value,
                gpus=gpus,
                repeat_of=repeat_of,
                why=why or None,
                created_at=self._now(),
                attempts=[],
            )
            session.add(row)
            session.flush()
            return rows.trial_record(row)

    def begin_attempt(
        self,
        study: str,
        trial: int,
        *,
        directory: str | Path,
        argv: Sequence[str] = (),
        identity: ServerIdentity | None = None,
        move: Transition | None = None,
    ) -> int:
        """A launch of a trial begins; its 1-based number. `argv` must hold no secret.

        Args:
            move: of the trial's life, stored with it; the same of all verbs that take one.
        """
        with self._write() as session:
            row = self._trial(session, study, trial)
            self._refuse_finished(study, row)
            number = len(row.attempts) + 1
            attempt = AttemptRow(
                trial_id=row.id,
                number=number,
                state=AttemptState.OPEN.value,
                started_at=self._now(),
                directory=str(directory),
                argv=list(argv),
                identity=rows.encoded(identity),
                transitions=self._moves(move),
            )
            session.add(attempt)
            return number

    def record_argv(self, study: str, trial: int, attempt: int, argv: Sequence[str]) -> None:
        """The server command line, once it is known; without secrets."""
        with self._write() as session:
            self._attempt(session, study, trial, attempt).argv = list(argv)

    def record_identity(self, study: str, trial: int, attempt: int, identity: ServerIdentity) -> None:
        """How to find and reap what the attempt started; on disk before the server can hold a GPU."""
        with self._write() as session:
            self._attempt(session, study, trial, attempt).identity = rows.encoded(identity)

    def record_phase(
        self,
        study: str,
        trial: int,
        attempt: int,
        move: Transition,
        *,
        at_utc: datetime,
        elapsed_s: float,
        clock: ClockKind,
    ) -> None:
        """The attempt entered another phase, `elapsed_s` after its start on `clock`."""
        with self._write() as session:
            change = rows.transition_row(move, at_utc, elapsed_s, clock)
            change.attempt_id = self._attempt(session, study, trial, attempt).id
            session.add(change)

    def finish_trial(self, study: str, trial: int, result: TrialResult, *, move: Transition | None = None) -> Trial:
        """The trial's outcome with all its evidence, in one transaction; its open attempt ends with it.

        Raises:
            StudyBusy: the trial is finished already; a finished trial never changes, a repeat is a trial of its own.
        """
        with self._write() as session:
            row = self._trial(session, study, trial)
            self._refuse_finished(study, row)
            now = self._now()
            for attempt in row.attempts:
                if attempt.state == AttemptState.OPEN.value:
                    attempt.state, attempt.ended_at = AttemptState.ENDED.value, now
            if row.attempts:
                row.attempts[-1].transitions += self._moves(move)
            finished = replace(rows.trial_record(row), result=result)
            rows.fill_result(row, finished, result, now)
            return finished

    def fault_attempt(
        self, study: str, trial: int, attempt: int, result: TrialResult, *, move: Transition | None = None
    ) -> None:
        """The environment spoilt this attempt: keep its evidence, the trial stays to be tried again."""
        self._end(study, trial, attempt, AttemptState.FAULTED, result, move)

    def interrupt_attempt(self, study: str, trial: int, attempt: int, *, move: Transition | None = None) -> None:
        """Ctrl-C or a dead tuner ended this attempt: the trial is run again, and no retry is used up."""
        self._end(study, trial, attempt, AttemptState.INTERRUPTED, None, move)

    def unfinished_attempts(self, study: str | None = None) -> tuple[AttemptRecord, ...]:
        """Open attempts, of one study or of all: after a kill -9, what must be reaped and then marked interrupted."""
        with self._read() as session:
            wanted = _attempts().where(AttemptRow.state == AttemptState.OPEN.value)
            if study is not None:
                wanted = wanted.where(StudyRow.id == self._study(session, study).id)
            return self._attempt_records(session, wanted)

    def attempts(self, study: str, trial: int) -> tuple[AttemptRecord, ...]:
        """All attempts of a trial, first to last, with the moves of the trial's life."""
        with self._read() as session:
            row = self._trial(session, study, trial)
            return self._attempt_records(session, _attempts().where(AttemptRow.trial_id == row.id))

    def study_attempts(self, study: str) -> tuple[AttemptRecord, ...]:
        """All attempts of all trials of a study, in the order of their starts."""
        with self._read() as session:
            return self._attempt_records(session, _attempts().where(StudyRow.id == self._study(session, study).id))

    def trials(self, study: str) -> tuple[Trial, ...]:
        """All trials in order of their numbers; `result` is None for those that run or wait to be run again.

        A finished trial never changes, so it is read once for the life of this store: a study asks often.
        """
        with self._read() as session:
            parent = self._study(session, study)
            ids = tuple(
                session.scalars(select(TrialRow.id).where(TrialRow.study_id == parent.id).order_by(TrialRow.number))
            )
            read = self._unread(session, parent.id, ids)
            self._finished.update({i: trial for i, trial in read.items() if trial.result is not None})
            return tuple(read[i] if i in read else self._finished[i] for i in ids)

    def _unread(self, session: Session, study_id: int, ids: Sequence[int]) -> dict[int, Trial]:
        """Those of a study's trials that are not known to be finished, by row."""
        wanted = _with_evidence().where(TrialRow.study_id == study_id)
        unknown = [i for i in ids if i not in self._finished]
        if len(unknown) == len(ids):
            return {row.id: rows.trial_record(row) for row in session.scalars(wanted)}
        read: dict[int, Trial] = {}
        for first in range(0, len(unknown), IDS_PER_QUERY):
            some = wanted.where(TrialRow.id.in_(unknown[first : first + IDS_PER_QUERY]))
            read |= {row.id: rows.trial_record(row) for row in session.scalars(some)}
        return read

    def outlines(self, study: str, *, latencies: Collection[str] = ("ttft",)) -> tuple[Trial, ...]:
        """All trials as front and pick need them, in order of their numbers, ten times as quick as `trials`.

        Of results only outcome, kind of failure, goodput, quality and early end are there; of levels only those that
        decide, with their output tokens/s, caveats and the latencies that were asked for. Everything else is missing,
        not zero.

        Args:
            latencies: of `LATENCIES`; what an SLO limits.
        """
        with self._read() as session:
            return read_outlines(session, self._study(session, study).id, latencies)

    def tallies(self, names: Collection[str] | None = None) -> dict[str, Tally]:
        """How far each study is, or each of those named, by its name."""
        with self._read() as session:
            return read_tallies(session.connection(), names)

    def pulses(self) -> dict[str, Pulse]:
        """By what each study's changes are seen, by its name."""
        with self._read() as session:
            return read_pulses(session)

    def trial(self, study: str, number: int) -> Trial:
        """One trial."""
        with self._read() as session:
            return rows.trial_record(self._trial(session, study, number))

    def trials_of(self, study: str, numbers: Sequence[int]) -> tuple[Trial, ...]:
        """Some trials, in order of their numbers; those that there are."""
        with self._read() as session:
            parent = self._study(session, study)
            read: dict[int, Trial] = {}
            for first in range(0, len(numbers), IDS_PER_QUERY):
                some = _with_evidence().where(
                    TrialRow.study_id == parent.id, TrialRow.number.in_(numbers[first : first + IDS_PER_QUERY])
                )
                read |= {row.number: rows.trial_record(row) for row in session.scalars(some)}
            return tuple(read[number] for number in sorted(read))

    def trial_times(self, study: str) -> tuple[tuple[datetime, datetime | None], ...]:
        """When each trial was begun and finished (wall clock, UTC), by number."""
        with self._read() as session:
            wanted = (
                select(TrialRow.created_at, TrialRow.finished_at)
                .where(TrialRow.study_id == self._study(session, study).id)
                .order_by(TrialRow.number)
            )
            return tuple((begun, finished) for begun, finished in session.execute(wanted))

    # Promotions

    def add_promotion(self, promotion: PromotionRecord) -> None:
        """A pick was rendered for production."""
        with self._write() as session:
            row = self._trial(session, promotion.study, promotion.trial)
            session.add(
                PromotionRow(
                    study_id=row.study_id,
                    trial_number=row.number,
                    created_at=promotion.created_at,
                    targets=list(promotion.targets),
                    directory=promotion.directory,
                    simulated=promotion.simulated,
                    details=rows.encoded(promotion.details),
                )
            )

    def promotions(self, study: str) -> tuple[PromotionRecord, ...]:
        """What was promoted, oldest first."""
        with self._read() as session:
            parent = self._study(session, study)
            found = select(PromotionRow).where(PromotionRow.study_id == parent.id).order_by(PromotionRow.id)
            return tuple(rows.promotion_record(study, row) for row in session.scalars(found))

    def all_promotions(self) -> tuple[PromotionRecord, ...]:
        """What was promoted from any study, oldest first."""
        with self._read() as session:
            joined = select(PromotionRow, StudyRow.name).join(StudyRow, PromotionRow.study_id == StudyRow.id)
            found = session.execute(joined.order_by(PromotionRow.id))
            return tuple(rows.promotion_record(study, row) for row, study in found)

    # For archives

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

    # Inside

    @contextmanager
    def _write(self) -> Iterator[Session]:
        with self._session(self._writer) as session:
            yield session

    @contextmanager
    def _read(self) -> Iterator[Session]:
        with self._session(self.engine) as session:
            yield session

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

    def _end(
        self,
        study: str,
        trial: int,
        attempt: int,
        state: AttemptState,
        result: TrialResult | None,
        move: Transition | None,
    ) -> None:
        with self._write() as session:
            row = self._attempt(session, study, trial, attempt)
            if row.state != AttemptState.OPEN.value:
                raise StudyBusy(
                    f"attempt {attempt} of trial {trial} of study {study!r} has ended already ({row.state})"
                )
            row.state, row.ended_at = state.value, self._now()
            row.result = rows.encoded(result)
            row.transitions += self._moves(move)

    def _refuse_finished(self, study: str, row: TrialRow) -> None:
        if row.result is not None:
            raise StudyBusy(
                f"trial {row.number} of study {study!r} is finished already ({row.outcome})",
                hint="Another tuner is running this study; let it finish or end it with `autotune stop`.",
            )

    def _attempt_records(self, session: Session, wanted: Select[AttemptRow, str]) -> tuple[AttemptRecord, ...]:
        return tuple(rows.attempt_record(study, row) for row, study in session.execute(wanted))


def _with_evidence() -> Select[TrialRow]:
    return select(TrialRow).options(selectinload(TrialRow.attempts), selectinload(TrialRow.measurements))


def _attempts() -> Select[AttemptRow, str]:
    return (
        select(AttemptRow, StudyRow.name)
        .join(TrialRow, AttemptRow.trial_id == TrialRow.id)
        .join(StudyRow, TrialRow.study_id == StudyRow.id)
        .options(selectinload(AttemptRow.transitions))
        .order_by(AttemptRow.id)
    )
