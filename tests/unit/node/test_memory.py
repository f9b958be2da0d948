"""The memory model against recorded starts and hand arithmetic."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.node.defaults import ResolvedSettings
from autotune.node.gpus import parse_node_name
from autotune.node.kv_capacity import values_per_token
from autotune.node.layers import layer_shapes
from autotune.node.memory import (
    activation_peak,
    estimate,
    kv_tokens_from_bytes,
    padded_vocab,
    stage_layers,
)
from autotune.node.model_shape import load_shape
from autotune.records import Gpu, ModelShape
from autotune.units import GIB

DATA = Path(__file__).parents[2] / "data" / "memory"
NO_CACHE = {"HF_HUB_CACHE": "/nonexistent"}
LLAMA_8B = load_shape("meta-llama/Llama-3.1-8B", env=NO_CACHE)
LLAMA_70B = load_shape("meta-llama/Llama-3.1-70B", env=NO_CACHE)
H200 = parse_node_name("1xH200-141GB").gpus[0]

PLAIN = ResolvedSettings(
    tensor_parallel=1,
    pipeline_parallel=1,
    data_parallel=1,
    gpu_memory_utilization=0.92,
    max_model_len=8192,
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    kv_cache_dtype="auto",
    dtype="bfloat16",
    prefix_caching=True,
    chunked_prefill=True,
    enforce_eager=False,
)


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("row", rows("h200.csv"), ids=lambda row: row["name"])
def test_recorded_h200_capacities(row: dict[str, str]) -> None:
    settings = replace(
        PLAIN,
        gpu_memory_utilization=float(row["gpu_memory_utilization"]),
        max_model_len=int(row["max_model_len"]),
        max_num_seqs=int(row["max_num_seqs"]),
        max_num_batched_tokens=int(row["max_num_batched_tokens"]),
        kv_cache_dtype=row["kv_cache_dtype"],
        enforce_eager=row["enforce_eager"] == "true",
    )
    found = estimate(LLAMA_8B, H200, settings, compiled=row["compile_cache"] == "warm")
    kv_gib, off_gib = float(row["kv_gib"]), 0.03
    assert found.available_kv_bytes / GIB == pytest.approx(kv_gib, rel=0, abs=off_gib)
    if row["kv_tokens"]:
        assert found.fits
        assert found.kv_tokens == pytest.approx(int(row["kv_tokens"]), rel=off_gib / kv_gib)
        assert found.max_concurrency == pytest.approx(float(row["max_concurrency"]), rel=off_gib / kv_gib)
    else:
        assert not found.fits
        assert (found.kv_tokens == 0) == (kv_gib < 0)


@pytest.mark.parametrize("row", rows("peaks.csv"), ids=lambda row: row["max_num_batched_tokens"])
def test_recorded_profile_peaks(row: dict[str, str]) -> None:
    settings = replace(PLAIN, max_num_batched_tokens=int(row["max_num_batched_tokens"]))
    peak = activation_peak(LLAMA_8B, settings, compiled=False)
    assert peak / GIB == pytest.approx(float(row["torch_peak_gib"]), abs=0.04)


def test_recorded_weights_and_needed_memory() -> None:
    found = estimate(LLAMA_8B, H200, replace(PLAIN, max_model_len=131072))
    assert found.weights_bytes_per_gpu / GIB == pytest.approx(15.0, abs=0.02)  # "Model loading took 15.0 GiB"
    assert found.needed_kv_bytes == 16 * GIB  # "16.0 GiB KV cache is needed"


@pytest.mark.parametrize("row", rows("public.csv"), ids=lambda row: row["row"])
def test_publicly_logged_capacities(row: dict[str, str]) -> None:
    shape = load_shape(row["model"], env=NO_CACHE)
    gpu = Gpu(index=0, name="x", memory_bytes=round(float(row["gpu_gib"]) * GIB))
    settings = replace(
        PLAIN,
        tensor_parallel=int(row["tensor_parallel"]),
        gpu_memory_utilization=float(row["gpu_memory_utilization"]),
        max_model_len=int(row["max_model_len"]),
        max_num_batched_tokens=int(row["batched_tokens"]),
    )
    found = estimate(shape, gpu, settings)
    # These engines are older than the one we are calibrated on: 2 % of the card's memory, or 4 % of the capacity.
    per_token = shape.kv_bytes_per_token
    tolerance = max(0.04 * int(row["kv_tokens"]), 0.02 * gpu.memory_bytes / per_token)
    assert abs(found.kv_tokens - int(row["kv_tokens"])) < tolerance
    if row["weights_gib"]:
        assert found.weights_bytes_per_gpu / GIB == pytest.approx(float(row["weights_gib"]), rel=0.01)
    if row["kv_gib"]:
        from_log = kv_tokens_from_bytes(shape, settings, round(float(row["kv_gib"]) * GIB))
        assert from_log == pytest.approx(int(row["kv_tokens"]), rel=0.002)


def test_tokens_come_in_whole_blocks() -> None:
    # 31,232 tokens are 1,952 blocks of 16 tokens of 131,072 bytes.
    block = 16 * 131072
    assert kv_tokens_from_bytes(LLAMA_8B, PLAIN, 1952 * block) == 31232
    assert kv_tokens_from_bytes(LLAMA_8B, PLAIN, 1952 * block - 1) == 31216
    assert kv_tokens_from_bytes(LLAMA_8B, PLAIN, -5) == 0
    assert kv_tokens_from_bytes(LLAMA_8B, replace(PLAIN, kv_cache_dtype="fp8"), 1952 * block) == 62464


def test_tensor_parallel_splits_weights_and_kv() -> None:
    four = estimate(LLAMA_70B, parse_node_name("4xH100-80GB").gpus[0], replace(PLAIN, tensor_parallel=4))
    assert four.weights_bytes_per_gpu / GIB == pytest.approx(70.554e9 * 2 / 4 / GIB, rel=0.002)
    # 327,680 bytes per token of the whole model, a quarter on each GPU.
    assert four.kv_tokens == four.available_kv_bytes // (81920 * 16) * 16
    one = estimate(LLAMA_70B, parse_node_name("1xH100-80GB").gpus[0], PLAIN)
    assert one.available_kv_bytes < 0
    assert (one.kv_tokens, one.max_concurrency, one.fits) == (0, 0.0, False)


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    # 8 KV heads of 128: 8 GPUs hold one head each, and so do 16.
    attention = layer_shapes(LLAMA_8B)[0].attention
    assert values_per_token(attention, 8) == values_per_token(attention, 16) == 2 * 128
    assert values_per_token(attention, 4) == 2 * 2 * 128


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [(32, 1, (32,)), (32, 4, (8, 8, 8, 8)), (33, 2, (17, 16)), (10, 4, (2, 3, 3, 2)), (11, 4, (3, 3, 3, 2))],
)
def test_pipeline_stages(layers: int, stages: int, expected: tuple[int, ...]) -> None:
    assert stage_layers(layers, stages) == expected


def test_the_tightest_pipeline_stage_decides() -> None:
    two = estimate(LLAMA_8B, H200, replace(PLAIN, pipeline_parallel=2))
    # Each stage: 16 of 32 layers (6,979,584,000 parameters of layers in all) and one of the two tables.
    layers, table, rotary = 6_979_584_000 / 2, 128256 * 4096, 131072 * 128
    assert two.weights_bytes_per_gpu == pytest.approx(2 * (layers + table + rotary), rel=1e-4)
    uneven = replace(LLAMA_8B, layers=33)
    assert kv_tokens_from_bytes(uneven, replace(PLAIN, pipeline_parallel=2), GIB) == GIB // (17 * 4096 * 16) * 16


def test_tied_embeddings_are_held_once_on_one_stage_and_at_both_ends_of_two() -> None:
    tied = load_shape("meta-llama/Llama-3.2-1B", env=NO_CACHE)
    one = estimate(tied, H200, PLAIN).weights_bytes_per_gpu
    rotary = 131072 * 64 * 2
    assert one == 2 * 1_235_814_400 + rotary
    two = estimate(tied, H200, replace(PLAIN, pipeline_parallel=2)).weights_bytes_per_gpu
    table = 128256 * 2048 * 2
    assert two == pytest.approx((one - rotary - table) / 2 + table + rotary, rel=1e-3)


def test_unknown_kv_dtype_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="nvfp4"):
        estimate(LLAMA_8B, H200, replace(PLAIN, kv_cache_dtype="nvfp4"))


def test_vocabulary_is_padded() -> None:
    assert (padded_vocab(128256), padded_vocab(32001)) == (128256, 32064)


shapes = st.sampled_from([LLAMA_8B, LLAMA_70B, load_shape("Qwen/Qwen3-4B", env=NO_CACHE)])


@given(shapes, st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.floats(0.5, 0.95), st.floats(0.001, 0.04))
def test_more_utilisation_never_means_less_kv(
    shape: ModelShape, tp: int, pp: int, utilisation: float, more: float
) -> None:
    less = replace(PLAIN, tensor_parallel=tp, pipeline_parallel=pp, gpu_memory_utilization=utilisation)
    low = estimate(shape, H200, less)
    high = estimate(shape, H200, replace(less, gpu_memory_utilization=utilisation + more))
    assert high.kv_tokens >= low.kv_tokens
    assert high.available_kv_bytes > low.available_kv_bytes
    assert low.kv_tokens % 16 == 0
