"""The front, how much it gained, and the one trial that is recommended; pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.records import Estimate, Limit, Pick, PickRule, Slo, Trial
from autotune.search.objective import Point, answers_kept, limited, points
from autotune.search.plainness import Plainer
from autotune.search.remembered import remembered
from autotune.units import format_seconds, plural

REFERENCE_THROUGHPUT_SHARE = 0.5
REFERENCE_TTFT_FACTOR = 4.0
"""The hypervolume's reference: half the baseline's throughput, four times its p95 TTFT; fixed for a study, so that
volumes of different moments and samplers compare."""


def front(values: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Indices of the points that no other one beats, ascending.

    A point beats another when it is at least as good in both (first value higher, second lower) and better in one, so
    points of equal values stand and fall together.
    """
    # By one figure after the other, which is quicker than by both at once and leaves the same order.
    order = sorted(range(len(values)), key=[second for _, second in values].__getitem__)
    order.sort(key=[-first for first, _ in values].__getitem__)
    kept: list[int] = []
    lowest = math.inf
    last: tuple[float, float] | None = None
    for index in order:
        # In falling order of the first value, a point is beaten exactly when an earlier, different one has a second
        # value that is no higher.
        if values[index][1] < lowest or values[index] == last:
            kept.append(index)
            lowest, last = values[index][1], values[index]
    return tuple(sorted(kept))


@remembered
def front_places(trials: Sequence[Trial]) -> tuple[int, ...]:
    """Which of `points` are on the front, ascending."""
    return front([point.values for point in points(trials)])


def front_points(trials: Sequence[Trial]) -> tuple[Point, ...]:
    """The measured configs on the front, lowest p95 TTFT first."""
    found = points(trials)
    chosen = [found[index] for index in front_places(trials)]
    return tuple(sorted(chosen, key=lambda point: (point.ttft_p95_s.value, point.number)))


def front_of(trials: Sequence[Trial]) -> tuple[int, ...]:
    """Numbers of the trials on the front, lowest p95 TTFT first; a repeated config appears as its first trial."""
    return tuple(point.number for point in front_points(trials))


def reference_of(baseline: Point) -> tuple[float, float]:
    """The hypervolume's reference for a study of this baseline: (tokens/s per GPU, seconds)."""
    return (
        baseline.tok_s_per_gpu.value * REFERENCE_THROUGHPUT_SHARE,
        baseline.ttft_p95_s.value * REFERENCE_TTFT_FACTOR,
    )


def hypervolume(values: Sequence[tuple[float, float]], reference: tuple[float, float]) -> float | None:
    """Area between the front and `reference` in natural-log objectives, exact; None without points.

    Args:
        values: (throughput to maximise, TTFT to minimise), all above 0.
        reference: points that are not better than it in both add nothing.
    """
    if not values:
        return None
    base_x, base_y = math.log(reference[0]), math.log(reference[1])
    logs = [(math.log(throughput), math.log(ttft)) for throughput, ttft in values]
    inside = [(x, y) for x, y in logs if x > base_x and y < base_y]
    area = 0.0
    ceiling = base_y
    # Highest throughput first: each point of the front adds the strip between its TTFT and the one before.
    for x, y in sorted(inside, key=lambda point: (-point[0], point[1])):
        if y < ceiling:
            area += (x - base_x) * (ceiling - y)
            ceiling = y
    return area


def pick(
    trials: Sequence[Trial],
    baseline: Trial | None = None,
    rule: PickRule = PickRule.KNEE,
    slo: Slo | None = None,
    lossy: frozenset[str] = frozenset(),
) -> Pick | None:
    """The one trial to recommend, with its reason in plain words; None when nothing qualifies.

    With an SLO: the highest throughput that meets every limit at the TTFT level, each judged by its interval's upper
    bound if there is one; in a study whose objective is the goodput, the highest of that. Without: by `rule`. The knee
    is, among the front's trials that are no worse than the baseline in either objective (within its interval), or on
    the whole front where no other one is, the trial that alone gives the largest hypervolume: the product of both log
    distances from `reference_of` the baseline. (The product of the gains over the baseline itself would be decided by
    noise where one of them is near 0.) Without a baseline it is the point furthest from the chord between the front's
    ends, in log space. Ties: lower TTFT, then lower number. A config that lost its answers is never recommended,
    however fast it is.

    What is tied with that one, qualifies as well and is plainer takes its place (`plainness.py`).

    Args:
        baseline: what gains are counted against; trial 0 when it is not given.
        lossy: parameters that the space says may change answers.
    """
    found = points(trials)
    choice = choice_of(found, trials, _baseline_point(found, trials, baseline), rule, slo)
    if choice is None:
        return None
    plainer = Plainer.of(trials, lossy)
    best = choice.best
    chosen = best if plainer is None else choice.plainest(best, plainer)
    return _made(choice, chosen, plainer)


