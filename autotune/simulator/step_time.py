"""How long one engine step takes: a roofline over what the step computes, reads and sends. Pure.

The coefficients are in `coefficients`, with what they were fitted to.

Assumed, checked by nothing but arithmetic and published orders of magnitude: everything about PCIe, about more than two
GPUs, about pipeline stages, about mixtures of experts, MLA and quantised weights, the time that planning costs without
asynchronous scheduling, and that launch times grow with the layers beyond the 32 of the fitted model. In particular

* experts are hit as by chance, with `expert_skew_share` more on the busiest GPU; the weights of every expert that a
  step's tokens hit are read once;
* between data-parallel ranks the tokens of an MoE layer are gathered and scattered back (vLLM's default backend); it
  moves what an all-reduce of them would and waits twice;
* fp8 weights compute at the card's fp8 peak where it has one; all other quantised weights are widened to 16 bit first;
* a sliding window cuts the mean context of the batch, not each request's own;
* drafting by n-gram look-up finds nothing in the made-up text of synthetic prompts (`draft_acceptance`).
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.node.defaults import ResolvedSettings
from autotune.records import FP8_CAPABILITY, Gpu, Link, ModelShape
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.dealt_experts import busiest_rank
from autotune.simulator.graph_sizes import padding
from autotune.simulator.scheduler import StepPlan
from autotune.simulator.stage_costs import AttentionCost, ExpertCost, stage_costs
from autotune.simulator.wiring import Wire

FP8_METHODS = frozenset({"fp8", "fp8_per_tensor", "fbgemm_fp8", "modelopt", "compressed-tensors", "quark"})
"""Words for weights that are multiplied in fp8 (or int8) when they have 8 bits."""


class StepTimer:
    """Step times of one engine replica.

    Args:
        gpu: one of the replica's GPUs; they are alike.
        link: between the GPUs of a tensor-parallel group; a bare link stays within one socket.
        around: between all GPUs of the replica and of those in lock-step with it; the same when None.

    Raises:
        ValueError: the GPU's peaks are unknown, so nothing can be predicted for it.
    """

    def __init__(
        self,
        gpu: Gpu,
        link: Link | Wire,
        shape: ModelShape,
        settings: ResolvedSettings,
        coefficients: Coefficients,
        *,
        around: Wire | None = None,
    ) -> None:
        if gpu.bf16_flops is None or gpu.memory_bytes_per_s is None:
            raise ValueError(f"the peak figures of {gpu.name} are not known; step times cannot be predicted for it")
        c, s = coefficients, settings
        wire = link if isinstance(link, Wire) else Wire(link=link)
        outer = around or wire
        costs = stage_costs(shape, s)
        widened = _sixteen_bit_flops(gpu, shape, s, c)
        bandwidth = gpu.memory_bytes_per_s
        self._flops_per_token = costs.flops_per_token * widened
        self._flops_per_output = costs.flops_per_output
        self._half_tokens = c.tile_tokens if widened > 1.0 else c.half_tokens
        self._peak_flops = gpu.bf16_flops
        self._weights_s = costs.weight_bytes / (bandwidth * c.weight_read_share)
        self._attention = tuple(_TimedAttention(cost, bandwidth * c.kv_read_share) for cost in costs.attention)
        self._state_s = 2 * costs.state_bytes / (bandwidth * c.kv_read_share)
        self._experts = None if costs.experts is None else _TimedExperts(costs.experts, widened, bandwidth, c)
        self._allreduces = costs.allreduces
        self._exchanges = costs.exchanges
        self._allreduce = _Collective.of(wire, s.tensor_parallel, shape.hidden_size, c)
        self._exchange = _Collective.of(outer, s.tensor_parallel * s.data_parallel, shape.hidden_size, c)
        self._stages = s.pipeline_parallel
        self._hop_token_s = _hop_token_s(outer, s, shape, c)
        deep = max(1.0, costs.layers / c.fitted_layers)
        self._step_s = c.step_overhead_s * deep + c.rank_overhead_s * (s.tensor_parallel - 1)
        self._step_s += c.moe_layer_s * costs.moe_layers + c.latent_layer_s * costs.latent_layers
        self._step_s += c.stage_overhead_s if self._stages > 1 else 0.0
        self._step_s += c.lock_step_s if costs.exchanges else 0.0
        whole = max(1.0, shape.layers / c.fitted_layers) / self._stages
        self._uncaptured_floor_s = c.uncaptured_floor_s * whole
        self._eager_floor_s = c.eager_floor_s * whole
        self._graph_tokens = s.max_cudagraph_capture_size or min(c.graph_tokens, 2 * s.max_num_seqs)
        self._eager = s.enforce_eager
        self._padding = padding(s)
        self._drafted = s.speculative_tokens if c.draft_acceptance > 0.0 else 0
        self._c = c

    def stage_s(self, plan: StepPlan, *, heat: float = 0.0, group_tokens: int | None = None) -> float:
        """GPU time of `plan` on one pipeline stage, without noise.

        Args:
            heat: 0 cold, 1 fully throttled.
            group_tokens: input tokens of the same step on all data-parallel ranks that share MoE layers with this
                one; its own when None.
        """
        c = self._c
        emitting = plan.emitting
        share = c.compute_share + (c.sustained_compute_share - c.compute_share) * heat
        drafted = 0 if plan.prefill_tokens else self._drafted
        tokens = plan.tokens + drafted * len(plan.decoding)
        saved = self._padding[tokens] if tokens < len(self._padding) else 0
        # One stage of several carries the head; the mean over stages decides the pace of a full pipeline.
        matmul_flops = (
            tokens + self._half_tokens - saved
        ) * self._flops_per_token + emitting * self._flops_per_output / self._stages
        compute_s = matmul_flops / (self._peak_flops * share)
        memory_s = self._weights_s + emitting * self._state_s
        for attention in self._attention:
            flops, read_s = attention.of(plan)
            compute_s += flops / (self._peak_flops * c.attention_compute_share)
            memory_s += read_s
        together = tokens if group_tokens is None else group_tokens + tokens - plan.tokens
        if self._experts is not None:
            flops, read_s = self._experts.of(together)
            compute_s += flops / (self._peak_flops * share)
            memory_s += read_s
        p = c.overlap_norm
        total: float = (compute_s**p + memory_s**p) ** (1.0 / p)
        total += self._allreduces * (self._allreduce.latency_s + tokens * self._allreduce.token_s)
        if self._exchanges:
            total += self._exchanges * (2 * self._exchange.latency_s + together * self._exchange.token_s)
        total += self._step_s + c.sequence_s * emitting + tokens * self._hop_token_s
        if plan.prefill_tokens:
            total += c.prefill_overhead_s
        if self._eager:
            total = max(total, self._eager_floor_s) + c.eager_overhead_s
        elif tokens > self._graph_tokens:
            total = max(total, self._uncaptured_floor_s)
        return total / _tokens_per_step(drafted, c.draft_acceptance) if drafted else total

    def busy_share(self, plan: StepPlan, stage_s: float) -> float:
        """Share of `stage_s` in which the matrix units are busy, 0..1: what heats the GPU."""
        flops = plan.tokens * self._flops_per_token + plan.emitting * self._flops_per_output / self._stages
        if self._experts is not None:
            flops += plan.tokens * self._experts.flops_per_token
        return min(1.0, flops / (self._peak_flops * self._c.sustained_compute_share) / stage_s)


class _TimedAttention:
    """One kind of attention: FLOPs of a step, and seconds of reading KV."""

    __slots__ = ("_context_flops", "_kv_token_s", "_pair_flops", "_window")

    def __init__(self, cost: AttentionCost, bytes_per_s: float) -> None:
        self._window = cost.window
        self._pair_flops, self._context_flops = cost.pair_flops, cost.context_flops
        self._kv_token_s = cost.kv_bytes / bytes_per_s

    def of(self, plan: StepPlan) -> tuple[float, float]:
        decode: float = plan.decode_context
        prefill: float = plan.prefill_context
        pairs: float = plan.prefill_pairs
        if self._window is not None:
            decode = min(decode, len(plan.decoding) * self._window)
            prefill = min(prefill, plan.prefill_chunks * self._window + plan.prefill_tokens)
            pairs = min(pairs, plan.prefill_tokens * self._window)
        return pairs * self._pair_flops + decode * self._context_flops, (decode + prefill) * self._kv_token_s


class _TimedExperts:
    """The routed experts of a stage: FLOPs of a step on the busiest GPU, and seconds of reading weights.

    n tokens hit a given expert with probability 1 - (1 - k/E)^n; each hit expert pays `tile_tokens` like any small
    batch of matrix work. Of experts that are dealt out whole, the GPU that holds most of the hit ones sets the pace:
    with few tokens that is far more than the mean.
    """

    __slots__ = ("_busiest", "_cost", "_miss", "_read_s", "_scale", "_skew", "_tile", "flops_per_token")

    def __init__(self, cost: ExpertCost, widened: float, bandwidth: float, c: Coefficients) -> None:
        self._cost = cost
        self._miss = 1.0 - cost.per_token / cost.count
        self._tile = c.tile_tokens
        self._skew = 1.0 + c.expert_skew_share
        self._busiest = busiest_rank(cost.count, cost.ranks) if cost.dealt and cost.ranks > 1 else ()
        self._scale = cost.layers * cost.flops * widened / c.expert_share
        self._read_s = cost.layers * cost.expert_bytes / (bandwidth * c.weight_read_share * c.expert_share)
        self.flops_per_token = cost.layers * cost.per_token * cost.flops * widened / cost.ranks

    def of(self, tokens: int) -> tuple[float, float]:
        cost = self._cost
        hit = cost.count * (1.0 - self._miss**tokens)
        rows = float(tokens * cost.per_token)
        if not self._busiest:
            share = 1.0 / cost.ranks
            return (rows + hit * self._tile) * share * self._scale, hit * share * self._read_s
        below = int(hit)
        most: float = self._busiest[below]
        if below < cost.count:
            most += (hit - below) * (self._busiest[below + 1] - most)
        rows *= self._skew * most / hit if hit else 0.0
        return (rows + most * self._tile) * self._scale, most * self._read_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Collective:
    """One all-reduce of a group: a latency, and seconds per token of hidden state."""

    latency_s: float
    token_s: float

    @classmethod
    def of(cls, wire: Wire, ranks: int, hidden_size: int, c: Coefficients) -> _Collective:
        if ranks < 2:
            return cls(latency_s=0.0, token_s=0.0)
        if wire.link is Link.NVLINK:
            latency, rate, more, contention = (
                c.allreduce_latency_s, c.nvlink_bytes_per_s, c.nvlink_rank_share, 0.0,
            )  # fmt: skip
        else:
            latency, rate, more, contention = (
                c.allreduce_pcie_latency_s, c.pcie_bytes_per_s, c.pcie_rank_share, c.pcie_contention_share,
            )  # fmt: skip
        factor = c.socket_factor if wire.across_sockets else 1.0
        # A ring moves 2(n-1)/n of the payload; the rate is stated for two GPUs, where that factor is 1.
        payload = 2 * (ranks - 1) / ranks * hidden_size * 2
        return cls(
            latency_s=latency * (1.0 + more * (ranks - 2)) * factor,
            token_s=payload / rate * (1.0 + contention * (ranks - 2)) * factor,
        )


def _sixteen_bit_flops(gpu: Gpu, shape: ModelShape, settings: ResolvedSettings, c: Coefficients) -> float:
    """16-bit FLOPs that take as long as one FLOP with the layers' own weights; 1 for 16-bit weights."""
    if settings.quantization is None:
        return 1.0
    # A 16-bit checkpoint that is quantised while it is loaded still says 16.
    bits = shape.weight_bits if shape.quantization is not None else 8
    has_fp8 = gpu.compute_capability is not None and gpu.compute_capability >= FP8_CAPABILITY
    if settings.quantization in FP8_METHODS and bits == 8 and has_fp8 and gpu.fp8_flops and gpu.bf16_flops:
        return gpu.bf16_flops / (gpu.fp8_flops * c.fp8_share)
    return 1.0 / c.dequantised_share


def _hop_token_s(wire: Wire, settings: ResolvedSettings, shape: ModelShape, c: Coefficients) -> float:
    """Sending one token's hidden state to the next pipeline stage; TP ranks send a slice each."""
    if settings.pipeline_parallel == 1 or wire.link is Link.NONE:
        return 0.0
    rate = c.hop_nvlink_bytes_per_s if wire.link is Link.NVLINK else c.hop_pcie_bytes_per_s
    return 2 * shape.hidden_size / settings.tensor_parallel / rate


def _tokens_per_step(drafted: int, acceptance: float) -> float:
    """Mean tokens that one verified draft yields: 1 + a + a^2 + ... (Leviathan et al. 2023, equation 1)."""
    return float(drafted + 1) if acceptance >= 1.0 else (1.0 - acceptance ** (drafted + 1)) / (1.0 - acceptance)
