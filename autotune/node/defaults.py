"""What vLLM uses where a config says nothing, on a given GPU. Defaults drift by version; the log has the last word.

Source: `EngineArgs.get_batch_defaults`, `VllmConfig` and `CacheConfig` of the versions named beside each rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.errors import InvalidOption
from autotune.records import BF16_CAPABILITY, AttentionKind, Config, Gpu, ModelShape, Node, Value
from autotune.units import GIB

Version = tuple[int, int, int]
NEWEST: Version = (999, 0, 0)
NEWER_RUNNER_SINCE: Version = (0, 25, 0)
"""The log of a dense model says "Using V2 Model Runner" in the oldest version that was looked at."""

PERFORMANCE_MODES = ("balanced", "interactivity", "throughput")

_LARGE_GPU_BYTES = 70 * GIB
_HUGE_GPU_BYTES = 160 * GIB
_MOST_DRAFTED = 1024
_SPECULATION = 'a JSON object such as {"method": "ngram", "num_speculative_tokens": 4}'


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSettings:
    """The settings that decide memory and speed, after vLLM's defaults were filled in.

    Attributes:
        kv_cache_dtype: `auto` where it is the model's own dtype; what the checkpoint asks for is filled in.
        api_server_count: API-server processes; None only in settings that were not made by `resolve`.
        max_cudagraph_capture_size: largest batch, in tokens, that runs as a CUDA graph; None when no graphs are
            captured, and in settings that were not made by `resolve`.
        concurrent_batches: steps that may be planned and not yet finished (vLLM's `max_concurrent_batches`); None in
            settings that were not made by `resolve`.
        speculative_tokens: tokens drafted per step by n-gram look-up; 0 for no speculation and for other methods.
        quantization: vLLM's word for how the weights are quantised, by flag or checkpoint; None for 16 bit.
    """

    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    gpu_memory_utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_dtype: str
    dtype: str
    prefix_caching: bool
    chunked_prefill: bool
    enforce_eager: bool
    block_size: int = 16
    expert_parallel: bool = False
    api_server_count: int | None = None
    async_scheduling: bool = True
    concurrent_batches: int | None = None
    stream_interval: int = 1
    max_cudagraph_capture_size: int | None = None
    performance_mode: str = "balanced"
    speculative_tokens: int = 0
    quantization: str | None = None

    @property
    def gpus(self) -> int:
        """GPUs used: TP x PP x DP."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel


def resolve(
    config: Config,
    node: Node,
    shape: ModelShape,
    vllm_version: str | None = None,
    extra: Mapping[str, Value] | None = None,
) -> ResolvedSettings:
    """The settings that a server started with `config` on `node` ends up with.

    Args:
        config: parameters of the trial; a None value counts as absent.
        vllm_version: as vLLM prints it; None for the newest we know.
        extra: flags passed through beside the config, e.g. the study's fixed ones; the config wins.

    Raises:
        InvalidOption: a value of the wrong type, named with its flag.
    """
    given = {name: value for name, value in (*(extra or {}).items(), *config) if value is not None}
    version = parse_version(vllm_version)
    parallel = {size: _count(given, f"{size}-parallel-size", 1) for size in ("tensor", "pipeline", "data")}
    mode = _choice(given, "performance-mode", "balanced", PERFORMANCE_MODES)
    length = _length(given, shape)
    chunked = _switch(given, "enable-chunked-prefill", True)
    world = parallel["tensor"] * parallel["pipeline"]
    defaults = default_batch(node.gpus[0] if node.gpus else None, world, version)
    scale = 2 if mode == "throughput" else 1  # arg_utils.py 0.32 doubles both defaults, and nothing that is set
    tokens, seqs = _batch(given, scale * defaults[0], scale * defaults[1], length, chunked=chunked)
    drafted = _drafted(given)
    # n-gram look-up runs on the CPU between steps: vLLM turns asynchronous scheduling off for it (vllm.py 0.32).
    ahead = _switch(given, "async-scheduling", not drafted)
    eager = _switch(given, "enforce-eager", False)
    dtype = str(given.get("dtype", "auto"))
    kv_dtype = str(given.get("kv-cache-dtype", "auto"))
    return ResolvedSettings(
        tensor_parallel=parallel["tensor"],
        pipeline_parallel=parallel["pipeline"],
        data_parallel=parallel["data"],
        gpu_memory_utilization=_share(given, "gpu-memory-utilization", default_utilization(version)),
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        kv_cache_dtype=shape.kv_cache_dtype or "auto" if kv_dtype == "auto" else kv_dtype,
        dtype=_auto_dtype(node, shape) if dtype == "auto" else dtype,
        prefix_caching=_switch(given, "enable-prefix-caching", True),
        chunked_prefill=chunked,
        enforce_eager=eager,
        block_size=_count(given, "block-size", 16),
        expert_parallel=_switch(given, "enable-expert-parallel", False),
        api_server_count=_count(given, "api-server-count", default_api_servers(parallel["data"], version)),
        async_scheduling=ahead,
        concurrent_batches=_concurrent_batches(parallel["pipeline"], shape, version, ahead=ahead),
        stream_interval=_count(given, "stream-interval", 1),
        max_cudagraph_capture_size=None if eager else _graph_limit(given, node, seqs, tokens, version),
        performance_mode=mode,
        speculative_tokens=drafted,
        quantization=str(given["quantization"]) if "quantization" in given else shape.quantization,
    )


def _concurrent_batches(stages: int, shape: ModelShape, version: Version, *, ahead: bool) -> int:
    """`VllmConfig.max_concurrent_batches` (0.25): the newer model runner, which dense models get there, plans one step
    more than there are stages; the older one does so without stages only. Hybrids and experts stay with the older."""
    hybrid = any(layer.attention.kind is AttentionKind.STATE for layer in shape.decoder)
    newer = version >= NEWER_RUNNER_SINCE and shape.experts is None and not hybrid
    return stages + (1 if ahead and (stages == 1 or newer) else 0)


def parse_version(text: str | None) -> Version:
    """`0.10.2rc1+cu128` as (0, 10, 2); NEWEST for None and for builds without a release number (`dev`)."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text or "")
    if match is None:
        return NEWEST
    return int(match[1]), int(match[2]), int(match[3] or 0)


def parse_length(text: str) -> int | None:
    """Tokens that vLLM reads in `8192`, `8k` (8,000) or `8K` (8,192); None for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text)
    scale = {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
    return round(float(match[1]) * scale[match[2]]) if match else None


def default_utilization(version: Version) -> float:
    """`--gpu-memory-utilization`: 0.92 as measured with 0.25.1, 0.9 up to 0.19.

    Which of 0.20-0.24 changed it is not known to us; the smaller value there never promises memory that is not asked.
    """
    return 0.92 if version >= (0, 25, 0) else 0.9


def default_api_servers(data_parallel: int, version: Version) -> int:
    """`--api-server-count`: one per data-parallel replica as recorded with 0.25.1, one in all up to 0.10.

    Which of 0.11-0.24 changed it is not known to us; the new default is taken for all of them.
    """
    return data_parallel if version >= (0, 11, 0) else 1


def default_graph_limit(gpu: Gpu | None, version: Version) -> int:
    """The most tokens of a batch that runs as a CUDA graph, before `max_num_seqs` caps it (vllm.py 0.32)."""
    blackwell = gpu is not None and gpu.compute_capability is not None and gpu.compute_capability[0] == 10
    return 1024 if blackwell and version >= (0, 32, 0) else 512


def default_batch(gpu: Gpu | None, world: int, version: Version) -> tuple[int, int]:
    """`--max-num-batched-tokens` and `--max-num-seqs` of the API server where nobody sets them.

    Args:
        gpu: None for the CPU build, whose defaults grow with the world size.
        world: TP x PP.
    """
    if gpu is None:
        return 2048 * world, 128 * world
    name = gpu.name.lower()
    # A100 keeps the small batch, where larger ones lose throughput (vllm#17885); GB10 counts as small since 0.33
    # although its unified memory is large.
    small = "a100" in name or ("gb10" in name.split() and version >= (0, 33, 0))
    if gpu.memory_bytes < _LARGE_GPU_BYTES or small:
        return 2048, 256
    if gpu.memory_bytes >= _HUGE_GPU_BYTES and version >= (0, 32, 0):
        return 16384, 1024
    return 8192, 256 if version < (0, 8, 5) else 1024


def _batch(
    given: Mapping[str, Value], default_tokens: int, default_seqs: int, length: int, *, chunked: bool
) -> tuple[int, int]:
    """Tokens and sequences of a step: a default gives way to what is set beside it, in the order of
    `_set_default_max_num_seqs_and_batched_tokens_args` (arg_utils.py 0.32)."""
    seqs = _count(given, "max-num-seqs", default_seqs)
    if not chunked:
        default_tokens = max(default_tokens, length)
    tokens = _count(given, "max-num-batched-tokens", min(default_tokens, seqs * length))
    return tokens, seqs if "max-num-seqs" in given else min(seqs, tokens)


def _auto_dtype(node: Node, shape: ModelShape) -> str:
    # Without bfloat16 units vLLM falls back to float16 (ModelConfig, `_resolve_auto_dtype`).
    capability = node.gpus[0].compute_capability if node.gpus else None
    return "float16" if capability is not None and capability < BF16_CAPABILITY else shape.dtype


def _graph_limit(given: Mapping[str, Value], node: Node, seqs: int, tokens: int, version: Version) -> int:
    default = min(2 * seqs, default_graph_limit(node.gpus[0] if node.gpus else None, version))
    return min(tokens, _count(given, "max-cudagraph-capture-size", default))


def _drafted(given: Mapping[str, Value]) -> int:
    """Tokens that n-gram look-up drafts per step; 0 without it."""
    text = given.get("speculative-config")
    if text is None:
        return 0
    try:
        asked = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict):
        raise InvalidOption("--speculative-config", text, _SPECULATION)
    if asked.get("method") != "ngram":
        return 0
    count = asked.get("num_speculative_tokens")
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_DRAFTED:
        raise InvalidOption(
            "--speculative-config", text, f"num_speculative_tokens as a whole number of 1 to {_MOST_DRAFTED}"
        )
    return count


def _length(given: Mapping[str, Value], shape: ModelShape) -> int:
    """Context length in tokens. `auto` and -1 count as the model's own."""
    value = given.get("max-model-len")
    if value is None or value in ("auto", -1, "-1"):
        return shape.max_position_embeddings
    if isinstance(value, str):
        length = parse_length(value)
        value = value if length is None else length
    return _count({"max-model-len": value}, "max-model-len", 1)


def _count(given: Mapping[str, Value], name: str, default: int) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOption(f"--{name}", value, "a whole number of at least 1")
    return value


def _share(given: Mapping[str, Value], name: str, default: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise InvalidOption(f"--{name}", value, "a number above 0 and at most 1")
    return float(value)


def _switch(given: Mapping[str, Value], name: str, default: bool) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise InvalidOption(f"--{name}", value, "true or false")
    return value


def _choice(given: Mapping[str, Value], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = given.get(name, default)
    if value not in allowed:
        raise InvalidOption(f"--{name}", value, " or ".join(allowed))
    return str(value)
