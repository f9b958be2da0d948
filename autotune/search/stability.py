"""How sure front and pick are, given what launches differ by: probabilities, ties, what to expect of the pick. Pure.

Every measured config has an expectation of both its figures (`shrinkage.py`). From these, studies are drawn, and front
and pick found in each of them (`draws.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autotune.one_thread import in_one_thread
from autotune.records import Estimate, Pick, PickRule, Slo, Trial
from autotune.search.draws import probabilities
from autotune.search.drift import Drift, baseline_drift
from autotune.search.noise import LogMean, RunNoise, run_noise
from autotune.search.objective import Point, points
from autotune.search.pareto import choice_of, front_places
from autotune.search.plainness import Plainer, Plainness, Ties, Worth
from autotune.search.shrinkage import Shrunken, shrunken
from autotune.search.validation import Validation, validation

_Z95 = 1.959964

CONFIDENCE = 0.9
"""Front and pick are stable when each config is on the front, or is not, with this probability, and so is the pick."""

CANDIDATE = 1 - CONFIDENCE
"""Configs that are on the front with at least this probability are candidates."""


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
        expected: logarithms of tokens/s per GPU and p95 TTFT.
        worth: of all configs how plain they are; None without a baseline.
    """

    number: int
    launches: int
    on_front: bool
    front_probability: float
    pick_probability: float
    tied_with: tuple[int, ...]
    beaten_by: tuple[int, ...]
    expected: tuple[Shrunken, Shrunken]
    worth: Worth | None = field(default=None, repr=False)

    @property
    def tok_s_per_gpu(self) -> Estimate:
        """What to expect, with a 95 % interval of the config's true mean."""
        return _estimate(self.expected[0])

    @property
    def ttft_p95_s(self) -> Estimate:
        """What to expect, as above."""
        return _estimate(self.expected[1])

    @property
    def plainness(self) -> Plainness | None:
        """How far its flags are from the baseline's; None without a baseline."""
        return None if self.worth is None else self.worth[self.number]

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


@in_one_thread
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
    plainer = Plainer.of(trials, lossy)
    ties = Ties.of(trials) if plainer is None else plainer.ties
    means = [ties.means(point) for point in found]
    expected = [shrunken([one[axis].mean for one in means], [one[axis].variance for one in means]) for axis in (0, 1)]
    on_front = frozenset(front_places(trials))
    chosen = None if pick is None else next((k for k, p in enumerate(found) if pick.number in p.numbers), None)
    chances, picked = probabilities(found, expected, trials, rule, slo, on_front)
    if plainer is not None:
        picked = _plainer_picks(picked, plainer, found, trials, rule, slo)
    standings = _standings(found, ties, expected, on_front, (chances, picked), chosen, plainer)
    if chosen is None:
        return Assessment(standings=standings, noise=noise, drift=drift)
    base = next((k for k, point in enumerate(found) if point.number == 0), None)
    gains = (
        (None, None)
        if base is None or base == chosen
        else tuple(_gain(expected[axis][chosen], means[base][axis]) for axis in (0, 1))
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
    ties: Ties,
    expected: Sequence[Sequence[Shrunken]],
    on_front: frozenset[int],
    shares: tuple[NDArray[np.float64], NDArray[np.float64]],
    chosen: int | None,
    plainer: Plainer | None,
) -> tuple[Standing, ...]:
    """Of all measured configs. Only candidates, baseline and pick are compared with each other.

    Args:
        shares: of the draws in which each config is on the front, and is picked.
    """
    chances, picked = shares
    compared = {k for k, p in enumerate(found) if k in on_front or chances[k] >= CANDIDATE or p.number == 0}
    compared |= set() if chosen is None else {chosen}
    others = [found[k] for k in sorted(compared)]
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
            expected=(expected[0][k], expected[1][k]),
            worth=None if plainer is None else plainer.worth,
        )
        for k, point in enumerate(found)
    )


def _estimate(belief: Shrunken) -> Estimate:
    width = _Z95 * belief.sd
    return Estimate(value=math.exp(belief.mean), low=math.exp(belief.mean - width), high=math.exp(belief.mean + width))


def _gain(belief: Shrunken, baseline: LogMean) -> Estimate:
    """Over the baseline as measured: it was not chosen for its luck."""
    return _estimate(Shrunken(mean=belief.mean - baseline.mean, sd=math.hypot(belief.sd, baseline.variance**0.5)))


def _against(one: Point, others: Iterable[Point], ties: Ties) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which others are tied with a config, and which beat it by more than the noise where they differ by more."""
    tied, beating = [], []
    for other in others:
        if other is one:
            continue
        if ties.tied(one, other):
            tied.append(other.number)
        elif ties.beats(one, other):
            beating.append(other.number)
    return tuple(tied), tuple(beating)


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
