"""The numbers that a roofline does not know, in one record: shares of the data sheets' peaks, and seconds.

Fitted: every coefficient up to `eager_overhead_s` and those of the API server, to one NVIDIA H200 running vLLM 0.25.1
(V1 engine, FlashAttention 3, CUDA graphs, async scheduling) with a Llama-3.1-8B shape in bf16; tests/data/h200 holds
the measurements. Shares are of the vendor's dense peaks, so that they carry over to other GPUs; seconds are of one CPU
core of that machine. The errors that `benchmarks/simulator.py` prints on those rows are in-sample.

Measured apart: latency and rate of the all-reduce of two GPUs over NVLink. What is only assumed: see `step_time`.

The peaks themselves are in the catalogue of GPUs (`autotune.node.gpus`); `DATA_SHEETS` says where they are published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
        allreduce_latency_s: one all-reduce of two GPUs over NVLink, any size.
        allreduce_pcie_latency_s: one all-reduce of two GPUs over PCIe.
        nvlink_rank_share: of that latency, more for each GPU beyond two.
        pcie_rank_share: the same over PCIe, where each GPU adds hops through the host.
        nvlink_bytes_per_s: payload rate of an all-reduce over NVLink.
        pcie_bytes_per_s: the same over PCIe.
        pcie_contention_share: what each GPU beyond two takes from that rate: they share the host's lanes.
        socket_factor: latency and inverse rate where the traffic passes between CPU sockets.
        rank_overhead_s: per step and GPU of a tensor-parallel group beyond the first: hand-over and the slowest rank.
        stage_overhead_s: per pipeline stage and micro-batch.
        hop_nvlink_bytes_per_s: activations from one stage to the next over NVLink.
        hop_pcie_bytes_per_s: the same over PCIe.
        lock_step_s: per step of data-parallel ranks that share MoE layers: agreeing on its size.
        fp8_share: of the fp8 peak, relative to `compute_share` of the 16-bit peak.
        dequantised_share: of the 16-bit rate, for weights that are widened before they are multiplied.
        tile_tokens: `half_tokens` of kernels made for few rows: widened weights (Marlin) and single experts.
        expert_share: of dense rates, in the grouped matrix work of experts.
        expert_skew_share: more tokens on the busiest of the GPUs that experts are dealt to.
        moe_layer_s: routing, sorting and quantising between the matrix work of an MoE layer.
        latent_layer_s: the extra small kernels of an MLA layer.
        unoverlapped_cpu_s: planning and bookkeeping between two steps without asynchronous scheduling.
        draft_acceptance: probability that a drafted token is right; 0 where nothing repeats.
        api_request_s: API-server core time per request in: HTTP, validation, chat template.
        api_turns: turns of the API server's event loop that this takes, each behind all that waits by then.
        api_prompt_token_s: API-server core time per prompt token: tokenizing.
        api_token_s: API-server core time per output token: detokenizing.
        api_chunk_s: API-server core time per streamed chunk: JSON and socket.
        api_in_latency_s: from the API server to the engine; occupies nothing.
        api_out_latency_s: from the engine to the API server; occupies nothing.
        fitted_layers: launch times are of a stage of this many layers; deeper ones take longer in proportion.
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
    nvlink_rank_share: float = 0.04
    pcie_rank_share: float = 0.30
    nvlink_bytes_per_s: float = 220e9
    pcie_bytes_per_s: float = 18e9
    pcie_contention_share: float = 0.10
    socket_factor: float = 1.3
    rank_overhead_s: float = 50e-6
    stage_overhead_s: float = 1.5e-3
    hop_nvlink_bytes_per_s: float = 250e9
    hop_pcie_bytes_per_s: float = 18e9
    lock_step_s: float = 0.4e-3
    fp8_share: float = 0.85
    dequantised_share: float = 0.8
    tile_tokens: float = 16.0
    expert_share: float = 0.8
    expert_skew_share: float = 0.2
    moe_layer_s: float = 60e-6
    latent_layer_s: float = 40e-6
    unoverlapped_cpu_s: float = 0.9e-3
    draft_acceptance: float = 0.0
    api_request_s: float = 1.3e-3
    api_turns: int = 1
    api_prompt_token_s: float = 1.0e-6
    api_token_s: float = 26.7e-6
    api_chunk_s: float = 102e-6
    api_in_latency_s: float = 8.0e-3
    api_out_latency_s: float = 1.5e-3
    fitted_layers: int = 32
    step_noise: float = 0.02
    run_noise: float = 0.004


DATASHEET = Coefficients(
    compute_share=0.65,
    sustained_compute_share=0.60,
    half_tokens=64.0,
    attention_compute_share=0.65,
    weight_read_share=0.80,
    kv_read_share=0.80,
    overlap_norm=3.0,
    heat_tau_s=1.0,
    step_overhead_s=0.5e-3,
    prefill_overhead_s=1.5e-3,
    engine_cpu_s=1.0e-3,
    sequence_s=10e-6,
    uncaptured_floor_s=15e-3,
    eager_floor_s=15e-3,
    eager_overhead_s=1.0e-3,
    allreduce_latency_s=30e-6,
    nvlink_bytes_per_s=200e9,
    api_request_s=1.0e-3,
    api_turns=2,
    api_prompt_token_s=1.0e-6,
    api_token_s=20e-6,
    api_chunk_s=100e-6,
    api_in_latency_s=3.0e-3,
    api_out_latency_s=1.0e-3,
)
"""What one would say of a GPU that nobody has measured: round shares of its data sheet, round times of a CPU core.

