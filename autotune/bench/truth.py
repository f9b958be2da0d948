"""Surfaces of the simulated nodes: physics plus everything hidden, worked out once and kept in the cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.bench import hidden, physics
from autotune.bench.columns import Columns, columns_of
from autotune.bench.physics import Load
from autotune.bench.situations import NodeSpec, Situation
from autotune.bench.surfaces import Noise, Surface, SurfaceKind
from autotune.records import Config, FailureClass
from autotune.simulator.coefficients import Coefficients

COEFFICIENT_ERROR = 0.3
NOISE = Noise(throughput_sd=0.03, ttft_sd=0.10)
PROCESS_S = 24.0
LOAD_BYTES_PER_S = 2.0e9
COMPILE_S = 31.0
GRAPHS_S = 8.0
MEASURING_S = 75.0
"""Of a launch: importing and process start, weights per GPU from disk, torch.compile, graph capture, both levels.
83 s cold, 52 s with a warm compile cache and 26 s eager were measured on an H200 with an 8B model (vLLM 0.25.1)."""

NOT_COMPILED = frozenset(
    {
        "gpu-memory-utilization", "enable-prefix-caching", "data-parallel-size", "api-server-count", "stream-interval",
        "async-scheduling", "numa-bind", "enforce-eager",
    }
)  # fmt: skip
"""Flags that do not change what is compiled. That a new max-num-seqs, max-num-batched-tokens and KV dtype do, and that
utilisation and prefix caching do not, was measured there as well."""

_ARRAYS = (
    "gpus", "log_throughput", "log_ttft", "feasible", "missing_bytes", "kv_tokens", "cold_s", "warm_s", "measuring_s",
    "compiled",
)  # fmt: skip


def simulated_surface(spec: NodeSpec, situation: Situation, cache_dir: Path | None) -> Surface:
    """The surface of a hidden node: from the cache where it was worked out before, by the hash of all it follows from.

    Args:
        cache_dir: None to keep nothing.
    """
    if cache_dir is None:
        return work_out(spec, situation)
    path = cache_dir / "bench" / f"{spec.name}-{_content_hash(spec, situation)}.npz"
    found = _read(path, spec, situation)
    if found is None:
        found = work_out(spec, situation)
        _write(path, found)
    return found


def work_out(spec: NodeSpec, situation: Situation) -> Surface:
    """The truth of every config; seeded by `spec.seed` alone."""
    rng = np.random.default_rng(spec.seed)
    configs, space, shape = situation.configs, situation.space, situation.shape
    k = columns_of(configs, situation.node, shape, situation.context)
    gpu = situation.node.gpus[0]
    node = physics.Node(
        gpu=gpu,
        hidden_size=shape.hidden_size,
        traffic=situation.traffic,
        coefficients=physics.perturbed(Coefficients(), COEFFICIENT_ERROR, rng),
    )
    baseline = configs.index(situation.baseline)
    load = physics.knee_load(node, k.take([baseline]), situation.plan.workload.max_concurrency)
    features = hidden.features_of(configs, space)
    strange = hidden.unmodelled(configs, space, rng)
    logs = [
        np.log(physical) + hidden.misfit(features, sd, rng) + strange[axis]
        for axis, (physical, sd) in enumerate(
            zip(
                (node.throughput(k, load.concurrency), node.ttft_p95_s(k, load.rate_rps)), hidden.MISFIT_SD, strict=True
            )
        )
    ]
    kv_share = 1.0 - k.weights_bytes / gpu.memory_bytes
    failures = hidden.hidden_failures(configs, space, kv_share, float(gpu.memory_bytes), baseline, rng)
    cold, warm = _start_s(k)
    failed = failures.failed
    # A start that fails ends at the latest where graphs would be captured.
    cold, warm = np.where(failed, 0.8 * cold, cold), np.where(failed, 0.8 * warm, warm)
    pace = np.clip(np.exp(logs[0][baseline] - logs[0]), 0.5, 3.0)
    return Surface(
        name=spec.name,
        kind=SurfaceKind.SIMULATED,
        space=space,
        configs=configs,
        baseline=baseline,
        gpus=k.gpus.astype(np.int64),
        log_throughput=logs[0],
        log_ttft=logs[1],
        feasible=~failed,
        failures=failures.kinds,
        missing_bytes=failures.missing_bytes,
        kv_tokens=np.round(k.kv_tokens * rng.uniform(0.95, 1.03)),
        cold_s=cold,
        warm_s=warm,
        measuring_s=np.where(failed, 0.0, MEASURING_S * pace),
        compiled=compile_keys(configs),
        noise=NOISE,
        load=load,
    )


def compile_keys(configs: Sequence[Config]) -> NDArray[np.int64]:
    """A number per config; equal where a start reuses what the other one compiled."""
    seen: dict[tuple[object, ...], int] = {}
    keys = [tuple(pair for pair in config if pair[0] not in NOT_COMPILED) for config in configs]
    return np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)


def _start_s(k: Columns) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    graphs = np.where(k.eager > 0, 0.0, GRAPHS_S)
    compiling = np.where(k.eager > 0, 0.0, COMPILE_S * np.maximum(1.0, k.layers / physics.FITTED_LAYERS))
    warm = PROCESS_S + k.weights_bytes / LOAD_BYTES_PER_S + graphs + 3.0 * (k.gpus > 1)
    return warm + compiling, warm


# The cache


def _content_hash(spec: NodeSpec, situation: Situation) -> str:
    """Over everything the truth follows from: the spec, the model, the configs, and the code that works it out."""
    digest = hashlib.sha256()
    told = (spec.name, spec.node, spec.model, spec.workload, spec.seed, situation.space.space_hash)
    digest.update(json.dumps(told).encode())
    digest.update(repr((astuple(situation.traffic), situation.context.fixed, situation.baseline)).encode())
    digest.update(repr(situation.shape).encode())  # of a model of the catalogue, which is no code
    digest.update("".join(config.hash for config in situation.configs).encode())
    package = Path(__file__).resolve().parents[1]
    for folder in ("bench", "simulator", "node"):
        for path in sorted((package / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _write(path: Path, surface: Surface) -> None:
    """Beside, then moved: another process never sees half a file. Without room it is worked out again next time."""
    arrays = {name: getattr(surface, name) for name in _ARRAYS}
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as stream:
            load = [surface.load.concurrency, surface.load.rate_rps] if surface.load is not None else []
            np.savez_compressed(
                stream, load=np.array(load), failures=np.array([str(one) for one in surface.failures]), **arrays
            )
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()


def _read(path: Path, spec: NodeSpec, situation: Situation) -> Surface | None:
    """The cached surface; None where there is none that can be read."""
    try:
        # Opened here: numpy leaves a damaged archive open.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in _ARRAYS}
            load = stored["load"].tolist()
            kinds = tuple(FailureClass(str(one)) for one in stored["failures"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    if any(len(array) != len(situation.configs) for array in arrays.values()):
        return None
    return Surface(
        name=spec.name,
        kind=SurfaceKind.SIMULATED,
        space=situation.space,
        configs=situation.configs,
        baseline=situation.configs.index(situation.baseline),
        failures=kinds,
        noise=NOISE,
        load=Load(concurrency=load[0], rate_rps=load[1]) if len(load) == 2 else None,
        **arrays,
    )
