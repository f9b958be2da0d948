"""What vLLM takes for parameters that a config lacks, so that its defaults can teach a search. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autotune.errors import InvalidOption
from autotune.node.defaults import ResolvedSettings, resolve
from autotune.records import Config, ModelShape, Node, Value
from autotune.search.space import SearchSpace

_SETTINGS: Mapping[str, str] = {
    "tensor-parallel-size": "tensor_parallel",
    "pipeline-parallel-size": "pipeline_parallel",
    "data-parallel-size": "data_parallel",
    "gpu-memory-utilization": "gpu_memory_utilization",
    "max-model-len": "max_model_len",
    "max-num-seqs": "max_num_seqs",
    "max-num-batched-tokens": "max_num_batched_tokens",
    "kv-cache-dtype": "kv_cache_dtype",
    "dtype": "dtype",
    "enable-prefix-caching": "prefix_caching",
    "enable-chunked-prefill": "chunked_prefill",
    "enforce-eager": "enforce_eager",
    "block-size": "block_size",
    "enable-expert-parallel": "expert_parallel",
    "api-server-count": "api_server_count",
    "async-scheduling": "async_scheduling",
    "stream-interval": "stream_interval",
    "max-cudagraph-capture-size": "max_cudagraph_capture_size",
    "performance-mode": "performance_mode",
}
"""Flags by the field of `ResolvedSettings` that says what became of them."""


def completing(
    space: SearchSpace,
    node: Node,
    shape: ModelShape,
    vllm_version: str | None = None,
    fixed: Mapping[str, Value] | None = None,
) -> Callable[[Config], Config]:
    """A function that fills in the space's parameters which a config lacks, or leaves to vLLM where the space does not.

    A value that no choice of the space is stays what it is: its coordinates lie between those of the choices.
    """
    wanted = {one.name: one for one in space.parameters if one.name in _SETTINGS}

    def complete(config: Config) -> Config:
        values = config.as_dict()
        lacking = [name for name, one in wanted.items() if name not in values and None not in one.choices]
        if not lacking:
            return config
        try:
            settings: ResolvedSettings = resolve(config, node, shape, vllm_version, fixed)
        except InvalidOption:
            return config
        found = {name: getattr(settings, _SETTINGS[name]) for name in lacking if space.is_active(wanted[name], values)}
        return Config.of({**found, **values})

    return complete
