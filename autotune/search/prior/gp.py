"""A small exact Gaussian process: Matern 5/2, a lengthscale for each parameter, known noise. Pure.

Written here and not taken from scikit-learn, the kept library that has one: that would bring SciPy and joblib, has no
noise of its own for each point beside a learnt one, no beliefs about hyperparameters (with ten points and a dozen
lengthscales its maximum likelihood fits anything), and gives no gradient for grouped lengthscales. What is needed is a
page of linear algebra on at most a few hundred points.

    K = a^2 M(r) + c^2 + (b l)(b l)^T + e^2 Z Z^T + noise,   r^2 = sum over parameters of (distance / lengthscale)^2

c is an unknown level, b an unknown error of the slope along `slope` (the prior's own prediction, centred), and e an
unknown effect of each choice by itself (Z holds the marks): what is learnt of a flag in one place holds elsewhere. The
hyperparameters a, the lengthscales and an extra noise have normal beliefs on their logarithms; the most probable ones
are searched by signs of the gradient (Rprop, Riedmiller and Braun 1993), a fixed number of steps from a fixed start, so
that the same data give the same fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.prior.coding import LAYOUT_MARK
from autotune.search.prior.expectation import Floats

_SQRT5 = math.sqrt(5.0)
_JITTER = 1e-8
STEPS = 20
MOST_FITTED = 64
"""Points that hyperparameters are searched on: the newest. Predictions use all."""
LAYOUT_REACH = 3.0
"""How a model is laid out over GPUs changes collectives, bubbles, memory and batches at once: what is not known of it
is more than what is not known of one flag. Without that, a layout that a prior believes poor is never looked at."""
_STEP, _GROW, _SHRINK, _STEP_BOUNDS = 0.25, 1.3, 0.5, (1e-3, 0.7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What is believed before data.

    Attributes:
        amplitude: of the deviation; its logarithm is normal with `amplitude_sd`.
        level_sd: of the unknown constant.
        slope_sd: of the unknown slope along the given direction; 0 for none.
        mark_sd: of the effect that each choice of each parameter has everywhere; that of a layout `LAYOUT_REACH` times.
        extra_noise: standard deviation on top of each point's own.
        length: lengthscale of one parameter of many, on coordinates of 0..1, times the root of their number.
    """

    amplitude: float
    level_sd: float
    slope_sd: float = 0.0
    mark_sd: float = 0.0
    extra_noise: float = 0.02
    amplitude_sd: float = 0.4
    extra_noise_sd: float = 0.7
    length: float = 0.45
    length_sd: float = 0.5

    def mark_sds(self, groups: NDArray[np.intp]) -> Floats:
        """`mark_sd` of each mark, shape (marks,)."""
        return self.mark_sd * np.where(groups[groups < 0] == LAYOUT_MARK, LAYOUT_REACH, 1.0)


@dataclass(frozen=True, slots=True)
class Points:
    """Where values are known or asked for.

    Attributes:
        at: coordinates and marks, shape (n, coordinates).
        slope: shape (n,).
    """

    at: Floats
    slope: Floats

    def __len__(self) -> int:
        return len(self.at)


