"""Step times by hand, from round numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.node.defaults import ResolvedSettings
from autotune.records import Gpu, Link, ModelShape
from autotune.simulator.scheduler import SimRequest, StepPlan
from autotune.simulator.step_time import Coefficients, StepTimer

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
    return StepTimer(GPU, link, SHAPE, replace(SETTINGS, **changes), c)  # type: ignore[arg-type]


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
