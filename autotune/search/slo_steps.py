"""The pick for every limit of the p95 TTFT that somebody could set, worked out once. Pure.

A page lets people move the limit and follow the pick. The pick changes only where one more config begins to meet the
limit, so a study has as many answers as it has measured configs, and there is no need to write its rule a second time
in another language.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.records import Limit, Slo, SloMetric, Trial
from autotune.search.growth import baseline_point
from autotune.search.objective import Point, answers_lost, is_goodput, limited, points
from autotune.search.pareto import among_meeting
from autotune.search.plainness import Plainer


@dataclass(frozen=True, slots=True, kw_only=True)
class SloStep:
    """From `from_s` on, up to the next step, a limit of the p95 TTFT has this pick.

    Attributes:
        number: of the pick.
        best: what the rule takes; another one than the pick where that is tied with it and plainer.
        meeting: how many configs meet the limit.
    """

    from_s: float
    number: int
    best: int
    meeting: int


def slo_steps(
    trials: Sequence[Trial], *, others: Sequence[Limit] = (), lossy: frozenset[str] = frozenset()
) -> tuple[SloStep, ...]:
    """Lowest limit first; a limit below the first step's has no pick. Steps that change nothing but `meeting` stay.

    What `pareto.pick` answers for an SLO of `others` and `ttft_p95<=X`, for every X. Empty for a study of goodput,
    whose SLO was part of the search.

    Args:
        others: limits of other metrics that stay as they are.
        lossy: parameters that the space says may change answers.
    """
    if is_goodput(trials):
        return ()
    found = points(trials)
    judged = sorted(_judged(found, trials, others), key=lambda one: one[0])
    base = baseline_point(trials)
    plainer = Plainer.of(trials, lossy)
    steps: list[SloStep] = []
    meeting: list[Point] = []
    for place, (bound_s, point) in enumerate(judged):
        meeting.append(point)
        if place + 1 < len(judged) and judged[place + 1][0] == bound_s:
            continue  # both begin to meet it at once
        slo = Slo.made([*others, Limit(metric=SloMetric.TTFT_P95, bound=bound_s)])
        choice = among_meeting(meeting, trials, base, slo)
        chosen = choice.best if plainer is None else choice.plainest(choice.best, plainer)
        steps.append(SloStep(from_s=bound_s, number=chosen.number, best=choice.best.number, meeting=len(meeting)))
    return tuple(steps)


def kept_from(trials: Sequence[Trial], others: Sequence[Limit] = ()) -> dict[int, float]:
    """By config, the lowest limit of the p95 TTFT that it surely meets, s; without those that qualify for no pick."""
    return {point.number: bound_s for bound_s, point in _judged(points(trials), trials, others)}


def _judged(found: Sequence[Point], trials: Sequence[Trial], others: Sequence[Limit]) -> list[tuple[float, Point]]:
    """The same with the configs; those that miss one of `others` or lost answers are left out."""
    told = []
    for point in found:
        if answers_lost(point, trials):
            continue
        if not all(limit.is_surely_met(limited(point, trials, limit)) for limit in others):
            continue
        figure = limited(point, trials, Limit(metric=SloMetric.TTFT_P95, bound=1.0))
        bound_s = None if figure is None else figure.value if figure.high is None else figure.high
        if bound_s is not None and math.isfinite(bound_s):
            told.append((bound_s, point))
    return told
