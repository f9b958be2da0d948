"""How sure front and pick are, given what launches differ by: probabilities, ties, what to expect of the pick. Pure.

Every measured config has an expectation of both its figures (`shrinkage.py`). From these `DRAWS` studies are drawn, and
front and pick found in each of them: the shares are the probabilities. The draws are seeded by a config's number, so
that the same history gives the same answer, and a further trial leaves the other configs' draws alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.records import Estimate, Pick, PickRule, Slo, Trial
from autotune.search.drift import Drift, baseline_drift
from autotune.search.noise import RunNoise, mean_variance, run_noise
from autotune.search.objective import Point, answers_lost, limited, points
from autotune.search.pareto import REFERENCE_THROUGHPUT_SHARE, REFERENCE_TTFT_FACTOR, choice_of, front
from autotune.search.plainness import Plainer, Plainness, Ties
from autotune.search.screening import comparable
from autotune.search.shrinkage import Shrunken, shrunken
from autotune.search.validation import Validation, validation

DRAWS = 1000
_SEED = 20_231
_Z95 = 1.959964

CONFIDENCE = 0.9
"""Front and pick are stable when each config is on the front, or is not, with this probability, and so is the pick."""

CANDIDATE = 1 - CONFIDENCE
"""Configs that are on the front with at least this probability are candidates."""

Axis = NDArray[np.float64]
"""(DRAWS, configs) logarithms of one figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a measured config stands.

    Attributes:
        number: of its first measured trial.
        launches: measured ones.
        on_front: by the means of its launches.
        front_probability, pick_probability: 0..1.
        tied_with: of a candidate: others, by number, that differ from it by less than the interval of the difference
            in both figures.
        beaten_by: of a candidate: others that are better in one figure by more than that, and not worse in the other.
            Its place on the front, if it has one, is within the noise.
        tok_s_per_gpu, ttft_p95_s: what to expect, with 95 % intervals of the config's true mean.
        plainness: how far its flags are from the baseline's; None without a baseline.
    """

    number: int
    launches: int
    on_front: bool
    front_probability: float
    pick_probability: float
    tied_with: tuple[int, ...]
    beaten_by: tuple[int, ...]
    tok_s_per_gpu: Estimate
    ttft_p95_s: Estimate
    plainness: Plainness | None = None

    @property
    def is_candidate(self) -> bool:
        """Whether it may be on the front."""
        return self.on_front or self.front_probability >= CANDIDATE

    @property
    def is_sure(self) -> bool:
        """Whether it is on the front with enough probability, and no other is as good within the noise."""
        return self.front_probability >= CONFIDENCE and not self.beaten_by

    @property
    def is_decided(self) -> bool:
        """Whether it is on the front or not with enough probability, or at best by as much as the noise."""
        return bool(self.beaten_by) or not CANDIDATE < self.front_probability < CONFIDENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Of a study's front and pick.

    Attributes:
        standings: of all measured configs, by number.
        drift: None where the baseline was measured once.
        pick: number of the recommended trial's config; None without a pick.
        throughput_gain, ttft_gain: what to expect of the pick over the baseline, as ratios; None without either.
        validation: of the pick.
    """

    standings: tuple[Standing, ...]
    noise: RunNoise
    drift: Drift | None
    pick: int | None = None
    throughput_gain: Estimate | None = None
    ttft_gain: Estimate | None = None
    validation: Validation | None = None

    def standing(self, number: int | None) -> Standing | None:
        """Of the config whose first measured trial is `number`."""
        return next((found for found in self.standings if found.number == number), None)

    @property
    def pick_is_sure(self) -> bool:
        """Whether the pick would be picked again with enough probability."""
        picked = self.standing(self.pick)
        return picked is not None and picked.pick_probability >= CONFIDENCE

    @property
    def is_stable(self) -> bool:
        """Whether further launches would hardly change front or pick."""
        return self.pick_is_sure and all(found.is_decided for found in self.standings)

    @property
    def tied_with_baseline(self) -> bool:
        """Whether the pick cannot be told from the baseline."""
        picked = self.standing(self.pick)
        return picked is not None and picked.number != 0 and 0 in picked.tied_with


