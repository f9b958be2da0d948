"""Finds the highest rate of an open loop that meets an SLO. Pure policy: levels seen in, next level out.

A level is reduced to its *stress*: the logarithm of the worst of its figures over their limits, 0 at the limit, with
the standard deviation that its interval says. Stress does not fall with the rate, and is otherwise of unknown shape, so
a monotone curve is fitted through all levels (isotonic regression, weights 1/sd^2; Ayer et al., 1955), and the rate is
where it crosses 0. A level near the limit alone decides nothing: it is one more point of the curve, and the next one
near it is driven for twice as long.

```
up      no level beyond the limit: up by exp(-stress / 2), 1.1 to 1.6 times, but not past 1.1 of the capacity at once
down    none within it: down by the same, 0.9 to 0.5 times, to FLOOR of the first rate, where the search gives up
between where the curve crosses 0, kept 15 % of the (log) distance away from the levels on both sides
end     half the 95 % interval is within TOLERANCE of the rate, or the levels or seconds of the budget are spent
```

The interval is of draws: every level's stress anew within its noise, the curve fitted anew, and between two levels any
bend from strongly convex to strongly concave, since nobody looked there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.load.measure import is_valid
from autotune.load.stats import samples_for
from autotune.records import Estimate, Goodput, GoodputEnd, Limit, Measurement, Slo

TOLERANCE = 0.05
"""Half the interval of the rate, over it, at which the search ends."""

LEVELS = 8
"""Levels per launch, the TTFT level that comes before aside."""

LEVEL_TIMES = 12
"""Seconds per launch, in usual lengths of a level."""

FLOOR = 0.1
"""Of the first rate. A config that meets the SLO only below is of no use, and its levels would take minutes."""

MOST_STRESS = 3.0
"""A factor of 20: further away a level says no more than that it is far."""

OVERLOAD_STRESS = 0.7
"""Of a rate that the server could not sustain, at least: its figures depend on how long one looks, and grow."""

_WIDER = 1.5
"""Near the capacity intervals of one level's p95 hold the truth in three of four cases (docs/measuring.md): as the
normal distribution goes, such intervals are 1.7 times too narrow; at half the capacity 1.5 times."""

_LEAST_SD = 0.03
_FEW_SAMPLES_SD = 0.5
_OVERLOAD_SD = 0.15

_NEAR = 0.05
"""Logarithm of rates that count as the same one."""

_ASIDE = 0.15
_CAPACITY_MARGIN = 1.1
_DRAWS = 400
_Z95 = 1.96
_BENDS = (0.25, 2.0)

_BEYOND = 0.25
"""How far (log rate) an interval reaches past the rates that were tried, at most; of two per unit of stress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A level that was driven.

    Attributes:
        stress: logarithm of the worst figure over its limit: below 0 within the SLO.
        sd: its standard deviation.
        seconds: that it took.
    """

    rate_rps: float
    stress: float
    sd: float
    seconds: float = 0.0

    @property
    def is_unsure(self) -> bool:
        """Whether noise may have put it on its side of the limit."""
        return abs(self.stress) < _Z95 * self.sd


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A level to drive: at which rate, and for how many seconds requests should come."""

    rate_rps: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a search may take, and when it is done.

    Attributes:
        level_s: usual length of a level.
        seconds: of all levels together; drained queues count.
    """

    level_s: float
    levels: int = LEVELS
    seconds: float = math.inf
    tolerance: float = TOLERANCE

    @classmethod
    def of(cls, level_s: float) -> Budget:
        """The default one."""
        return cls(level_s=level_s, seconds=LEVEL_TIMES * level_s)


def seen_of(measurement: Measurement, slo: Slo) -> Seen:
    """What a level at a fixed rate says.

    Raises:
        ValueError: the level was a closed loop.
    """
    rate = measurement.level.rate_rps
    if not rate:
        raise ValueError(f"level {measurement.level.name} has no rate")
    stress, sd = max((_stress(limit, measurement) for limit in slo.limits), key=lambda pair: pair[0])
    sustained = is_valid(measurement) and all(caveat.code != "saturated" for caveat in measurement.caveats)
    if not sustained and stress < OVERLOAD_STRESS:
        stress, sd = OVERLOAD_STRESS, _OVERLOAD_SD
    return Seen(rate_rps=rate, stress=stress, sd=sd, seconds=measurement.duration_s)


def samples_wanted(slo: Slo) -> int:
    """Requests that a level needs for an interval of every figure that is limited."""
    return max((samples_for(limit.metric.percent) for limit in slo.limits if limit.metric.percent), default=100)


def next_step(seen: Sequence[Seen], budget: Budget, *, capacity_rps: float | None = None) -> Step | GoodputEnd:
    """The level to drive next, or why the search is over.

    Args:
        seen: at least one level, in the order driven; the first was there before the search began.
        capacity_rps: what a closed loop reached: a hint where to look, not a bound, as it may have been too small.
    """
    rate = crossing(seen)
    if rate is not None and _half_width(seen, rate) <= budget.tolerance:
        return GoodputEnd.NARROW
    floor = FLOOR * seen[0].rate_rps
    if rate is None and not _all_met(seen) and min(one.rate_rps for one in seen) <= floor * (1 + _NEAR):
        return GoodputEnd.NEVER_MET
    if len(seen) > budget.levels:
        return GoodputEnd.LEVELS
    if math.fsum(one.seconds for one in seen[1:]) >= budget.seconds:
        return GoodputEnd.SECONDS
    at = _between(seen, rate) if rate is not None else _outside(seen, floor, capacity_rps)
    near = any(one.is_unsure and abs(math.log(one.rate_rps / at)) < _NEAR for one in seen)
    return Step(rate_rps=at, seconds=(2 if near else 1) * budget.level_s)


def crossing(seen: Sequence[Seen]) -> float | None:
    """The rate at which the fitted curve reaches the limit; None where all levels are on one side of it."""
    logs, stresses, weights = _columns(seen)
    at = _crossing(logs, monotone(stresses, weights), 1.0)
    return None if at is None else math.exp(at)


def goodput_of(seen: Sequence[Seen], end: GoodputEnd, slo: Slo, tokens_per_request: float | None) -> Goodput:
    """What a search found. Where every level met the SLO, the highest rate tried, which has no upper bound then.

    Args:
        tokens_per_request: mean output of a request; None leaves the rate without output tokens/s.
    """
    rate = crossing(seen)
    highest = max(seen, key=lambda one: one.rate_rps)
    is_open = rate is None and _all_met(seen)
    found: Estimate | None = None
    if rate is not None:
        low, high = _interval(seen, rate)
        found = Estimate(value=rate, low=low, high=high)
    elif is_open:
        found = Estimate(value=highest.rate_rps)
    return Goodput(
        slo=slo,
        end=end,
        rate_rps=found,
        output_tok_s=None if found is None or tokens_per_request is None else found.times(tokens_per_request),
        levels=len(seen) - 1,
        seconds=math.fsum(one.seconds for one in seen[1:]),
        is_open=is_open,
    )


def monotone(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The never falling sequence nearest to `values` by weighted squares: pool adjacent violators."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (one, left, count), (other, right, more) = blocks[-2:]
            blocks[-2:] = [((one * left + other * right) / (left + right), left + right, count + more)]
    return [value for value, _, count in blocks for _ in range(count)]


def _stress(limit: Limit, measurement: Measurement) -> tuple[float, float]:
    """Of one limit, with its standard deviation. A figure that is missing is not taken for a good one."""
    figure = limit.figure(measurement)
    if figure is None:
        return MOST_STRESS, _FEW_SAMPLES_SD
    if figure.value <= 0:
        return -MOST_STRESS, _LEAST_SD
    ratio = figure.value / limit.bound if limit.bound > 0 else math.inf
    stress = MOST_STRESS if ratio == math.inf else min(MOST_STRESS, max(-MOST_STRESS, math.log(ratio)))
    if not limit.metric.is_time:
        return stress, _LEAST_SD
    if figure.low is None or figure.high is None or figure.low <= 0:
        return stress, _FEW_SAMPLES_SD
    own = math.log(figure.high / figure.low) / (2 * _Z95)
    return stress, max(_LEAST_SD, _WIDER * own)


def _outside(seen: Sequence[Seen], floor: float, capacity_rps: float | None) -> float:
    if _all_met(seen):
        highest = max(seen, key=lambda one: one.rate_rps)
        up = highest.rate_rps * min(1.6, max(1.1, math.exp(-highest.stress / 2)))
        edge = _CAPACITY_MARGIN * capacity_rps if capacity_rps else math.inf
        return min(up, edge) if highest.rate_rps * 1.05 < edge else up
    lowest = min(seen, key=lambda one: one.rate_rps)
    down = lowest.rate_rps * max(0.5, min(0.9, math.exp(-lowest.stress / 2)))
    return max(floor, down)


def _between(seen: Sequence[Seen], rate: float) -> float:
    at = math.log(rate)
    logs = sorted(math.log(one.rate_rps) for one in seen)
    low = max((log for log in logs if log <= at), default=at)
    high = min((log for log in logs if log > at), default=at)
    aside = _ASIDE * (high - low)
    return math.exp(min(max(at, low + aside), high - aside))


def _all_met(seen: Sequence[Seen]) -> bool:
    """Whether the whole fitted curve is within the SLO."""
    _, stresses, weights = _columns(seen)
    return monotone(stresses, weights)[-1] < 0


def _columns(seen: Sequence[Seen]) -> tuple[list[float], list[float], list[float]]:
    """Log rates, stresses and weights, ascending by rate; levels of one rate joined."""
    joined: dict[float, list[Seen]] = {}
    for one in sorted(seen, key=lambda one: one.rate_rps):
        joined.setdefault(one.rate_rps, []).append(one)
    weights = [math.fsum(1 / one.sd**2 for one in group) for group in joined.values()]
    stresses = [
        math.fsum(one.stress / one.sd**2 for one in group) / weight
        for group, weight in zip(joined.values(), weights, strict=True)
    ]
    return [math.log(rate) for rate in joined], stresses, weights


def _crossing(logs: Sequence[float], fitted: Sequence[float], bend: float) -> float | None:
    """Log rate where a never falling curve reaches 0; `bend` 1 for straight lines between its points."""
    if fitted[0] >= 0 or fitted[-1] < 0:
        return None
    place = next(index for index, value in enumerate(fitted) if value >= 0)
    below, above = fitted[place - 1], fitted[place]
    share: float = (-below / (above - below)) ** bend
    return logs[place - 1] + share * (logs[place] - logs[place - 1])


def _interval(seen: Sequence[Seen], rate: float) -> tuple[float, float]:
    logs, stresses, weights = _columns(seen)
    rng = np.random.default_rng(len(seen))
    noise = rng.standard_normal((_DRAWS, len(logs)))
    bends = np.exp(rng.uniform(math.log(_BENDS[0]), math.log(_BENDS[1]), _DRAWS))
    found = []
    for row, bend in zip(noise, bends, strict=True):
        drawn = [value + z / math.sqrt(weight) for value, z, weight in zip(stresses, row, weights, strict=True)]
        fitted = monotone(drawn, weights)
        at = _crossing(logs, fitted, float(bend))
        if at is None:
            below = fitted[-1] < 0
            reach = min(_BEYOND, abs(fitted[-1] if below else fitted[0]) / 2)
            at = logs[-1] + reach if below else logs[0] - reach
        found.append(at)
    low, high = np.exp(np.percentile(found, (2.5, 97.5)))
    return min(rate, float(low)), max(rate, float(high))


def _half_width(seen: Sequence[Seen], rate: float) -> float:
    low, high = _interval(seen, rate)
    return (high - low) / 2 / rate
