"""The front, how much it gained, and the one trial that is recommended; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.records import Estimate, Limit, Pick, PickRule, Slo, Trial
from autotune.search.drift import undrifted
from autotune.search.noise import difference, run_noise
from autotune.search.objective import Point, limited, points
from autotune.units import format_seconds

REFERENCE_THROUGHPUT_SHARE = 0.5
REFERENCE_TTFT_FACTOR = 4.0
"""The hypervolume's reference: half the baseline's throughput, four times its p95 TTFT; fixed for a study, so that
volumes of different moments and samplers compare."""


def front(values: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Indices of the points that no other one beats, ascending.

    A point beats another when it is at least as good in both (first value higher, second lower) and better in one, so
    points of equal values stand and fall together.
    """
    order = sorted(range(len(values)), key=lambda index: (-values[index][0], values[index][1]))
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


def front_points(trials: Sequence[Trial]) -> tuple[Point, ...]:
    """The measured configs on the front, lowest p95 TTFT first."""
    found = points(trials)
    chosen = [found[index] for index in front([point.values for point in found])]
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
) -> Pick | None:
    """The one trial to recommend, with its reason in plain words; None when nothing qualifies.

    With an SLO: the highest throughput that meets every limit at the TTFT level, each judged by its interval's upper
    bound if there is one; in a study whose objective is the goodput, the highest of that. Without: by `rule`. The knee
    is, among the front's trials that are no worse than the baseline in either objective (within its interval), or on
    the whole front where no other one is, the trial that alone gives the largest hypervolume: the product of both log
    distances from `reference_of` the baseline. (The product of the gains over the baseline itself would be decided by
    noise where one of them is near 0.) Without a baseline it is the point furthest from the chord between the front's
    ends, in log space. Ties: lower TTFT, then lower number.

    Args:
        baseline: what gains are counted against; trial 0 when it is not given.
    """
    found = points(trials)
    if not found:
        return None
    base = _baseline_point(found, trials, baseline)
    if slo is not None and found[0].goodput_rps_per_gpu is not None:
        return _pick_goodput(trials, found, base, slo)
    if slo is not None:
        return _pick_slo(found, trials, base, slo)
    on_front = [found[index] for index in front([point.values for point in found])]
    match rule:
        case PickRule.THROUGHPUT:
            best = min(on_front, key=lambda p: (-p.tok_s_per_gpu.value, p.ttft_p95_s.value, p.number))
            return _made(trials, best, base, rule, f"the highest throughput: {_figures(best)}")
        case PickRule.LATENCY:
            best = min(on_front, key=lambda p: (p.ttft_p95_s.value, -p.tok_s_per_gpu.value, p.number))
            return _made(trials, best, base, rule, f"the lowest p95 TTFT: {_figures(best)}")
        case PickRule.KNEE:
            return _pick_knee(trials, on_front, base)


def _baseline_point(found: Sequence[Point], trials: Sequence[Trial], baseline: Trial | None) -> Point | None:
    if baseline is None:
        baseline = next((trial for trial in trials if trial.number == 0), None)
    if baseline is None:
        return None
    return next((point for point in found if point.config_hash == baseline.config.hash), None)


def _pick_slo(found: Sequence[Point], trials: Sequence[Trial], base: Point | None, slo: Slo) -> Pick | None:
    meeting = [
        point for point in found if all(limit.is_surely_met(limited(point, trials, limit)) for limit in slo.limits)
    ]
    if not meeting:
        return None
    best = min(meeting, key=lambda p: (-p.tok_s_per_gpu.value, p.ttft_p95_s.value, p.number))
    judged = "; ".join(_judged(limit, limited(best, trials, limit), alone=len(slo.limits) == 1) for limit in slo.limits)
    return _made(
        trials,
        best,
        base,
        PickRule.THROUGHPUT,
        f"the highest throughput of the {_count(len(meeting), 'config')} that meet {slo}: {_figures(best)} ({judged})",
    )


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


