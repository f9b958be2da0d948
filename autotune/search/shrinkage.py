"""What a figure is expected to be when it is measured once more: empirical Bayes over all configs of a study. Pure.

The best of many noisy figures is too good: it was chosen because it was lucky. How much too good depends on how many
others it could have been, so the configs' own distribution is estimated first, from all of them, and each figure is
then drawn towards where others of its kind are. That the winner was chosen does no harm to such an estimate.

The distribution is a mixture of normals, found by maximum likelihood on a grid (Kiefer and Wolfowitz 1956; Laird 1978).
A single normal (James-Stein) does not do: with half of the configs tied at the top and half far below, it takes their
distance for the spread and leaves 97 % of the optimism. Mean error of the best of 24, in standard deviations of the
noise, over 300 draws, as measured, by James-Stein and here: all tied 1.94, 0.34, 0.53; half tied and half far below
1.62, 1.58, 0.45; one tail (exponential) 0.96, 0.85, 0.05; a wide normal 0.02, -0.07, -0.10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

NARROWEST = 0.5
"""Standard deviation of the mixture's parts, in those of the noise: no two configs are taken for exactly the same."""

NEIGHBOURS = 256
"""Values whose parts of the mixture are looked for together."""

ROWS_AT_ONCE = 128
"""Values worked out together: for more, memory is had anew from the system each time, and does not fit a cache."""

NEAR = 8.0
"""Of many values, parts of the mixture that are further from one than its own part by so many standard deviations are
left out for it: less than 1e-13 of it belongs to them."""

GRID = 60
ROUNDS = 200

LARGE = 400
"""Values above which the distribution is fitted to counts in cells: its cost grows with the square of their number, and
10,000 would take minutes and gigabytes."""

CELLS = 400
"""At most; a cell is no narrower than half of the mixture's parts, a quarter of the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunken:
    """What is to be expected of one figure, in the units of what was given."""

    mean: float
    sd: float


_Column = NDArray[np.float64]
"""(n, 1)."""


def shrunken(values: Sequence[float], variances: Sequence[float], *, large: int = LARGE) -> tuple[Shrunken, ...]:
    """The expectation of each value given all of them, in their order.

    Args:
        values: measured, one a config; logarithms, so that the noise is about alike.
        variances: of their noise, all above 0.
        large: more values than these are fitted in cells.
    """
    if not values:
        return ()
    y, v = np.asarray(values, dtype=float)[:, None], np.asarray(variances, dtype=float)[:, None]
    if len(values) == 1:  # nothing to be compared with
        return (Shrunken(mean=values[0], sd=float(variances[0]) ** 0.5),)
    part = median(variances) * NARROWEST**2
    many = len(values) > large
    seen_y, seen_v, counts = _cells(y, v, part) if many else (y, v, np.ones_like(y))
    # Equal figures stay several centres: what starts with which weight does not depend on rounding.
    centres = np.concatenate([seen_y[:, 0], np.linspace(y.min(), y.max(), GRID)])
    likelihood = _likelihood(seen_y, seen_v, part, centres)
    held = counts[:, 0]
    weights = np.ones_like(centres)
    product = np.empty_like(likelihood)  # made once: to have such memory anew takes longer than to fill it
    for _ in range(ROUNDS):
        # Not as products of matrix and vector: their last digits depend on where in memory the matrix lies.
        total = np.multiply(likelihood, weights, out=product).sum(axis=1, keepdims=True)
        weights = weights * np.multiply(likelihood, counts / total, out=product).sum(axis=0) / held.sum()
    shared = likelihood * weights
    shared = shared / shared.sum(axis=1, keepdims=True)
    rows_of = np.argsort(y[:, 0]) if many else np.arange(len(y))  # neighbours together have the fewest parts near them
    means, sds = np.empty(len(y)), np.empty(len(y))
    for first in range(0, len(y), NEIGHBOURS):
        together = rows_of[first : first + NEIGHBOURS]
        near = _near(y[together], v[together], part, centres, seen_y) if many else slice(None)
        mixture, seen = (centres[near], weights[near]), (shared[:, near], held)
        for start in range(0, len(together), ROWS_AT_ONCE):
            rows = together[start : start + ROWS_AT_ONCE]
            means[rows], sds[rows] = _posterior(y[rows], v[rows], part, mixture, seen)
    return tuple(Shrunken(mean=mean, sd=sd) for mean, sd in zip(means.tolist(), sds.tolist(), strict=True))


def _near(y: _Column, v: _Column, part: float, centres: NDArray[np.float64], cells: _Column) -> NDArray[np.bool_]:
    """Which parts some of the values may belong to; `cells` are the values that the mixture was fitted to."""
    own = np.abs(y - cells[np.searchsorted(cells[:, 0], y[:, 0]).clip(0, len(cells) - 1)]).max()
    reach = own + NEAR * float(np.sqrt(v.max() + part))
    near: NDArray[np.bool_] = (centres >= y.min() - reach) & (centres <= y.max() + reach)
    return near


def _posterior(
    y: _Column,
    v: _Column,
    part: float,
    mixture: tuple[NDArray[np.float64], NDArray[np.float64]],
    seen: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means and standard deviations of what to expect of some of the values.

    Args:
        mixture: centres of its parts, and their weights.
        seen: of each value (or cell) that the mixture was fitted to, how far it belongs to each part, and how many
            values it stands for.
    """
    (centres, weights), (shared, counts) = mixture, seen
    belongs = _likelihood(y, v, part, centres)  # in place, here and below: memory takes longer than arithmetic
    belongs *= weights
    belongs /= belongs.sum(axis=1, keepdims=True)
    trust = part / (v + part)
    means = y - centres
    means *= trust
    means += centres
    mean = (belongs * means).sum(axis=1)
    # A part that few configs share is itself not known better than they are: alone, a config keeps all of its noise.
    overlap = belongs @ shared.T
    overlap /= (belongs**2).sum(axis=1)[:, None]
    sharers = np.maximum(1.0, np.minimum(1.0, overlap, out=overlap) @ counts)
    unknown = ((1 - trust) ** 2 * (v + part))[:, 0] / sharers
    means -= mean[:, None]
    means **= 2
    variance = (belongs * means).sum(axis=1) + (trust * v)[:, 0] + unknown
    return mean, np.sqrt(variance)


def _likelihood(y: _Column, v: _Column, part: float, centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each value from each centre, up to a factor a row: a config far from all centres but its own is no 0/0."""
    fit = y - centres
    fit **= 2
    fit /= -2 * (v + part)
    fit -= 0.5 * np.log(v + part)
    fit -= fit.max(axis=1, keepdims=True)
    likelihood: NDArray[np.float64] = np.exp(fit, out=fit)
    return likelihood


def _cells(y: _Column, v: _Column, part: float) -> tuple[_Column, _Column, _Column]:
    """Means of values and variances in cells of one width, and how many values are in each; empty ones are left out."""
    width = max(part**0.5 / 2, float(y.max() - y.min()) / CELLS)
    places = np.floor((y[:, 0] - y.min()) / width).astype(int)
    counts = np.bincount(places)
    held = counts > 0
    means = [np.bincount(places, weights=one[:, 0])[held] / counts[held] for one in (y, v)]
    return means[0][:, None], means[1][:, None], counts[held].astype(float)[:, None]
