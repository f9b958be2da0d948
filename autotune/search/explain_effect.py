"""A difference between two configs: how large, how sure, and whether launches or only the model say so. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

import numpy as np

from autotune.search.noise import LEAST_MARGINS, RunNoise

UNSEEN = 1.5
"""Intervals of what was never launched are this much wider than the process says. It expects smooth differences; on six
invented nodes with cliffs and effects that no prior knows (tests/unit/search/prior_surfaces.py), its own 95 % intervals
of single changes held the truth in 74 to 91 % of the cases after 20 trials; these do in 90 to 97 %."""


class Basis(StrEnum):
    """Where it is known from."""

    MEASURED = "measured"
    """Two launched servers differ in nothing else."""
    INFERRED = "inferred"
    """Launched servers have both values and differ in more; the model shares out what they gained."""
    EXPECTED = "expected"
    """No measured trial has one of the values: the model alone speaks."""


class Standing(StrEnum):
    """What may be said of a difference."""

    REAL = "real"
    """The interval excludes that there is none, and it was measured."""
    INFERRED = "inferred"
    EXPECTED = "expected"
    """The interval excludes that there is none, by a model that has such a basis."""
    NOISE = "within noise"
    """All of its interval is below what launches differ by, or below what anybody cares for."""
    UNKNOWN = "not known yet"
    """The interval holds both better and worse."""


_CLEAR = {
    Basis.MEASURED: Standing.REAL,
    Basis.INFERRED: Standing.INFERRED,
    Basis.EXPECTED: Standing.EXPECTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A ratio of two configs' figures with its 95 % interval, launch-to-launch noise not included."""

    ratio: float
    low: float
    high: float
    standing: Standing
    basis: Basis


def margins(noise: RunNoise) -> tuple[float, float]:
    """Differences of logarithms that count as none: two standard deviations between launches, at least."""
    return (
        max(LEAST_MARGINS[0], 2.0 * noise.throughput_sd),
        max(LEAST_MARGINS[1], 2.0 * noise.ttft_sd),
    )


def quantile(measured: int, pairs: int = 1) -> float:
    """Half the width of a 95 % interval in standard deviations, wider after few trials and for the widest of many
    pairs.

    The process's own widths come from as few trials as its values: Student's t, by the Cornish-Fisher expansion
    (Abramowitz and Stegun 26.7.5) with two degrees of freedom at least.
    """
    z, free = NormalDist().inv_cdf(1.0 - 0.025 / pairs), max(2, measured - 2)
    return z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)


def effect(mean: float, sd: float, margin: float, z: float, basis: Basis) -> Effect:
    """Of a difference of logarithms; `z` standard deviations to each side."""
    low, high = mean - z * sd, mean + z * sd
    if -margin < low and high < margin:
        standing = Standing.NOISE
    else:
        standing = _CLEAR[basis] if low > 0.0 or high < 0.0 else Standing.UNKNOWN
    ratio, least, most = (float(np.exp(np.clip(one, -50.0, 50.0))) for one in (mean, low, high))
    return Effect(ratio=ratio, low=least, high=most, standing=standing, basis=basis)