@dataclass(frozen=True, slots=True)
class Choice:
    """How a study's pick is chosen.

    Attributes:
        best: what the rule takes.
        qualified: configs that it may take. On the front or not: a place beside it can be luck.
        rank: the lowest is the best.
        base: the baseline; None where it has no figures.
        said: why the best one is.
        judged: of a config that takes its place, what its limits were held against.
    """

    best: Point
    qualified: Sequence[Point]
    rank: Callable[[Point], tuple[float, ...]]
    base: Point | None
    rule: PickRule
    said: str
    judged: Callable[[Point], str] = lambda _: ""

    def plainest(self, best: Point, plainer: Plainer) -> Point:
        """What to recommend where `best` would be taken. No config takes the place of one that is no worse than the
        baseline and is itself worse."""
        base = self.base
        guarded = base is not None and _no_worse(best, base)
        others = [one for one in self.qualified if not guarded or base is None or _no_worse(one, base)]
        return plainer.instead_of(best, others, self.rank)


def choice_of(
    found: Sequence[Point], trials: Sequence[Trial], base: Point | None, rule: PickRule, slo: Slo | None
) -> Choice | None:
    """How the pick is chosen among `found`, which are the `points` of `trials`; None when nothing qualifies."""
    kept = answers_kept(found, trials)
    found = [point for point, keeps in zip(found, kept, strict=True) if keeps]
    if not found:
        return None
    if slo is not None and found[0].goodput_rps_per_gpu is not None:
        # Every goodput meets the SLO, which is how it was found; the levels of fixed load say nothing more of it.
        best = min(found, key=_fastest)
        return Choice(best, found, _fastest, base, PickRule.THROUGHPUT, f"the highest goodput within {slo}")
    if slo is not None:
        return _choice_slo(found, trials, base, slo)
    places = front_places(trials) if all(kept) else front([point.values for point in found])
    on_front = [found[index] for index in places]
    match rule:
        case PickRule.THROUGHPUT:
            return Choice(min(on_front, key=_fastest), found, _fastest, base, rule, "the highest throughput")
        case PickRule.LATENCY:
            return Choice(min(on_front, key=_quickest), found, _quickest, base, rule, "the lowest p95 TTFT")
        case PickRule.KNEE:
            return _choice_knee(found, on_front, base)


def _fastest(point: Point) -> tuple[float, ...]:
    return -point.tok_s_per_gpu.value, point.ttft_p95_s.value, point.number


def _quickest(point: Point) -> tuple[float, ...]:
    return point.ttft_p95_s.value, -point.tok_s_per_gpu.value, point.number


def _baseline_point(found: Sequence[Point], trials: Sequence[Trial], baseline: Trial | None) -> Point | None:
    if baseline is None:
        baseline = next((trial for trial in trials if trial.number == 0), None)
    if baseline is None:
        return None
    return next((point for point in found if point.config_hash == baseline.config.hash), None)


def _choice_slo(found: Sequence[Point], trials: Sequence[Trial], base: Point | None, slo: Slo) -> Choice | None:
    meeting = [
        point for point in found if all(limit.is_surely_met(limited(point, trials, limit)) for limit in slo.limits)
    ]
    return among_meeting(meeting, trials, base, slo) if meeting else None


def among_meeting(meeting: Sequence[Point], trials: Sequence[Trial], base: Point | None, slo: Slo) -> Choice:
    """How the pick is chosen among configs that are known to meet `slo`; at least one."""

    def judged(point: Point) -> str:
        figures = [(limit, limited(point, trials, limit)) for limit in slo.limits]
        return f" ({'; '.join(_judged(limit, figure, alone=len(figures) == 1) for limit, figure in figures)})"

    said = f"the highest throughput of the {plural(len(meeting), 'config')} that meet {slo}"
    return Choice(min(meeting, key=_fastest), meeting, _fastest, base, PickRule.THROUGHPUT, said, judged)


def _judged(limit: Limit, figure: Estimate | None, *, alone: bool) -> str:
    """The figure that a limit was held against, and what it is."""
    assert figure is not None  # a limit without a figure is never met
    name = "" if alone else f"{limit.metric} "
    if not limit.metric.is_time:
        return f"{name}judged by the requests that failed, {figure.value:.2%}"
    if figure.high is not None:
        return f"{name}judged by the upper bound of its 95 % interval, {format_seconds(figure.high)}"
    return (
        f"{name}judged by the estimate, as there were too few samples for an interval, {format_seconds(figure.value)}"
    )


