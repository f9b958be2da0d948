"""Whether a study's node became faster or slower while it was measured: a line through the baseline's launches. Pure.

Heat, a neighbour or a driver's mood change figures over hours. Configs measured late are then compared with configs
measured early under other conditions. The baseline is launched at the beginning and again at the end, so its launches
show it, as far as a few can.

Two launches cannot tell a trend from one odd launch: their difference is said, with what it would have taken to see
one, and nothing is corrected. From three on a trend is taken off all figures if it is clear (`CLEAR_Z`) and the
launches lie on it; figures are then as at the beginning, when the first baseline was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from autotune.records import Estimate, Trial
from autotune.search.noise import mean_variance, run_noise
from autotune.search.remembered import remembered

_NORMAL = NormalDist()
FLAG_Z = _NORMAL.inv_cdf((1 + math.sqrt(0.95)) / 2)
"""Standard errors beyond which a trend is said: of two figures that do not drift, 5 % show one."""

CLEAR_Z = 3.0
LEAST_TO_CORRECT = 3
ON_THE_LINE = 2.0
"""A trend is taken off when it is so many standard errors large, seen in so many launches, none of which is further
from the line than so many of its own standard deviations."""

_POWER_Z = _NORMAL.inv_cdf(0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How one figure of the baseline changed over the study.

    Attributes:
        change: end over beginning, by the line; 1.03 is 3 % more.
        low, high: its interval; a trend is found where it does not hold 1.
        detectable: the change that four of five such studies would have found; at least 1.
        clear: whether it is taken off the figures.
        slope: of the logarithm, per trial.
    """

    change: float
    low: float
    high: float
    detectable: float
    clear: bool
    slope: float

    @property
    def found(self) -> bool:
        """Whether launches without a trend would hardly differ so much."""
        return self.low > 1.0 or self.high < 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Of a study, by its baseline.

    Attributes:
        launches: numbers of the baseline's measured trials, at least two.
    """

    launches: tuple[int, ...]
    throughput: Trend
    ttft: Trend

    @property
    def found(self) -> bool:
        """Whether one of both figures has a trend."""
        return self.throughput.found or self.ttft.found

    @property
    def corrected(self) -> bool:
        """Whether one of both was taken off the figures."""
        return self.throughput.clear or self.ttft.clear


@remembered
def baseline_drift(trials: Sequence[Trial]) -> Drift | None:
    """The trend in the baseline's launches; None where it was measured less than twice.

    The spread to judge it by is that of the other configs' repeats and the assumption: its own has the trend in it.
    """
    base = next((trial for trial in trials if trial.number == 0), None)
    if base is None:
        return None
    launches = sorted(
        ((one.number, one.objectives) for one in trials if one.config.hash == base.config.hash and one.alone),
        key=lambda entry: entry[0],
    )
    seen = [(number, pair) for number, pair in launches if pair is not None]
    if len(seen) < 2:
        return None
    noise = run_noise(trials, without=base.config.hash)
    span = max(trial.number for trial in trials if trial.objectives is not None) - seen[0][0]
    numbers = tuple(number for number, _ in seen)
    return Drift(
        launches=numbers,
        throughput=_trend(numbers, [pair[0] for _, pair in seen], noise.throughput_sd, span),
        ttft=_trend(numbers, [pair[1] for _, pair in seen], noise.ttft_sd, span),
    )


@remembered
def undrifted(trials: Sequence[Trial]) -> Mapping[int, tuple[Estimate, Estimate]]:
    """Throughput per GPU and p95 TTFT of each measured trial by its number, a clear drift taken off."""
    found = {trial.number: pair for trial in trials if (pair := trial.objectives) is not None}
    drift = baseline_drift(trials)
    if drift is None or not drift.corrected:
        return found
    return {number: _as_at_first(pair, drift, number) for number, pair in found.items()}


def _as_at_first(pair: tuple[Estimate, Estimate], drift: Drift, number: int) -> tuple[Estimate, Estimate]:
    """Both figures of trial `number` as at the first baseline."""
    ago = number - drift.launches[0]
    throughput, ttft = (
        figure.times(math.exp(-trend.slope * ago)) if trend.clear else figure
        for figure, trend in zip(pair, (drift.throughput, drift.ttft), strict=True)
    )
    return throughput, ttft


def _trend(places: Sequence[int], figures: Sequence[Estimate], run_sd: float, span: int) -> Trend:
    """Weighted least squares of the logarithms over the trials' numbers."""
    variances = [mean_variance([figure], run_sd) for figure in figures]
    weights = [1 / variance for variance in variances]
    logs = [math.log(figure.value) for figure in figures]
    total = math.fsum(weights)
    middle = math.fsum(w * x for w, x in zip(weights, places, strict=True)) / total
    height = math.fsum(w * y for w, y in zip(weights, logs, strict=True)) / total
    leverage = math.fsum(w * (x - middle) ** 2 for w, x in zip(weights, places, strict=True))
    products = [w * (x - middle) * (y - height) for w, x, y in zip(weights, places, logs, strict=True)]
    slope, error = math.fsum(products) / leverage, math.sqrt(1 / leverage)
    off = [
        abs(y - height - slope * (x - middle)) / math.sqrt(v) for x, y, v in zip(places, logs, variances, strict=True)
    ]
    change, width = slope * span, FLAG_Z * error * span
    return Trend(
        change=math.exp(change),
        low=math.exp(change - width),
        high=math.exp(change + width),
        detectable=math.exp((FLAG_Z + _POWER_Z) * error * span),
        clear=len(places) >= LEAST_TO_CORRECT and abs(slope) >= CLEAR_Z * error and max(off) <= ON_THE_LINE,
        slope=slope,
    )
