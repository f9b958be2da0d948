"""Loads that a real server was measured under, and what the simulation says of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from autotune.node.defaults import ResolvedSettings
from autotune.records import LoadLevel, ModelShape, Node, PlannedRequest, RequestRecord
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.core import Core
from autotune.simulator.engine_model import SimulatedLevel, Simulation
from autotune.simulator.level_times import LevelFigures

if TYPE_CHECKING:
    from autotune.simulator.compiled.load import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What fidelity is judged by.

    Attributes:
        ttft_mean_s: None where the measurement does not state it.
    """

    output_tok_s: float
    tpot_p50_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    ttft_mean_s: float | None = None

    def errors(self, truth: Figures) -> tuple[float, float, float, float]:
        """Relative errors, in the order of the first four fields; +0.1 is 10 % too much."""
        return (
            self.output_tok_s / truth.output_tok_s - 1,
            self.tpot_p50_s / truth.tpot_p50_s - 1,
            self.ttft_p50_s / truth.ttft_p50_s - 1,
            self.ttft_p95_s / truth.ttft_p95_s - 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """One load of one launch, with everything that is needed to simulate it again.

    Attributes:
        kv_tokens: capacity of one replica's KV cache, logged or predicted.
    """

    node: Node
    shape: ModelShape
    settings: ResolvedSettings
    kv_tokens: int
    level: LoadLevel
    requests: tuple[PlannedRequest, ...]
    measured: Figures

    def simulate(self, coefficients: Coefficients | None, *, seed: int = 0) -> tuple[Figures, SimulatedLevel]:
        """The load on a fresh simulated server.

        Raises:
            ValueError: the GPU's peaks are unknown, or the settings cannot be scheduled.
        """
        simulation = Simulation(self.node, self.shape, self.settings, self.kv_tokens, coefficients, seed)
        result = simulation.run(self.level, self.requests)
        return figures(result.records), result


class Repeated:
    """A measured load that is simulated again and again, with other coefficients; made ready once."""

    __slots__ = ("_core", "_ready", "load")

    def __init__(self, load: MeasuredLoad, *, core: Core = Core.AUTO) -> None:
        self.load = load
        self._core = core
        self._ready: Load | None = None

    def figures(self, coefficients: Coefficients, *, seeds: int) -> tuple[Figures, float]:
        """Geometric means over `seeds` runs of what the client sees, and the mean number of preemptions.

        Raises:
            ValueError: as `MeasuredLoad.simulate` does.
        """
        runs = [self._run(coefficients, seed) for seed in range(seeds)]
        preempted = sum(run.server.preemptions or 0 for run in runs) / seeds
        return _geometric_mean([_level_figures(run) for run in runs]), preempted

    def _run(self, coefficients: Coefficients, seed: int) -> LevelFigures:
        load = self.load
        simulation = Simulation(
            load.node, load.shape, load.settings, load.kv_tokens, coefficients, seed, core=self._core
        )
        if self._ready is None:
            self._ready = simulation.prepare(load.level, load.requests)
        return simulation.figures(load.level, load.requests, load=self._ready)


def _level_figures(level: LevelFigures) -> Figures:
    ttft = level.ttft_s[level.completed]
    return Figures(
        output_tok_s=float(level.output_tokens.sum()) / level.duration_s,
        tpot_p50_s=float(np.nanmedian(level.tpot_s[level.completed])),
        ttft_p50_s=float(np.median(ttft)),
        ttft_p95_s=float(np.percentile(ttft, 95)),
        ttft_mean_s=float(np.mean(ttft)),
    )


def _geometric_mean(runs: Sequence[Figures]) -> Figures:
    return Figures(
        **{
            field.name: float(np.exp(np.mean(np.log([getattr(run, field.name) for run in runs]))))
            for field in fields(Figures)
        }
    )


def figures(records: Sequence[RequestRecord]) -> Figures:
    """The client's figures, computed as `vllm bench serve` does: over the whole run, ramp included."""
    done = [r for r in records if r.error is None]
    ttft = [r.first_token_s - r.sent_s for r in done if r.first_token_s is not None and r.sent_s is not None]
    return Figures(
        output_tok_s=sum(r.output_tokens or 0 for r in done) / max(r.done_s or 0.0 for r in done),
        tpot_p50_s=float(np.median(list(_tpots(done)))),
        ttft_p50_s=float(np.median(ttft)),
        ttft_p95_s=float(np.percentile(ttft, 95)),
        ttft_mean_s=float(np.mean(ttft)),
    )


def _tpots(records: Iterable[RequestRecord]) -> Iterable[float]:
    for r in records:
        if r.last_token_s is not None and r.first_token_s is not None and r.output_tokens and r.output_tokens > 1:
            yield (r.last_token_s - r.first_token_s) / (r.output_tokens - 1)