def assess(
    trials: Sequence[Trial],
    pick: Pick | None,
    *,
    rule: PickRule = PickRule.KNEE,
    slo: Slo | None = None,
    lossy: frozenset[str] = frozenset(),
) -> Assessment:
    """How sure the front and `pick` are.

    Args:
        pick: as chosen by `rule`, or under `slo`, from the same trials.
        lossy: parameters that the space says may change answers, as when it was chosen.
    """
    found, noise = points(trials), run_noise(trials)
    drift = baseline_drift(trials)
    if not found:
        return Assessment(standings=(), noise=noise, drift=drift)
    figures = comparable(trials)
    launches = [[figures[number] for number in point.numbers] for point in found]
    sds = (noise.throughput_sd, noise.ttft_sd)
    expected = [_expected(launches, axis, sds[axis]) for axis in (0, 1)]
    on_front = frozenset(front([point.values for point in found]))
    chosen = None if pick is None else next((k for k, p in enumerate(found) if pick.number in p.numbers), None)
    plainer = Plainer.of(found, trials, lossy)
    chances, picked = _probabilities(found, expected, trials, rule, slo, on_front)
    if plainer is not None:
        picked = _plainer_picks(picked, plainer, found, trials, rule, slo)
    standings = _standings(found, trials, expected, (chances, picked), chosen, plainer)
    if chosen is None:
        return Assessment(standings=standings, noise=noise, drift=drift)
    base = next((k for k, point in enumerate(found) if point.number == 0), None)
    gains = (
        (None, None)
        if base is None or base == chosen
        else tuple(_gain(expected[axis][chosen], [one[axis] for one in launches[base]], sds[axis]) for axis in (0, 1))
    )
    return Assessment(
        standings=standings,
        noise=noise,
        drift=drift,
        pick=found[chosen].number,
        throughput_gain=gains[0],
        ttft_gain=gains[1],
        validation=validation(trials, found[chosen].number),
    )


def _standings(
    found: Sequence[Point],
    trials: Sequence[Trial],
    expected: Sequence[Sequence[Shrunken]],
    shares: tuple[NDArray[np.float64], NDArray[np.float64]],
    chosen: int | None,
    plainer: Plainer | None,
) -> tuple[Standing, ...]:
    """Of all measured configs. Only candidates, baseline and pick are compared with each other.

    Args:
        shares: of the draws in which each config is on the front, and is picked.
    """
    on_front, (chances, picked) = front([point.values for point in found]), shares
    compared = {k for k, p in enumerate(found) if k in on_front or chances[k] >= CANDIDATE or p.number == 0}
    compared |= set() if chosen is None else {chosen}
    ties, others = Ties.of(trials), [found[k] for k in sorted(compared)]
    against = {k: _against(found[k], others, ties) if k in compared else ((), ()) for k in range(len(found))}
    return tuple(
        Standing(
            number=point.number,
            launches=len(point.numbers),
            on_front=k in on_front,
            front_probability=float(chances[k]),
            pick_probability=float(picked[k]),
            tied_with=against[k][0],
            beaten_by=against[k][1],
            tok_s_per_gpu=_estimate(expected[0][k]),
            ttft_p95_s=_estimate(expected[1][k]),
            plainness=None if plainer is None else plainer.worth[point.number],
        )
        for k, point in enumerate(found)
    )


_Launches = Sequence[tuple[Estimate, Estimate]]


def _expected(launches: Sequence[_Launches], axis: int, run_sd: float) -> tuple[Shrunken, ...]:
    """Of the logarithm of one figure, for every config."""
    sides = [[pair[axis] for pair in one] for one in launches]
    return shrunken([_log_mean(side) for side in sides], [mean_variance(side, run_sd) for side in sides])


def _log_mean(side: Sequence[Estimate]) -> float:
    return math.fsum(math.log(figure.value) for figure in side) / len(side)


def _estimate(belief: Shrunken) -> Estimate:
    width = _Z95 * belief.sd
    return Estimate(value=math.exp(belief.mean), low=math.exp(belief.mean - width), high=math.exp(belief.mean + width))


def _gain(belief: Shrunken, baseline: Sequence[Estimate], run_sd: float) -> Estimate:
    """Over the baseline as measured: it was not chosen for its luck."""
    base = _log_mean(baseline)
    return _estimate(
        Shrunken(mean=belief.mean - base, sd=math.hypot(belief.sd, mean_variance(baseline, run_sd) ** 0.5))
    )


