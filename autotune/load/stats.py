"""Percentiles and their intervals. Pure: the seed comes in.

Percentile: linear interpolation between order statistics (numpy's default, type 7 of Hyndman & Fan, 1996).
Intervals: 95 %, percentile bootstrap (Efron, 1979). None for the bounds where the sample cannot carry them.

Neighbours in a queue wait for the same reason, so that TTFTs in order of time say less than as many independent ones:
near a server's capacity an interval that takes them for independent holds the truth in a third of the cases. Their
number is therefore divided by what batch means say of the values and of the share beyond a percentile (`dependence`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.records import Estimate, Latency

RESAMPLES = 2000

MIN_BEYOND = 5
"""A percentile gets an interval only with this many expected samples beyond it (p95: 100 samples, p99: 500): with
fewer, the upper bound is the largest value seen, which says nothing about the tail."""

MIN_MEAN = 10
"""A mean or median gets an interval from this many samples on."""

_EXACT_MEAN = 2000
"""Up to here the mean is resampled; above, the bootstrap of a mean is normal to within its own noise."""

_MAX_SLICES = 60

_BATCHES = 10
_T_OVER_Z = (2.262 / 1.960) ** 2
"""A variance known from ten batch means alone has the quantile of Student's t with 9 degrees of freedom."""

MIN_DRAWS = 10
"""As few independent samples are taken for the worth of a sample at least."""

Floats = NDArray[np.float64]


def percentile(samples: Sequence[float], percent: float) -> float | None:
    """The `percent`-th percentile, 0..100; None of nothing."""
    return float(np.percentile(np.asarray(samples, dtype=float), percent)) if len(samples) else None


def samples_for(percent: float) -> int:
    """Smallest sample that gives this percentile an interval."""
    tail = min(percent, 100 - percent) / 100
    # The tiny slack keeps 5 / (1 - 0.95) from becoming 101 by rounding.
    return max(MIN_MEAN, math.ceil(MIN_BEYOND / tail - 1e-9))


def dependence(values: Floats) -> float:
    """How many samples in order of time are worth one independent sample, at least 1.

    The variance of a mean by overlapping batch means (Meketon & Schmeiser, 1984) over that of independent samples; a
    percentile's variance goes with that of the share beyond it. Batches of a tenth of the sample: shorter ones do not
    see a queue that lasts as long, and of these there are so few that Student's t is allowed for.

    Args:
        values: in order of time; for a percentile 1 for a sample beyond it, else 0.
    """
    count = len(values)
    length = count // _BATCHES
    variance = float(values.var())
    if length < 2 or variance <= 0:
        return 1.0
    sums = np.cumsum(np.concatenate([[0.0], values - values.mean()]))
    batches = sums[length:] - sums[:-length]
    of_mean = float((batches**2).mean()) / length / (1 - length / count)
    return max(1.0, _T_OVER_Z * of_mean / variance)


def percentile_in_order(samples: Sequence[float] | Floats, percent: float, *, seed: int = 0) -> Estimate | None:
    """A percentile of samples in order of time, whose neighbours may be alike; None of nothing."""
    values = np.asarray(samples, dtype=float)
    if not len(values):
        return None
    ordered = np.sort(values)
    draws = _worth(values > np.percentile(ordered, percent), len(values))
    rng = np.random.default_rng([seed, len(ordered)])
    return _percentile_estimate(ordered, percent, draws, rng, samples=len(ordered))


def latency(
    samples: Sequence[float], *, seed: int = 0, independent: int | None = None, in_order: bool = False
) -> Latency | None:
    """A latency distribution with intervals; None without a sample.

    Args:
        in_order: samples are in order of time, and their neighbours may be alike.
        independent: how many of the samples count as independent draws, when they come in groups (the gaps of one
            request): the intervals are those of a sample of this size.
    """
    if not len(samples):
        return None
    values = np.asarray(samples, dtype=float)
    ordered = np.sort(values)
    draws = min(len(ordered), independent or len(ordered))
    rng = np.random.default_rng([seed, len(ordered)])
    points = {
        percent: _percentile_estimate(
            ordered,
            percent,
            _worth(values > np.percentile(ordered, percent), draws) if in_order else draws,
            rng,
            samples=draws,
        )
        for percent in (50.0, 90.0, 95.0, 99.0)
    }
    return Latency(
        count=len(ordered),
        mean=_mean_estimate(ordered, _worth(values, draws) if in_order else draws, rng),
        p50=points[50.0],
        p90=points[90.0],
        p95=points[95.0],
        p99=points[99.0],
    )


