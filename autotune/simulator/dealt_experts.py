"""How unevenly the experts that a batch hits lie on the GPUs that experts are dealt to. Pure arithmetic of chance."""

from __future__ import annotations

import functools
from math import comb

import numpy as np
from numpy.typing import NDArray


@functools.cache
def busiest_rank(count: int, ranks: int) -> tuple[float, ...]:
    """Expected number of hit experts on the rank that has most of them.

    Entry h is for h of `count` experts hit, any h of them alike; each rank holds `count / ranks`, rounded up, the last
    ones what is left. Of all ways to hit h experts, those with at most m on every rank are a coefficient of the product
    of the ranks' binomial sums cut at m.
    """
    local = -(-count // ranks)
    sizes = [max(0, min(local, count - rank * local)) for rank in range(ranks)]
    ways = _ways(count, count)
    expected = np.zeros(count + 1)
    for most in range(local):
        product = np.ones(1)
        for size in sizes:
            product = np.convolve(product, _ways(size, most))
        at_most = np.zeros(count + 1)
        at_most[: len(product)] = product
        expected += 1.0 - at_most / ways
    return tuple(expected.tolist())


def _ways(size: int, most: int) -> NDArray[np.float64]:
    # Scaled by 2^-size, which cancels: the largest binomials of 512 experts and more stay within floats.
    return np.array([comb(size, held) / 2**size for held in range(min(size, most) + 1)])
