"""Lengths of the requests that a running vLLM has served, from the histograms of its `/metrics`. Pure.

`vllm:request_prompt_tokens` and `vllm:request_generation_tokens`, with buckets at 1, 2 and 5 times powers of ten up to
the model's length (vllm/v1/metrics/loggers.py, 0.6 to 0.33). Engines are added up.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_LINE = r"^(?:ray_)?vllm[:_]{name}(?P<part>_bucket|_sum|_count)(?:\{{(?P<labels>.*)\}})?\s+(?P<value>\S+)"
_BOUND = re.compile(r'(?:^|,)le="([^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenHistogram:
    """A histogram of lengths.

    Attributes:
        count: requests.
        buckets: (upper bound, requests no longer than it), ascending; the last bound is infinite.
    """

    count: int
    mean: float
    buckets: tuple[tuple[float, int], ...]

    def quantile(self, share: float) -> float:
        """The length that `share` of the requests do not exceed, by straight lines within a bucket.

        The last finite bound where it lies beyond that.
        """
        wanted, low, below = share * self.count, 0.0, 0
        for high, upto in self.buckets:
            if upto >= wanted:
                if math.isinf(high):
                    return low
                return high if upto == below else low + (high - low) * (wanted - below) / (upto - below)
            low, below = high, upto
        return low

    @property
    def longest(self) -> int | None:
        """The bound that all requests stay below; None where some lie beyond the last finite one."""
        bound = next((high for high, upto in self.buckets if upto >= self.count), math.inf)
        return None if math.isinf(bound) else round(bound)


def token_histogram(text: str, name: str) -> TokenHistogram | None:
    """The histogram `name` (without `vllm:`); None where the text has none, or one of no request.

    A bucket that counts fewer than the one before it, as engines that were read at different moments give, is raised to
    that one.
    """
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
    count = round(sums["_count"])
    if count < 1 or not bounds or sums["_sum"] <= 0:
        return None
    buckets: list[tuple[float, int]] = []
    for high in sorted(bounds):
        buckets.append((high, max(round(bounds[high]), buckets[-1][1] if buckets else 0)))
    return TokenHistogram(count=count, mean=sums["_sum"] / count, buckets=tuple(buckets))


def _number(text: str, *, infinite: bool = False) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    usable = value >= 0 and (infinite or value < 1e18)  # false for nan
    return value if usable else None
