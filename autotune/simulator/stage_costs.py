"""What a step computes, reads and sends on one GPU of a pipeline stage: FLOPs and bytes, no time. Pure.

The arithmetic is that of the model, nothing here is fitted. Simplifications:

* of several pipeline stages the mean one is priced, stretched to the stage with the most layers;
* linear-attention layers cost their parameters and their state; the state's own arithmetic is left out;
* replicated weights are taken to have the quantised matrices' width when FLOPs are derived from their bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.node.defaults import ResolvedSettings
from autotune.records import AttentionKind, LayerAttention, LayerShape, ModelShape

_ONLINE_WIDTH: Mapping[str, float] = {"fp8": 0.5, "fp8_per_tensor": 0.5, "bitsandbytes": 0.28}
"""Share of the 16-bit bytes that stays when vLLM quantises a 16-bit checkpoint while loading it; 4-bit
bitsandbytes keeps a scale per 64 weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCost:
    """Layers that look back equally far, together.

    Attributes:
        window: tokens they look back; None for all.
        pair_flops: per (query, key) pair of a prompt.
        context_flops: per token of context of a decoding request; 0 where reading it takes far longer than that.
        kv_bytes: read per token of context.
    """

    window: int | None
    pair_flops: float
    context_flops: float
    kv_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCost:
    """The routed experts of the stage's MoE layers.

    Attributes:
        layers: MoE layers of the stage; a fraction where they do not divide.
        flops: of one token in one whole expert of one layer.
        expert_bytes: of one whole expert of one layer.
        ranks: GPUs that hold the experts together: TP x DP.
        dealt: each GPU holds whole experts (expert parallel) rather than a slice of each.
    """

    count: int
    per_token: int
    layers: float
    flops: float
    expert_bytes: float
    ranks: int
    dealt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """One GPU of the mean stage.

    Attributes:
        flops_per_token: matrix work of an input token outside attention and routed experts.
        flops_per_output: the output head's, of an emitted token, on the last stage.
        weight_bytes: read in every step; routed experts are apart.
        state_bytes: of one sequence, read and written in every step it takes part in.
        layers: of the stage.
        moe_layers, latent_layers: how many of them are MoE or MLA.
        allreduces: collectives of the tensor-parallel group.
        exchanges: MoE layers whose tokens are gathered over the data-parallel ranks and scattered back.
    """

    flops_per_token: float
    flops_per_output: float
    weight_bytes: float
    attention: tuple[AttentionCost, ...]
    experts: ExpertCost | None
    state_bytes: float
    layers: float
    moe_layers: float
    latent_layers: float
    allreduces: float
    exchanges: float


def in_lock_step(shape: ModelShape, settings: ResolvedSettings) -> bool:
    """Whether the data-parallel ranks share their MoE layers, so that a step of one is a step of all."""
    return shape.experts is not None and settings.data_parallel > 1


def stage_costs(shape: ModelShape, settings: ResolvedSettings) -> StageCosts:
    """Costs on one GPU; a stage of several pipeline stages is stretched to the one with the most layers."""
    return _layered(shape, settings) if shape.decoder else _alike(shape, settings)


def _alike(shape: ModelShape, s: ResolvedSettings) -> StageCosts:
    """A plain dense decoder: every layer the same, one kind of attention."""
    tp, pp = s.tensor_parallel, s.pipeline_parallel
    share = tp * pp
    stretch = _stretch(shape, pp)
    embedding = shape.vocab_size * shape.hidden_size
    parameters = shape.parameters - shape.other_bytes / 2
    body = parameters - embedding * (1 if shape.tie_word_embeddings else 2)
    if shape.quantization is None:
        # The input embedding is a look-up: it is neither multiplied nor read as a whole.
        width = _online_width(shape, s)
        read_bytes = (shape.weight_bytes - shape.other_bytes) * (body * width + embedding) / parameters
    else:
        read_bytes = shape.weight_bytes - shape.other_bytes - (0 if shape.tie_word_embeddings else 2 * embedding)
    attention = AttentionCost(
        window=None,
        pair_flops=4.0 * shape.layers * shape.heads * shape.head_dim / share * stretch,
        context_flops=0.0,
        kv_bytes=shape.kv_bytes_per_token * kv_width(s) / (min(tp, shape.kv_heads) * pp) * stretch,
    )
    return StageCosts(
        flops_per_token=2.0 * body / share * stretch,
        flops_per_output=2.0 * embedding / tp,
        weight_bytes=read_bytes / share * stretch,
        attention=(attention,),
        experts=None,
        state_bytes=0.0,
        layers=shape.layers / pp,
        moe_layers=0.0,
        latent_layers=0.0,
        allreduces=2 * shape.layers / pp if tp > 1 else 0.0,
        exchanges=0.0,
    )


