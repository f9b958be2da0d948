"""Where studies stand, as `autotune list`, `status` and the service tell it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from autotune.report.studies import StudyRow
from autotune.store.study_record import StudyState

if TYPE_CHECKING:
    from autotune.store.listing import ListedStudy, Tally
    from autotune.store.places import Places
    from autotune.store.study_record import AttemptRecord, StudyRecord


INTERRUPTED = "interrupted"
"""State of a study that is stored as running, and that nobody runs: its tuner was killed."""


def state_now(study: StudyRecord | ListedStudy, *, held: bool) -> str:
    """A study's state; `held`: whether somebody holds its lock now, as a verification of a finished study does too."""
    return INTERRUPTED if study.state == StudyState.RUNNING and not held else str(study.state)


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
        state=str(StudyState.RUNNING) if holder else state_now(study, held=False),
        done=tally.counted,
        wanted=study.target_trials,
        measured=tally.measured,
        infeasible=tally.infeasible,
        trial=running,
        phase=phase,
        elapsed_s=elapsed,
        pid=holder.pid if holder else None,
    )
