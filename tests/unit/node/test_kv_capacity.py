"""KV groups against logged capacities of hybrid models, hand arithmetic, and the table's command."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.node.defaults import ResolvedSettings
from autotune.node.kv_capacity import in_flight_tokens, kv_layout, kv_value_bytes, values_per_token
from autotune.node.layers import layer_shapes
from autotune.node.memory import estimate, kv_tokens_from_bytes, longest_request
from autotune.node.model_shape import load_shape
from autotune.records import AttentionKind, Experts, Gpu, LayerAttention, LayerShape, ModelShape
from autotune.units import GIB

ROOT = Path(__file__).parents[3]
FULL, SLIDING, LATENT, STATE = AttentionKind.FULL, AttentionKind.SLIDING, AttentionKind.LATENT, AttentionKind.STATE
LLAMA = load_shape("meta-llama/Llama-3.1-8B", env={"HF_HUB_CACHE": "/nonexistent"})
PLAIN = ResolvedSettings(
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
NEW = (0, 25, 1)


def keeps(
    kind: AttentionKind, heads: int = 0, dim: int = 0, window: int | None = None, state: int = 0
) -> LayerAttention:
    return LayerAttention(kind=kind, kv_heads=heads, head_dim=dim, window=window, state_bytes=state)


def model(*attentions: LayerAttention, expert_bytes: int = 0, **changes: object) -> ModelShape:
    decoder = tuple(
        LayerShape(
            attention=attention,
            split_bytes=800,
            replicated_bytes=10,
            expert_bytes=expert_bytes,
            parameters=1,
            active_parameters=1,
        )
        for attention in attentions
    )
    return replace(LLAMA, decoder=decoder, layers=len(decoder), **changes)


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, object]]:
    command = [sys.executable, "-m", "benchmarks.kv_capacity", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {row["row"]: row for row in json.loads(done.stdout)["rows"]}


def test_every_logged_capacity_is_met_or_named(table: dict[str, dict[str, object]]) -> None:
    assert len(table) >= 30
    for row in table.values():
        assert not row["missed"], row
        assert row["tokens_error"] is not None or row["unmet"] or row["available_error_gib"] is not None, row
        assert row["available_error_gib"] is not None or row["unmet_whole"], row


@pytest.mark.parametrize(
    ("row", "logged"), [("27", 75278), ("29", 300220), ("31", 567978)], ids=["sliding", "states TP 2", "states"]
)
def test_mixed_models_meet_the_log_to_the_token(table: dict[str, dict[str, object]], row: str, logged: int) -> None:
    assert table[row]["tokens"] == logged
    assert table[row]["tokens_predicted"] == logged


def test_starts_that_were_predicted_blind_are_still_predicted_as_well(table: dict[str, dict[str, object]]) -> None:
    """Thirteen kinds of models on an H200: what was predicted before they ran was within 1 % of what vLLM logged."""
    blind = {name: row for name, row in table.items() if row["blind_gib"] is not None}
    assert len(blind) == 13
    for name, row in blind.items():
        logged, said = float(str(row["kv_gib"])), float(str(row["blind_gib"]))
        assert said == pytest.approx(logged, rel=0.01), name
        assert float(str(row["available_predicted"])) == pytest.approx(logged, rel=0.01), name
        assert abs(float(str(row["tokens_error"]))) < 0.0002, name
        # How far an mxfp4 kernel pads its experts is its own affair: 13.0 GiB here, 13.7 as the H100's log has it.
        near = 0.06 if name == "gpt-oss-20b" else 0.025
        assert float(str(row["weights_predicted"])) == pytest.approx(float(str(row["weights_gib"])), rel=near), name


def test_random_mixes_are_cut_as_vllm_cuts_them() -> None:
    text = (ROOT / "tests" / "data" / "memory" / "groups.jsonl").read_text(encoding="utf-8")
    mixes = [json.loads(line) for line in text.splitlines()]
    assert len(mixes) == 70
    assert sum(mix["groups"] > 1 for mix in mixes) > 40
    assert sum(mix["stages"] > 1 for mix in mixes) > 20
    for mix in mixes:
        layout = kv_layout(
            [keeps(AttentionKind(kind), heads, dim, window) for kind, heads, dim, window in mix["layers"]],
            tensor_parallel=mix["tensor_parallel"],
            stages=mix["stages"],
            value_bytes=2,
            block_size=16,
        )
        settings = replace(PLAIN, max_model_len=8192, max_num_batched_tokens=4096)
        assert len(layout.groups) == mix["groups"], mix
        assert list(layout.stage_block_bytes) == mix["stage_block_bytes"], mix
        assert layout.blocks_per_request(settings, NEW) == mix["blocks_per_request"], mix


def test_sliding_layers_in_groups_as_large_as_the_rarest_kind() -> None:
    # Gemma-3-27B: 52 layers of window 1,024 and 10 full ones, so groups of 10: one full, six sliding (the last padded).
    layout = kv_layout(
        [keeps(FULL, 16, 128) if i % 6 == 5 else keeps(SLIDING, 16, 128, 1024) for i in range(62)],
        tensor_parallel=1,
        stages=1,
        value_bytes=2,
        block_size=16,
    )
    assert [group.kind for group in layout.groups].count(SLIDING) == 6
    assert [group.kind for group in layout.groups].count(FULL) == 1
    assert layout.stage_block_bytes == (10 * 16 * 2 * 16 * 128 * 2,)
    # 131,072 / 16 full blocks; ceil((1,023 + 8,192) / 16) + 1 = 577 for each sliding group.
    settings = replace(PLAIN, max_model_len=131072)
    assert layout.blocks_per_request(settings, NEW) == 8192 + 6 * 577


def test_more_batched_tokens_shrink_a_sliding_model_only() -> None:
    sliding = model(*[keeps(SLIDING, 8, 64, 128), keeps(FULL, 8, 64)] * 6)
    few = replace(PLAIN, max_model_len=65536, max_num_batched_tokens=2048)
    many = replace(few, max_num_batched_tokens=16384)
    assert kv_tokens_from_bytes(sliding, many, GIB) < kv_tokens_from_bytes(sliding, few, GIB)
    assert kv_tokens_from_bytes(LLAMA, many, GIB) == kv_tokens_from_bytes(LLAMA, few, GIB)


def test_newer_releases_keep_room_for_every_batch_in_flight() -> None:
    assert in_flight_tokens(PLAIN, (0, 25, 1)) == 8192
    assert in_flight_tokens(PLAIN, (0, 32, 0)) == 2 * 8192
    assert in_flight_tokens(replace(PLAIN, pipeline_parallel=2, async_scheduling=False), (0, 32, 0)) == 2 * 8192


def test_a_model_that_only_slides_is_one_group() -> None:
    # Mistral-7B v0.1: every layer with window 4,096, so a long request holds (4,095 + 2,048) / 16 + 1 blocks.
    settings = replace(PLAIN, max_model_len=32768, max_num_batched_tokens=2048)
    layout = kv_layout([keeps(SLIDING, 8, 128, 4096)] * 32, tensor_parallel=1, stages=1, value_bytes=2, block_size=16)
    assert len(layout.groups) == 1
    assert layout.blocks_per_request(settings, NEW) == 384 + 1


def test_the_latent_of_mla_is_not_split_by_tensor_parallelism() -> None:
    # DeepSeek-V3: 61 x 576 numbers of 2 bytes, 70,272 bytes per token on every GPU.
    deepseek = model(*[keeps(LATENT, 1, 576)] * 61)
    for tp in (1, 8):
        tokens = kv_tokens_from_bytes(deepseek, replace(PLAIN, tensor_parallel=tp), 7 * GIB)
        assert tokens == 7 * GIB // (70272 * 16) * 16


def test_kv_heads_split_and_replicate() -> None:
    grouped = keeps(FULL, 4, 128)
    assert [values_per_token(grouped, tp) for tp in (1, 2, 4, 8)] == [1024, 512, 256, 256]


def test_different_heads_of_one_kind_share_a_group_and_sum_up() -> None:
    layout = kv_layout(
        [keeps(FULL, 8, 128), keeps(FULL, 2, 128)], tensor_parallel=1, stages=1, value_bytes=2, block_size=16
    )
    assert len(layout.groups) == 1
    assert layout.stage_block_bytes == (16 * 2 * 2 * 128 * (8 + 2),)


def test_stages_of_a_pipeline_hold_their_own_layers() -> None:
    layout = kv_layout([keeps(FULL, 8, 128)] * 33, tensor_parallel=1, stages=2, value_bytes=2, block_size=16)
    assert layout.stage_block_bytes == (17 * 65536, 16 * 65536)


def test_states_alone_cost_a_request_one_block_each() -> None:
    # A Mamba model: no tokens are kept, so the length does not matter.
    mamba = [keeps(STATE, state=1_000_000)] * 8
    layout = kv_layout(mamba, tensor_parallel=1, stages=1, value_bytes=2, block_size=16)
    short, long = replace(PLAIN, max_model_len=64), replace(PLAIN, max_model_len=65536)
    assert layout.stage_block_bytes == (8_000_000,)
    assert layout.blocks_per_request(short, NEW) == layout.blocks_per_request(long, NEW) == 2
    assert layout.blocks_per_request(replace(long, prefix_caching=False), NEW) == 1


def test_auto_means_what_the_checkpoint_says() -> None:
    quantised = replace(LLAMA, kv_cache_dtype="fp8")
    assert kv_value_bytes(LLAMA, PLAIN) == 2
    assert kv_value_bytes(quantised, PLAIN) == 1
    assert kv_value_bytes(quantised, replace(PLAIN, kv_cache_dtype="bfloat16")) == 2
    assert kv_value_bytes(LLAMA, replace(PLAIN, dtype="float32")) == 4
    with pytest.raises(ValueError, match="odd"):
        kv_value_bytes(replace(LLAMA, kv_cache_dtype="odd"), PLAIN)


def test_longest_request_is_what_the_log_estimates() -> None:
    # "the estimated maximum model length is 37984" at 4.64 GiB (vLLM 0.25.1, tests/data/memory).
    settings = replace(PLAIN, max_model_len=131072)
    assert longest_request(LLAMA, settings, round(4.64 * GIB)) == pytest.approx(37984, abs=32)
    assert longest_request(LLAMA, settings, 0) == 0
    assert longest_request(LLAMA, PLAIN, 100 * GIB) == 8192


def test_experts_are_shared_by_all_ranks_of_the_model() -> None:
    mixture = model(
        *[keeps(FULL, 8, 128)] * 4, expert_bytes=9600, experts=Experts(count=6, per_token=2, intermediate_size=8)
    )
    gpu = Gpu(index=0, name="x", memory_bytes=80 * GIB)

    def weights(**changes: int | bool) -> int:
        return estimate(mixture, gpu, replace(PLAIN, **changes)).weights_bytes_per_gpu

    whole = weights()
    layers = 4
    assert whole - weights(data_parallel=2) == layers * 9600 // 2
    assert weights(data_parallel=2, expert_parallel=True) == weights(data_parallel=2)
    # Six experts over four ranks: the fullest holds two of them.
    assert whole - weights(data_parallel=4, expert_parallel=True) == layers * 9600 * 4 // 6
    # TP 2 halves what it splits and the experts, not the replicated 10 bytes of a layer.
    tables = 2 * LLAMA.vocab_size * LLAMA.hidden_size * 2
    assert whole - weights(tensor_parallel=2) == (layers * (800 + 9600) + tables) // 2


def test_layers_of_a_plain_decoder_add_up() -> None:
    layers = layer_shapes(LLAMA)
    assert len(layers) == 32
    body = sum(layer.split_bytes + layer.replicated_bytes for layer in layers)
    tables = 2 * 128256 * 4096 * 2
    assert 0 <= LLAMA.weight_bytes - tables - body < 32 + 4096 * 2 * 2


ATTENTIONS = st.one_of(
    st.builds(keeps, st.just(FULL), st.sampled_from([1, 2, 8]), st.sampled_from([64, 96, 128])),
    st.builds(
        keeps, st.just(SLIDING), st.sampled_from([1, 4]), st.sampled_from([64, 256]), st.sampled_from([128, 1024])
    ),
    st.builds(keeps, st.just(STATE), state=st.integers(1, 3_000_000)),
    st.just(keeps(LATENT, 1, 576)),
)


@given(
    st.lists(ATTENTIONS, min_size=1, max_size=24),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 3),
    st.sampled_from([1, 2]),
)
def test_every_layer_has_a_group_and_a_block_holds_a_page_of_each(
    attentions: list[LayerAttention], tp: int, stages: int, width: int
) -> None:
    stages = min(stages, len(attentions))
    layout = kv_layout(attentions, tensor_parallel=tp, stages=stages, value_bytes=width, block_size=16)
    assert len(layout.stage_block_bytes) == stages
    # A page of every group is at least what its layers store for the tokens of a block.
    largest = max(values_per_token(a, tp) * width * 16 for a in attentions)
    assert max(layout.stage_block_bytes) >= largest
    short, long = (layout.blocks_per_request(replace(PLAIN, max_model_len=n), NEW) for n in (1024, 65536))
    assert 1 <= short <= long
    assert len(layout.groups) <= len(attentions)


def test_estimates_are_fast_enough_for_a_million_configs() -> None:
    gpu = Gpu(index=0, name="x", memory_bytes=80 * GIB)
    settings = [replace(PLAIN, tensor_parallel=tp, max_num_seqs=seqs) for tp in (1, 2, 4) for seqs in range(100, 400)]
    mixed = model(*[keeps(SLIDING, 8, 64, 128), keeps(FULL, 8, 64)] * 30)
    for shape, per_s in ((LLAMA, 30_000), (mixed, 10_000)):
        best = 0.0
        for _ in range(3):
            begun = time.process_time()
            for one in settings:
                estimate(shape, gpu, one)
            best = max(best, len(settings) / (time.process_time() - begun))
        assert best > per_s
