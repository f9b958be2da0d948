"""Where studies stand, as `autotune list`, `status` and the service tell it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from autotune.report.studies import StudyRow
from autotune.store.folder import HeldFor
from autotune.store.study_record import StudyState

if TYPE_CHECKING:
    from autotune.store.folder import LockHolder
    from autotune.store.listing import ListedStudy, Tally
    from autotune.store.places import Places
    from autotune.store.study_record import AttemptRecord, StudyRecord


INTERRUPTED = "interrupted"
"""State of a study that is stored as running, and that nobody runs: its tuner was killed."""

VERIFYING = "verifying"
"""State of a study of which a config is being verified, in lists."""


def state_now(study: StudyRecord | ListedStudy, places: Places) -> str:
    """A study's state, whatever else is done with it."""
    return INTERRUPTED if study.state == StudyState.RUNNING and places.is_left(study.name) else str(study.state)


def _listed_state(study: StudyRecord | ListedStudy, places: Places, holder: LockHolder | None) -> str:
    if holder is not None and holder.held_for is HeldFor.VERIFICATION:
        return VERIFYING
    if holder is not None and holder.held_for is HeldFor.STUDY:
        return str(StudyState.RUNNING)  # whatever is stored: it is about to begin, or to end
    return state_now(study, places)


def study_row(
    study: StudyRecord | ListedStudy,
    tally: Tally,
    places: Places,
    attempts: Callable[[str, int], Sequence[AttemptRecord]],
    *,
    now: datetime,
) -> StudyRow:
    """One study's line; `running` is what holds the study's lock now, whatever is stored.

    Args:
        attempts: of a study's trial, `Store.attempts`; asked of a study that runs.
        now: aware; `elapsed_s` counts from the beginning of the running attempt to it.
    """
    holder = places.folder(study.name).holder()
    running = tally.waiting if holder else None
    phase, elapsed = None, None
    if running is not None:
        made = attempts(study.name, running)
        if made and made[-1].transitions:
            phase = str(made[-1].transitions[-1].move.after)
            elapsed = (now - made[-1].started_at).total_seconds()
    return StudyRow(
        name=study.name,
        model=study.identity["model"],
        workload=str(study.spec.get("workload", "")),
        engine=str(study.engine),
        simulated=study.simulated or tally.simulated,
        state=_listed_state(study, places, holder),
        done=tally.counted,
        wanted=study.target_trials,
        measured=tally.measured,
        infeasible=tally.infeasible,
        trial=running,
        phase=phase,
        elapsed_s=elapsed,
        pid=holder.pid if holder else None,
    )