def _layered(shape: ModelShape, s: ResolvedSettings) -> StageCosts:
    """A decoder given layer by layer."""
    tp, pp = s.tensor_parallel, s.pipeline_parallel
    stretch = _stretch(shape, pp)
    layers = shape.decoder
    moe = [layer for layer in layers if layer.expert_bytes] if shape.experts is not None else []
    width = _online_width(shape, s)
    embedding = shape.vocab_size * shape.hidden_size
    replicated_bytes = sum(layer.replicated_bytes for layer in layers)
    active = sum(layer.active_parameters for layer in layers) - _routed_per_token(shape, moe)
    replicated = min(float(active), replicated_bytes / (shape.weight_bits / 8))
    split_bytes = sum(layer.split_bytes for layer in layers)
    weights = (split_bytes / tp + replicated_bytes) * width + 2 * embedding / tp
    return StageCosts(
        flops_per_token=2.0 * ((active - replicated) / tp + replicated) / pp * stretch,
        flops_per_output=2.0 * embedding / tp,
        weight_bytes=weights / pp * stretch,
        attention=_attention(shape, s, stretch),
        experts=_experts(shape, s, moe, width * stretch, stretch) if moe else None,
        state_bytes=sum(layer.attention.state_bytes for layer in layers) / (tp * pp) * stretch,
        layers=len(layers) / pp,
        moe_layers=len(moe) / pp,
        latent_layers=sum(layer.attention.kind is AttentionKind.LATENT for layer in layers) / pp,
        allreduces=(2 * len(layers) - (len(moe) if in_lock_step(shape, s) else 0)) / pp if tp > 1 else 0.0,
        exchanges=len(moe) / pp if in_lock_step(shape, s) else 0.0,
    )


def _attention(shape: ModelShape, s: ResolvedSettings, stretch: float) -> tuple[AttentionCost, ...]:
    tp, pp = s.tensor_parallel, s.pipeline_parallel
    sums: dict[int | None, list[float]] = {}
    for layer in shape.decoder:
        a = layer.attention
        if a.kind is AttentionKind.STATE:
            continue
        group = sums.setdefault(a.window if a.kind is AttentionKind.SLIDING else None, [0.0, 0.0, 0.0])
        group[0] += 4.0 * shape.heads * _query_dim(shape, a) / (tp * pp) * stretch
        group[1] += _context_flops(shape, a) / (tp * pp) * stretch
        # One latent vector serves all heads: every GPU of the group reads it whole.
        split = 1 if a.kind is AttentionKind.LATENT else min(tp, a.kv_heads)
        group[2] += 2 * a.kv_values_per_token * kv_width(s) / (split * pp) * stretch
    return tuple(
        AttentionCost(window=window, pair_flops=pair, context_flops=context, kv_bytes=kv)
        for window, (pair, context, kv) in sums.items()
    )


def _query_dim(shape: ModelShape, attention: LayerAttention) -> int:
    # MLA's prompts are computed with the heads decompressed; the latent's size says nothing about them.
    return shape.head_dim if attention.kind is AttentionKind.LATENT else attention.head_dim


def _context_flops(shape: ModelShape, attention: LayerAttention) -> float:
    # Absorbed MLA multiplies each head's query with the latent: about 240 FLOPs per byte read, as much as a GPU can
    # do while it reads. Grouped-query attention does 2 x heads / KV heads, which reading always hides.
    return 4.0 * shape.heads * attention.head_dim if attention.kind is AttentionKind.LATENT else 0.0


def _experts(
    shape: ModelShape, s: ResolvedSettings, moe: list[LayerShape], byte_factor: float, stretch: float
) -> ExpertCost:
    experts = shape.experts
    assert experts is not None  # `moe` is empty without
    return ExpertCost(
        count=experts.count,
        per_token=experts.per_token,
        layers=len(moe) / s.pipeline_parallel,
        flops=2.0 * _one_expert(shape, moe[0]) * stretch,
        expert_bytes=sum(layer.expert_bytes for layer in moe) / len(moe) / experts.count * byte_factor,
        ranks=s.tensor_parallel * s.data_parallel,
        dealt=s.expert_parallel,
    )


def _routed_per_token(shape: ModelShape, moe: list[LayerShape]) -> float:
    if shape.experts is None:
        return 0.0
    return sum(_one_expert(shape, layer) * shape.experts.per_token for layer in moe)


def _one_expert(shape: ModelShape, layer: LayerShape) -> float:
    """Parameters of one routed expert: what all of them add to one token's own."""
    experts = shape.experts
    assert experts is not None  # asked of MoE layers only
    if experts.count > experts.per_token:
        return (layer.parameters - layer.active_parameters) / (experts.count - experts.per_token)
    return 3.0 * shape.hidden_size * experts.intermediate_size


def kv_width(settings: ResolvedSettings) -> float:
    """Size of a stored K or V number, relative to 16 bit."""
    return 0.5 if settings.kv_cache_dtype.startswith("fp8") else 1.0


def _online_width(shape: ModelShape, settings: ResolvedSettings) -> float:
    if shape.quantization is not None or settings.quantization is None:
        return 1.0
    return _ONLINE_WIDTH.get(settings.quantization, 1.0)


def _stretch(shape: ModelShape, stages: int) -> float:
    """The stage with the most layers, relative to the mean: it sets the pace."""
    if stages == 1 or stages > shape.layers:
        return 1.0
    return math.ceil(shape.layers / stages) * stages / shape.layers