def _against(one: Point, others: Iterable[Point], ties: Ties) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which others are tied with a config, and which beat it by more than the noise where they differ by more."""
    tied, beating = [], []
    for other in others:
        throughput, ttft = ties.differences(one, other)
        if other is one or throughput is None or ttft is None:
            continue
        if not throughput.is_real and not ttft.is_real:
            tied.append(other.number)
        elif throughput.high >= 1.0 and ttft.low <= 1.0:
            beating.append(other.number)
    return tuple(tied), tuple(beating)


def _probabilities(
    found: Sequence[Point],
    expected: Sequence[Sequence[Shrunken]],
    trials: Sequence[Trial],
    rule: PickRule,
    slo: Slo | None,
    on_front: frozenset[int],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each config, to be on the front and to be picked. Only those within reach of either are drawn."""
    reach = _within_reach(expected) if slo is None else _or_pickable(_within_reach(expected), found, trials, slo)
    drawn = [k for k, point in enumerate(found) if reach[k] or k in on_front or point.number == 0]
    some = [found[k] for k in drawn]
    throughput, ttft = _drawn(some, [[axis[k] for k in drawn] for axis in expected])
    chances, picked = np.zeros(len(found)), np.zeros(len(found))
    chances[drawn] = _front_draws(throughput, ttft).mean(axis=0)
    picked[drawn] = _pick_draws(throughput, ttft, some, trials, rule, slo).mean(axis=0)
    return chances, picked


_REACH = 5.0
"""Standard deviations of each of two configs by which one is out of the other's reach; seven of their difference."""

_FALLBACKS = 50
"""Configs that meet an SLO and that may be picked in a draw where better ones miss it."""


def _within_reach(expected: Sequence[Sequence[Shrunken]]) -> NDArray[np.bool_]:
    """Which configs no other one beats in both figures by so much that no draw would show it otherwise."""
    throughput, ttft = (
        (np.array([one.mean for one in axis]), _REACH * np.array([one.sd for one in axis])) for axis in expected
    )
    # Lowest TTFT, at its worst, among those that have at least a throughput at its worst.
    order = np.argsort(throughput[0] - throughput[1])
    worst = (throughput[0] - throughput[1])[order]
    lowest = np.minimum.accumulate((ttft[0] + ttft[1])[order][::-1])[::-1]
    above = np.searchsorted(worst, throughput[0] + throughput[1], side="right")
    beaten_to = np.append(lowest, np.inf)[above]
    within: NDArray[np.bool_] = beaten_to >= ttft[0] - ttft[1]
    return within


def _or_pickable(
    reach: NDArray[np.bool_], found: Sequence[Point], trials: Sequence[Trial], slo: Slo
) -> NDArray[np.bool_]:
    """A limit may be met by a config that others beat: all with at least the throughput of some that surely meet it."""
    throughput = np.array([point.values[0] for point in found])
    meeting = [
        point.values[0]
        for point in found
        if all(limit.is_surely_met(limited(point, trials, limit)) for limit in slo.limits)
    ]
    floor = sorted(meeting)[-_FALLBACKS] if len(meeting) > _FALLBACKS else -math.inf
    pickable: NDArray[np.bool_] = reach | (throughput >= floor)
    return pickable


def _drawn(found: Sequence[Point], expected: Sequence[Sequence[Shrunken]]) -> tuple[Axis, Axis]:
    """Throughput and TTFT; every config has a stream of its own."""
    streams = np.stack([np.random.default_rng((_SEED, point.number)).standard_normal((2, DRAWS)) for point in found])
    throughput, ttft = (
        streams[:, axis].T * [belief.sd for belief in beliefs] + [belief.mean for belief in beliefs]
        for axis, beliefs in enumerate(expected)
    )
    return throughput, ttft


def _front_draws(throughput: Axis, ttft: Axis) -> NDArray[np.bool_]:
    """(DRAWS, configs): which are on each draw's front. Without equal values, as draws have none."""
    order = np.argsort(-throughput, axis=1)
    sorted_ttft = np.take_along_axis(ttft, order, axis=1)
    before = np.minimum.accumulate(sorted_ttft, axis=1)
    kept = np.ones_like(before, dtype=bool)
    kept[:, 1:] = sorted_ttft[:, 1:] < before[:, :-1]
    members = np.empty_like(kept)
    np.put_along_axis(members, order, kept, axis=1)
    return members


def _pick_draws(
    throughput: Axis, ttft: Axis, found: Sequence[Point], trials: Sequence[Trial], rule: PickRule, slo: Slo | None
) -> NDArray[np.bool_]:
    """(DRAWS, configs): which is picked in each draw, by the rules of `pareto.pick`; none where no config qualifies."""
    kept = np.array([not answers_lost(point, trials) for point in found])
    scores = np.full(throughput.shape, -np.inf)
    if kept.any():
        rest = [point for point, keeps in zip(found, kept, strict=True) if keeps]
        scores[:, kept] = _scores(throughput[:, kept], ttft[:, kept], rest, trials, rule, slo)
    best = scores.argmax(axis=1)
    picked = np.zeros_like(scores, dtype=bool)
    rows = np.arange(len(scores))
    picked[rows, best] = np.isfinite(scores[rows, best])
    return picked


