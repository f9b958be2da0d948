"""How long one engine step takes: a roofline over what the step computes, reads and sends. Pure.

The coefficients are in `coefficients`, with what they were fitted to.

Assumed, checked by nothing but arithmetic and published orders of magnitude: everything about PCIe, about more than two
GPUs, about mixtures of experts, MLA and quantised weights, the time that planning costs without
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
from autotune.simulator.stage_costs import ExpertCost, StageCosts, stage_costs
from autotune.simulator.step_formula import StepNumbers, busy_share, stage_seconds
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
        kv_rate = gpu.memory_bytes_per_s * c.kv_read_share
        allreduce = _Collective.of(wire, s.tensor_parallel, shape.hidden_size, c)
        exchange = _Collective.of(outer, s.tensor_parallel * s.data_parallel, shape.hidden_size, c)
        experts = _Experts.of(costs.experts, widened, gpu.memory_bytes_per_s, c)
        whole = max(1.0, shape.layers / c.fitted_layers) / s.pipeline_parallel
        drafted = s.speculative_tokens if c.draft_acceptance > 0.0 else 0
        self.numbers = StepNumbers(
            flops_per_token=costs.flops_per_token * widened,
            flops_per_output=costs.flops_per_output,
            half_tokens=c.tile_tokens if widened > 1.0 else c.half_tokens,
            peak_flops=gpu.bf16_flops,
            compute_share=c.compute_share,
            sustained_compute_share=c.sustained_compute_share,
            attention_compute_share=c.attention_compute_share,
            overlap_norm=c.overlap_norm,
            weights_s=costs.weight_bytes / (gpu.memory_bytes_per_s * c.weight_read_share),
            state_s=2 * costs.state_bytes / kv_rate,
            windows=tuple(cost.window or 0 for cost in costs.attention),
            pair_flops=tuple(cost.pair_flops for cost in costs.attention),
            context_flops=tuple(cost.context_flops for cost in costs.attention),
            kv_token_s=tuple(cost.kv_bytes / kv_rate for cost in costs.attention),
            expert_count=experts.count,
            expert_per_token=experts.per_token,
            expert_ranks=experts.ranks,
            expert_miss=experts.miss,
            expert_tile=c.tile_tokens,
            expert_skew=1.0 + c.expert_skew_share,
            expert_flops=experts.flops,
            expert_read_s=experts.read_s,
            expert_token_flops=experts.token_flops,
            busiest=experts.busiest,
            allreduces=costs.allreduces,
            allreduce_latency_s=allreduce.latency_s,
            allreduce_token_s=allreduce.token_s,
            exchanges=costs.exchanges,
            exchange_latency_s=exchange.latency_s,
            exchange_token_s=exchange.token_s,
            stages=s.pipeline_parallel,
            hop_token_s=_hop_token_s(outer, s, shape, c),
            step_s=_fixed_s(costs, s, c),
            sequence_s=c.sequence_s,
            prefill_overhead_s=c.prefill_overhead_s,
            eager=s.enforce_eager,
            eager_floor_s=c.eager_floor_s * whole,
            eager_overhead_s=c.eager_overhead_s,
            graph_tokens=s.max_cudagraph_capture_size or min(c.graph_tokens, 2 * s.max_num_seqs),
            uncaptured_floor_s=c.uncaptured_floor_s * whole,
            padding=padding(s),
            drafted=drafted,
            tokens_per_draft=_tokens_per_step(drafted, c.draft_acceptance) if drafted else 1.0,
        )

    def stage_s(self, plan: StepPlan, *, heat: float = 0.0, group_tokens: int | None = None) -> float:
        """GPU time of `plan` on one pipeline stage, without noise.

        Args:
            heat: 0 cold, 1 fully throttled.
            group_tokens: input tokens of the same step on all data-parallel ranks that share MoE layers with this
                one; its own when None.
        """
        return stage_seconds(
            self.numbers,
            len(plan.decoding),
            plan.decode_context,
            len(plan.finished_prefill),
            plan.prefill_tokens,
            plan.prefill_chunks,
            plan.prefill_pairs,
            plan.prefill_context,
            heat,
            plan.tokens if group_tokens is None else group_tokens,
        )

    def busy_share(self, plan: StepPlan, stage_s: float) -> float:
        """Share of `stage_s` in which the matrix units are busy, 0..1: what heats the GPU."""
        return busy_share(self.numbers, plan.tokens, plan.emitting, stage_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Experts:
    """The routed experts of a stage in time and 16-bit FLOPs; `StepNumbers` says what is what."""

    count: int = 0
    per_token: int = 0
    ranks: int = 1
    miss: float = 1.0
    flops: float = 0.0
    read_s: float = 0.0
    token_flops: float = 0.0
    busiest: tuple[float, ...] = ()

    @classmethod
    def of(cls, cost: ExpertCost | None, widened: float, bandwidth: float, c: Coefficients) -> _Experts:
        if cost is None:
            return cls()
        return cls(
            count=cost.count,
            per_token=cost.per_token,
            ranks=cost.ranks,
            miss=1.0 - cost.per_token / cost.count,
            flops=cost.layers * cost.flops * widened / c.expert_share,
            read_s=cost.layers * cost.expert_bytes / (bandwidth * c.weight_read_share * c.expert_share),
            token_flops=cost.layers * cost.per_token * cost.flops * widened / cost.ranks,
            busiest=busiest_rank(cost.count, cost.ranks) if cost.dealt and cost.ranks > 1 else (),
        )


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


def _fixed_s(costs: StageCosts, settings: ResolvedSettings, c: Coefficients) -> float:
    """What every step costs, whatever is in it."""
    seconds: float = c.step_overhead_s * max(1.0, costs.layers / c.fitted_layers)
    seconds += c.rank_overhead_s * (settings.tensor_parallel - 1)
    seconds += c.moe_layer_s * costs.moe_layers + c.latent_layer_s * costs.latent_layers
    seconds += c.stage_overhead_s if settings.pipeline_parallel > 1 else 0.0
    return seconds + (c.lock_step_s if costs.exchanges else 0.0)


def _hop_token_s(wire: Wire, settings: ResolvedSettings, shape: ModelShape, c: Coefficients) -> float:
    """Sending one token's hidden state to the next pipeline stage; TP ranks send a slice each."""
    if settings.pipeline_parallel == 1 or wire.link is Link.NONE:
        return 0.0
    rate = c.hop_nvlink_bytes_per_s if wire.link is Link.NVLINK else c.hop_pcie_bytes_per_s
    return 2 * shape.hidden_size / settings.tensor_parallel / rate


def _tokens_per_step(drafted: int, acceptance: float) -> float:
    """Mean tokens that one verified draft yields: 1 + a + a^2 + ... (Leviathan et al. 2023, equation 1)."""
    return float(drafted + 1) if acceptance >= 1.0 else (1.0 - acceptance ** (drafted + 1)) / (1.0 - acceptance)
