"""Configs as columns of numbers: what each costs in FLOPs, bytes and memory, ready for arithmetic on all at once. Pure.

Only public arithmetic goes in (`stage_costs`, `node.memory`); what the hardware makes of it is `physics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from autotune.node.defaults import ResolvedSettings, parse_version, resolve
from autotune.node.memory import CALIBRATED_VERSION, MemoryEstimate, estimate
from autotune.records import FP8_CAPABILITY, Config, Link, ModelShape, Node
from autotune.search.rules import RuleContext
from autotune.simulator.stage_costs import StageCosts, stage_costs
from autotune.simulator.wiring import wire_of

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """One row per config; all of one GPU of the mean pipeline stage where nothing else is said.

    Attributes:
        flops_scale: 16-bit FLOPs that one FLOP with the layers' weights takes as long as.
        pair_flops: of prefill attention, per (query, key) pair.
        kv_read_bytes: per token of context and step.
        experts, experts_per_token: 0 for a dense model; `expert_flops` and `expert_bytes` of one expert in all layers.
        dealt: 1.0 where experts are dealt out whole.
        world: GPUs that exchange experts' tokens, 1 without.
        pcie, across: 1.0 where the tensor-parallel group talks over PCIe; across sockets.
        kv_tokens: of one replica.
        weights_bytes: of one GPU, as loaded.
        graph_tokens: largest batch that runs as a CUDA graph; 0 when eager.
    """

    tp: Column
    pp: Column
    dp: Column
    seqs: Column
    budget: Column
    kv_tokens: Column
    weights_bytes: Column
    read_bytes: Column
    flops_token: Column
    flops_output: Column
    flops_scale: Column
    pair_flops: Column
    kv_read_bytes: Column
    experts: Column
    experts_per_token: Column
    expert_flops: Column
    expert_bytes: Column
    expert_ranks: Column
    dealt: Column
    layers: Column
    moe_layers: Column
    allreduces: Column
    exchanges: Column
    world: Column
    pcie: Column
    across: Column
    graph_tokens: Column
    eager: Column
    overlapped: Column
    api_servers: Column
    stream_interval: Column
    prefix: Column

    @property
    def gpus(self) -> Column:
        """GPUs that each config uses."""
        return self.tp * self.pp * self.dp

    def take(self, rows: Sequence[int] | NDArray[np.intp]) -> Columns:
        """Those rows only."""
        return Columns(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})


def columns_of(configs: Sequence[Config], node: Node, shape: ModelShape, context: RuleContext) -> Columns:
    """The columns of `configs`, in their order."""
    version = parse_version(context.vllm_version) if context.vllm_version else CALIBRATED_VERSION
    fixed = dict(context.fixed)
    costs: dict[object, StageCosts] = {}
    memories: dict[object, MemoryEstimate] = {}
    rows: list[tuple[float, ...]] = []
    for config in configs:
        s = resolve(config, node, shape, context.vllm_version, fixed)
        key = (s.tensor_parallel, s.pipeline_parallel, s.data_parallel, s.expert_parallel, s.kv_cache_dtype)
        if key not in costs:
            costs[key] = stage_costs(shape, s)
        same = replace(s, api_server_count=None, stream_interval=1, performance_mode="balanced")
        if same not in memories:
            memories[same] = estimate(shape, node.gpus[0], s, version=version)
        rows.append(_row(s, costs[key], memories[same], node, shape))
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(fields(Columns)))
    return Columns(**{one.name: table[:, index] for index, one in enumerate(fields(Columns))})


def _row(s: ResolvedSettings, c: StageCosts, m: MemoryEstimate, node: Node, shape: ModelShape) -> tuple[float, ...]:
    wire = wire_of(node, s.tensor_parallel)
    e = c.experts
    graph = 0 if s.enforce_eager else (s.max_cudagraph_capture_size or 512)
    return (
        s.tensor_parallel,
        s.pipeline_parallel,
        s.data_parallel,
        s.max_num_seqs,
        s.max_num_batched_tokens,
        max(m.kv_tokens, s.max_model_len),
        m.weights_bytes_per_gpu,
        c.weight_bytes,
        c.flops_per_token,
        c.flops_per_output,
        _scale(node, shape, s),
        sum(one.pair_flops for one in c.attention),
        sum(one.kv_bytes for one in c.attention),
        e.count if e else 0,
        e.per_token if e else 0,
        e.layers * e.flops if e else 0.0,
        e.layers * e.expert_bytes if e else 0.0,
        e.ranks if e else 1,
        float(bool(e and e.dealt)),
        c.layers,
        c.moe_layers,
        c.allreduces,
        c.exchanges,
        s.tensor_parallel * s.data_parallel if c.exchanges else 1,
        float(wire.link is Link.PCIE),
        float(wire.across_sockets),
        graph,
        float(s.enforce_eager),
        float(s.async_scheduling),
        s.api_server_count or s.data_parallel,
        s.stream_interval,
        float(s.prefix_caching),
    )


def _scale(node: Node, shape: ModelShape, s: ResolvedSettings) -> float:
    """16-bit time of one FLOP: fp8 weights at the card's fp8 rate, other narrow weights widened first."""
    gpu = node.gpus[0]
    if s.quantization is None:
        return 1.0
    capable = gpu.compute_capability is not None and gpu.compute_capability >= FP8_CAPABILITY
    if shape.weight_bits == 8 and capable and gpu.fp8_flops and gpu.bf16_flops:
        return gpu.bf16_flops / (0.85 * gpu.fp8_flops)
    return 1.25
