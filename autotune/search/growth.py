"""How a study's front grew, over its launches and over the time that they took. Pure.

Every config counts with the figures that it has at the end, means over all its launches, from its first launch on: so
the last value is that of the front that is shown, and the curve never falls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.records import Trial
from autotune.search.objective import Point, points
from autotune.search.pareto import (
    REFERENCE_THROUGHPUT_SHARE,
    REFERENCE_TTFT_FACTOR,
    front,
    hypervolume,
    reference_of,
)

BASELINE_VOLUME = -math.log(REFERENCE_THROUGHPUT_SHARE) * math.log(REFERENCE_TTFT_FACTOR)
"""Hypervolume of a front that is the baseline alone, whatever its figures are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """After one launch.

    Attributes:
        number: of the trial.
        volume: of the front, in hypervolumes of the baseline alone: 1.0 is no better than the baseline.
        elapsed_s: that all launches so far took together, on the study's clock; their sum where several ran at once.
    """

    number: int
    volume: float
    elapsed_s: float


def baseline_point(trials: Sequence[Trial]) -> Point | None:
    """The config of trial 0; None before it was measured."""
    first = next((trial for trial in trials if trial.number == 0), None)
    return (
        None if first is None else next((one for one in points(trials) if one.config_hash == first.config.hash), None)
    )


def growth(trials: Sequence[Trial], reference: tuple[float, float] | None = None) -> tuple[Growth, ...]:
    """One entry for each launch that ended, in order; empty before the baseline was measured.

    Args:
        reference: the hypervolume's; default: that of the study's own baseline. Two studies compare under one only.
    """
    base = baseline_point(trials)
    if reference is None:
        if base is None:
            return ()
        reference = reference_of(base)
    first = {point.number: point.values for point in points(trials)}
    told: list[Growth] = []
    best: list[tuple[float, float]] = []
    volume, elapsed_s = 0.0, 0.0
    for trial in sorted(trials, key=lambda one: one.number):
        if trial.result is None:
            continue
        elapsed_s += math.fsum(value for _, value in trial.result.phase_seconds)
        if trial.number in first:
            best.append(first[trial.number])
            best = [best[place] for place in front(best)]
            volume = (hypervolume(best, reference) or 0.0) / BASELINE_VOLUME
        told.append(Growth(number=trial.number, volume=volume, elapsed_s=elapsed_s))
    return tuple(told)
