"""The normal distribution on arrays, without SciPy. Pure."""

from __future__ import annotations

import math

import numpy as np

from autotune.search.prior.expectation import Floats

# Chebyshev fit of erfc, relative error below 1.2e-7 everywhere (Press et al., Numerical Recipes, 2nd ed., 6.2).
_FIT = (
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
    -1.26551223,
)  # fmt: skip


def density(z: Floats) -> Floats:
    """Of the standard normal distribution."""
    return np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


def cumulative(z: Floats) -> Floats:
    """P(Z <= z), with a relative error below 1e-6 also far out in the lower tail."""
    x = np.abs(z) / math.sqrt(2.0)
    t = 1.0 / (1.0 + 0.5 * x)
    power = np.zeros_like(t)
    for coefficient in _FIT:
        power = power * t + coefficient
    upper = 0.5 * t * np.exp(-x * x + power)
    return np.where(z < 0, upper, 1.0 - upper)


def mean_above(level: float, mean: Floats, sd: Floats) -> Floats:
    """E[max(Y - level, 0)] of Y ~ N(mean, sd^2); sd must be above 0."""
    if level == math.inf:
        return np.zeros_like(mean)
    z = (mean - level) / sd
    return np.maximum(sd * (density(z) + z * cumulative(z)), 0.0)
