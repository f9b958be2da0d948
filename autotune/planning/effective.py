"""Which configs are the same server, however they are written. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.node.defaults import resolve
from autotune.records import Config, ModelShape, Node, Value

RESOLVED_FLAGS = frozenset(
    {
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "data-parallel-size",
        "gpu-memory-utilization",
        "max-model-len",
        "max-num-seqs",
        "max-num-batched-tokens",
        "kv-cache-dtype",
        "dtype",
        "enable-prefix-caching",
        "enable-chunked-prefill",
        "enforce-eager",
        "block-size",
        "enable-expert-parallel",
        "api-server-count",
        "async-scheduling",
        "stream-interval",
        "max-cudagraph-capture-size",
        "performance-mode",
        "quantization",
    }
)
"""Flags whose meaning is fully in ResolvedSettings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """Where configs are launched, as far as it decides what they end up as.

    Attributes:
        model: the study's.
        shapes: by model name.
        extra: flags that every launch has besides.
    """

    node: Node
    model: str
    shapes: Mapping[str, ModelShape]
    vllm_version: str | None
    extra: Mapping[str, Value]

    def key(self, config: Config) -> str:
        """Equal for configs that end up as the same server, whether a default is written out or left out.

        Where no shape is known, or there is no GPU, defaults cannot be told: then only what is written counts.

        Raises:
            InvalidOption: a value of the wrong type.
        """
        values = {**self.extra, **config.as_dict()}
        model = str(config.get("model") or self.model)
        shape = self.shapes.get(model)
        if shape is None or not self.node.gpus:
            return Config.of(values).hash
        settings = resolve(Config.of(values), self.node, shape, self.vllm_version)
        rest = {name: value for name, value in values.items() if name not in RESOLVED_FLAGS}
        rest["model"] = model
        return f"{settings}|{Config.of(rest).hash}"
