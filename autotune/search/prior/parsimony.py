"""Of configs that promise the same, the one nearest to what is known to run. Pure.

Many flags change nothing on a given node. A search that sets them anyway ends in a config full of flags that nobody
can justify, some of which cost something that no objective shows: an fp8 KV cache can change answers. So among configs
whose score is within `CLOSE` of the best, the one with the fewest changes against the baseline is proposed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.search.prior.coding import Coder
from autotune.search.prior.expectation import Floats

CLOSE = 0.9
"""Share of the best score from which configs count as equally promising: scores are known no better than that."""

LOSSY_CHANGES = 3
"""Changes that one counts for which may change answers."""


def changes(coder: Coder, at: Floats, home: Floats, lossy: frozenset[str]) -> NDArray[np.intp]:
    """In how many parameters each config differs from `home`, shape (n,).

    Args:
        at: coordinates of the configs, shape (n, coordinates).
        home: of the config that they are compared with, shape (coordinates,).
        lossy: parameters that count `LOSSY_CHANGES` times.
    """
    counts = np.zeros(len(at), dtype=np.intp)
    for place, name in enumerate(coder.names):
        own = coder.groups == place
        differs = np.any(np.abs(at[:, own] - home[own]) > 1e-9, axis=1)
        counts += differs * (LOSSY_CHANGES if name in lossy else 1)
    return counts


def in_order(scores: Floats, counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Places by score, best first; those close to the best by their number of changes before that."""
    order = np.argsort(-scores, kind="stable")
    if not len(order):
        return order
    close = scores[order] >= CLOSE * scores[order[0]]
    near, rest = order[close], order[~close]
    return np.concatenate([near[np.argsort(counts[near], kind="stable")], rest])
