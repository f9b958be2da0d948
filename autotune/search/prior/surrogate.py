"""What is believed of one objective after the trials so far: the prior, and a process on what it misses. Pure.

The prior is one of two explanations; the other is that nothing is known but a level. Each is a Gaussian process with
its own beliefs about how far the truth deviates, and the one under which the measured values are more probable, with
a head start for the prior, is used (a Bayes factor). Ranks that are upside down are seen within a few trials: the
deviations are then twice the prior's own spread, more than its process expects. The other case, a prior that is right
but stretched, is what the slope is for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.prior.expectation import Floats
from autotune.search.prior.gp import Belief, Gp, Points

WITH_PRIOR = (
    Belief(amplitude=0.25, level_sd=0.4, slope_sd=0.3, mark_sd=0.08, extra_noise=0.01),
    Belief(amplitude=0.50, level_sd=0.8, slope_sd=0.3, mark_sd=0.15, extra_noise=0.03),
)
"""Throughput and TTFT where a prior stands behind them: it is wrong by a fifth and by half, as a guess."""

WITHOUT = (
    Belief(amplitude=0.50, level_sd=0.6, mark_sd=0.10, extra_noise=0.01),
    Belief(amplitude=1.00, level_sd=1.2, mark_sd=0.20, extra_noise=0.03),
)
"""The same where nothing stands behind them."""

HEAD_START = math.log(10.0)
"""How much more probable a prior is held to be before any trial."""

LEAST_TRIALS = 6
"""Measured configs without which no prior is dropped: one misfit may shift two or three of them together."""


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Beliefs about one objective.

    Attributes:
        trusted: whether the prior is used.
        level: from which the prior's slope counts; without the prior, what the process is measured from.
    """

    gp: Gp
    trusted: bool
    level: float

    def predict(self, at: Floats, believed: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation, shape (n,) each; `believed` is the prior's mean there."""
        means, sds = self.gp.predict(self._points(at, believed))
        return means + (believed if self.trusted else self.level), sds

    def joint(self, at: Floats, believed: Floats) -> tuple[Floats, Floats]:
        """As `predict`, with the covariance, shape (n, n), in place of standard deviations."""
        means, covariance = self.gp.joint(self._points(at, believed))
        return means + (believed if self.trusted else self.level), covariance

    def with_fantasies(self, at: Floats, believed: Floats, sd: float) -> Surrogate:
        """As if its own means had been measured there."""
        return Surrogate(self.gp.with_fantasies(self._points(at, believed), sd), self.trusted, self.level)

    def _points(self, at: Floats, believed: Floats) -> Points:
        return Points(at, believed - self.level if self.trusted else np.zeros(len(at)))


def learn(
    objective: int,
    at: Floats,
    values: Floats,
    sds: Floats,
    believed: Floats | None,
    groups: NDArray[np.intp],
    level: float,
) -> Surrogate:
    """Fit both explanations and keep the better one.

    Args:
        objective: place of the objective.
        values, sds, believed: of the measured configs, shape (n,); believed None without a prior.
        level: the middle of what the prior believes, from which its slope counts; without a prior, of the values.
    """
    middle = float(np.mean(values)) if len(values) else level
    flat = Gp.fit(Points(at, np.zeros(len(at))), values - middle, sds, groups, WITHOUT[objective])
    if believed is None:
        return Surrogate(flat, False, middle)
    held = Gp.fit(Points(at, believed - level), values - believed, sds, groups, WITH_PRIOR[objective])
    if len(values) < LEAST_TRIALS or held.evidence + HEAD_START >= flat.evidence:
        return Surrogate(held, True, level)
    return Surrogate(flat, False, middle)
