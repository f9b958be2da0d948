"""What the baseline's server runs with, flags or not: what a change is a change against. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.records import Trial, Value

VLLM_DEFAULTS: Mapping[str, Value] = {
    "enforce-eager": False,
    "enable-expert-parallel": False,
    "numa-bind": False,
    "performance-mode": "balanced",
    "stream-interval": 1,
}
"""What a server does not tell and vLLM 0.32 takes without a flag (`vllm/engine/arg_utils.py`)."""


def starting_values(baseline: Trial | None) -> dict[str, Value]:
    """What the baseline's server runs with: vLLM's defaults as that server told them, its own flags over them."""
    if baseline is None:
        return {}
    facts = baseline.result.facts if baseline.result else None
    told: dict[str, Value] = {f"{size}-parallel-size": 1 for size in ("tensor", "pipeline", "data")}
    told |= VLLM_DEFAULTS
    if facts is not None:
        told |= {
            "max-model-len": facts.max_model_len,
            "max-num-seqs": facts.max_num_seqs,
            "max-num-batched-tokens": facts.max_num_batched_tokens,
            "gpu-memory-utilization": facts.gpu_memory_utilization,
            "kv-cache-dtype": facts.kv_cache_dtype,
            "dtype": facts.dtype,
            "enable-prefix-caching": facts.prefix_caching,
            "enable-chunked-prefill": facts.chunked_prefill,
        }
    given = {name: value for name, value in baseline.config if value is not None}
    return {**{name: value for name, value in told.items() if value is not None}, **given}
