"""The store: what `study.py`, `trial.py` and the review commands remember, as verbs.

Each verb is one short transaction and returns when it is on disk, so a kill -9 between two verbs loses nothing and
within one verb loses that verb whole. One object may be used by one thread at a time; several programs may hold the
same database.
"""

from __future__ import annotations

from sqlalchemy import select

from autotune.errors import StorageError, StudyMismatch
from autotune.records import LoadPlan
from autotune.store import rows
from autotune.store.codec import decode
from autotune.store.study_record import PromotionRecord, StudyRecord, StudySpec, StudyState
from autotune.store.tables import PromotionRow, StudyRow
from autotune.store.trial_reading import TrialReading
from autotune.store.trial_writing import TrialWriting


class Store(TrialWriting, TrialReading):
    """A database of studies. Open it with `Store.open`, close it with `close` or as a context manager."""

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
