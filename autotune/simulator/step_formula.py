"""The arithmetic of one step's time, over plain numbers. Pure.

Kept apart from where the numbers come from (`step_time`) because it is used twice: as it stands, and compiled by
`compiled_level`. So it keeps to what numba understands: no objects but `StepNumbers`, no keyword arguments, integers
made floats before they are exponents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

TINY = 1e-300
"""Instead of 0, where nothing is divided."""


class StepNumbers(NamedTuple):
    """What the step time of one engine replica depends on, apart from the step.

    A named tuple and not a frozen dataclass, because compiled code takes it as it is. Sequences are tuples here and
    arrays in compiled code.

    Attributes:
        flops_per_token: matrix work of an input token outside attention and experts, in 16-bit FLOPs.
        flops_per_output: of an emitted token, on the last stage.
        weights_s: reading the weights.
        state_s: reading and writing one sequence's state.
        windows: per kind of attention, tokens it looks back; 0 for all.
        pair_flops, context_flops, kv_token_s: per kind, FLOPs of a (query, key) pair and of a token of a decoding
            request's context, and seconds of reading one token's KV.
        expert_count: 0 without experts.
        expert_ranks: GPUs that hold them together.
        expert_miss: probability that one token does not go to a given expert.
        busiest: by number of hit experts, those on the GPU with most of them; empty where each GPU holds a slice.
        expert_flops: of one row in one expert of every layer; `expert_read_s`: reading it.
        expert_token_flops: of one token on one GPU.
        allreduces, exchanges: collectives of the step; an exchange waits twice.
        stages: pipeline stages.
        hop_token_s: one token's hidden state to the next stage.
        step_s: of every step, whatever is in it.
        padding: by tokens of the batch, padding that finer graphs save.
        drafted: tokens drafted ahead of each decoding one.
        tokens_per_draft: what a verified draft yields; 1 without.
    """

    flops_per_token: float
    flops_per_output: float
    half_tokens: float
    peak_flops: float
    compute_share: float
    sustained_compute_share: float
    attention_compute_share: float
    overlap_norm: float
    weights_s: float
    state_s: float
    windows: Sequence[int]
    pair_flops: Sequence[float]
    context_flops: Sequence[float]
    kv_token_s: Sequence[float]
    expert_count: int
    expert_per_token: int
    expert_ranks: int
    expert_miss: float
    expert_tile: float
    expert_skew: float
    expert_flops: float
    expert_read_s: float
    expert_token_flops: float
    busiest: Sequence[float]
    allreduces: float
    allreduce_latency_s: float
    allreduce_token_s: float
    exchanges: float
    exchange_latency_s: float
    exchange_token_s: float
    stages: int
    hop_token_s: float
    step_s: float
    sequence_s: float
    prefill_overhead_s: float
    eager: bool
    eager_floor_s: float
    eager_overhead_s: float
    graph_tokens: int
    uncaptured_floor_s: float
    padding: Sequence[int]
    drafted: int
    tokens_per_draft: float


def stage_seconds(
    n: StepNumbers,
    decoding: int,
    decode_context: int,
    finished_prefill: int,
    prefill_tokens: int,
    prefill_chunks: int,
    prefill_pairs: int,
    prefill_context: int,
    heat: float,
    group_tokens: int,
) -> float:
    """GPU time of a step on one pipeline stage, without noise; the step's figures are those of `StepPlan`.

    Args:
        heat: 0 cold, 1 fully throttled.
        group_tokens: input tokens of the step on all ranks that share MoE layers with this one.
    """
    emitting = decoding + finished_prefill
    planned = decoding + prefill_tokens
    share = n.compute_share + (n.sustained_compute_share - n.compute_share) * heat
    drafted = 0 if prefill_tokens > 0 else n.drafted
    tokens = planned + drafted * decoding
    saved = n.padding[tokens] if tokens < len(n.padding) else 0
    # One stage of several carries the head; the mean over stages decides the pace of a full pipeline.
    matmul_flops = (tokens + n.half_tokens - saved) * n.flops_per_token + emitting * n.flops_per_output / n.stages
    compute_s = matmul_flops / (n.peak_flops * share)
    memory_s = n.weights_s + emitting * n.state_s
    for kind in range(len(n.windows)):
        window = n.windows[kind]
        decode, prefill, pairs = decode_context, prefill_context, prefill_pairs
        if window > 0:
            decode = min(decode, decoding * window)
            prefill = min(prefill, prefill_chunks * window + prefill_tokens)
            pairs = min(pairs, prefill_tokens * window)
        flops = pairs * n.pair_flops[kind] + decode * n.context_flops[kind]
        compute_s += flops / (n.peak_flops * n.attention_compute_share)
        memory_s += (decode + prefill) * n.kv_token_s[kind]
    together = group_tokens + tokens - planned
    if n.expert_count > 0:
        # n tokens hit a given expert with probability 1 - (1 - k/E)^n.
        hit = n.expert_count * (1.0 - n.expert_miss ** float(together))
        most = hit / n.expert_ranks
        rows = together * n.expert_per_token / n.expert_ranks
        if len(n.busiest) > 0:
            # Of experts that are dealt out whole, the GPU that holds most of the hit ones sets the pace: with few
            # tokens that is far more than the mean. Between two whole numbers of hit experts it is interpolated.
            below = int(hit)
            most = n.busiest[below] + (hit - below) * (n.busiest[min(below + 1, n.expert_count)] - n.busiest[below])
            rows = together * n.expert_per_token * (n.expert_skew * most / max(hit, TINY))
        compute_s += (rows + most * n.expert_tile) * n.expert_flops / (n.peak_flops * share)
        memory_s += most * n.expert_read_s
    p = n.overlap_norm
    total: float = (compute_s**p + memory_s**p) ** (1.0 / p)
    total += n.allreduces * (n.allreduce_latency_s + tokens * n.allreduce_token_s)
    total += n.exchanges * (2 * n.exchange_latency_s + together * n.exchange_token_s)
    total += n.step_s + n.sequence_s * emitting + tokens * n.hop_token_s
    if prefill_tokens > 0:
        total += n.prefill_overhead_s
    if n.eager:
        total = max(total, n.eager_floor_s) + n.eager_overhead_s
    elif tokens > n.graph_tokens:
        total = max(total, n.uncaptured_floor_s)
    return total / n.tokens_per_draft if drafted > 0 else total


def busy_share(n: StepNumbers, tokens: int, emitting: int, stage_s: float) -> float:
    """Share of `stage_s` in which the matrix units are busy, 0..1: what heats the GPU."""
    flops = tokens * (n.flops_per_token + n.expert_token_flops) + emitting * n.flops_per_output / n.stages
    return min(1.0, flops / (n.peak_flops * n.sustained_compute_share) / stage_s)
