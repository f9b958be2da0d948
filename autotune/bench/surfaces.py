"""A surface: every config of a space with what launching it would show. Pure, but for the seeded noise it is asked for.

The surface is what is searched, so nothing of it may reach a sampler except through `launch`, one config at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autotune.bench.launches import Launch
from autotune.bench.physics import Load
from autotune.records import Config, FailureClass
from autotune.search.pareto import REFERENCE_THROUGHPUT_SHARE, REFERENCE_TTFT_FACTOR
from autotune.search.space import SearchSpace

Floats = NDArray[np.float64]


class SurfaceKind(StrEnum):
    """Where the truth comes from."""

    SIMULATED = "simulated"
    RECORDED = "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard deviation of the logarithm between launches of one config."""

    throughput_sd: float
    ttft_sd: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Surface:
    """The truth about every config that may be launched.

    Attributes:
        configs: that may be launched; all arrays go along it.
        baseline: index of the config that every study begins with; it is feasible.
        gpus: that each config uses.
        log_throughput: output tokens/s per GPU used; meaningless where infeasible.
        log_ttft: p95 TTFT in seconds; meaningless where infeasible.
        failures: why the infeasible ones do not start.
        missing_bytes: GPU memory short of what was needed, of those; 0 where that was not the reason.
        kv_tokens: what a started server's log says of one replica; 0 where it is not known.
        cold_s, warm_s: until ready, or until the failure, with nothing compiled and with a warm compile cache.
        measuring_s: both load levels and the warm-up before them; nothing for infeasible ones.
        compiled: configs of the same number share what was compiled.
        load: that a study's ramp would find on the baseline, which every study knows; None where it is not written.
    """

    name: str
    kind: SurfaceKind
    space: SearchSpace
    configs: tuple[Config, ...]
    baseline: int
    gpus: NDArray[np.int64]
    log_throughput: Floats
    log_ttft: Floats
    feasible: NDArray[np.bool_]
    failures: tuple[FailureClass, ...]
    missing_bytes: Floats
    kv_tokens: Floats
    cold_s: Floats
    warm_s: Floats
    measuring_s: Floats
    compiled: NDArray[np.int64]
    noise: Noise
    load: Load | None = None

    @cached_property
    def index(self) -> Mapping[Config, int]:
        """Where each config stands."""
        return {config: at for at, config in enumerate(self.configs)}

    @cached_property
    def reference(self) -> tuple[float, float]:
        """Log objectives of the hypervolume's reference: half the baseline's throughput, four times its TTFT."""
        return (
            float(self.log_throughput[self.baseline]) + float(np.log(REFERENCE_THROUGHPUT_SHARE)),
            float(self.log_ttft[self.baseline]) + float(np.log(REFERENCE_TTFT_FACTOR)),
        )

    @cached_property
    def volumes(self) -> tuple[float, float]:
        """Hypervolume of the baseline alone, and of all feasible configs."""
        return self.volume_of([self.baseline]), self.volume_of(np.flatnonzero(self.feasible).tolist())

    def volume_of(self, indices: list[int]) -> float:
        """Hypervolume, in log objectives and without noise, of these feasible configs."""
        x, y = self.log_throughput[indices], self.log_ttft[indices]
        base_x, base_y = self.reference
        area, ceiling = 0.0, base_y
        for at in np.lexsort((y, -x)).tolist():
            if x[at] > base_x and y[at] < ceiling:
                area += float(x[at] - base_x) * (ceiling - float(y[at]))
                ceiling = float(y[at])
        return area

    def launch(self, index: int, warm: bool, rng: np.random.Generator) -> Launch:
        """What one launch of a config shows, noise included.

        Args:
            warm: what it compiles was compiled before.
        """
        start_s = float(self.warm_s[index] if warm else self.cold_s[index])
        noise = rng.normal(size=2)
        if not self.feasible[index]:
            return Launch(
                index=index,
                seconds=start_s,
                logs=None,
                failure=self.failures[index],
                missing_bytes=float(self.missing_bytes[index]),
            )
        return Launch(
            index=index,
            seconds=start_s + float(self.measuring_s[index]),
            logs=(
                float(self.log_throughput[index] + noise[0] * self.noise.throughput_sd),
                float(self.log_ttft[index] + noise[1] * self.noise.ttft_sd),
            ),
            kv_tokens=int(self.kv_tokens[index]) or None,
        )
