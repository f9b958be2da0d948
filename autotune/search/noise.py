"""How much launches of one config differ, and whether two configs differ by more than that. Pure.

The bootstrap interval of a launch says how well that launch was measured. It says nothing of the next launch of the
same config, which differs by more: on one H200 a pair of identical runs was 0.5 % apart in throughput and up to 28 % in
TTFT. So a difference is judged with both: each launch's own interval, and the spread between launches, which comes from
the study's repeats and, as long as there are few, from `ASSUMED_*`.

Everything is in natural logarithms, where a factor counts the same anywhere and the spread is about the same for slow
and fast configs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import NamedTuple

from autotune.records import Estimate, Trial
from autotune.search.remembered import remembered

ASSUMED_THROUGHPUT_SD = 0.01
ASSUMED_TTFT_SD = 0.10
"""Relative standard deviation between launches before any repeat was seen: identical runs of vLLM 0.25 on an H200
differed by 0.5 % in throughput and by 1 % (p99) to 28 % (p50, closed loop) in TTFT."""

PRIOR_WEIGHT = 4.0
"""Repeats that the assumption counts for: with as many of the study's own, both have the same say."""

LEAST_MARGINS = (0.03, 0.10)
"""Differences in throughput and TTFT, of logarithms, for which nobody would choose one config over another."""

_Z95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNoise:
    """Spread between launches of one config.

    Attributes:
        throughput_sd, ttft_sd: standard deviation of the logarithm, about the relative deviation.
        repeats: launches beyond each config's first that it was learnt from; 0 is the assumption alone.
    """

    throughput_sd: float
    ttft_sd: float
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """B against A in one figure.

    Attributes:
        ratio: B over A.
        low, high: 95 % interval of the ratio, launch-to-launch spread included.
        launches: of A and of B.
        more_launches: launches of each that would show a difference of this size; None when it is shown already, or
            is nothing at all.
    """

    ratio: float
    low: float
    high: float
    launches: tuple[int, int]
    more_launches: int | None

    @property
    def is_real(self) -> bool:
        """Whether the interval excludes that both are the same."""
        return self.low > 1.0 or self.high < 1.0


def run_noise(trials: Sequence[Trial], *, without: str | None = None) -> RunNoise:
    """The spread between launches, pooled over all configs of a study that were measured more than once.

    Args:
        without: hash of a config that is not to have a say, because its launches are judged by the others' spread.
    """
    return _all_noise(trials) if without is None else _noise(trials, without)


@remembered
def _all_noise(trials: Sequence[Trial]) -> RunNoise:
    return _noise(trials, None)


def _noise(trials: Sequence[Trial], without: str | None) -> RunNoise:
    groups = [group for key, group in _repeated(trials).items() if key != without]
    repeats = sum(len(group) - 1 for group in groups)
    squares = [0.0, 0.0]
    for group in groups:
        for axis in (0, 1):
            logs = [math.log(pair[axis].value) for pair in group]
            middle = fmean(logs)
            squares[axis] += math.fsum((value - middle) ** 2 for value in logs)
    pooled = [
        math.sqrt((PRIOR_WEIGHT * assumed**2 + square) / (PRIOR_WEIGHT + repeats))
        for assumed, square in zip((ASSUMED_THROUGHPUT_SD, ASSUMED_TTFT_SD), squares, strict=True)
    ]
    return RunNoise(throughput_sd=pooled[0], ttft_sd=pooled[1], repeats=repeats)


@remembered
def _repeated(trials: Sequence[Trial]) -> Mapping[str, Sequence[tuple[Estimate, Estimate]]]:
    """Objectives of the launches of each config that was measured more than once, by its hash."""
    groups: dict[str, list[tuple[Estimate, Estimate]]] = {}
    for trial in trials:
        pair = trial.objectives
        if pair is not None and trial.alone:  # beside others a launch differs for a reason
            groups.setdefault(trial.config.hash, []).append(pair)
    return {key: group for key, group in groups.items() if len(group) > 1}


def difference(a: Sequence[Estimate], b: Sequence[Estimate], run_sd: float) -> Difference | None:
    """How B's launches differ from A's in a figure that is above 0; None when either has none.

    Args:
        a, b: one estimate a launch.
        run_sd: standard deviation of the logarithm between launches.
    """
    if not a or not b or any(one.value <= 0 for one in (*a, *b)):
        return None
    shift = fmean(math.log(one.value) for one in b) - fmean(math.log(one.value) for one in a)
    variances = [mean_variance(side, run_sd) for side in (a, b)]
    error = math.sqrt(math.fsum(variances))
    low, high = math.exp(shift - _Z95 * error), math.exp(shift + _Z95 * error)
    shown = low > 1.0 or high < 1.0
    return Difference(
        ratio=math.exp(shift),
        low=low,
        high=high,
        launches=(len(a), len(b)),
        more_launches=None if shown else _needed(shift, a, b, run_sd),
    )


class LogMean(NamedTuple):
    """Mean of a config's logarithms of one figure, and the variance of that mean."""

    mean: float
    variance: float


def log_mean(launches: Sequence[Estimate], run_sd: float) -> LogMean:
    """Of at least one launch, all above 0."""
    if len(launches) == 1:  # as most configs have; the same, at a third of the price
        return LogMean(math.log(launches[0].value), _own_sd(launches[0]) ** 2 + run_sd**2)
    return LogMean(fmean(math.log(one.value) for one in launches), mean_variance(launches, run_sd))


def interval(a: LogMean, b: LogMean) -> tuple[float, float]:
    """Logarithms of `low` and `high` of the `difference` of b against a."""
    shift, width = b.mean - a.mean, _Z95 * math.sqrt(a.variance + b.variance)
    return shift - width, shift + width


def within_noise(a: LogMean, b: LogMean) -> bool:
    """Whether the interval of `difference` includes that both are the same."""
    low, high = interval(a, b)
    return low <= 0.0 <= high


def mean_variance(launches: Sequence[Estimate], run_sd: float) -> float:
    """Of the mean of the logarithms: what each launch does not know about itself, and the spread between them.

    Args:
        launches: at least one, all above 0.
        run_sd: standard deviation of the logarithm between launches.
    """
    own = [_own_sd(one) for one in launches]
    return (math.fsum(sd**2 for sd in own) / len(own) + run_sd**2) / len(launches)


def _own_sd(one: Estimate) -> float:
    if one.low is None or one.high is None or one.low <= 0:
        return 0.0
    return (math.log(one.high) - math.log(one.low)) / (2 * _Z95)


MOST_LAUNCHES = 100
"""Where more would be needed, the difference is of no practical use."""


def _needed(shift: float, a: Sequence[Estimate], b: Sequence[Estimate], run_sd: float) -> int | None:
    if shift == 0.0:
        return None
    single = math.fsum(mean_variance([one], run_sd) for one in a) / len(a)
    single += math.fsum(mean_variance([one], run_sd) for one in b) / len(b)
    needed = math.ceil(_Z95**2 * single / shift**2)
    return needed if needed <= MOST_LAUNCHES else None
