"""Which choice, or which pair of choices, makes launches fail: found by elimination. Pure.

What is refused for another reason than memory is mostly refused for one flag or for two that do not work together. So
each failure is explained by one choice or one pair of its config that no config which started has. Explanations that
several failures share are the more probable; one feasible launch clears all of its own pairs at once. A process over
distances learns the same only after many failures, because a pair is a corner of the space and no neighbourhood.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.search.prior.expectation import Floats

SURE = 0.97
"""How probable it is at most that an explanation is right: it may take three."""

ONE = 2.0
"""How much more probable one choice is as an explanation than one pair."""


def suspicion(failed: Floats, started: Floats, candidates: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """How probably each candidate fails as an earlier config did, and which failures are explained at all.

    Args:
        failed: marks of the configs that failed for another reason than memory, shape (failures, marks).
        started: marks of those that started.
        candidates: marks, shape (n, marks).

    Returns:
        Probabilities, shape (n,), and flags, shape (failures,).
    """
    found, explained = np.zeros(len(candidates)), np.zeros(len(failed), dtype=np.bool_)
    cleared = started.T @ started > 0
    shared = failed.T @ failed
    marks = candidates.astype(np.float32)
    for place, own in enumerate(failed):
        weights = np.triu(np.outer(own, own) * ~cleared * shared**2)
        weights[np.diag_indices(len(own))] *= ONE
        total = weights.sum()
        if total > 0:
            explained[place] = True
            alike = np.einsum("ij,ij->i", marks @ (weights / total).astype(np.float32), marks)
            found = np.maximum(found, SURE * alike)
    return found, explained
