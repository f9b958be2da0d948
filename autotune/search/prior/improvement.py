"""Expected hypervolume improvement of two independent normal objectives, exact. Pure.

Both objectives are maximised here (TTFT comes in negated). Between neighbours of the front lies a strip; in it a new
point y adds its width in the first objective times its height above the front in the second, and with independent
objectives the expectation of the product is the product of expectations:

    EHVI = sum over strips of (E[(y1 - a_i)+] - E[(y1 - a_{i+1})+]) x E[(y2 - b_{i+1})+]

which is the two-dimensional case of Yang, Emmerich, Deutz and Back, "Efficient computation of expected hypervolume
improvement using box decomposition algorithms" (J. Global Optimization, 2019).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.search.prior.expectation import Floats
from autotune.search.prior.normal import mean_above

Pair = tuple[float, float]


def front_of(points: Sequence[Pair], reference: Pair) -> list[Pair]:
    """The points that no other one dominates and that dominate the reference, by rising first objective."""
    kept: list[Pair] = []
    for first, second in sorted(points, reverse=True):
        if first > reference[0] and second > max(reference[1], kept[-1][1] if kept else -math.inf):
            kept.append((first, second))
    return kept[::-1]


def expected_improvement(
    front: Sequence[Pair], reference: Pair, means: tuple[Floats, Floats], sds: tuple[Floats, Floats]
) -> Floats:
    """EHVI of each candidate, shape (n,).

    Args:
        front: as `front_of` gives it; empty when nothing is better than the reference.
        means, sds: of the candidates, per objective; sds above 0.
    """
    lefts = [reference[0], *(point[0] for point in front)]
    rights = [*lefts[1:], math.inf]
    floors = [*(point[1] for point in front), reference[1]]
    total = np.zeros_like(means[0])
    above = mean_above(lefts[0], means[0], sds[0])
    for right, floor in zip(rights, floors, strict=True):
        beyond = mean_above(right, means[0], sds[0])
        total += np.maximum(above - beyond, 0.0) * mean_above(floor, means[1], sds[1])
        above = beyond
    return total


def volume(front: Sequence[Pair], reference: Pair) -> float:
    """Hypervolume of a front."""
    lefts = [reference[0], *(one[0] for one in front)]
    return math.fsum((one[0] - left) * (one[1] - reference[1]) for left, one in zip(lefts, front, strict=False))


def improvement(front: Sequence[Pair], reference: Pair, point: Pair) -> float:
    """Hypervolume that one exactly known point adds."""
    lefts = [reference[0], *(one[0] for one in front)]
    rights = [*lefts[1:], math.inf]
    floors = [*(one[1] for one in front), reference[1]]
    return math.fsum(
        max(0.0, min(point[0], right) - left) * max(0.0, point[1] - floor)
        for left, right, floor in zip(lefts, rights, floors, strict=True)
    )
