"""What is believed of one objective after the trials so far: the prior, and a process on what it misses. Pure.

The prior is one of two explanations; the other is that nothing is known but a level. Each is a Gaussian process with
its own beliefs about how far the truth deviates. They are averaged by how probable they make the measured values, with
a head start for the prior. Ranks that are upside down are seen within a few trials: the deviations are then twice the
prior's own spread, more than its process expects. The other case, a prior that is right but stretched, is what the
slope is for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.prior.expectation import Floats
from autotune.search.prior.gp import Belief, Gp, Points

WITH_PRIOR = (
    Belief(amplitude=0.30, level_sd=0.4, slope_sd=0.3, mark_sd=0.08, extra_noise=0.01),
    Belief(amplitude=0.80, level_sd=0.8, slope_sd=0.4, mark_sd=0.20, extra_noise=0.03),
)
"""Throughput and TTFT where a prior stands behind them: it is wrong by a third and by a factor of two, as a guess. Near
capacity p95 TTFT is steep: of a real H200 the first prediction of the baseline's was a third of what was measured."""

WITHOUT = (
    Belief(amplitude=0.50, level_sd=0.6, mark_sd=0.10, extra_noise=0.01, amplitude_sd=0.7, length=0.5, length_sd=0.9),
    Belief(amplitude=1.00, level_sd=1.2, mark_sd=0.20, extra_noise=0.03, amplitude_sd=0.7, length=0.5, length_sd=0.9),
)
"""The same where nothing stands behind them, and less is known of the scale."""

HEAD_START = math.log(10.0)
"""How much more probable a prior is held to be before any trial."""

NEGLIGIBLE = 0.02
"""An explanation less probable than that is not asked."""

LEAST_TRIALS = 6
"""Measured configs without which no prior is dropped: one misfit may shift two or three of them together."""


@dataclass(frozen=True, slots=True)
class _Explanation:
    """One of the two.

    Attributes:
        level: from which the prior's slope counts; without the prior, what the process is measured from.
    """

    gp: Gp
    with_prior: bool
    level: float

    def points(self, at: Floats, believed: Floats) -> Points:
        return Points(at, believed - self.level if self.with_prior else np.zeros(len(at)))

    def predict(self, at: Floats, believed: Floats) -> tuple[Floats, Floats]:
        means, sds = self.gp.predict(self.points(at, believed))
        return means + (believed if self.with_prior else self.level), sds

    def joint(self, at: Floats, believed: Floats) -> tuple[Floats, Floats]:
        means, covariance = self.gp.joint(self.points(at, believed))
        return means + (believed if self.with_prior else self.level), covariance

    def with_fantasies(self, at: Floats, believed: Floats, sd: float) -> _Explanation:
        return _Explanation(self.gp.with_fantasies(self.points(at, believed), sd), self.with_prior, self.level)


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Beliefs about one objective: explanations with their probabilities, which add up to 1."""

    parts: tuple[tuple[_Explanation, float], ...]

    @property
    def trusted(self) -> bool:
        """Whether the prior is more probably of use than not."""
        return sum(weight for one, weight in self.parts if one.with_prior) >= 0.5

    def predict(self, at: Floats, believed: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation, shape (n,) each; `believed` is the prior's mean there."""
        found = [(*one.predict(at, believed), weight) for one, weight in self.parts]
        means = sum((weight * mean for mean, _, weight in found), start=np.zeros(len(at)))
        squares = sum((weight * (sd**2 + (mean - means) ** 2) for mean, sd, weight in found), start=np.zeros(len(at)))
        return means, np.sqrt(squares)

    def joint(self, at: Floats, believed: Floats) -> tuple[Floats, Floats]:
        """As `predict`, with the covariance, shape (n, n), in place of standard deviations."""
        found = [(*one.joint(at, believed), weight) for one, weight in self.parts]
        means = sum((weight * mean for mean, _, weight in found), start=np.zeros(len(at)))
        covariance = np.zeros((len(at), len(at)))
        for mean, own, weight in found:
            covariance += weight * (own + np.outer(mean - means, mean - means))
        return means, covariance

    def with_fantasies(self, at: Floats, believed: Floats, sd: float) -> Surrogate:
        """As if its own means had been measured there."""
        return Surrogate(tuple((one.with_fantasies(at, believed, sd), weight) for one, weight in self.parts))


def learn(
    objective: int,
    at: Floats,
    values: Floats,
    sds: Floats,
    believed: Floats | None,
    groups: NDArray[np.intp],
    level: float,
) -> Surrogate:
    """Fit both explanations and weigh them.

    Args:
        objective: place of the objective.
        values, sds, believed: of the measured configs, shape (n,); believed None without a prior.
        level: the middle of what the prior believes, from which its slope counts; without a prior, of the values.
    """
    middle = float(np.mean(values)) if len(values) else level
    nothing = np.zeros(len(at))
    if believed is None:
        flat = Gp.fit(Points(at, nothing), values - middle, sds, groups, WITHOUT[objective])
        return Surrogate(((_Explanation(flat, False, middle), 1.0),))
    held = Gp.fit(Points(at, believed - level), values - believed, sds, groups, WITH_PRIOR[objective])
    with_prior = _Explanation(held, True, level)
    if len(values) < LEAST_TRIALS:
        return Surrogate(((with_prior, 1.0),))
    flat = Gp.fit(Points(at, nothing), values - middle, sds, groups, WITHOUT[objective])
    odds = held.evidence + HEAD_START - flat.evidence
    weight = 1.0 / (1.0 + math.exp(-min(30.0, max(-30.0, odds))))
    both = ((with_prior, weight), (_Explanation(flat, False, middle), 1.0 - weight))
    return Surrogate(tuple(one for one in both if one[1] >= NEGLIGIBLE))
