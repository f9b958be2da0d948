"""One study of one sampler on one surface, replayed launch by launch. Deterministic for the seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.bench.contenders import Contender
from autotune.bench.launches import trial_of
from autotune.bench.surfaces import Surface
from autotune.records import Origin, Trial

MOST_LAUNCHES = 150
"""A study that is not there by then is censored."""

ENOUGH = 0.99
"""Share of the gap at which a replay ends: there is nothing left to be told about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What one study did; every tuple has one entry per launch, the baseline's first.

    Attributes:
        gap: share of the gap closed after that launch, 0..1, without noise.
        infeasible: whether the launch failed.
        minutes: simulated wall-clock since the study began.
        gave_up: the sampler had nothing more to propose, and would not have got further.
    """

    gap: tuple[float, ...]
    infeasible: tuple[bool, ...]
    minutes: tuple[float, ...]
    gave_up: bool

    def launches_to(self, share: float) -> int | None:
        """Launches, failed ones and the baseline included, until `share` of the gap was closed; None: it was not."""
        return next((count for count, gap in enumerate(self.gap, start=1) if gap >= share), None)

    def minutes_to(self, share: float) -> float | None:
        """Simulated minutes until then."""
        launches = self.launches_to(share)
        return None if launches is None else self.minutes[launches - 1]

    def gap_at(self, launches: int) -> float:
        """Share closed after so many launches; that of the end where the replay ended before."""
        return self.gap[min(launches, len(self.gap)) - 1]


def replay(surface: Surface, contender: Contender, seed: int, most: int = MOST_LAUNCHES) -> Replay:
    """Launch the baseline, then whatever `contender` proposes, until `ENOUGH` of the gap is closed.

    The noise of a config's launch follows from the seed and the config, so that samplers of one seed see the same.

    Raises:
        ValueError: the contender proposed a config that is not allowed, or one that was launched before.
    """
    least, best = surface.volumes
    history: list[Trial] = []
    tried: list[int] = []
    feasible: list[int] = []
    compiled: set[int] = set()
    gaps: list[float] = []
    infeasible: list[bool] = []
    minutes: list[float] = []
    gave_up = False
    clock_s = 0.0
    while len(history) < most and (not gaps or gaps[-1] < ENOUGH):
        config = surface.configs[surface.baseline] if not history else contender.propose(tuple(history))
        if config is None:
            gave_up = True
            break
        index = surface.index.get(config)
        if index is None or index in tried:
            raise ValueError(f"{config} was {'not allowed' if index is None else 'launched before'}")
        tried.append(index)
        warm = int(surface.compiled[index]) in compiled
        launch = surface.launch(index, warm, np.random.default_rng([seed, index]))
        clock_s += launch.seconds
        if launch.logs is not None:
            feasible.append(index)
            # A start that failed may have compiled nothing.
            compiled.add(int(surface.compiled[index]))
        origin = Origin.SAMPLER if history else Origin.BASELINE
        history.append(trial_of(launch, len(history), config, int(surface.gpus[index]), origin))
        gaps.append((surface.volume_of(feasible) - least) / (best - least) if best > least else 1.0)
        infeasible.append(launch.logs is None)
        minutes.append(clock_s / 60.0)
    return Replay(gap=tuple(gaps), infeasible=tuple(infeasible), minutes=tuple(minutes), gave_up=gave_up)