def rate(at_s: Floats, amounts: Floats, start_s: float, end_s: float, *, seed: int = 0) -> Estimate | None:
    """Amount per second over [start_s, end_s], from events at `at_s` that each carry an amount (tokens, requests).

    Interval by a circular block bootstrap over equal slices of time (Politis & Romano, 1992): neighbouring slices
    share the same running requests, so they are drawn in blocks of n^(1/3) slices. None for an empty window or
    one in which nothing happened.
    """
    length = end_s - start_s
    if length <= 0:
        return None
    inside = (at_s >= start_s) & (at_s <= end_s)
    times, values = at_s[inside], amounts[inside]
    if not len(times):
        return None
    value = float(values.sum()) / length
    slices = min(_MAX_SLICES, len(times) // 10)
    if slices < MIN_MEAN:
        return Estimate(value=value)
    per_slice, _ = np.histogram(times, bins=slices, range=(start_s, end_s), weights=values)
    block = max(1, round(slices ** (1 / 3)))
    blocks = math.ceil(slices / block)
    starts = np.random.default_rng([seed, slices]).integers(0, slices, (RESAMPLES, blocks, 1))
    picks = ((starts + np.arange(block)) % slices).reshape(RESAMPLES, -1)[:, :slices]
    low, high = np.percentile(per_slice[picks].mean(axis=1), (2.5, 97.5)) * slices / length
    return Estimate(value=value, low=min(value, float(low)), high=max(value, float(high)))


def _worth(in_order: NDArray[np.float64] | NDArray[np.bool_], draws: int) -> int:
    """How many independent samples `draws` samples in order of time are worth."""
    return max(min(draws, MIN_DRAWS), int(draws / dependence(in_order.astype(float))))


def _percentile_estimate(
    ordered: Floats, percent: float, draws: int, rng: np.random.Generator, *, samples: int | None = None
) -> Estimate:
    """The bootstrap of a percentile without resampling: exact in distribution, and independent of the sample's size.

    The k-th smallest of n draws with replacement is the sample value at rank floor(n U), where U is the k-th smallest
    of n uniforms: Beta(k, n + 1 - k). Its successor, which the interpolation needs, is U + (1 - U) Beta(1, n - k).
    """
    value = float(np.percentile(ordered, percent))
    if (len(ordered) if samples is None else samples) < samples_for(percent):
        return Estimate(value=value)
    position = (draws - 1) * percent / 100
    k = math.floor(position) + 1
    lower = rng.beta(k, draws + 1 - k, RESAMPLES)
    upper = lower + (1 - lower) * rng.beta(1, max(1, draws - k), RESAMPLES)
    part = position - math.floor(position)
    resampled = (1 - part) * _at(ordered, lower) + part * _at(ordered, upper)
    low, high = np.percentile(resampled, (2.5, 97.5))
    return Estimate(value=value, low=min(value, float(low)), high=max(value, float(high)))


def _at(ordered: Floats, share: Floats) -> Floats:
    values: Floats = np.take(ordered, np.minimum((share * len(ordered)).astype(int), len(ordered) - 1))
    return values


def _mean_estimate(samples: Floats, draws: int, rng: np.random.Generator) -> Estimate:
    value = float(samples.mean())
    if draws < MIN_MEAN:
        return Estimate(value=value)
    if draws == len(samples) <= _EXACT_MEAN:
        means = samples[rng.integers(0, draws, (RESAMPLES // 2, draws))].mean(axis=1)
        low, high = (float(v) for v in np.percentile(means, (2.5, 97.5)))
    else:
        half = 1.959964 * float(samples.std()) / math.sqrt(draws)
        low, high = value - half, value + half
    return Estimate(value=value, low=min(value, low), high=max(value, high))
