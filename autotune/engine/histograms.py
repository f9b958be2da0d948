"""Histograms of a vLLM's `/metrics`: what was counted between two readings, and what its quantiles can be. Pure.

A bucket says how many lay below its bound and nothing of where, so that a quantile is an interval: from the lower bound
of the bucket it falls into to the upper one. How few requests there were widens it: by the order statistics of the
binomial, the 95 % interval of which quantile of the sample it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.records import Estimate

_LINE = r"^(?:ray_)?vllm[:_]{name}(?P<part>_bucket|_sum|_count)(?:\{{(?P<labels>.*)\}})?\s+(?P<value>\S+)"
_BOUND = re.compile(r'(?:^|,)le="([^"]*)"')
_Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """What was observed, in buckets.

    Attributes:
        count: observations, 1 or more.
        total: their sum.
        buckets: (upper bound, observations no larger than it), ascending; the last bound is infinite.
    """

    count: int
    total: float
    buckets: tuple[tuple[float, int], ...]

    @property
    def mean(self) -> float:
        """Exact: the sum is no matter of buckets."""
        return self.total / self.count

    @property
    def deviation(self) -> float:
        """Standard deviation, each observation taken for the middle of its bucket; of the open one, its lower bound."""
        middle, low, below, squares = 0.0, 0.0, 0, 0.0
        for high, upto in self.buckets:
            middle = low if math.isinf(high) else (low + high) / 2
            squares += (upto - below) * (middle - self.mean) ** 2
            low, below = (low if math.isinf(high) else high), upto
        return math.sqrt(squares / self.count)

    @property
    def mean_estimate(self) -> Estimate:
        """The mean with its 95 % interval."""
        error = _Z95 * self.deviation / math.sqrt(self.count)
        return Estimate(value=self.mean, low=max(0.0, self.mean - error), high=self.mean + error)

    def quantile(self, share: float) -> tuple[float, float]:
        """Bounds of what `share` of the observations do not exceed; infinite beyond the last bound."""
        return self._ranked(max(1, math.ceil(share * self.count)))

    def quantile_interval(self, share: float) -> tuple[float, float]:
        """As `quantile`, wide enough for what other requests of the same kind would have shown (95 %)."""
        spread = _Z95 * math.sqrt(self.count * share * (1 - share))
        first = max(1, math.floor(share * self.count - spread))
        last = min(self.count, math.ceil(share * self.count + spread) + 1)
        high = math.inf if share * self.count + spread + 1 > self.count else self._ranked(last)[1]
        return self._ranked(first)[0], high

    def interpolated(self, share: float) -> float:
        """One number for a quantile, by a straight line within its bucket; the last finite bound beyond that."""
        low, high = self.quantile(share)
        if math.isinf(high):
            return low
        below = max((upto for bound, upto in self.buckets if bound <= low), default=0)
        inside = next(upto for bound, upto in self.buckets if bound >= high) - below
        return high if not inside else low + (high - low) * min(1.0, (share * self.count - below) / inside)

    @property
    def longest(self) -> int | None:
        """The bound that all observations stay below; None where some lie beyond the last finite one."""
        bound = next((high for high, upto in self.buckets if upto >= self.count), math.inf)
        return None if math.isinf(bound) else round(bound)

    def _ranked(self, rank: int) -> tuple[float, float]:
        low = 0.0
        for high, upto in self.buckets:
            if upto >= rank:
                return low, high
            low = high
        return low, math.inf

    def since(self, before: Histogram | None) -> Histogram | None:
        """What came after `before`, another reading of the same server; None where nothing did."""
        if before is None:
            return self
        older = dict(before.buckets)
        count, total = self.count - before.count, self.total - before.total
        grown = [(high, upto - older.get(high, 0)) for high, upto in self.buckets]
        return _made(count, total, grown)


def histogram(text: str, *names: str) -> Histogram | None:
    """The first of these (names without `vllm:`) that the text has, engines added up; None of no observation."""
    for name in names:
        found = _named(text, name)
        if found is not None:
            return found
    return None


def _named(text: str, name: str) -> Histogram | None:
    line = re.compile(_LINE.format(name=re.escape(name)), re.MULTILINE)
    sums = {"_sum": 0.0, "_count": 0.0}
    bounds: dict[float, float] = {}
    for found in line.finditer(text):
        value = _number(found["value"])
        if value is None:
            continue
        if found["part"] != "_bucket":
            sums[found["part"]] += value
            continue
        bound = _BOUND.search(found["labels"] or "")
        high = _number(bound[1], infinite=True) if bound else None
        if high is not None:
            bounds[high] = bounds.get(high, 0.0) + value
    return _made(round(sums["_count"]), sums["_sum"], [(high, round(bounds[high])) for high in sorted(bounds)])


def _made(count: int, total: float, buckets: Sequence[tuple[float, int]]) -> Histogram | None:
    """A bucket below the one before it, as engines that were read at different moments give, is raised to that."""
    if count < 1 or not buckets or total < 0:
        return None
    raised: list[tuple[float, int]] = []
    for high, upto in buckets:
        raised.append((high, max(upto, raised[-1][1] if raised else 0)))
    return Histogram(count=count, total=total, buckets=tuple(raised))


def _number(text: str, *, infinite: bool = False) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    usable = value >= 0 and (infinite or value < 1e18)  # false for nan
    return value if usable else None
