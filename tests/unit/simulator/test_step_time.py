"""Step times by hand, from round numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from model_shapes import mixtral

from autotune.node.defaults import ResolvedSettings
from autotune.records import AttentionKind, Gpu, LayerAttention, LayerShape, Link, ModelShape
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.scheduler import SimRequest, StepPlan
from autotune.simulator.step_time import StepTimer
from autotune.simulator.wiring import Wire

# 1 layer, 1e9 body parameters and two embeddings of 1e6 x 100 = 1e8; 16 bit.
SHAPE = ModelShape(
    name="round",
    layers=1,
    hidden_size=100,
    intermediate_size=1,
    heads=4,
    kv_heads=4,
    head_dim=25,
    vocab_size=1_000_000,
    max_position_embeddings=8192,
    weight_bytes=2_400_000_000,
    parameters=1_200_000_000,
)
GPU = Gpu(index=0, name="G", memory_bytes=10**11, bf16_flops=1e15, memory_bytes_per_s=1e12)
SETTINGS = ResolvedSettings(
    tensor_parallel=1,
    pipeline_parallel=1,
    data_parallel=1,
    gpu_memory_utilization=0.9,
    max_model_len=8192,
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    kv_cache_dtype="auto",
    dtype="bfloat16",
    prefix_caching=True,
    chunked_prefill=True,
    enforce_eager=False,
)
# Everything off but the roofline; each test turns on what it is about.
BARE = Coefficients(
    compute_share=0.5,
    sustained_compute_share=0.25,
    half_tokens=0.0,
    attention_compute_share=0.5,
    weight_read_share=0.5,
    kv_read_share=0.5,
    overlap_norm=1.0,
    step_overhead_s=0.0,
    prefill_overhead_s=0.0,
    sequence_s=0.0,
    uncaptured_floor_s=0.0,
    eager_floor_s=0.0,
    eager_overhead_s=0.0,
    stage_overhead_s=0.0,
    allreduce_latency_s=10e-6,
    allreduce_pcie_latency_s=30e-6,
    nvlink_bytes_per_s=200e9,
    pcie_bytes_per_s=20e9,
    nvlink_rank_share=0.0,
    rank_overhead_s=0.0,
)


def plan(*, decoding: int = 0, context: int = 0, prefill: int = 0, pairs: int = 0) -> StepPlan:
    return StepPlan(
        lane=0,
        decoding=tuple(SimRequest(i, 1, 1) for i in range(decoding)),
        decode_context=context,
        finished_prefill=(),
        admitted=(),
        prefill_tokens=prefill,
        prefill_chunks=1 if prefill else 0,
        prefill_pairs=pairs,
        prefill_context=0,
        finishing=(),
        preempted=(),
    )


def timer(c: Coefficients = BARE, link: Link = Link.NONE, **changes: object) -> StepTimer:
    return StepTimer(GPU, link, SHAPE, replace(SETTINGS, **changes), c)


def test_decode_reads_weights_and_kv() -> None:
    # Read: (1.2e9 - 1e8) parameters x 2 B = 2.2e9 B at 0.5e12 B/s = 4.4 ms. KV: 2 x 1 x 4 x 25 x 2 B = 400 B a token,
    # 1e6 tokens = 4e8 B = 0.8 ms. Compute: 10 x (2e9 + 2e8) flop at 0.5e15 = 0.044 ms.
    assert timer().stage_s(plan(decoding=10, context=1_000_000)) == pytest.approx((4.4 + 0.8 + 0.044) * 1e-3)


def test_prefill_computes() -> None:
    # 1000 tokens x 2e9 flop = 2e12 at 0.5e15 = 4 ms; pairs: 1e6 x 4 x 1 x 4 x 25 = 4e8 flop = 0.0008 ms;
    # weights 4.4 ms.
    assert timer().stage_s(plan(prefill=1000, pairs=1_000_000)) == pytest.approx((4 + 0.0008 + 4.4) * 1e-3)


def test_overlap_takes_the_longer_when_the_norm_is_high() -> None:
    step = plan(prefill=10_000)  # 40 ms of compute over 4.4 ms of reading
    assert timer(replace(BARE, overlap_norm=50.0)).stage_s(step) == pytest.approx(40e-3)
    assert timer(replace(BARE, overlap_norm=2.0)).stage_s(step) == pytest.approx((40**2 + 4.4**2) ** 0.5 * 1e-3)


def test_heat_moves_compute_to_the_sustained_share() -> None:
    step = plan(prefill=1000)
    assert timer().stage_s(step, heat=1.0) == pytest.approx((8 + 4.4) * 1e-3)
    assert timer().stage_s(step, heat=0.5) == pytest.approx((2 / 0.375 + 4.4) * 1e-3)


def test_small_batches_fill_the_units_badly() -> None:
    # 100 tokens more: 0.4 ms.
    cold = timer().stage_s(plan(prefill=1000))
    assert timer(replace(BARE, half_tokens=100.0)).stage_s(plan(prefill=1000)) - cold == pytest.approx(0.4e-3)


def test_fp8_kv_halves_kv_reads_only() -> None:
    step = plan(decoding=10, context=1_000_000)
    assert timer().stage_s(step) - timer(kv_cache_dtype="fp8").stage_s(step) == pytest.approx(0.4e-3)


def test_overheads_add_up() -> None:
    c = replace(BARE, step_overhead_s=1e-3, prefill_overhead_s=2e-3, sequence_s=10e-6)
    bare = timer().stage_s(plan(decoding=10))
    assert timer(c).stage_s(plan(decoding=10)) - bare == pytest.approx(1.1e-3)
    both = plan(decoding=10, prefill=5)
    assert timer(c).stage_s(both) - timer().stage_s(both) == pytest.approx(3.1e-3)


def test_floors_of_launches() -> None:
    c = replace(BARE, eager_floor_s=20e-3, eager_overhead_s=2e-3, uncaptured_floor_s=12e-3, graph_tokens=512)
    assert timer(c, enforce_eager=True).stage_s(plan(decoding=1)) == pytest.approx(22e-3)
    assert timer(c).stage_s(plan(prefill=512)) < 12e-3
    assert timer(c).stage_s(plan(prefill=513)) == pytest.approx(12e-3)
    # Graphs are captured up to twice max_num_seqs only.
    assert timer(c, max_num_seqs=8).stage_s(plan(prefill=17)) == pytest.approx(12e-3)
    assert timer(c).stage_s(plan(prefill=10_000)) == pytest.approx(44.4e-3)


def test_tensor_parallel_divides_work_and_pays_all_reduces() -> None:
    step = plan(prefill=1000)
    # Half of 4 + 4.4 ms; 2 all-reduces of 10 us + 1000 x 100 x 2 B at 200 GB/s (1 us).
    assert timer(link=Link.NVLINK, tensor_parallel=2).stage_s(step) == pytest.approx(4.2e-3 + 2 * 11e-6)
    assert timer(link=Link.PCIE, tensor_parallel=2).stage_s(step) == pytest.approx(4.2e-3 + 2 * 40e-6)
    # Four ranks move 1.5 times the payload of two.
    assert timer(link=Link.NVLINK, tensor_parallel=4).stage_s(step) == pytest.approx(2.1e-3 + 2 * 11.5e-6)


def test_pipeline_stage_holds_half_the_layers() -> None:
    assert timer(pipeline_parallel=2).stage_s(plan(prefill=1000)) == pytest.approx(4.2e-3)
    c = replace(BARE, stage_overhead_s=1e-3)
    assert timer(c, pipeline_parallel=2).stage_s(plan(prefill=1000)) == pytest.approx(5.2e-3)


def test_kv_heads_beyond_the_last_are_replicated() -> None:
    step = plan(decoding=10, context=1_000_000)
    reads = [timer(link=Link.NVLINK, tensor_parallel=tp).stage_s(step) for tp in (4, 8)]
    without = [timer(link=Link.NVLINK, tensor_parallel=tp).stage_s(plan(decoding=10)) for tp in (4, 8)]
    assert reads[0] - without[0] == pytest.approx(0.2e-3)
    assert reads[1] - without[1] == pytest.approx(0.2e-3)


def test_unknown_peaks_are_refused() -> None:
    with pytest.raises(ValueError, match="peak figures of X are not known"):
        StepTimer(replace(GPU, name="X", bf16_flops=None), Link.NONE, SHAPE, SETTINGS, BARE)


def test_each_gpu_beyond_two_adds_latency_and_over_pcie_takes_bandwidth() -> None:
    c = replace(BARE, nvlink_rank_share=0.1, pcie_rank_share=0.5, pcie_contention_share=0.25)
    step = plan(prefill=1000)
    nothing = replace(
        BARE,
        allreduce_latency_s=0.0,
        allreduce_pcie_latency_s=0.0,
        nvlink_bytes_per_s=float("inf"),
        pcie_bytes_per_s=float("inf"),
    )

    def collectives(link: Link) -> float:
        on = timer(c, link=link, tensor_parallel=4).stage_s(step)
        return on - timer(nothing, link=link, tensor_parallel=4).stage_s(step)

    # Two collectives; 1000 x 100 x 2 B x 1.5: 10 us x 1.2 + 1.5 us, and 30 us x 2 + 15 us x 1.5.
    assert collectives(Link.NVLINK) == pytest.approx(2 * 13.5e-6)
    assert collectives(Link.PCIE) == pytest.approx(2 * 82.5e-6)


def test_traffic_between_sockets_is_slower() -> None:
    c = replace(BARE, socket_factor=2.0, pcie_rank_share=0.0)

    def step_s(*, across: bool) -> float:
        wire = Wire(link=Link.PCIE, across_sockets=across)
        return StepTimer(GPU, wire, SHAPE, replace(SETTINGS, tensor_parallel=2), c).stage_s(plan(prefill=1000))

    assert step_s(across=True) - step_s(across=False) == pytest.approx(2 * 40e-6)


def test_fp8_weights_compute_at_the_fp8_peak_where_there_is_one() -> None:
    step = plan(prefill=10_000)
    c = replace(BARE, overlap_norm=50.0, fp8_share=0.8, dequantised_share=0.5, tile_tokens=0.0)
    shape = replace(SHAPE, quantization="fp8", weight_bits=8)

    def step_s(gpu: Gpu) -> float:
        return StepTimer(gpu, Link.NONE, shape, replace(SETTINGS, quantization="fp8"), c).stage_s(step)

    # 2e13 flop: at 0.5 x 2e15 x 0.8, or widened at 0.5 x 1e15 x 0.5 on a card without fp8 units.
    assert step_s(replace(GPU, fp8_flops=2e15, compute_capability=(9, 0))) == pytest.approx(25e-3)
    assert step_s(replace(GPU, compute_capability=(8, 0))) == pytest.approx(80e-3)
    four = StepTimer(
        replace(GPU, fp8_flops=2e15, compute_capability=(9, 0)),
        Link.NONE,
        replace(SHAPE, quantization="awq", weight_bits=4),
        replace(SETTINGS, quantization="awq"),
        c,
    )
    assert four.stage_s(step) == pytest.approx(80e-3)


def test_a_window_cuts_what_is_read_and_computed() -> None:
    def layered(window: int | None) -> StepTimer:
        kind = AttentionKind.FULL if window is None else AttentionKind.SLIDING
        layer = LayerShape(
            attention=LayerAttention(kind=kind, kv_heads=4, head_dim=25, window=window),
            split_bytes=2_000_000_000,
            replicated_bytes=0,
            expert_bytes=0,
            parameters=1_000_000_000,
            active_parameters=1_000_000_000,
        )
        return StepTimer(GPU, Link.NONE, replace(SHAPE, decoder=(layer,)), SETTINGS, BARE)

    # One layer given by hand is the plain decoder of the tests above.
    step = plan(decoding=10, context=1_000_000)
    assert layered(None).stage_s(step) == pytest.approx(timer().stage_s(step))
    # 10 x 1,000 tokens of the million are read: 99 % of 0.8 ms less.
    assert layered(None).stage_s(step) - layered(1000).stage_s(step) == pytest.approx(0.8e-3 * 0.99)
    long = plan(prefill=10_000, pairs=50_000_000)
    # Of 5,000 keys a query sees 1,000: 80 % of 5e7 x 400 flop at 0.5e15.
    assert layered(None).stage_s(long) - layered(1000).stage_s(long) == pytest.approx(0.8 * 5e7 * 400 / 0.5e15)


def test_a_batch_reads_the_experts_it_hits() -> None:
    shape = mixtral()
    c = replace(BARE, overlap_norm=50.0, expert_share=1.0, expert_skew_share=0.0, moe_layer_s=0.0, tile_tokens=0.0)
    one = StepTimer(GPU, Link.NONE, shape, SETTINGS, c)
    # A lone token: attention and router, head, and 2 of 8 experts, in 16 bit at half of 1e12 B/s.
    read = 2 * (12.88e9 - 32_000 * 4096)
    assert one.stage_s(plan(decoding=1)) == pytest.approx(read / 0.5e12, rel=0.002)
    # Four tokens hit 8 x (1 - 0.75^4) = 5.47 experts.
    more = 2 * 3 * 4096 * 14336 * 32 * (8 * (1 - 0.75**4) - 2) / 0.5e12
    assert one.stage_s(plan(decoding=4)) - one.stage_s(plan(decoding=1)) == pytest.approx(more, rel=1e-6)
    # Many tokens hit all; 7,000 compute for longer than that: 2 x 12.75e9 flop each.
    many = one.stage_s(plan(prefill=7000))
    assert many == pytest.approx(7000 * 2 * (12.88e9 - 2 * 32_000 * 4096) / 0.5e15, rel=0.002)


def test_dealt_experts_wait_for_the_busiest_gpu_and_for_the_exchange() -> None:
    shape = mixtral()
    c = replace(BARE, overlap_norm=50.0, expert_skew_share=0.0, moe_layer_s=0.0, lock_step_s=0.0, tile_tokens=0.0)
    four = replace(SETTINGS, tensor_parallel=4)
    sliced = StepTimer(GPU, Link.NVLINK, shape, four, c).stage_s(plan(decoding=1))
    dealt = StepTimer(GPU, Link.NVLINK, shape, replace(four, expert_parallel=True), c).stage_s(plan(decoding=1))
    # Half an expert a layer against 8/7 of one (of 28 pairs of experts 4 lie on the same GPU).
    expert = 2 * 3 * 4096 * 14336 * 32 / (0.5e12 * c.expert_share)
    assert dealt - sliced == pytest.approx(expert * (8 / 7 - 1 / 2), rel=1e-6)
    ranks = replace(SETTINGS, data_parallel=4, expert_parallel=True)
    alone = StepTimer(GPU, Link.NONE, shape, ranks, c, around=Wire(link=Link.NVLINK))
    step = plan(decoding=1)
    together = alone.stage_s(step, group_tokens=1001)
    # 32 layers gather and scatter 1,001 tokens of 4,096 x 2 B x 1.5 at 200 GB/s, and wait twice 10 us.
    free = replace(c, allreduce_latency_s=0.0, nvlink_bytes_per_s=float("inf"))
    without = StepTimer(GPU, Link.NONE, shape, ranks, free, around=Wire(link=Link.NVLINK))
    assert together - without.stage_s(step, group_tokens=1001) == pytest.approx(
        32 * (2 * 10e-6 + 1001 * 4096 * 2 * 1.5 / 200e9)
    )
    assert together > alone.stage_s(step)


def test_states_are_read_and_written_once_a_step() -> None:
    layer = LayerShape(
        attention=LayerAttention(kind=AttentionKind.STATE, kv_heads=0, head_dim=0, state_bytes=1_000_000),
        split_bytes=0,
        replicated_bytes=0,
        expert_bytes=0,
        parameters=1,
        active_parameters=1,
    )
    t = StepTimer(GPU, Link.NONE, replace(SHAPE, decoder=(layer,)), SETTINGS, BARE)
    few, many = (t.stage_s(plan(decoding=n, context=10**6)) for n in (1, 101))
    # 100 x 2 MB at half of 1e12 B/s, and 100 x 2e8 flop of the head; context costs nothing.
    assert many - few == pytest.approx(100 * 2e6 / 0.5e12 + 100 * 2e8 / 0.5e15, rel=1e-6)


def test_stages_pass_the_hidden_state_on() -> None:
    c = replace(BARE, hop_nvlink_bytes_per_s=200e9, hop_pcie_bytes_per_s=20e9)
    step = plan(prefill=1000)
    free = timer(c, link=Link.NONE, pipeline_parallel=2).stage_s(step)
    # 1000 x 100 x 2 B.
    assert timer(c, link=Link.NVLINK, pipeline_parallel=2).stage_s(step) - free == pytest.approx(1e-6)
    assert timer(c, link=Link.PCIE, pipeline_parallel=2).stage_s(step) - free == pytest.approx(10e-6)


def test_deeper_models_launch_more_kernels() -> None:
    c = replace(BARE, eager_floor_s=10e-3, eager_overhead_s=0.0)
    deep = replace(SHAPE, layers=80)
    eager = replace(SETTINGS, enforce_eager=True)
    assert StepTimer(GPU, Link.NONE, deep, eager, c).stage_s(plan(decoding=1)) == pytest.approx(10e-3 * 80 / 32)


def test_drafts_that_are_right_shorten_a_token_and_cost_their_check() -> None:
    drafting = replace(SETTINGS, speculative_tokens=3)
    step = plan(decoding=10)
    assert StepTimer(GPU, Link.NONE, SHAPE, drafting, BARE).stage_s(step) == timer().stage_s(step)
    half = StepTimer(GPU, Link.NONE, SHAPE, drafting, replace(BARE, draft_acceptance=0.5))
    # 30 tokens more at 2e9 flop; 1 + 1/2 + 1/4 + 1/8 tokens a step.
    assert half.stage_s(step) == pytest.approx((timer().stage_s(step) + 30 * 2e9 / 0.5e15) / 1.875)


def test_an_asked_graph_size_replaces_the_default() -> None:
    c = replace(BARE, uncaptured_floor_s=12e-3)
    assert timer(c, max_cudagraph_capture_size=100).stage_s(plan(prefill=101)) == pytest.approx(12e-3)
    assert timer(c, max_cudagraph_capture_size=1024).stage_s(plan(prefill=1024)) < 12e-3
