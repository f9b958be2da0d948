"""The end of an attempt that was lost with its node: the environment's fault, tried again elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.engine.remedies import remedies_for
from autotune.records import ClockKind, Failure, FailureClass, Outcome, Phase, TrialResult
from autotune.trial import TrialObserver, TrialRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What the tuner knows of such an attempt.

    Attributes:
        phase, elapsed_s: that it entered last, and when.
    """

    host: str
    phase: Phase
    elapsed_s: float
    why: str


def lost_run(lost: Lost, clock: ClockKind, observer: TrialObserver) -> TrialRun:
    """Its run; the observer is told that it has ended, where it stopped being heard of."""
    if lost.phase in (Phase.WARMING, Phase.MEASURING):
        observer.phase(Phase.STOPPING, lost.elapsed_s)
    if lost.phase is not Phase.ENDED:
        observer.phase(Phase.ENDED, lost.elapsed_s)
    kind = FailureClass.NODE_LOST
    failure = Failure(
        kind=kind,
        line=f"lost on {lost.host}: {lost.why}",
        remedies=remedies_for(kind, {}),
        facts=(("host", lost.host), ("phase", lost.phase.value)),
    )
    result = TrialResult(
        outcome=Outcome.FAULTED, clock=clock, simulated=clock is ClockKind.VIRTUAL, failure=failure, host=lost.host
    )
    return TrialRun(result=result, load=None)
