"""How probably each config is on the front, and is picked: studies drawn from what is expected of its figures. Pure.

`DRAWS` studies are drawn, and front and pick found in each of them: the shares are the probabilities. The draws are
seeded by a config's number, so that the same history gives the same answer, and a further trial leaves the other
configs' draws alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from autotune.records import Estimate, PickRule, Slo, Trial
from autotune.search.objective import Point, answers_kept, limited
from autotune.search.pareto import REFERENCE_THROUGHPUT_SHARE, REFERENCE_TTFT_FACTOR
from autotune.search.shrinkage import Shrunken

DRAWS = 1000
_SEED = 20_231

Axis = NDArray[np.float64]
"""(draws, configs) logarithms of one figure."""

Columns = NDArray[np.intp]
"""Which configs the columns of an `Axis` are, as places among all that are drawn."""

_Belief = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Means and standard deviations of one figure, a config each."""

_Span = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Lowest and highest of one figure, a config each."""


def probabilities(
    found: Sequence[Point],
    expected: Sequence[Sequence[Shrunken]],
    trials: Sequence[Trial],
    rule: PickRule,
    slo: Slo | None,
    on_front: frozenset[int],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each config, to be on the front and to be picked. Only those within reach of either are drawn."""
    answering = np.array(answers_kept(found, trials))
    reach = _within_reach(expected, answering)
    if slo is not None:
        reach = _or_pickable(reach, found, answering, trials, slo)
    drawn = np.array([k for k, point in enumerate(found) if reach[k] or k in on_front or point.number == 0])
    some = [found[k] for k in drawn]
    beliefs = [_belief([axis[k] for k in drawn]) for axis in expected]
    kept = answering[drawn]
    picks = _picker(some, kept, trials, rule, slo)
    base = np.array([point.number == 0 for point in some])
    everyone = np.arange(len(some))
    chances, picked = np.zeros(len(found)), np.zeros(len(found))
    for normals in _normals(some):
        # What a config that may be picked beats in each of these draws is on no front and never picked. The baseline
        # stays, as others are held against it.
        near = np.flatnonzero(_unbeaten(*_spans(normals, beliefs), kept) | base)
        figures = _figures(normals, beliefs, near)
        chances[drawn[near]] += _front_draws(*figures).sum(axis=0)
        if slo is not None:  # met by a config that is beaten by others that miss it
            near, figures = everyone, _figures(normals, beliefs, everyone)
        picked[drawn[near]] += picks(*figures, near).sum(axis=0)
    return chances / DRAWS, picked / DRAWS


def _belief(expected: Sequence[Shrunken]) -> _Belief:
    return np.array([one.mean for one in expected]), np.array([one.sd for one in expected])


_REACH = 4.0
"""Standard deviations of each of two configs by which one is out of the other's reach; more than five of their
difference, which one draw in a hundred million shows."""

_FALLBACKS = 50
"""Configs that meet an SLO and that may be picked in a draw where better ones miss it."""


