"""How the TTFT of one level is distributed, small enough for a page: quantiles and a histogram. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.load.stats import percentile

BINS_PER_DECADE = 24
"""Edges of a histogram lie at powers of 10^(1/24), the same for all trials, so that two can be laid over each other."""

PERCENTS = (0.0, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution of latencies.

    Attributes:
        count: requests.
        quantiles: (percent, seconds).
        bins: (place, count): requests of at least 10^(place/24) seconds and less than the next edge.
    """

    count: int
    quantiles: tuple[tuple[float, float], ...]
    bins: tuple[tuple[int, int], ...]

    def as_document(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "count": self.count,
            "bins_per_decade": BINS_PER_DECADE,
            "quantiles": [list(pair) for pair in self.quantiles],
            "bins": [list(pair) for pair in self.bins],
        }


def spread_of(values_s: Sequence[float]) -> Spread | None:
    """Of latencies above 0; None of nothing. What is 0 or below (clocks that disagree) is left out."""
    values = sorted(value for value in values_s if value > 0)
    if not values:
        return None
    counts: dict[int, int] = {}
    for value in values:
        place = bin_of(value)
        counts[place] = counts.get(place, 0) + 1
    found = ((percent, percentile(values, percent)) for percent in PERCENTS)
    return Spread(
        count=len(values),
        quantiles=tuple((percent, value) for percent, value in found if value is not None),
        bins=tuple(sorted(counts.items())),
    )


def bin_of(value_s: float) -> int:
    """Place of the bin that holds a value above 0."""
    return math.floor(math.log10(value_s) * BINS_PER_DECADE)
