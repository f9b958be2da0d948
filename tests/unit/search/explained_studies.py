"""Studies with known effects, for the tests of explanations: truth is a sum of one term for each knob."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import search_samples as samples

from autotune.records import Config, Origin, Outcome, Trial, Value
from autotune.search.explain_model import Question
from autotune.search.parameter import Parameter
from autotune.search.prior.expectation import Prior
from autotune.search.space import SearchSpace

SPACE = SearchSpace(
    name="known",
    parameters=(
        Parameter(name="max-num-seqs", choices=(32, 64, 128, 256)),
        Parameter(name="max-num-batched-tokens", choices=(2048, 4096, 8192)),
        Parameter(name="kv-cache-dtype", choices=("auto", "fp8")),
        Parameter(name="scheduling-policy", choices=("fcfs", "priority")),
        Parameter(name="enable-chunked-prefill", choices=(None, True)),
    ),
)
BASELINE: Mapping[str, Value] = {
    "max-num-seqs": 128,
    "max-num-batched-tokens": 2048,
    "kv-cache-dtype": "auto",
    "scheduling-policy": "fcfs",
    "enable-chunked-prefill": None,
}
THROUGHPUT: Mapping[str, Mapping[Value, float]] = {
    "max-num-seqs": {32: -0.9, 64: -0.4, 128: 0.0, 256: 0.25},
    "max-num-batched-tokens": {2048: 0.0, 4096: 0.06, 8192: 0.10},
    "kv-cache-dtype": {"auto": 0.0, "fp8": 0.12},
}
TTFT: Mapping[str, Mapping[Value, float]] = {
    "max-num-seqs": {32: 0.5, 64: 0.2, 128: 0.0, 256: 0.3},
    "max-num-batched-tokens": {2048: 0.0, 4096: 0.3, 8192: 0.7},
    "kv-cache-dtype": {"auto": 0.0, "fp8": -0.2},
}
NOISE = (0.01, 0.06)
"""Standard deviations between launches."""


def truth(config: Config) -> tuple[float, float]:
    """Log throughput and log TTFT without noise."""
    values = config.as_dict()
    throughput, ttft = (sum(one[name][values[name]] for name in one) for one in (THROUGHPUT, TTFT))
    return math.log(2000.0) + throughput, math.log(0.4) + ttft


def same(config: Config) -> str:
    """vLLM chunks prefills whether it is told to or not."""
    return Config.of({name: value for name, value in config if name != "enable-chunked-prefill"}).hash


def measured(number: int, config: Config, rng: np.random.Generator) -> Trial:
    figures = []
    for middle, sd in zip(truth(config), NOISE, strict=True):
        value = middle + sd * rng.standard_normal()
        own = 0.3 * sd  # a launch knows itself better than the next one
        low, there, high = (math.exp(value + side * 1.96 * own) for side in (-1, 0, 1))
        figures.append((low, there, high))
    found = samples.measured(number, figures[0], figures[1], config)
    return replace(found, origin=Origin.BASELINE) if number == 0 else found


def study(seed: int, count: int = 20, *, without: Mapping[str, Value] | None = None) -> tuple[Trial, ...]:
    """The baseline, then configs drawn at random.

    Args:
        without: values that no trial has.
    """
    rng = np.random.default_rng([5, seed])
    barred = dict(without or {})
    pool = [c for c in SPACE if not any(c.get(name) == value for name, value in barred.items())]
    base = Config.of(BASELINE)
    drawn = [pool[place] for place in rng.permutation(len(pool))[:count]]
    chosen = [base, *(config for config in drawn if config != base)][:count]
    return tuple(measured(number, config, rng) for number, config in enumerate(chosen))


def failing(number: int, config: Config) -> Trial:
    return samples.failed(number, Outcome.INFEASIBLE, config)


def question(prior: Prior | None = None, *, refused: Mapping[str, Value] | None = None) -> Question:
    """About those studies.

    Args:
        refused: values that a rule refuses.
    """
    barred = dict(refused or {})

    def refusal(config: Config) -> str | None:
        return next((f"{n}={v} cannot start" for n, v in barred.items() if config.get(n) == v), None)

    configs = tuple(config for config in SPACE if refusal(config) is None)
    return Question(space=SPACE, configs=configs, prior=prior, same=same, refusal=refusal, seed=3)
