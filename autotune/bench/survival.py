"""How long until something happens, where some were watched only for a while: Kaplan-Meier and the log-rank test. Pure.

Kaplan and Meier 1958; Mantel 1966 for the log-rank test, summed over strata; the restricted mean as in Royston and
Parmar 2013. A study that did not get there within the launches it was given is *censored*: it counts as not yet there,
never as having needed exactly that many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One subject: the time of its event, or until when it was watched without one.

    Attributes:
        stratum: subjects are compared within their own (the surface of a study).
    """

    time: float
    reached: bool
    stratum: Hashable = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio with its 95 % bootstrap interval; None where it, or a bound, is beyond what was watched."""

    value: float | None
    low: float | None
    high: float | None


def curve(subjects: Sequence[Watched]) -> tuple[tuple[float, float], ...]:
    """(time, share still waiting just after it) at every time with an event, rising in time."""
    steps: list[tuple[float, float]] = []
    share = 1.0
    for time in sorted({one.time for one in subjects if one.reached}):
        at_risk = sum(1 for one in subjects if one.time >= time)
        events = sum(1 for one in subjects if one.reached and one.time == time)
        share *= 1.0 - events / at_risk
        steps.append((time, share))
    return tuple(steps)


def quantile(subjects: Sequence[Watched], share: float) -> float | None:
    """The first time by which at least `share` of the subjects had the event; None when that was not seen."""
    # A sum of shares such as 1 - 0.1 - 0.4 misses 0.5 by a rounding error.
    return next((time for time, waiting in curve(subjects) if waiting <= 1.0 - share + 1e-9), None)


def restricted_mean(subjects: Sequence[Watched], until: float) -> float:
    """Mean time to the event, those after `until` counted as `until`: the area under the curve."""
    area, last, waiting = 0.0, 0.0, 1.0
    for time, share in curve(subjects):
        if time >= until:
            break
        area += waiting * (time - last)
        last, waiting = time, share
    return area + waiting * (until - last)


def log_rank(a: Sequence[Watched], b: Sequence[Watched]) -> float | None:
    """Two-sided p of the log-rank test, stratified; None where no time tells the two apart."""
    excess, variance = 0.0, 0.0
    for stratum in {one.stratum for one in (*a, *b)}:
        ours = [one for one in a if one.stratum == stratum]
        others = [one for one in b if one.stratum == stratum]
        for time in {one.time for one in (*ours, *others) if one.reached}:
            risk_a = sum(1 for one in ours if one.time >= time)
            risk = risk_a + sum(1 for one in others if one.time >= time)
            events_a = sum(1 for one in ours if one.reached and one.time == time)
            events = events_a + sum(1 for one in others if one.reached and one.time == time)
            excess += events_a - events * risk_a / risk
            if risk > 1:
                variance += events * (risk_a / risk) * (1.0 - risk_a / risk) * (risk - events) / (risk - 1)
    if variance <= 0.0:
        return None
    return math.erfc(abs(excess) / math.sqrt(2.0 * variance))


def median_ratio(a: Sequence[Watched], b: Sequence[Watched], until: float, rng: np.random.Generator) -> Ratio:
    """Median of `a` over that of `b`.

    A median of `b` that was not seen counts as `until`, which it exceeds: the ratio is then too high. Of one of `a`
    that was not seen nothing is said.
    """

    def bottom(subjects: Sequence[Watched]) -> float:
        found = quantile(subjects, 0.5)
        return until if found is None else found

    return _ratio(a, b, rng, lambda subjects: quantile(subjects, 0.5), bottom)


def mean_ratio(a: Sequence[Watched], b: Sequence[Watched], until: float, rng: np.random.Generator) -> Ratio:
    """Restricted mean of `a` over that of `b`."""

    def figure(subjects: Sequence[Watched]) -> float:
        return restricted_mean(subjects, until)

    return _ratio(a, b, rng, figure, figure)


def _ratio(
    a: Sequence[Watched],
    b: Sequence[Watched],
    rng: np.random.Generator,
    top: Callable[[Sequence[Watched]], float | None],
    bottom: Callable[[Sequence[Watched]], float],
) -> Ratio:
    if not a or not b:
        return Ratio(value=None, low=None, high=None)
    found = []
    for _ in range(RESAMPLES):
        first = top(_resampled(a, rng))
        found.append(math.inf if first is None else first / bottom(_resampled(b, rng)))
    value = top(a)
    low, high = np.quantile(found, (0.025, 0.975), method="nearest").tolist()
    return Ratio(
        value=None if value is None else value / bottom(b),
        low=low if math.isfinite(low) else None,
        high=high if math.isfinite(high) else None,
    )


def _resampled(subjects: Sequence[Watched], rng: np.random.Generator) -> list[Watched]:
    """As many from each stratum as it has: surfaces are chosen, only seeds are drawn."""
    strata: dict[Hashable, list[Watched]] = {}
    for one in subjects:
        strata.setdefault(one.stratum, []).append(one)
    return [group[at] for group in strata.values() for at in rng.integers(len(group), size=len(group)).tolist()]
