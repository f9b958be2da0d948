"""How probable it is that a config starts and serves, from what was believed and from how launches ended. Pure.

Failures for want of memory and failures that some flag causes are two things: the first add up flag by flag
(`outcomes`), the second have culprits (`culprits`). The probability is the product of both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.search.prior.coding import Coder
from autotune.search.prior.culprits import suspicion
from autotune.search.prior.expectation import Floats, Observation
from autotune.search.prior.normal import cumulative
from autotune.search.prior.outcomes import Outcomes

UNKNOWN = 0.85
"""Of a config that no prior says anything about; the rules have already refused what surely fails."""

THIRSTY = frozenset({"gpu-memory-utilization", "max-num-batched-tokens", "max-num-seqs", "max-cudagraph-capture-size"})
"""Flags of which more takes memory that vLLM does not plan for, or leaves less of it."""

THIRST = 0.6
"""By how much f falls from the smallest to the largest choice of one of them, before anything failed."""

KEPT_REACH = 2.0
"""A flag decides whether a limit is kept more sharply than whether memory suffices."""

_SURE = 0.02
"""No belief is held with more certainty than this leaves."""

_LOGISTIC = 1.702
"""A logistic curve of that slope is the normal distribution's to 1 %."""


def probabilities(
    coder: Coder,
    seen: Sequence[Observation],
    at: Floats,
    believed_of_seen: Floats,
    candidates: Floats,
    believed: Floats,
    memory_sd_bytes: float | None = None,
) -> Floats:
    """P(feasible) of every candidate, shape (candidates,).

    Args:
        seen: the baseline first.
        at, candidates: coordinates and marks of the observed configs and of the candidates.
        believed_of_seen, believed: the prior's probabilities.
        memory_sd_bytes: how far the memory arithmetic is off; None where there is none, and bytes say nothing.
    """
    if not seen:
        return believed
    good = np.array([one.feasible for one in seen], dtype=np.bool_)
    of_memory = np.array([one.short_of_memory is not False for one in seen], dtype=np.bool_)
    marks = coder.marks
    others = np.flatnonzero(~good & ~of_memory)
    suspected, explained = suspicion(at[np.ix_(others, marks)], at[good][:, marks], candidates[:, marks])
    left = np.ones(len(good), dtype=np.bool_)
    left[others[explained]] = False
    thirst = coder.pull(THIRSTY)

    def means(points: Floats, probability: Floats) -> Floats:
        found: Floats = _latent(probability) - THIRST * ((points - at[0]) @ thirst)
        return found

    if good[left].all():
        # Nothing failed for want of memory: what is merely new is no more suspect than what is known.
        return cumulative(means(candidates, believed)) * (1.0 - suspected)
    learnt = Outcomes.learn(
        at[left], means(at, believed_of_seen)[left], good[left], coder.groups, _shortages(seen, memory_sd_bytes)[left]
    )
    return learnt.probability(candidates, means(candidates, believed)) * (1.0 - suspected)


def kept(coder: Coder, at: Floats, keeps: NDArray[np.bool_], candidates: Floats, believed: float) -> Floats:
    """P(keeps to the limits) of every candidate, from those of which it is known."""
    means = _latent(np.full(1, believed))
    learnt = Outcomes.learn(at, np.repeat(means, len(at)), keeps, coder.groups, reach=KEPT_REACH)
    return learnt.probability(candidates, np.repeat(means, len(candidates)))


def _shortages(seen: Sequence[Observation], sd: float | None) -> Floats:
    told = [one.missing_bytes if one.short_of_memory else None for one in seen]
    return np.array([np.nan if one is None or not sd else one / sd for one in told])


def _latent(probability: Floats) -> Floats:
    held = np.clip(probability, _SURE, 1.0 - _SURE)
    return np.log(held / (1.0 - held)) / _LOGISTIC
