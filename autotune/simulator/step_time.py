"""How long one engine step takes: a roofline over what the step computes and reads. Pure.

The coefficients were fitted to one NVIDIA H200 running vLLM 0.25.1 (V1 engine, FlashAttention 3, CUDA graphs, async
scheduling) with a Llama-3.1-8B shape in bf16; tests/data/h200 holds the measurements. Shares are of the vendor's dense
peaks, so that they carry over to other GPUs; seconds are of one CPU core of that machine.

The errors that `benchmarks/simulator.py` prints on those rows are in-sample. Not fitted: the all-reduce over NVLink is
from measurements on two such GPUs; PCIe and `stage_overhead_s` are assumptions that nothing has checked yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.node.defaults import ResolvedSettings
from autotune.records import Gpu, Link, ModelShape
from autotune.simulator.scheduler import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """What a roofline does not know. Units are in the names; shares are 0..1 of a peak.

    Attributes:
        compute_share: of peak matrix throughput while the GPU is cold.
        sustained_compute_share: the same when power has throttled the clock; reached with `heat_tau_s`.
        half_tokens: batch at which matrix work runs at half of that share: small batches fill the tiles badly.
        attention_compute_share: of peak matrix throughput in prefill attention.
        weight_read_share: of peak memory bandwidth when reading weights.
        kv_read_share: of peak memory bandwidth when reading KV blocks.
        overlap_norm: p of the norm that joins compute and memory time: 1 adds them, infinity takes the longer. Adding
            them was measured 9 points worse.
        heat_tau_s: time constant of the throttling.
        step_overhead_s: launch and synchronisation of a step with CUDA graphs.
        prefill_overhead_s: more for a step that holds prompt tokens (no full graph, sampling of first tokens).
        engine_cpu_s: planning one step; overlaps the GPU under async scheduling.
        sequence_s: per emitting sequence and step (sampling, block tables).
        graph_tokens: largest batch that CUDA graphs are captured for; also at most twice `max_num_seqs`.
        uncaptured_floor_s: kernel launches of a larger batch; GPU work hides behind them.
        eager_floor_s: kernel launches of one step without CUDA graphs; GPU work hides behind it.
        eager_overhead_s: what stays visible on top of the floor or of the GPU work.
        allreduce_latency_s: one all-reduce over NVLink, any size.
        allreduce_pcie_latency_s: one all-reduce over PCIe.
        nvlink_bytes_per_s: payload rate of an all-reduce over NVLink.
        pcie_bytes_per_s: the same over PCIe.
        stage_overhead_s: per pipeline stage and micro-batch, sending activations included.
        api_request_s: API-server core time per request in: HTTP, validation, chat template.
        api_prompt_token_s: API-server core time per prompt token: tokenizing.
        api_token_s: API-server core time per output token: detokenizing.
        api_chunk_s: API-server core time per streamed chunk: JSON and socket.
        api_in_latency_s: from the API server to the engine; occupies nothing.
        api_out_latency_s: from the engine to the API server; occupies nothing.
        step_noise: relative standard deviation of one step's time.
        run_noise: relative standard deviation of all step times of a load level together.
    """

    compute_share: float = 0.61
    sustained_compute_share: float = 0.594
    half_tokens: float = 54.0
    attention_compute_share: float = 0.70
    weight_read_share: float = 0.74
    kv_read_share: float = 0.92
    overlap_norm: float = 2.75
    heat_tau_s: float = 1.4
    step_overhead_s: float = 0.6e-3
    prefill_overhead_s: float = 1.6e-3
    engine_cpu_s: float = 2.1e-3
    sequence_s: float = 11e-6
    graph_tokens: int = 512
    uncaptured_floor_s: float = 18e-3
    eager_floor_s: float = 15.1e-3
    eager_overhead_s: float = 1.8e-3
    allreduce_latency_s: float = 44e-6
    allreduce_pcie_latency_s: float = 90e-6
    nvlink_bytes_per_s: float = 220e9
    pcie_bytes_per_s: float = 18e9
    stage_overhead_s: float = 1.5e-3
    api_request_s: float = 1.3e-3
    api_prompt_token_s: float = 1.0e-6
    api_token_s: float = 26.7e-6
    api_chunk_s: float = 102e-6
    api_in_latency_s: float = 8.0e-3
    api_out_latency_s: float = 1.5e-3
    step_noise: float = 0.02
    run_noise: float = 0.004


class StepTimer:
    """Step times of one engine replica.

    Args:
        gpu: one of the replica's GPUs; they are alike.
        link: between them; used when TP > 1.

    Raises:
        ValueError: the GPU's peaks are unknown, so nothing can be predicted for it.
    """

    def __init__(
        self, gpu: Gpu, link: Link, shape: ModelShape, settings: ResolvedSettings, coefficients: Coefficients
    ) -> None:
        if gpu.bf16_flops is None or gpu.memory_bytes_per_s is None:
            raise ValueError(f"the peak figures of {gpu.name} are not known; step times cannot be predicted for it")
        c = coefficients
        tp, pp = settings.tensor_parallel, settings.pipeline_parallel
        share = tp * pp
        embedding = shape.vocab_size * shape.hidden_size
        body = shape.parameters - embedding * (1 if shape.tie_word_embeddings else 2)
        # The input embedding is a look-up: it is neither multiplied nor read as a whole.
        read_bytes = shape.weight_bytes * (body + embedding) / shape.parameters
        kv_heads_split = min(tp, shape.kv_heads)  # KV heads are replicated when TP exceeds them
        kv_bytes = shape.kv_bytes_per_token * (0.5 if settings.kv_cache_dtype.startswith("fp8") else 1.0)
        self._flops_per_token = 2.0 * body / share
        self._flops_per_output = 2.0 * embedding / tp  # the head, on the last stage only
        self._flops_per_pair = 4.0 * shape.layers * shape.heads * shape.head_dim / share
        self._peak_flops = gpu.bf16_flops
        self._weights_s = read_bytes / share / (gpu.memory_bytes_per_s * c.weight_read_share)
        self._kv_token_s = kv_bytes / (kv_heads_split * pp) / (gpu.memory_bytes_per_s * c.kv_read_share)
        self._allreduces = 2 * shape.layers / pp if tp > 1 else 0.0
        nvlink = link is Link.NVLINK
        self._allreduce_s = c.allreduce_latency_s if nvlink else c.allreduce_pcie_latency_s
        rate = c.nvlink_bytes_per_s if nvlink else c.pcie_bytes_per_s
        # A ring moves 2(n-1)/n of the payload; the rate is stated for two GPUs, where that factor is 1.
        self._allreduce_token_s = 2 * (tp - 1) / tp * shape.hidden_size * 2 / rate
        self._stages = pp
        self._graph_tokens = min(c.graph_tokens, 2 * settings.max_num_seqs)
        self._eager = settings.enforce_eager
        self._c = c

    def stage_s(self, plan: StepPlan, *, heat: float = 0.0) -> float:
        """GPU time of `plan` on one pipeline stage, without noise.

        Args:
            heat: 0 cold, 1 fully throttled.
        """
        c = self._c
        emitting = plan.emitting
        share = c.compute_share + (c.sustained_compute_share - c.compute_share) * heat
        tokens = plan.tokens
        # One stage of several carries the head; the mean over stages decides the pace of a full pipeline.
        matmul_flops = (
            tokens + c.half_tokens
        ) * self._flops_per_token + emitting * self._flops_per_output / self._stages
        compute_s = matmul_flops / (self._peak_flops * share)
        compute_s += plan.prefill_pairs * self._flops_per_pair / (self._peak_flops * c.attention_compute_share)
        memory_s = self._weights_s + (plan.decode_context + plan.prefill_context) * self._kv_token_s
        p = c.overlap_norm
        total: float = (compute_s**p + memory_s**p) ** (1.0 / p)
        total += self._allreduces * (self._allreduce_s + tokens * self._allreduce_token_s)
        total += c.step_overhead_s + c.sequence_s * emitting
        if plan.prefill_tokens:
            total += c.prefill_overhead_s
        if self._stages > 1:
            total += c.stage_overhead_s
        if self._eager:
            return max(total, c.eager_floor_s) + c.eager_overhead_s
        if tokens > self._graph_tokens:
            total = max(total, c.uncaptured_floor_s / self._stages)
        return total

    def busy_share(self, plan: StepPlan, stage_s: float) -> float:
        """Share of `stage_s` in which the matrix units are busy, 0..1: what heats the GPU."""
        flops = plan.tokens * self._flops_per_token + plan.emitting * self._flops_per_output / self._stages
        return min(1.0, flops / (self._peak_flops * self._c.sustained_compute_share) / stage_s)
