"""Invented nodes for the tests of the sampler: a truth, a prior that is wrong about it, and a study replayed on it.

The truth is the prior's own formula with other coefficients, plus a smooth random misfit, a cliff, an effect the prior
lacks, hidden failures, and noise on every measurement. None of it comes from the product's simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import search_samples as samples

from autotune.records import Config, Outcome, Trial
from autotune.search.parameter import Parameter
from autotune.search.prior.expectation import Expectation, Floats, Observation
from autotune.search.space import SearchSpace

SPACE = SearchSpace(
    name="invented",
    parameters=(
        Parameter(name="tensor-parallel-size", choices=(1, 2, 4)),
        Parameter(name="max-num-seqs", choices=(16, 32, 64, 128, 256, 512)),
        Parameter(name="max-num-batched-tokens", choices=(1024, 2048, 4096, 8192, 16384)),
        Parameter(name="gpu-memory-utilization", choices=(0.8, 0.86, 0.9, 0.94)),
        Parameter(name="kv-cache-dtype", choices=("auto", "fp8")),
        Parameter(name="enable-prefix-caching", choices=(True, False)),
        Parameter(name="enforce-eager", choices=(False, True)),
        Parameter(name="stream-interval", choices=(1, 4)),
    ),
)
BASELINE = {
    "tensor-parallel-size": 1, "max-num-seqs": 256, "max-num-batched-tokens": 2048, "gpu-memory-utilization": 0.9,
    "kv-cache-dtype": "auto", "enable-prefix-caching": True, "enforce-eager": False, "stream-interval": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Physics:
    """Coefficients of the invented formula."""

    step_s: float = 0.008
    sequence_s: float = 60e-6
    prompt_s: float = 55e-6
    talk_s: float = 0.002
    memory: float = 60.0
    clients: float = 160.0
    rate: float = 14.0

    def logs(self, configs: Sequence[Config]) -> tuple[Floats, Floats]:
        columns = {name: np.array([c.get(name) for c in configs]) for name in BASELINE}
        tp = columns["tensor-parallel-size"].astype(float)
        seqs = columns["max-num-seqs"].astype(float)
        batch = columns["max-num-batched-tokens"].astype(float)
        fp8 = columns["kv-cache-dtype"] == "fp8"
        room = np.maximum(self.memory * columns["gpu-memory-utilization"].astype(float) - 44.0 / tp, 0.5) * tp
        running = np.minimum(np.minimum(seqs, self.clients * tp), room * np.where(fp8, 14.0, 7.0))
        cached = np.where(columns["enable-prefix-caching"].astype(bool), 0.75, 1.0)
        step = self.step_s / tp + running * self.sequence_s / tp + self.talk_s * np.log2(tp)
        step += np.where(columns["enforce-eager"].astype(bool), 0.009, 0.0)
        prompt = self.prompt_s * cached / tp * (1.0 + 600.0 / batch)
        throughput = running / (128 * step + 512 * prompt * np.sqrt(running)) * 128 / tp
        load = self.rate * tp * (512 * prompt + 0.004) * (1.0 + self.rate * tp / (running + 1.0))
        wait = 0.03 + 512 * prompt + 0.25 * batch * prompt + step
        ttft = wait * (1.0 + 3.0 * np.log1p(np.exp(4.0 * (load - 0.9))))
        return np.log(throughput), np.log(ttft)


@dataclass(frozen=True)
class InventedPrior:
    """Believes the formula with its default coefficients, and that memory decides whether a config starts."""

    upside_down: bool = False

    def expect(self, configs: Sequence[Config]) -> Expectation:
        throughput, ttft = Physics().logs(configs)
        if self.upside_down:
            throughput, ttft = -throughput + 2 * 7.0, -ttft + 2 * -2.0
        n = len(configs)
        return Expectation(log_throughput=throughput, log_ttft=ttft, feasible=np.full(n, 0.85), minutes=np.full(n, 3.0))

    def refine(self, configs: Sequence[Config]) -> Expectation:
        return self.expect(configs)

    def refit(self, observations: Sequence[Observation]) -> InventedPrior:
        return self


@dataclass(frozen=True)
class Surface:
    """The truth about every config of a space; logs are without noise."""

    configs: tuple[Config, ...]
    throughput: Floats
    ttft: Floats
    works: np.ndarray
    noise: tuple[float, float] = (0.03, 0.10)

    @cached_property
    def index(self) -> dict[Config, int]:
        return {config: place for place, config in enumerate(self.configs)}

    def measure(self, number: int, config: Config, seed: int) -> Trial:
        place = self.index[config]
        if not self.works[place]:
            return samples.failed(number, Outcome.INFEASIBLE, config)
        rng = np.random.default_rng([seed, number])
        figures = []
        for value, sd in zip((self.throughput[place], self.ttft[place]), self.noise, strict=True):
            middle = value + sd * rng.standard_normal()
            figures.append(tuple(math.exp(middle + side * 1.96 * sd) for side in (-1, 0, 1)))
        return samples.measured(number, figures[0], figures[1], config)

    def volume(self, places: Sequence[int]) -> float:
        base = self.index[Config.of(BASELINE)]
        left, top = self.throughput[base] - math.log(2.0), self.ttft[base] + math.log(4.0)
        area, ceiling = 0.0, top
        for place in sorted((p for p in places if self.works[p]), key=lambda p: (-self.throughput[p], self.ttft[p])):
            x, y = self.throughput[place], self.ttft[place]
            if x > left and y < ceiling:
                area += (x - left) * (ceiling - y)
                ceiling = y
        return area


def invented(seed: int, *, misfit: tuple[float, float] = (0.2, 0.4), failing: float = 0.25) -> Surface:
    """A node that differs from what `InventedPrior` believes."""
    rng = np.random.default_rng([77, seed])
    off = np.exp(rng.uniform(-0.3, 0.3, 5))
    configs = tuple(SPACE)
    truth = Physics(
        step_s=0.008 * off[0], sequence_s=60e-6 * off[1], prompt_s=55e-6 * off[2], talk_s=0.002 * off[3],
        memory=60.0 * off[4] ** 0.2,
    )  # fmt: skip
    throughput, ttft = truth.logs(configs)
    at = np.array([[_share(p, c) for p in SPACE.parameters] for c in configs])
    throughput += misfit[0] * _smooth(rng, at)
    ttft += misfit[1] * _smooth(rng, at)
    # A cliff: beyond some batch one kernel falls back to a slow path; and a flag that helps where nobody expects it.
    cliff = (at[:, 2] > rng.choice([0.4, 0.7])) & (at[:, 5] == rng.integers(2))
    throughput -= 0.5 * cliff
    ttft += 0.7 * cliff
    throughput += 0.12 * at[:, 7]
    hidden = _smooth(rng, at[:, [0, 2, 3, 4, 6]])
    works = hidden < np.quantile(hidden, 1.0 - failing)
    works[configs.index(Config.of(BASELINE))] = True
    return Surface(configs, throughput, ttft, works)


def _share(parameter: Parameter, config: Config) -> float:
    place = parameter.choices.index(config.get(parameter.name))
    return place / max(1, len(parameter.choices) - 1)


def _smooth(rng: np.random.Generator, at: Floats, waves: int = 40) -> Floats:
    """A random smooth function of unit variance (random Fourier features)."""
    turns = rng.normal(0.0, 2.2, (at.shape[1], waves))
    values = np.cos(at @ turns + rng.uniform(0, 2 * math.pi, waves)) @ rng.normal(0.0, 1.0, waves)
    return (values - values.mean()) / values.std()


def replay(
    surface: Surface, choose: Callable[[Sequence[Trial]], Config | None], seed: int, most: int, share: float = 0.95
) -> tuple[int, int]:
    """(launches until `share` of the gap is closed, failed ones among them); `most` + 1 where it was not."""
    best, base = surface.volume(range(len(surface.configs))), Config.of(BASELINE)
    index = surface.index
    start = surface.volume([index[base]])
    history = [surface.measure(0, base, seed)]
    places, failures = [index[base]], 0
    while len(history) <= most:
        config = choose(history)
        if config is None:
            break
        history.append(surface.measure(len(history), config, seed))
        places.append(index[config])
        failures += not surface.works[places[-1]]
        if surface.volume(places) >= start + share * (best - start):
            return len(history), failures
    return most + 1, failures
