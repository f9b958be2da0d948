"""Whether configs do what is asked of them, learnt from how others ended: a latent process, classified. Pure.

    P(good) = Phi(f),   f ~ GP(mean, K),   K = level^2 + (l x)(l x)^T + (e z)(e z)^T + a^2 M(r)

x are coordinates and z marks of choices, both as differences from the first config (the baseline, which is known to
start), and M is Matern 5/2. What decides whether a server starts mostly adds up flag by flag, as each takes its bytes.
So the linear part is the large one: it carries what three failures show to the whole space, where a neighbourhood would
have to be met once for each corner. Started and failed servers have the
probit likelihood. Of a failure that says by how much memory fell short, f itself is known but for some noise.

The posterior is Laplace's (Rasmussen and Williams, Gaussian Processes for Machine Learning, algorithms 3.1 and 3.2),
with fixed hyperparameters: yes and no say too little to fit a dozen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.prior.expectation import Floats
from autotune.search.prior.gp import matern
from autotune.search.prior.normal import cumulative, density

LEVEL_SD, LINEAR_SD, MARK_SD, AMPLITUDE = 0.5, 1.2, 0.6, 0.7
"""Of f, whose unit is the noise of the probit."""

LENGTH = 0.5
"""Of the neighbourhood in one parameter of many, times the root of their number."""

SHORTAGE_SD = (0.7, 0.3)
"""How well a log tells by how much memory fell short: in the unit of f, and as a share of what it tells."""

_ROUNDS = 25
_ENOUGH = 1e-6


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What the outcomes seen so far say of all others."""

    _features: _Features
    _at: tuple[Floats, Floats]
    _gradient: Floats
    _root: Floats
    _inverse: Floats

    @classmethod
    def learn(
        cls,
        at: Floats,
        means: Floats,
        good: NDArray[np.bool_],
        groups: NDArray[np.intp],
        shortages: Floats | None = None,
        reach: float = 1.0,
    ) -> Outcomes:
        """The posterior after outcomes, by Newton's method from the means.

        Args:
            at: coordinates and marks, shape (n, coordinates), n at least 1; the first one is home.
            means: of f before anything was seen, shape (n,).
            good: outcomes, shape (n,).
            shortages: -f of the failures that tell it; NaN elsewhere.
            reach: factor of `LINEAR_SD` and `MARK_SD`.
        """
        features = _Features.of(groups, at[0], reach)
        own = features.split(at)
        kernel = features.kernel(own, own)
        told = np.full(len(at), np.nan) if shortages is None else np.where(good, np.nan, -shortages)
        f = means.copy()
        for _ in range(_ROUNDS):
            gradient, curvature = _slopes(f, good, told)
            root = np.sqrt(curvature)
            lower = np.linalg.cholesky(np.eye(len(at)) + root[:, None] * kernel * root[None, :])
            wanted = curvature * (f - means) + gradient
            solved = np.linalg.solve(lower.T, np.linalg.solve(lower, root * (kernel @ wanted)))
            found = kernel @ (wanted - root * solved) + means
            moved = float(np.max(np.abs(found - f), initial=0.0))
            f = found
            if moved < _ENOUGH:
                break
        gradient, curvature = _slopes(f, good, told)
        root = np.sqrt(curvature)
        lower = np.linalg.cholesky(np.eye(len(at)) + root[:, None] * kernel * root[None, :])
        return cls(features, own, gradient, root, np.linalg.inv(lower))

    def probability(self, at: Floats, means: Floats) -> Floats:
        """P(good), shape (n,); arguments as in `learn`."""
        there = self._features.split(at)
        across = self._features.kernel(self._at, there, np.float32)
        f = means + self._gradient.astype(np.float32) @ across
        half = (self._inverse * self._root[None, :]).astype(np.float32) @ across
        variance = self._features.variance(there) - np.einsum("ij,ij->j", half, half)
        return cumulative(f / np.sqrt(1.0 + np.maximum(variance, 0.0)))


def _slopes(f: Floats, good: NDArray[np.bool_], told: Floats) -> tuple[Floats, Floats]:
    """First derivative of the log likelihood of each outcome, and the second one negated."""
    side = np.where(good, 1.0, -1.0)
    # Beyond -8 the ratio is the distance itself to 1 %, and both its parts vanish.
    z = np.maximum(side * f, -8.0)
    ratio = density(z) / cumulative(z)
    known = np.isfinite(told)
    value = np.where(known, told, 0.0)
    precision = 1.0 / (SHORTAGE_SD[0] ** 2 + (SHORTAGE_SD[1] * value) ** 2)
    gradient = np.where(known, precision * (value - f), side * ratio)
    return gradient, np.where(known, precision, np.maximum(ratio * (z + ratio), 1e-9))


@dataclass(frozen=True, slots=True)
class _Features:
    """Where configs lie, and how alike that makes them."""

    smooth: NDArray[np.bool_]
    length: float
    home: Floats
    reach: float

    @classmethod
    def of(cls, groups: NDArray[np.intp], home: Floats, reach: float) -> _Features:
        """Of configs that lie around `home`."""
        smooth = groups >= 0
        count = len(np.unique(groups[smooth]))
        return cls(smooth, LENGTH * math.sqrt(max(count, 1)), home, reach)

    def split(self, at: Floats) -> tuple[Floats, Floats]:
        """Coordinates and marks, from those of home."""
        away = at - self.home
        return away[:, self.smooth], away[:, ~self.smooth]

    def kernel(self, one: tuple[Floats, Floats], other: tuple[Floats, Floats], kind: type = np.float64) -> Floats:
        """Covariance of f, shape (one, other)."""
        left: Floats = one[0].astype(kind)
        right: Floats = other[0].astype(kind)
        product = left @ right.T
        square = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2 * product
        kernel: Floats = AMPLITUDE**2 * matern(np.maximum(square, 0.0) / self.length**2)
        kernel += LEVEL_SD**2 + (self.reach * LINEAR_SD) ** 2 * product
        kernel += (self.reach * MARK_SD) ** 2 * (one[1].astype(kind) @ other[1].astype(kind).T)
        return kernel

    def variance(self, there: tuple[Floats, Floats]) -> Floats:
        """Of f before anything was seen."""
        linear = (self.reach * LINEAR_SD) ** 2 * (there[0] ** 2).sum(axis=1)
        marks = (self.reach * MARK_SD) ** 2 * (there[1] ** 2).sum(axis=1)
        found: Floats = AMPLITUDE**2 + LEVEL_SD**2 + linear + marks
        return found
