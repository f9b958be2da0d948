"""Student's t for whole degrees of freedom. Pure; SciPy would be a large library for one function."""

from __future__ import annotations

import math
from functools import cache


def t_cdf(t: float, df: int) -> float:
    """P(T <= t) for t >= 0 (Abramowitz and Stegun 26.7.3 and 26.7.4, which are exact).

    Args:
        df: at least 1.
    """
    angle = math.atan(t / math.sqrt(df))
    cosine = math.cos(angle)
    term = cosine if df % 2 else 1.0
    series = term if df > 1 else 0.0
    for k in range(3 if df % 2 else 2, df, 2):
        term *= cosine * cosine * (k - 1) / k
        series += term
    if df % 2:
        return 0.5 + (angle + math.sin(angle) * series) / math.pi
    return 0.5 + math.sin(angle) * series / 2


@cache
def t_quantile(p: float, df: int) -> float:
    """The t that T stays below with probability `p`, by bisection.

    Args:
        p: 0.5 up to below 1.
        df: at least 1.
    """
    low, high = 0.0, 1.0
    while t_cdf(high, df) < p:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2