Two thirds of the dense peak is what published bf16 matrix products reach on Hopper (FlashAttention-3, Shah et al. 2024,
figures 5 to 8, reports 0.5-0.75 of peak for attention), four fifths of the bandwidth what published copy benchmarks
reach; a batch of half a 128-row tile runs at half speed. The times are orders of magnitude in round numbers. None was
fitted to the rows of tests/data/h200, though whoever wrote them had seen these.
"""

STUDIED = Coefficients(
    compute_share=0.691,
    sustained_compute_share=0.594,
    half_tokens=37.6,
    attention_compute_share=0.863,
    weight_read_share=0.675,
    kv_read_share=0.98,
    overlap_norm=3.41,
    step_overhead_s=0.71e-3,
    prefill_overhead_s=0.92e-3,
    engine_cpu_s=1.57e-3,
    sequence_s=16.7e-6,
    uncaptured_floor_s=20.0e-3,
    allreduce_latency_s=10e-6,
    stage_overhead_s=0.1e-3,
    api_request_s=0.92e-3,
    api_turns=4,
    api_prompt_token_s=0.70e-6,
    api_token_s=31.5e-6,
    api_chunk_s=106e-6,
    api_in_latency_s=4.3e-3,
    api_out_latency_s=2.5e-3,
)
"""What a study of real servers begins with: fitted to the Poisson levels of five launches with one and with two API
servers (studies/h200-llama-8b-chat, trials 0, 1, 3, 4 and 6), as our own client saw them. A request takes four turns of
the API server's event loop: with one turn no coefficients explain both kinds of launch (docs/fidelity.md). The
latency of an all-reduce and the overhead of a stage are those of two H200s (studies/h200-blind): vLLM reduces small
batches with a kernel of its own, at a quarter of NCCL's latency.

Not the simulated engine's own: that is what searches are measured on, and what they are measured with stays the same.
"""

DATA_SHEETS: Mapping[str, str] = {
    "H100": "NVIDIA H100 Tensor Core GPU data sheet, and H100 architecture white paper, table 3 (PCIe card)",
    "H200": "NVIDIA H200 Tensor Core GPU data sheet",
    "H20": "figures published by resellers; NVIDIA has no public data sheet for it",
    "B200": "NVIDIA Blackwell architecture technical brief and HGX B200 data sheet, a GPU's eighth",
    "A100": "NVIDIA A100 Tensor Core GPU data sheet",
    "L40S": "NVIDIA L40S data sheet",
    "L4": "NVIDIA L4 data sheet",
    "A10": "NVIDIA A10 data sheet",
    "A6000": "NVIDIA RTX A6000 data sheet, and GA102 architecture white paper, appendix A",
    "T4": "NVIDIA T4 data sheet (fp16: it has no bfloat16 units)",
    "RTX3090": "NVIDIA GA102 architecture white paper, appendix A (bf16 with fp32 accumulation)",
    "RTX4090": "NVIDIA Ada architecture white paper, appendix A (bf16 and fp8 with fp32 accumulation)",
    "RTX5090": "NVIDIA RTX Blackwell architecture white paper, appendix A (bf16 and fp8 with fp32 accumulation)",
}
"""By the catalogue's key, where a GPU's peak matrix rate and memory bandwidth are published."""
