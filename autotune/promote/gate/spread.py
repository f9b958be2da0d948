"""How much the launches of a verification differ by chance, and what their difference between two configs shows. Pure.

Everything is in natural logarithms. A launch is driven with several windows of arrivals, which are the same in all
launches. So what a window's arrivals do cancels in a difference, and a launch's mean over K windows has the variance

    between launches + within a launch / K

The part within is seen well: it is what windows still differ by when each launch's and each window's mean is taken off.
The part between launches is what few launches say little of. It is estimated twice:

* *pooled*: the study's repeats, an assumption that stands in for missing ones, and the launches of the verification,
  weighted by their degrees of freedom;
* *seen*: the same without the assumption, which may be wrong on this node.

A difference must be clear by both: half its interval is the wider of both t intervals. The first keeps two launches
that happen to agree from proving anything, the second an assumption that is too small. What was seen has few degrees of
freedom, so where very little chance is left to the first, more may be left to the second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from autotune.promote.gate.student import t_quantile
from autotune.records import Estimate, GateSideName
from autotune.search.noise import PRIOR_WEIGHT

Z95_P = 0.975


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One figure of one launch: its logarithm in every window, the same windows in every launch."""

    side: GateSideName
    windows: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the windows."""
        return fmean(self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What was known of a figure's spread before the verification. Variances of the logarithm.

    Attributes:
        assumed: of single launches of one window, while few repeats were seen; it counts for `PRIOR_WEIGHT` of them.
        assumed_between: the part of it that more windows do not take off.
        seen: of single launches, by the study's repeats alone.
        repeats: how many that were.
    """

    assumed: float
    assumed_between: float
    seen: float
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of a launch's mean.

    Attributes:
        pooled_sd, pooled_df: with the assumption.
        seen_sd, seen_df: without it; with 0 degrees of freedom nothing was seen.
        within_sd: of one window within a launch; None with one window.
        window_sd: of one window's arrivals, the same in all launches; None with one window.
    """

    pooled_sd: float
    pooled_df: int
    seen_sd: float
    seen_df: int
    within_sd: float | None = None
    window_sd: float | None = None

    def half_width(self, share: float, alpha: float, extra: float = 0.0, seen_alpha: float = 0.0) -> float:
        """Half an interval of a sum or difference of launch means.

        Args:
            share: its variance in units of a launch mean's: 1/nA + 1/nB for the difference of two means.
            alpha: one-sided.
            extra: variance that comes on top.
            seen_alpha: of what was seen, where it is more than `alpha`.
        """
        pooled = t_quantile(1 - alpha, self.pooled_df) * math.sqrt(self.pooled_sd**2 * share + extra)
        if not self.seen_df:
            return pooled
        seen = t_quantile(1 - max(alpha, seen_alpha), self.seen_df) * math.sqrt(self.seen_sd**2 * share + extra)
        return max(pooled, seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Candidate over against, as a logarithm; above 0 is more."""

    log: float
    share: float
    spread: Spread

    def low(self, alpha: float) -> float:
        """Below this with probability `alpha` at most."""
        return self.log - self.spread.half_width(self.share, alpha)

    def high(self, alpha: float) -> float:
        """Above this with probability `alpha` at most."""
        return self.log + self.spread.half_width(self.share, alpha)

    @property
    def ratio(self) -> Estimate:
        """With its 95 % interval."""
        low, high = self.low(1 - Z95_P), self.high(1 - Z95_P)
        return Estimate(value=math.exp(self.log), low=math.exp(low), high=math.exp(high))


def spread_of(launches: Sequence[Launch], known: Known) -> Spread:
    """The spread of a launch's mean.

    Args:
        launches: at least one, all with the same windows.
    """
    count = len(launches[0].windows)
    within, window = _within(launches)
    own, own_df = _own(launches)
    several = count > 1
    assumed = known.assumed_between + within / count if several else known.assumed
    repeated = max(known.seen - within, 0.0) + within / count if several else known.seen
    seen_df = known.repeats + own_df
    seen = known.repeats * repeated + own_df * own
    weight = round(PRIOR_WEIGHT)
    pooled_df = weight + seen_df
    return Spread(
        pooled_sd=math.sqrt((weight * assumed + seen) / pooled_df),
        pooled_df=pooled_df,
        seen_sd=math.sqrt(seen / seen_df) if seen_df else 0.0,
        seen_df=seen_df,
        within_sd=math.sqrt(within) if several else None,
        window_sd=math.sqrt(window) if several else None,
    )


def shift_of(launches: Sequence[Launch], spread: Spread) -> Shift | None:
    """How the candidate's launches differ from the other's; None without launches of both."""
    a = [one.mean for one in launches if one.side is GateSideName.AGAINST]
    b = [one.mean for one in launches if one.side is GateSideName.CANDIDATE]
    if not a or not b:
        return None
    return Shift(log=fmean(b) - fmean(a), share=1 / len(a) + 1 / len(b), spread=spread)


def _own(launches: Sequence[Launch]) -> tuple[float, int]:
    """Variance of launch means around their config's, and its degrees of freedom."""
    squares, df = 0.0, 0
    for side in GateSideName:
        means = [one.mean for one in launches if one.side is side]
        if len(means) > 1:
            middle = fmean(means)
            squares += math.fsum((mean - middle) ** 2 for mean in means)
            df += len(means) - 1
    return (squares / df if df else 0.0), df


def _within(launches: Sequence[Launch]) -> tuple[float, float]:
    """Variances of a window within a launch, and of what all launches see alike in a window.

    With one launch the two cannot be told apart, and all is taken to be within.
    """
    rows = [one.windows for one in launches]
    n, k = len(rows), len(rows[0])
    if k == 1:
        return 0.0, 0.0
    columns = [fmean(row[j] for row in rows) for j in range(k)]
    grand = fmean(columns)
    if n == 1:
        return math.fsum((value - grand) ** 2 for value in rows[0]) / (k - 1), 0.0
    residual = math.fsum((row[j] - fmean(row) - columns[j] + grand) ** 2 for row in rows for j in range(k))
    within = residual / ((n - 1) * (k - 1))
    alike = math.fsum((column - grand) ** 2 for column in columns) / (k - 1)
    return within, max(0.0, alike - within / n)