def _plainer_picks(
    shares: NDArray[np.float64],
    plainer: Plainer,
    found: Sequence[Point],
    trials: Sequence[Trial],
    rule: PickRule,
    slo: Slo | None,
) -> NDArray[np.float64]:
    """How often each is picked, where what is tied and plainer takes the place of what a draw picks. Ties are those of
    the launches, not of the draws."""
    base = next((point for point in found if point.number == 0), None)
    choice = choice_of(found, trials, base, rule, slo)
    if choice is None:
        return shares
    places = {point.number: k for k, point in enumerate(found)}
    moved = np.zeros_like(shares)
    for k in np.flatnonzero(shares).tolist():
        moved[places[choice.plainest(found[k], plainer).number]] += shares[k]
    return moved


def _scores(
    throughput: Axis, ttft: Axis, found: Sequence[Point], trials: Sequence[Trial], rule: PickRule, slo: Slo | None
) -> Axis:
    """What the rule takes the highest of. It grows with both figures, so no dominated config has the highest."""
    if slo is not None and found[0].goodput_rps_per_gpu is not None:
        return throughput
    if slo is not None:
        return np.where(_meeting(ttft, found, trials, slo), throughput, -np.inf)
    match rule:
        case PickRule.THROUGHPUT:
            return throughput
        case PickRule.LATENCY:
            return -ttft
        case PickRule.KNEE:
            base = next((k for k, point in enumerate(found) if point.number == 0), None)
            return _bulges(throughput, ttft) if base is None else _balances(throughput, ttft, base, found[base])


def _meeting(ttft: Axis, found: Sequence[Point], trials: Sequence[Trial], slo: Slo) -> NDArray[np.bool_]:
    """(DRAWS, configs): which meet the SLO. Other times than the p95 TTFT move with it, at half the distance.

    A draw has only the two objectives, and what delays the first token delays tokens less; that a limit of another time
    is met is less sure than this says where the two have little to do with each other.
    """
    met = np.ones(ttft.shape, dtype=bool)
    for limit in slo.limits:
        figures = [limited(point, trials, limit) for point in found]
        for k, (point, figure) in enumerate(zip(found, figures, strict=True)):
            if figure is None or not limit.metric.is_time or figure.value <= 0:
                met[:, k] &= limit.is_surely_met(figure)
                continue
            upper = math.log(figure.value if figure.high is None else figure.high)
            share = 1.0 if limit.metric.value.startswith("ttft") else 0.5
            met[:, k] &= upper + share * (ttft[:, k] - point.logs[1]) <= math.log(limit.bound)
    return met


def _balances(throughput: Axis, ttft: Axis, base: int, measured: Point) -> Axis:
    """The hypervolume of each config alone, among those no worse than the baseline where there are others."""
    base_throughput, base_ttft = throughput[:, [base]], ttft[:, [base]]
    more = throughput - base_throughput - math.log(REFERENCE_THROUGHPUT_SHARE)
    less = base_ttft + math.log(REFERENCE_TTFT_FACTOR) - ttft
    alone = np.where((more > 0) & (less > 0), more * less, np.minimum(more, 0) + np.minimum(less, 0))
    floor = base_throughput + _ratio(measured.tok_s_per_gpu.low, measured.tok_s_per_gpu)
    ceiling = base_ttft + _ratio(measured.ttft_p95_s.high, measured.ttft_p95_s)
    no_worse = (throughput >= floor) & (ttft <= ceiling)
    has_others = no_worse.sum(axis=1, keepdims=True) > 1  # the baseline is no worse than itself
    return np.where(no_worse | ~has_others, alone, -np.inf)


def _bulges(throughput: Axis, ttft: Axis) -> Axis:
    """Distances from the chord between the front's ends, up to a factor."""
    rows = np.arange(len(ttft))[:, None]
    quick, fast = ttft.argmin(axis=1)[:, None], throughput.argmax(axis=1)[:, None]
    x0, y0, x1, y1 = throughput[rows, quick], ttft[rows, quick], throughput[rows, fast], ttft[rows, fast]
    bulges: Axis = (throughput - x0) * (y1 - y0) - (ttft - y0) * (x1 - x0)
    return bulges


def _ratio(bound: float | None, figure: Estimate) -> float:
    """Logarithm of a bound over its value; 0 without a bound. A rate that came in bursts may have one of 0."""
    if bound is None:
        return 0.0
    return math.log(bound / figure.value) if bound > 0 else -math.inf
