"""Replays in a few figures: per surface and sampler, pooled, and one sampler against another. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.bench.replay import MOST_LAUNCHES, Replay
from autotune.bench.surfaces import SurfaceKind
from autotune.bench.survival import Ratio, Watched, log_rank, mean_ratio, median_ratio, quantile, restricted_mean

SHARES = (0.90, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One replay and what it was of."""

    surface: str
    kind: SurfaceKind
    sampler: str
    seed: int
    replay: Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Launches until a share of the gap was closed, censored at `MOST_LAUNCHES`.

    Attributes:
        median, q1, q3: Kaplan-Meier; None where fewer studies than that got there.
        mean: restricted to `MOST_LAUNCHES`.
        censored_share: of the studies.
    """

    median: float | None
    q1: float | None
    q3: float | None
    mean: float
    censored_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one sampler did in some studies.

    Attributes:
        to: one per share of `SHARES`.
        minutes: Kaplan-Meier median of the simulated wall-clock to the same shares, in minutes; None as there.
        gap_closed_at_20, gap_closed_at_40: means over the studies; a study that ended before counts with its end.
        infeasible_share: of all launches.
    """

    studies: int
    to: tuple[Launches, ...]
    minutes: tuple[float | None, ...]
    gap_closed_at_20: float
    gap_closed_at_40: float
    infeasible_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One sampler against another in launches to 95 %, over the surfaces that both were run on.

    Attributes:
        medians, means: the first one's over the other's; means restricted to `MOST_LAUNCHES`.
        p: of the log-rank test, stratified by surface; None where nothing tells them apart.
    """

    sampler: str
    against: str
    medians: Ratio
    means: Ratio
    p: float | None


def figures(studies: Sequence[Study]) -> Figures:
    """The figures of one sampler's studies, of which there is at least one."""
    replays = [one.replay for one in studies]
    launches = sum(len(one.infeasible) for one in replays)
    return Figures(
        studies=len(studies),
        to=tuple(_launches(watched(studies, share)) for share in SHARES),
        minutes=tuple(quantile(_watched_minutes(studies, share), 0.5) for share in SHARES),
        gap_closed_at_20=math.fsum(one.gap_at(20) for one in replays) / len(replays),
        gap_closed_at_40=math.fsum(one.gap_at(40) for one in replays) / len(replays),
        infeasible_share=sum(sum(one.infeasible) for one in replays) / launches,
    )


def watched(studies: Sequence[Study], share: float) -> list[Watched]:
    """Launches to `share` of the gap. A sampler that gave up would never have got there: it is censored at the end."""
    found = []
    for one in studies:
        launches = one.replay.launches_to(share)
        time = float(MOST_LAUNCHES if launches is None else launches)
        found.append(Watched(time=time, reached=launches is not None, stratum=one.surface))
    return found


def _watched_minutes(studies: Sequence[Study], share: float) -> list[Watched]:
    found = []
    for one in studies:
        minutes = one.replay.minutes_to(share)
        # Who gave up is watched for ever.
        end = math.inf if one.replay.gave_up else one.replay.minutes[-1]
        found.append(Watched(time=end if minutes is None else minutes, reached=minutes is not None))
    return found


def _launches(subjects: Sequence[Watched]) -> Launches:
    return Launches(
        median=quantile(subjects, 0.5),
        q1=quantile(subjects, 0.25),
        q3=quantile(subjects, 0.75),
        mean=restricted_mean(subjects, MOST_LAUNCHES),
        censored_share=sum(1 for one in subjects if not one.reached) / len(subjects),
    )


def pooled(studies: Sequence[Study]) -> Mapping[str, Figures]:
    """By sampler, over the simulated surfaces; over all where there is no simulated one.

    A recorded surface of a handful of configs is found by anybody: pooled, it would flatter whoever is worst.
    """
    simulated = [one for one in studies if one.kind is SurfaceKind.SIMULATED]
    return by_sampler(simulated or studies)


def by_sampler(studies: Sequence[Study]) -> dict[str, Figures]:
    """Figures of each sampler, in the order in which they come first."""
    names = dict.fromkeys(one.sampler for one in studies)
    return {name: figures([one for one in studies if one.sampler == name]) for name in names}


def compare(studies: Sequence[Study], sampler: str, seed: int = 0) -> tuple[Comparison, ...]:
    """`sampler` against every other one, over the same studies as `pooled`."""
    simulated = [one for one in studies if one.kind is SurfaceKind.SIMULATED] or list(studies)
    found = []
    for other in dict.fromkeys(one.sampler for one in simulated):
        if other == sampler:
            continue
        pairs = [(one.surface, one.seed) for one in simulated if one.sampler == other]
        ours = [one for one in simulated if one.sampler == sampler and (one.surface, one.seed) in pairs]
        theirs = [one for one in simulated if one.sampler == other]
        a, b = watched(ours, 0.95), watched(theirs, 0.95)
        if not a:
            continue
        found.append(
            Comparison(
                sampler=sampler,
                against=other,
                medians=median_ratio(a, b, MOST_LAUNCHES, np.random.default_rng([seed, 1])),
                means=mean_ratio(a, b, MOST_LAUNCHES, np.random.default_rng([seed, 2])),
                p=log_rank(a, b),
            )
        )
    return tuple(found)