def _choice_knee(found: Sequence[Point], on_front: Sequence[Point], base: Point | None) -> Choice:
    if base is None:

        def bulging(point: Point) -> tuple[float, ...]:
            return -_bulge(point, on_front), point.ttft_p95_s.value, point.number

        said = "the knee of the front, where more throughput begins to cost more TTFT than before"
        return Choice(min(on_front, key=bulging), found, bulging, base, PickRule.KNEE, said)
    no_worse = [point for point in on_front if _no_worse(point, base)]
    others = [point for point in no_worse if point is not base]
    reference = reference_of(base)

    def balanced(point: Point) -> tuple[float, ...]:
        return -_alone(point, reference), point.ttft_p95_s.value, point.number

    best = min(no_worse if others else on_front, key=balanced)
    if on_front == [base]:
        said = "the baseline, which no config is better than"
    elif others == [best]:
        said = "the only config of the front no worse than the baseline (within its interval)"
    elif others:
        among = f"{plural(len(others), 'config')} of the front no worse than the baseline (within its interval)"
        said = f"the best balance of {among}"
    else:
        among = f"{plural(len(on_front), 'config')} of the front, none of which matches the baseline in both figures"
        said = f"the best balance of {among}"
    return Choice(best, found, balanced, base, PickRule.KNEE, said)


def _alone(point: Point, reference: tuple[float, float]) -> float:
    """Hypervolume of a front of this point only; beyond the reference, minus how far, so that the nearest wins."""
    throughput = point.logs[0] - math.log(reference[0])
    ttft = math.log(reference[1]) - point.logs[1]
    return throughput * ttft if throughput > 0 and ttft > 0 else min(throughput, 0.0) + min(ttft, 0.0)


def _no_worse(point: Point, base: Point) -> bool:
    floor, ceiling = base.tok_s_per_gpu.low, base.ttft_p95_s.high
    return point.tok_s_per_gpu.value >= (base.tok_s_per_gpu.value if floor is None else floor) and (
        point.ttft_p95_s.value <= (base.ttft_p95_s.value if ceiling is None else ceiling)
    )


def _bulge(point: Point, on_front: Sequence[Point]) -> float:
    """Distance from the chord between the front's ends, up to a factor; above 0 on the better side.

    The cross product orders points like the distance does, whatever the units of the two axes.
    """
    ends = sorted(on_front, key=lambda p: (p.ttft_p95_s.value, p.number))
    (x0, y0), (x1, y1) = ends[0].logs, ends[-1].logs
    x, y = point.logs
    # Exactly 0 at the ends: rounding must not decide between them.
    if point.values in (ends[0].values, ends[-1].values):
        return 0.0
    return (x - x0) * (y1 - y0) - (y - y0) * (x1 - x0)


def _made(choice: Choice, chosen: Point, plainer: Plainer | None) -> Pick:
    best, base = choice.best, choice.base
    text = f"{choice.said}: {_figures(best)}{choice.judged(chosen)}"
    if plainer is not None and chosen is not best:
        text = (
            f"{_preferred(chosen, best, plainer)}: {_figures(chosen)}{choice.judged(chosen)}; trial {best.number} is "
        )
        text += f"{choice.said}: {_figures(best)}"
    elif base is None:
        text += " (the baseline has no figures to compare with)"
    text += _against(chosen, base, plainer)
    if len(chosen.numbers) > 1:
        text += f"; means of {len(chosen.numbers)} runs"
    return Pick(
        number=chosen.number,
        rule=choice.rule,
        reason=text,
        throughput_gain=None if base is None else chosen.tok_s_per_gpu.value / base.tok_s_per_gpu.value,
        ttft_gain=None if base is None else chosen.ttft_p95_s.value / base.ttft_p95_s.value,
        instead_of=None if chosen is best else best.number,
    )


def _preferred(chosen: Point, best: Point, plainer: Plainer) -> str:
    own, other = plainer.worth[chosen.number], plainer.worth[best.number]
    if len(own.lossy) < len(other.lossy):
        risk = f"{', '.join(other.lossy)} may change answers there"
    else:
        risk = f"that one has {plural(other.changes - own.changes, 'change')} more against the baseline"
    return f"statistically tied with trial {best.number} and plainer ({risk})"


def _against(best: Point, base: Point | None, plainer: Plainer | None) -> str:
    if base is None:
        return ""
    if best is base:
        return "; this is the baseline itself"
    throughput = best.tok_s_per_gpu.value / base.tok_s_per_gpu.value - 1
    ttft = best.ttft_p95_s.value / base.ttft_p95_s.value - 1
    what = "throughput" if best.goodput_rps_per_gpu is None else "goodput"
    text = f"; {throughput:+.0%} {what} and {ttft:+.0%} p95 TTFT against the baseline"
    if plainer is not None and plainer.ties.tied(best, base):
        text += ", both within the noise: vLLM's defaults may be as good here"
    return text


def _figures(point: Point) -> str:
    rate = point.goodput_rps_per_gpu
    ttft = f"{format_seconds(point.ttft_p95_s.value)} p95 TTFT"
    if rate is not None:
        return (
            f"{rate.value:.3g} requests/s per GPU, which is {point.tok_s_per_gpu.value:,.0f} output tokens/s, with "
            f"{ttft} at the study's fixed rate"
        )
    return f"{point.tok_s_per_gpu.value:,.0f} output tokens/s per GPU at {ttft}"
