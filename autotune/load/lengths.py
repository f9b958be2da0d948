"""How many tokens a prompt or an output has: three distributions, sampled without luck."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

import numpy as np

_Z95 = 1.6448536269514722
"""Standard normal quantile of 0.95."""

_Z999 = 3.090232306167813
"""Standard normal quantile of 0.999: where an unbounded log-normal is cut."""

MAX_P95_OVER_MEAN = math.exp(_Z95 * _Z95 / 2)
"""No log-normal has a p95 above 3.87 times its mean: ln(p95/mean) = z s - s^2/2 peaks at s = z."""


class LengthShape(StrEnum):
    """Family of a length distribution; RECORDED only sums up what a trace holds, and cannot be drawn from."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    LOGNORMAL = "lognormal"
    RECORDED = "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of token counts; `low` and `high` are inclusive bounds that no sample leaves.

    Attributes:
        mean: of the distribution before it is cut to the bounds, tokens.
        sigma: log-normal only: standard deviation of the logarithm.
    """

    shape: LengthShape
    mean: float
    low: int
    high: int
    sigma: float = 0.0

    @classmethod
    def fixed(cls, tokens: int) -> Lengths:
        """Always the same length."""
        return cls(shape=LengthShape.FIXED, mean=float(tokens), low=tokens, high=tokens)

    @classmethod
    def uniform(cls, low: int, high: int) -> Lengths:
        """Every whole number from `low` to `high`, both included."""
        return cls(shape=LengthShape.UNIFORM, mean=(low + high) / 2, low=low, high=high)

    @classmethod
    def recorded(cls, tokens: Sequence[int]) -> Lengths:
        """Mean and bounds of lengths that were recorded."""
        return cls(shape=LengthShape.RECORDED, mean=sum(tokens) / len(tokens), low=min(tokens), high=max(tokens))

    @classmethod
    def lognormal(cls, mean: float, p95: float, longest: int | None = None) -> Lengths:
        """The log-normal with this mean and 95th percentile, cut at `longest` (default its 99.9th percentile).

        From mean = exp(m + s^2/2) and p95 = exp(m + z s): s = z - sqrt(z^2 - 2 ln(p95/mean)), the smaller root.

        Raises:
            ValueError: p95 is below the mean or more than MAX_P95_OVER_MEAN times it.
        """
        if not 1.0 <= p95 / mean <= MAX_P95_OVER_MEAN:
            raise ValueError(f"a log-normal has its p95 between 1 and {MAX_P95_OVER_MEAN:.2f} times its mean")
        sigma = _Z95 - math.sqrt(max(0.0, _Z95 * _Z95 - 2 * math.log(p95 / mean)))
        cut = math.ceil(math.exp(math.log(mean) - sigma * sigma / 2 + _Z999 * sigma))
        return cls(shape=LengthShape.LOGNORMAL, mean=mean, low=1, high=longest or cut, sigma=sigma)


def sample_lengths(lengths: Lengths, count: int, seed: tuple[int, ...]) -> tuple[int, ...]:
    """`count` lengths in random order, one from each of `count` equally likely slices of the distribution.

    Stratifying keeps the total work of a level the same whatever the seed, so that two levels of different size offer
    the same tokens per request; the order stays random, so that clients do not run in lock step.

    Raises:
        ValueError: recorded lengths, which are read from their trace.
    """
    if count == 0:
        return ()
    rng = np.random.default_rng(list(seed))
    quantiles = (rng.permutation(count) + rng.random(count)) / count
    match lengths.shape:
        case LengthShape.FIXED:
            values = np.full(count, lengths.low)
        case LengthShape.UNIFORM:
            values = lengths.low + np.floor(quantiles * (lengths.high - lengths.low + 1))
        case LengthShape.LOGNORMAL:
            mu = math.log(lengths.mean) - lengths.sigma**2 / 2
            values = np.rint(np.exp(mu + lengths.sigma * _normal_quantiles(quantiles)))
        case LengthShape.RECORDED:
            raise ValueError("recorded lengths are read from their trace, not drawn")
    return tuple(int(v) for v in np.clip(values, lengths.low, lengths.high))


def _normal_quantiles(quantiles: np.ndarray) -> np.ndarray:
    """Inverse of the standard normal distribution; the standard library's, which is accurate to 1e-9."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse(min(max(float(q), 1e-9), 1 - 1e-9)) for q in quantiles])