def _within_reach(expected: Sequence[Sequence[Shrunken]], rivals: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which configs no rival beats in both figures by so much that no draw would show it otherwise.

    A config that lost its answers should be no rival: what it beats may still be picked, and it never is.
    """
    throughput, ttft = ((means - _REACH * sds, means + _REACH * sds) for means, sds in map(_belief, expected))
    return _unbeaten(throughput, ttft, rivals)


def _unbeaten(throughput: _Span, ttft: _Span, rivals: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which configs no rival at its worst beats in both figures where they are at their best."""
    order = np.argsort(throughput[0][rivals])
    worst = throughput[0][rivals][order]
    # Lowest TTFT, at its worst, among those that have at least a throughput at its worst.
    lowest = np.minimum.accumulate(ttft[1][rivals][order][::-1])[::-1]
    above = np.searchsorted(worst, throughput[1], side="right")
    unbeaten: NDArray[np.bool_] = np.append(lowest, np.inf)[above] >= ttft[0]
    return unbeaten


def _or_pickable(
    reach: NDArray[np.bool_], found: Sequence[Point], kept: NDArray[np.bool_], trials: Sequence[Trial], slo: Slo
) -> NDArray[np.bool_]:
    """A limit may be met by a config that others beat: all with at least the throughput of some that surely meet it."""
    throughput = np.array([point.values[0] for point in found])
    meeting = [
        point.values[0]
        for point, keeps in zip(found, kept, strict=True)
        if keeps and all(limit.is_surely_met(limited(point, trials, limit)) for limit in slo.limits)
    ]
    floor = sorted(meeting)[-_FALLBACKS] if len(meeting) > _FALLBACKS else -math.inf
    pickable: NDArray[np.bool_] = reach | (throughput >= floor)
    return pickable


_DRAWS_AT_ONCE = 125
"""The fewer, the more configs are beaten in all of them, and the more often that is worked out."""


def _normals(found: Sequence[Point]) -> Iterator[NDArray[np.float64]]:
    """(configs, figures, draws) of some draws at a time; every config has a stream of its own."""
    streams = np.empty((len(found), 2, DRAWS))
    for point, stream in zip(found, streams, strict=True):
        np.random.default_rng((_SEED, point.number)).standard_normal(out=stream)
    for first in range(0, DRAWS, _DRAWS_AT_ONCE):
        yield streams[:, :, first : first + _DRAWS_AT_ONCE]


def _spans(normals: NDArray[np.float64], beliefs: Sequence[_Belief]) -> tuple[_Span, _Span]:
    """Of throughput and TTFT over these draws."""
    lowest, highest = normals.min(axis=2), normals.max(axis=2)
    throughput, ttft = (
        (lowest[:, axis] * sds + means, highest[:, axis] * sds + means) for axis, (means, sds) in enumerate(beliefs)
    )
    return throughput, ttft


def _figures(normals: NDArray[np.float64], beliefs: Sequence[_Belief], columns: Columns) -> tuple[Axis, Axis]:
    """Throughput and TTFT of some configs in these draws."""
    drawn = np.ascontiguousarray(normals[columns].transpose(1, 2, 0))  # a draw's figures beside each other
    throughput, ttft = (drawn[axis] * sds[columns] + means[columns] for axis, (means, sds) in enumerate(beliefs))
    return throughput, ttft


def _front_draws(throughput: Axis, ttft: Axis) -> NDArray[np.bool_]:
    """(draws, configs): which are on each draw's front. Without equal values, as draws have none."""
    order = np.argsort(-throughput, axis=1)
    sorted_ttft = np.take_along_axis(ttft, order, axis=1)
    before = np.minimum.accumulate(sorted_ttft, axis=1)
    kept = np.ones_like(before, dtype=bool)
    kept[:, 1:] = sorted_ttft[:, 1:] < before[:, :-1]
    members = np.empty_like(kept)
    np.put_along_axis(members, order, kept, axis=1)
    return members


def _picker(
    found: Sequence[Point], kept: NDArray[np.bool_], trials: Sequence[Trial], rule: PickRule, slo: Slo | None
) -> Callable[[Axis, Axis, Columns], NDArray[np.bool_]]:
    """What tells of draws, (draws, configs), which config each picks, by the rules of `pareto.pick`; none where no
    config qualifies."""
    score = _scorer(found, kept, trials, rule, slo)

    def picks(throughput: Axis, ttft: Axis, columns: Columns) -> NDArray[np.bool_]:
        may = kept[columns]
        if may.all():
            scores = score(throughput, ttft, columns)
        else:
            scores = np.full(throughput.shape, -np.inf)
            if may.any():
                scores[:, may] = score(throughput[:, may], ttft[:, may], columns[may])
        best = scores.argmax(axis=1)
        picked = np.zeros_like(scores, dtype=bool)
        rows = np.arange(len(scores))
        picked[rows, best] = np.isfinite(scores[rows, best])
        return picked

    return picks


def _scorer(
    found: Sequence[Point], kept: NDArray[np.bool_], trials: Sequence[Trial], rule: PickRule, slo: Slo | None
) -> Callable[[Axis, Axis, Columns], Axis]:
    """What the rule takes the highest of. Without a limit it grows with both figures, so no dominated config has the
    highest."""
    if slo is not None and found[0].goodput_rps_per_gpu is not None:
        return lambda throughput, _ttft, _columns: throughput
    if slo is not None:
        meeting = _meeting(found, trials, slo)
        return lambda throughput, ttft, columns: np.where(meeting(ttft, columns), throughput, -np.inf)
    match rule:
        case PickRule.THROUGHPUT:
            return lambda throughput, _ttft, _columns: throughput
        case PickRule.LATENCY:
            return lambda _throughput, ttft, _columns: -ttft
        case PickRule.KNEE:
            base = next((k for k, point in enumerate(found) if point.number == 0 and kept[k]), None)
            return _bulges if base is None else partial(_balances, base=base, measured=found[base])


def _meeting(found: Sequence[Point], trials: Sequence[Trial], slo: Slo) -> Callable[[Axis, Columns], NDArray[np.bool_]]:
    """What tells of draws of the p95 TTFT, (draws, configs), which meet the SLO. Other times than that move with it, at
    half the distance.

    A draw has only the two objectives, and what delays the first token delays tokens less; that a limit of another time
    is met is less sure than this says where the two have little to do with each other.
    """
    own = np.array([point.logs[1] for point in found])
    fixed, moving = np.ones(len(found), dtype=bool), []
    for limit in slo.limits:
        uppers = np.full(len(found), -np.inf)
        for k, figure in enumerate(limited(point, trials, limit) for point in found):
            if figure is None or not limit.metric.is_time or figure.value <= 0:
                fixed[k] &= limit.is_surely_met(figure)
            else:
                uppers[k] = math.log(figure.value if figure.high is None else figure.high)
        if limit.metric.is_time:  # a bound of 0 errors has no logarithm
            moving.append((uppers, 1.0 if limit.metric.value.startswith("ttft") else 0.5, math.log(limit.bound)))

    def met(ttft: Axis, columns: Columns) -> NDArray[np.bool_]:
        found = np.broadcast_to(fixed[columns], ttft.shape)
        for uppers, share, bound in moving:
            found = found & (uppers[columns] + share * (ttft - own[columns]) <= bound)
        return found

    return met


def _balances(throughput: Axis, ttft: Axis, columns: Columns, base: int, measured: Point) -> Axis:
    """The hypervolume of each config alone, among those no worse than the baseline where others of the front are."""
    at = np.flatnonzero(columns == base)
    base_throughput, base_ttft = throughput[:, at], ttft[:, at]
    more = throughput - base_throughput - math.log(REFERENCE_THROUGHPUT_SHARE)
    less = base_ttft + math.log(REFERENCE_TTFT_FACTOR) - ttft
    alone = np.where((more > 0) & (less > 0), more * less, np.minimum(more, 0) + np.minimum(less, 0))
    floor = base_throughput + _ratio(measured.tok_s_per_gpu.low, measured.tok_s_per_gpu)
    ceiling = base_ttft + _ratio(measured.ttft_p95_s.high, measured.ttft_p95_s)
    no_worse = (throughput >= floor) & (ttft <= ceiling)
    # What the baseline beats, though by no more than its interval, is on no front; of the rest one always is.
    others = no_worse & (columns != base) & ((throughput >= base_throughput) | (ttft <= base_ttft))
    has_others = others.any(axis=1, keepdims=True)
    return np.where(no_worse | ~has_others, alone, -np.inf)


def _bulges(throughput: Axis, ttft: Axis, columns: Columns) -> Axis:
    """Distances from the chord between the front's ends, up to a factor; where one config is the front, that one."""
    rows = np.arange(len(ttft))[:, None]
    quick, fast = ttft.argmin(axis=1)[:, None], throughput.argmax(axis=1)[:, None]
    x0, y0, x1, y1 = throughput[rows, quick], ttft[rows, quick], throughput[rows, fast], ttft[rows, fast]
    bulges = (throughput - x0) * (y1 - y0) - (ttft - y0) * (x1 - x0)
    return np.where((quick == fast) & (columns != columns[quick]), -np.inf, bulges)


def _ratio(bound: float | None, figure: Estimate) -> float:
    """Logarithm of a bound over its value; 0 without a bound. A rate that came in bursts may have one of 0."""
    if bound is None:
        return 0.0
    return math.log(bound / figure.value) if bound > 0 else -math.inf
