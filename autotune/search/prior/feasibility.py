"""How probable it is that a config starts and serves, from what was believed and from how launches ended. Pure.

Outcomes are regressed as +1 and -1 by the same process as the objectives, on what the belief leaves unexplained, and
the result is squashed through the normal distribution. A Laplace approximation of a proper likelihood would cost ten
solves for each of sixty gradients and orders configs the same way; only the order, and roughly the size, matter to a
product with the improvement.

Failures for want of memory and failures that some flag causes are two things: the first have neighbourhoods, the second
have culprits (`culprits`). The probability is the product of both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.search.prior.coding import MARK
from autotune.search.prior.culprits import suspicion
from autotune.search.prior.expectation import Floats
from autotune.search.prior.gp import Belief, Gp, Points
from autotune.search.prior.normal import cumulative

UNKNOWN = 0.85
"""Of a config that no prior says anything about; the rules have already refused what surely fails."""

_LABEL_SD = 0.25
_BELIEF = Belief(amplitude=0.7, level_sd=0.2, extra_noise=_LABEL_SD, extra_noise_sd=0.3, amplitude_sd=0.5, length=0.35)
_SURE = 0.02
"""No belief is held with more certainty than this leaves."""


def probabilities(
    observed: Points,
    outcomes: NDArray[np.bool_],
    believed_of_observed: Floats,
    candidates: Points,
    believed: Floats,
    groups: NDArray[np.intp],
    of_memory: NDArray[np.bool_] | None = None,
) -> Floats:
    """P(feasible) of every candidate, shape (candidates,).

    Args:
        outcomes: whether each observed config started and served.
        believed_of_observed, believed: the prior's probabilities.
        of_memory: which of the observed failed for want of memory; None where it is not known of any.
    """
    if not len(observed) or bool(outcomes.all()):
        # Nothing failed: the beliefs stand, and what was seen to work speaks for them already.
        return believed
    marks = groups == MARK
    others = np.flatnonzero(~outcomes if of_memory is None else ~outcomes & ~of_memory)
    suspected, explained = suspicion(
        observed.at[np.ix_(others, marks)], observed.at[outcomes][:, marks], candidates.at[:, marks]
    )
    left = np.ones(len(outcomes), dtype=np.bool_)
    left[others[explained]] = False
    if not outcomes[left].all():
        observed = Points(observed.at[left], observed.slope[left])
        believed = regressed(observed, outcomes[left], believed_of_observed[left], candidates, believed, groups)
    return believed * (1.0 - suspected)


def regressed(
    observed: Points,
    outcomes: NDArray[np.bool_],
    believed_of_observed: Floats,
    candidates: Points,
    believed: Floats,
    groups: NDArray[np.intp],
) -> Floats:
    """P(good) of every candidate from outcomes in their neighbourhoods; arguments as in `probabilities`."""
    labels = np.where(outcomes, 1.0, -1.0) - _centre(believed_of_observed)
    gp = Gp.fit(observed, labels, np.zeros(len(labels)), groups, _BELIEF)
    means, sds = gp.predict(candidates)
    return cumulative((means + _centre(believed)) / np.sqrt(sds**2 + _LABEL_SD**2 + 0.1))


def _centre(probability: Floats) -> Floats:
    return 2.0 * np.clip(probability, _SURE, 1.0 - _SURE) - 1.0
