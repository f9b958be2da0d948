"""How unevenly the experts that a batch hits lie on the GPUs that experts are dealt to. Pure arithmetic of chance."""

from __future__ import annotations

import functools
from math import comb


@functools.cache
def busiest_rank(count: int, ranks: int) -> tuple[float, ...]:
    """Expected number of hit experts on the rank that has most of them.

    Entry h is for h of `count` experts hit, any h of them alike; each rank holds `count / ranks`, rounded up. The
    ranks' counts are taken as independent, which is a little low for few hits (Mixtral's 2 of 8 on 4 ranks: 1.05, by
    enumeration 8/7).
    """
    local = -(-count // ranks)
    return tuple(_expected_most(count, local, ranks, hits) for hits in range(count + 1))


def _expected_most(count: int, local: int, ranks: int, hits: int) -> float:
    if hits == 0:
        return 0.0
    whole = comb(count, hits)
    at_most, expected = 0.0, 0.0
    for held in range(min(local, hits)):
        at_most += comb(local, held) * comb(count - local, hits - held) / whole
        expected += 1.0 - min(1.0, at_most) ** ranks
    return max(expected, hits / ranks, 1.0)
