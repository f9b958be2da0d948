"""By what a study's changes are seen, without looking at its trials."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from autotune.store.tables import AttemptRow, PromotionRow, StudyRow, TrialRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """By what it is seen, at little cost, that a study has changed: phases of a running trial are not among it.

    Attributes:
        trials, finished: how many there are, and how many of them have ended.
        attempts: the latest one's row; 0 where there is none.
        promotions: of all studies, as what runs today is shown beside every front.
    """

    state: str
    target: int
    trials: int
    finished: int
    attempts: int
    promotions: int

    @property
    def revision(self) -> str:
        """A short text that no two states of a study share."""
        counts = (self.trials, self.finished, self.attempts, self.target, self.promotions)
        return f"{self.state}-{'.'.join(map(str, counts))}"


def read_pulses(session: Session) -> dict[str, Pulse]:
    """Of every study, by its name."""
    promotions = session.scalar(select(func.count()).select_from(PromotionRow)) or 0
    counted = (
        select(
            StudyRow.name, StudyRow.state, StudyRow.target_trials, func.count(TrialRow.id), func.count(TrialRow.outcome)
        )
        .outerjoin(TrialRow, TrialRow.study_id == StudyRow.id)
        .group_by(StudyRow.id, StudyRow.name, StudyRow.state, StudyRow.target_trials)
    )
    open_trials = select(TrialRow.id, StudyRow.name).join(StudyRow).where(TrialRow.outcome.is_(None)).subquery()
    latest = select(open_trials.c.name, func.max(AttemptRow.id)).join(
        AttemptRow, AttemptRow.trial_id == open_trials.c.id
    )
    attempts = {name: row for name, row in session.execute(latest.group_by(open_trials.c.name))}  # noqa: C416 - typed so
    return {
        name: Pulse(
            state=state,
            target=target,
            trials=trials,
            finished=finished,
            attempts=attempts.get(name, 0),
            promotions=promotions,
        )
        for name, state, target, trials, finished in session.execute(counted)
    }