class Gp:
    """A fitted process. `evidence` is the log posterior of its hyperparameters with the data's likelihood."""

    def __init__(
        self, points: Points, values: Floats, sds: Floats, theta: Floats, groups: NDArray[np.intp], belief: Belief
    ) -> None:
        self._points, self._values, self._sds = points, values, sds
        self.theta, self._groups, self._belief = theta, groups, belief
        self.evidence = 0.0
        self._smooth = groups >= 0
        self._reach = belief.mark_sds(groups)
        self._scales = np.exp(theta[1:-1])[groups[self._smooth]]
        self._amplitude2 = math.exp(2 * theta[0])
        if len(points):
            kernel = self._kernel(points, points)
            kernel[np.diag_indices(len(points))] += sds**2 + math.exp(2 * theta[-1]) + _JITTER
            lower = np.linalg.cholesky(kernel)
            self._inverse = np.linalg.inv(lower)
            self._alpha = self._inverse.T @ (self._inverse @ values)

    @classmethod
    def fit(
        cls, points: Points, values: Floats, sds: Floats, groups: NDArray[np.intp], belief: Belief, steps: int = STEPS
    ) -> Gp:
        """The process with the most probable hyperparameters.

        Args:
            values, sds: shape (n,); n may be 0, which leaves the belief.
            groups: parameter of each coordinate, below 0 for marks; see `Coder`.
        """
        search = _Search(points, values, sds, groups, _parameters(groups), belief)
        theta, evidence = search.best(steps)
        gp = cls(points, values, sds, theta, groups, belief)
        gp.evidence = evidence
        return gp

    def with_fantasies(self, points: Points, sd: float) -> Gp:
        """The process as it would be, were its own means measured at `points` (Ginsbourger's kriging believer)."""
        if not len(points):
            return self
        means, _ = self.predict(points)
        return Gp(
            Points(np.vstack([self._points.at, points.at]), np.concatenate([self._points.slope, points.slope])),
            np.concatenate([self._values, means]),
            np.concatenate([self._sds, np.full(len(points), sd)]),
            self.theta,
            self._groups,
            self._belief,
        )

    def predict(self, points: Points) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the noiseless value, shape (n,) each."""
        b = self._belief
        prior = self._amplitude2 + b.level_sd**2 + (b.slope_sd * points.slope) ** 2
        if b.mark_sd:
            prior = prior + ((points.at[:, ~self._smooth] * self._reach) ** 2).sum(axis=1)
        if not len(self._points):
            return np.zeros(len(points)), np.sqrt(prior)
        # Single precision: half the time on 20,000 candidates, and far finer than the noise.
        across = self._kernel(self._points, points, np.float32)
        means = self._alpha.astype(np.float32) @ across
        half = self._inverse.astype(np.float32) @ across
        variance = prior - np.einsum("ij,ij->j", half, half)
        return means.astype(np.float64), np.sqrt(np.maximum(variance, 1e-4 * prior))

    def joint(self, points: Points) -> tuple[Floats, Floats]:
        """Means, shape (n,), and covariance of the noiseless values, shape (n, n): for differences between points."""
        covariance = self._kernel(points, points)
        if not len(self._points):
            return np.zeros(len(points)), covariance
        across = self._kernel(self._points, points)
        half = self._inverse @ across
        return self._alpha @ across, covariance - half.T @ half

    def _kernel(self, one: Points, other: Points, kind: type = np.float64) -> Floats:
        b = self._belief
        left: Floats = (one.at[:, self._smooth] / self._scales).astype(kind)
        right: Floats = (other.at[:, self._smooth] / self._scales).astype(kind)
        square = -2 * (left @ right.T)
        square += (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :]
        np.maximum(square, 0.0, out=square)
        kernel = self._amplitude2 * matern(square)
        kernel += b.level_sd**2
        if b.slope_sd:
            kernel += np.outer(b.slope_sd * one.slope, b.slope_sd * other.slope).astype(kind)
        if b.mark_sd:
            marks = one.at[:, ~self._smooth] * self._reach, other.at[:, ~self._smooth] * self._reach
            kernel += marks[0].astype(kind) @ marks[1].astype(kind).T
        return kernel


def _parameters(groups: NDArray[np.intp]) -> int:
    return int(groups.max()) + 1 if (groups >= 0).any() else 0


def matern(square: Floats) -> Floats:
    """Matern 5/2 of a squared distance."""
    distance = _SQRT5 * np.sqrt(square)
    return (1.0 + distance + (5.0 / 3.0) * square) * np.exp(-distance)


class _Search:
    """The log posterior of hyperparameters and its gradient."""

    def __init__(
        self, points: Points, values: Floats, sds: Floats, groups: NDArray[np.intp], count: int, belief: Belief
    ) -> None:
        at, slope = points.at[-MOST_FITTED:], points.slope[-MOST_FITTED:]
        self._values, self._noise = values[-MOST_FITTED:], sds[-MOST_FITTED:] ** 2
        n = len(at)
        self._apart = np.zeros((count, n * n))
        for group in range(count):
            own = at[:, groups == group]
            self._apart[group] = ((own[:, None, :] - own[None, :, :]) ** 2).sum(axis=2).ravel()
        marks = at[:, groups < 0] * belief.mark_sds(groups)
        self._fixed = belief.level_sd**2 + np.outer(belief.slope_sd * slope, belief.slope_sd * slope) + marks @ marks.T
        length = belief.length * math.sqrt(max(count, 1))
        self._middle = np.log(np.array([belief.amplitude, *([length] * count), belief.extra_noise]))
        self._spread = np.array([belief.amplitude_sd, *([belief.length_sd] * count), belief.extra_noise_sd])

    def best(self, steps: int) -> tuple[Floats, float]:
        """Most probable logarithms (amplitude, lengthscales, extra noise) of all steps, and their log posterior."""
        theta = self._middle.copy()
        if not len(self._values):
            return theta, 0.0
        step, last = np.full(len(theta), _STEP), np.zeros(len(theta))
        best, best_value = theta.copy(), -math.inf
        for _ in range(steps):
            value, gradient = self._posterior(theta)
            if value > best_value:
                best, best_value = theta.copy(), value
            turned = gradient * last
            step = np.clip(
                np.where(turned > 0, _GROW * step, np.where(turned < 0, _SHRINK * step, step)), *_STEP_BOUNDS
            )
            last = np.where(turned < 0, 0.0, gradient)
            theta = theta + np.sign(last) * step
        return best, best_value

    def _posterior(self, theta: Floats) -> tuple[float, Floats]:
        n = len(self._values)
        amplitude2, noise2 = math.exp(2 * theta[0]), math.exp(2 * theta[-1])
        weights = np.exp(-2 * theta[1:-1])
        square = (weights @ self._apart).reshape(n, n)
        distance = _SQRT5 * np.sqrt(square)
        fall = np.exp(-distance)
        matern = amplitude2 * (1.0 + distance + (5.0 / 3.0) * square) * fall
        kernel = matern + self._fixed
        kernel[np.diag_indices(n)] += self._noise + noise2 + _JITTER
        lower = np.linalg.cholesky(kernel)
        inverse = np.linalg.inv(lower)
        inverse = inverse.T @ inverse
        alpha = inverse @ self._values
        off = (theta - self._middle) / self._spread
        value = -0.5 * self._values @ alpha - np.log(np.diag(lower)).sum() - 0.5 * n * math.log(2 * math.pi)
        value -= 0.5 * off @ off
        outer = 0.5 * (np.outer(alpha, alpha) - inverse)
        slope = outer * (amplitude2 * (5.0 / 3.0) * (1.0 + distance) * fall)
        gradient = np.concatenate(
            [
                [2.0 * (outer * matern).sum()],
                (self._apart @ slope.ravel()) * weights,
                [2.0 * noise2 * np.trace(outer)],
            ]
        )
        return float(value), gradient - off / self._spread
