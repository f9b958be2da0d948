"""What a hidden node does that no model of it knows: misfit, cliff, small effects, failures. Pure; seeded.

Everything is in natural logarithms, as a pair (throughput, TTFT), and is added to what `physics` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.records import Config, FailureClass, Value
from autotune.search.parameter import is_number, same_value, value_key
from autotune.search.space import Parameter, SearchSpace

MISFIT_SD = (0.3, 0.6)
"""Standard deviation of the smooth misfit over the space, in log throughput and log TTFT."""

CLIFF_LOGS = (-0.4, 0.7)
EFFECT_SD = (0.04, 0.08)
INTERACTION_LOGS = (0.12, -0.20)
FAILURE_SHARES = (0.15, 0.35)
WAVES = 300
"""Random Fourier features of the misfit: its covariance is a squared exponential's to about 1/sqrt(WAVES)."""

_TRIES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenFailures:
    """Which configs do not start, and how they say so; `kinds` and `missing_bytes` only mean something where `failed`.

    Attributes:
        missing_bytes: GPU memory short of what was needed; 0 where memory was not the reason.
    """

    failed: NDArray[np.bool_]
    kinds: tuple[FailureClass, ...]
    missing_bytes: NDArray[np.float64]


def features_of(configs: Sequence[Config], space: SearchSpace) -> NDArray[np.float64]:
    """One row per config, one column per parameter of more than one choice, in 0..1: the place among the choices.

    Numbers in rising order; other choices in the space's own order, where neighbours mean nothing.
    """
    columns = []
    for parameter in _varied(space):
        columns.append(_places(configs, parameter) / (len(parameter.choices) - 1))
    return np.stack(columns, axis=1) if columns else np.zeros((len(configs), 0))