def _pick_goodput(trials: Sequence[Trial], found: Sequence[Point], base: Point | None, slo: Slo) -> Pick:
    """Every goodput meets the SLO, which is how it was found; the levels of fixed load say nothing more of it."""
    best = min(found, key=lambda p: (-p.tok_s_per_gpu.value, p.ttft_p95_s.value, p.number))
    return _made(trials, best, base, PickRule.THROUGHPUT, f"the highest goodput within {slo}: {_figures(best)}")


def _pick_knee(trials: Sequence[Trial], on_front: Sequence[Point], base: Point | None) -> Pick:
    if base is None:
        best = min(on_front, key=lambda p: (-_bulge(p, on_front), p.ttft_p95_s.value, p.number))
        why = "where more throughput begins to cost more TTFT than before"
        return _made(
            trials,
            best,
            base,
            PickRule.KNEE,
            f"the knee of the front, {why}: {_figures(best)} (the baseline has no figures to compare with)",
        )
    no_worse = [point for point in on_front if _no_worse(point, base)]
    others = [point for point in no_worse if point is not base]
    chosen = no_worse if others else on_front
    reference = reference_of(base)
    best = min(chosen, key=lambda p: (-_alone(p, reference), p.ttft_p95_s.value, p.number))
    if others == [best]:
        said = "the only config of the front no worse than the baseline (within its interval)"
    elif others:
        among = f"{_count(len(others), 'config')} of the front no worse than the baseline (within its interval)"
        said = f"the best balance of {among}"
    else:
        among = f"{_count(len(on_front), 'config')} of the front, none of which matches the baseline in both figures"
        said = f"the best balance of {among}"
    return _made(trials, best, base, PickRule.KNEE, f"{said}: {_figures(best)}")


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


def _made(trials: Sequence[Trial], best: Point, base: Point | None, rule: PickRule, reason: str) -> Pick:
    text = f"{reason}{_against(trials, best, base)}"
    if len(best.numbers) > 1:
        text += f"; means of {len(best.numbers)} runs"
    return Pick(
        number=best.number,
        rule=rule,
        reason=text,
        throughput_gain=None if base is None else best.tok_s_per_gpu.value / base.tok_s_per_gpu.value,
        ttft_gain=None if base is None else best.ttft_p95_s.value / base.ttft_p95_s.value,
    )


def _against(trials: Sequence[Trial], best: Point, base: Point | None) -> str:
    if base is None:
        return ""
    if best is base:
        return "; this is the baseline itself"
    throughput = best.tok_s_per_gpu.value / base.tok_s_per_gpu.value - 1
    ttft = best.ttft_p95_s.value / base.ttft_p95_s.value - 1
    what = "throughput" if best.goodput_rps_per_gpu is None else "goodput"
    text = f"; {throughput:+.0%} {what} and {ttft:+.0%} p95 TTFT against the baseline"
    if _tied(trials, best, base):
        text += ", both within the noise: vLLM's defaults may be as good here"
    return text


def _tied(trials: Sequence[Trial], one: Point, other: Point) -> bool:
    """Whether both figures differ by less than launches of one config do."""
    noise, figures = run_noise(trials), undrifted(trials)
    found = [
        difference([figures[k][axis] for k in one.numbers], [figures[k][axis] for k in other.numbers], sd)
        for axis, sd in ((0, noise.throughput_sd), (1, noise.ttft_sd))
    ]
    return not any(figure is not None and figure.is_real for figure in found)


def _figures(point: Point) -> str:
    rate = point.goodput_rps_per_gpu
    ttft = f"{format_seconds(point.ttft_p95_s.value)} p95 TTFT"
    if rate is not None:
        return (
            f"{rate.value:.3g} requests/s per GPU, which is {point.tok_s_per_gpu.value:,.0f} output tokens/s, with "
            f"{ttft} at the study's fixed rate"
        )
    return f"{point.tok_s_per_gpu.value:,.0f} output tokens/s per GPU at {ttft}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
