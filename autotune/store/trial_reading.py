"""Trials as they were: the verbs that look at them, whole or as far as somebody needs them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from sqlalchemy import Engine, Select, select
from sqlalchemy.orm import Session, selectinload

from autotune.records import SloMetric, Trial
from autotune.store import rows
from autotune.store.connection import BUSY_TIMEOUT_S, Location
from autotune.store.database import Database
from autotune.store.listing import Tally, read_tallies
from autotune.store.outlines import read_outlines
from autotune.store.pulses import Pulse, read_pulses
from autotune.store.study_record import AttemptRecord, AttemptState
from autotune.store.tables import AttemptRow, StudyRow, TrialRow

IDS_PER_QUERY = 500
"""SQLite takes 32,766 values in a statement, older ones 999."""


class TrialReading(Database):
    """Trials, their attempts, and how far studies are."""

    def __init__(
        self, engine: Engine, location: Location, now: Callable[[], datetime], busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> None:
        super().__init__(engine, location, now, busy_timeout_s)
        self._finished: dict[int, Trial] = {}

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

    def outlines(
        self, study: str, *, metrics: Collection[SloMetric] = (SloMetric.TTFT_P95,), phases: bool = False
    ) -> tuple[Trial, ...]:
        """All trials as front and pick need them, in order of their numbers, ten times as quick as `trials`.

        Of results only outcome, kind of failure, goodput, quality and early end are there; of levels only those that
        decide, with their output tokens/s, caveats and, of the one that an SLO is held against, the times that were
        asked for. Everything else is missing, not zero.

        Args:
            metrics: what an SLO limits; of each time the p95 is read in any case.
            phases: whether how long each phase took is there as well.
        """
        with self._read() as session:
            return read_outlines(session, self._study(session, study).id, metrics, phases=phases)

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