def misfit(features: NDArray[np.float64], sd: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """A draw of a smooth Gaussian process over the features, with standard deviation `sd` over these configs.

    Random Fourier features (Rahimi and Recht 2007) of a squared exponential with a length scale of its own for each
    parameter, log-uniform from 0.5 to 4 times its range: some matter, some hardly.
    """
    if len(features) < 2:
        return np.zeros(len(features))
    dimensions = features.shape[1]
    scales = np.exp(rng.uniform(np.log(0.5), np.log(4.0), dimensions))
    frequencies = rng.normal(size=(dimensions, WAVES)) / scales[:, None]
    phases = rng.uniform(0.0, 2.0 * np.pi, WAVES)
    drawn = np.cos(features @ frequencies + phases) @ rng.normal(size=WAVES)
    spread = float(np.std(drawn))
    scaled: NDArray[np.float64] = (drawn - np.mean(drawn)) / spread * sd if spread > 0 else np.zeros(len(features))
    return scaled


def unmodelled(configs: Sequence[Config], space: SearchSpace, rng: np.random.Generator) -> NDArray[np.float64]:
    """A cliff behind a threshold of one ordered parameter under one value of another, a small effect of every choice,
    and one interaction of two choices; shape (2, configs)."""
    found = np.zeros((2, len(configs)))
    varied = _varied(space)
    for parameter in varied:
        places = _places(configs, parameter)
        for axis in (0, 1):
            found[axis] += rng.normal(0.0, EFFECT_SD[axis], len(parameter.choices))[places]
    for logs, ordered in ((CLIFF_LOGS, True), (INTERACTION_LOGS, False)):
        region = _region(configs, varied, rng, ordered=ordered)
        found += np.array(logs)[:, None] * region
    return found


def _region(
    configs: Sequence[Config], varied: Sequence[Parameter], rng: np.random.Generator, *, ordered: bool
) -> NDArray[np.bool_]:
    """Between a twentieth and a third of the configs: two choices together, or all from one choice on with another."""
    firsts = [one for one in varied if len(one.choices) >= 3 and is_number(one.choices[0])] if ordered else varied
    best = np.zeros(len(configs), dtype=bool)
    if not firsts or len(varied) < 2:
        return best
    for _ in range(_TRIES):
        first = firsts[int(rng.integers(len(firsts)))]
        second = varied[int(rng.integers(len(varied)))]
        if first is second:
            continue
        threshold = int(rng.integers(1, len(first.choices)))
        value = second.choices[int(rng.integers(len(second.choices)))]
        places = _places(configs, first)
        beyond = places >= threshold if ordered else places == threshold
        region = beyond & _has(configs, second, value)
        if 0.05 <= float(np.mean(region)) <= 0.34:
            return region
    return best


def hidden_failures(
    configs: Sequence[Config],
    space: SearchSpace,
    kv_share: NDArray[np.float64],
    gpu_bytes: float,
    baseline: int,
    rng: np.random.Generator,
) -> HiddenFailures:
    """15-35 % of the configs fail, as nodes do and not one by one: those that need more memory than the node turns out
    to have, and those that combine two flags which do not work together here. The baseline starts.

    Args:
        kv_share: share of the GPU's memory that KV blocks leave free of, by the public arithmetic: less is tighter.
        gpu_bytes: memory of a GPU, for how many bytes are missing.
        baseline: its index.
    """
    target = rng.uniform(*FAILURE_SHARES)
    varied = _varied(space)
    crash = _crash(configs, varied, baseline, 0.6 * target, rng)
    need = _memory_need(configs, varied, kv_share, rng)
    rest = target - float(np.mean(crash))
    # Ties fall on one side: the threshold is lowered past whole groups until the share is reached.
    threshold = float(np.quantile(need[~crash], 1.0 - rest / max(1e-9, 1.0 - float(np.mean(crash)))))
    threshold = max(threshold, float(need[baseline]))
    short = (need > threshold) & ~crash
    missing = np.where(short, (need - threshold) * 0.05 * gpu_bytes + 0.01 * gpu_bytes, 0.0)
    kinds = tuple(FailureClass.INVALID_COMBINATION if bad else FailureClass.OOM_AT_WARMUP for bad in crash.tolist())
    return HiddenFailures(failed=crash | short, kinds=kinds, missing_bytes=missing)


def _memory_need(
    configs: Sequence[Config], varied: Sequence[Parameter], kv_share: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Hidden need of memory: larger batches and shares of the GPU, more graphs, less left for KV; weights are drawn."""
    need = -1.0 * (kv_share - kv_share.mean()) / (kv_share.std() or 1.0) * rng.uniform(0.0, 0.5)
    for name, most in (
        ("gpu-memory-utilization", 1.5),
        ("max-num-batched-tokens", 1.5),
        ("max-num-seqs", 1.0),
        ("max-cudagraph-capture-size", 0.8),
        ("pipeline-parallel-size", 0.4),
    ):
        parameter = next((one for one in varied if one.name == name), None)
        if parameter is not None:
            need = need + rng.uniform(0.3, 1.0) * most * _places(configs, parameter) / (len(parameter.choices) - 1)
    jitter: NDArray[np.float64] = need + rng.normal(0.0, 1e-6, len(configs))
    return jitter


def _crash(
    configs: Sequence[Config],
    varied: Sequence[Parameter],
    baseline: int,
    most: float,
    rng: np.random.Generator,
) -> NDArray[np.bool_]:
    none = np.zeros(len(configs), dtype=bool)
    for _ in range(_TRIES):
        first, second = (varied[int(rng.integers(len(varied)))] for _ in range(2))
        if first is second:
            continue
        a = first.choices[int(rng.integers(len(first.choices)))]
        b = second.choices[int(rng.integers(len(second.choices)))]
        found = _has(configs, first, a) & _has(configs, second, b)
        if not found[baseline] and 0.03 <= float(np.mean(found)) <= most:
            return found
    return none


def _has(configs: Sequence[Config], parameter: Parameter, value: Value) -> NDArray[np.bool_]:
    return np.array([same_value(config.get(parameter.name), value) for config in configs])


def _varied(space: SearchSpace) -> list[Parameter]:
    return [one for one in space.parameters if len(one.choices) > 1]


def _places(configs: Sequence[Config], parameter: Parameter) -> NDArray[np.intp]:
    """Where each config's value stands among the choices; 0 for configs that do not have the parameter.

    Numbers in rising order; other choices in the space's own order.
    """
    choices = parameter.choices
    numbers = [one for one in choices if is_number(one)]
    order: tuple[Value, ...] = tuple(sorted(numbers)) if len(numbers) == len(choices) else choices
    at = {value_key(choice): place for place, choice in enumerate(order)}
    return np.array([at.get(value_key(config.get(parameter.name)), 0) for config in configs], dtype=np.intp)
