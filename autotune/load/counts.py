"""What counts of arrivals in bins say of their rate and of how they come. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.records import Estimate

_Z95 = 1.959963984540054
LEAST_BINS = 12
LEAST_ARRIVALS = 100
"""Fewer say nothing of how requests come: the dispersion of a dozen counts is anything."""


def dispersion_of(counts: Sequence[float], lengths_s: Sequence[float]) -> Estimate | None:
    """Variance of the counts over their mean: 1 for a Poisson stream, above 1 in bursts, 0 for even spacing.

    The 95 % interval is that of a chi-squared variable with one degree of freedom less than there are bins. None of too
    few.

    Args:
        lengths_s: of the bins, about equal.
    """
    total, length = sum(counts), sum(lengths_s)
    if len(counts) < LEAST_BINS or total < LEAST_ARRIVALS or length <= 0:
        return None
    rate = total / length
    squares = [(n - rate * s) ** 2 / (rate * s) for n, s in zip(counts, lengths_s, strict=True) if s > 0]
    df = len(counts) - 1
    value = sum(squares) / df
    return Estimate(value=value, low=value / _chi_squared(_Z95, df), high=value / _chi_squared(-_Z95, df))


def _chi_squared(z: float, df: int) -> float:
    """Quantile over df, at a normal deviate (Wilson and Hilferty, 1931; within 1 % of it from LEAST_BINS bins on).

    Its plain normal form takes every eighth Poisson stream in twelve bins for an even one.
    """
    part = 2 / (9 * df)
    return (1 - part + z * math.sqrt(part)) ** 3


def rate_of(arrived: int, seconds: float, dispersion: Estimate | None) -> Estimate:
    """Arrivals per second with the 95 % interval of a Poisson stream, wider where they were seen to come in bursts."""
    spread = max(1.0, dispersion.value if dispersion else 1.0)
    error = 1.96 * math.sqrt(spread * max(1, arrived)) / seconds
    rate = arrived / seconds
    return Estimate(value=rate, low=max(0.0, rate - error), high=rate + error)
