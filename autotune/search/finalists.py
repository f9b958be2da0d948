"""Who is measured alone of those that were only measured beside others. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.records import Pick, Trial
from autotune.search.objective import Point, points
from autotune.search.pareto import front_of
from autotune.search.screening import Interference, interference

MOST_FINALISTS = 8
"""Each of them has the whole node to itself for as long as a trial takes."""


def next_finalist(trials: Sequence[Trial], pick: Pick | None) -> Trial | None:
    """A config that belongs on the front, or may do so, and that nobody has measured alone; None when there is none.

    The pick comes first, then the front, then the contenders. One that was launched alone, whatever became of it, is
    not launched for this again.
    """
    launched = {trial.config.hash for trial in trials if trial.alone}
    beside = {trial.config.hash for trial in trials if not trial.alone}
    if len(launched & beside) >= MOST_FINALISTS + 1:  # the baseline is one of them
        return None
    first = [] if pick is None else [pick.number]
    wanted = dict.fromkeys([*first, *sorted(front_of(trials)), *contenders(trials)])
    by_number = {trial.number: trial for trial in trials}
    return next((by_number[number] for number in wanted if by_number[number].config.hash not in launched), None)


def contenders(trials: Sequence[Trial]) -> tuple[int, ...]:
    """Numbers of the configs on the front of what was measured beside others, those first that are on it in any case.

    Among themselves they were measured under the same conditions, as far as each had as many neighbours at the same
    moments. As far as it had not, its figures are too bad by at most what neighbours cost: whom that keeps off the
    front is measured alone as well.
    """
    cost = interference(trials)
    found = points([trial for trial in trials if not trial.alone])
    plain = [point.number for point in found if not _is_beaten(point, found, None)]
    doubtful = [point.number for point in found if not _is_beaten(point, found, cost)]
    return tuple(dict.fromkeys([*plain, *doubtful]))


def _is_beaten(point: Point, others: Sequence[Point], cost: Interference | None) -> bool:
    """Whether another is better in one figure and no worse in the other, even without the cost of neighbours."""
    throughput, ttft = point.values
    if cost is not None:
        throughput /= min(1.0, cost.throughput.ratio)
        ttft /= max(1.0, cost.ttft.ratio)
    return any(
        other.values[0] >= throughput and other.values[1] <= ttft and other.values != (throughput, ttft)
        for other in others
        if other is not point
    )
