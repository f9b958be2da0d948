"""The calculator: the guide's arithmetic, its verdicts, and remedies that carry numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.capacity import (
    Capacity,
    Demand,
    Verdict,
    indivisible,
    largest,
    layouts,
    of_gpu,
    of_memory,
    of_tokens,
    remedies,
    verdict_of,
)
from autotune.node.defaults import ResolvedSettings
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import AttentionKind, LayerAttention, LayerShape
from autotune.units import GIB

LLAMA = load_shape("meta-llama/Llama-3.1-8B", env={"HF_HUB_CACHE": "/nonexistent"})
L40S = parse_node_name("2xL40S-48GB-PCIe")
PLAIN = ResolvedSettings(
    tensor_parallel=1,
    pipeline_parallel=1,
    data_parallel=1,
    gpu_memory_utilization=0.9,
    max_model_len=32768,
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    kv_cache_dtype="auto",
    dtype="bfloat16",
    prefix_caching=True,
    chunked_prefill=True,
    enforce_eager=False,
)
FIFTY_OF_4K = Demand(users=50, tokens_per_request=4096)


def test_the_guides_arithmetic() -> None:
    assert of_tokens(200_000, FIFTY_OF_4K).concurrent == pytest.approx(48.8, abs=0.05)
    assert of_tokens(200_000, Demand(users=50, tokens_per_request=16384)).concurrent == pytest.approx(12.2, abs=0.05)


@pytest.mark.parametrize(
    ("concurrent", "users", "verdict"),
    [
        (48.8, 50, Verdict.TIGHT),
        (12.2, 50, Verdict.OUT_OF_REACH),
        (97.6, 50, Verdict.FITS),
        (60.0, 50, Verdict.FITS),
        (59.9, 50, Verdict.TIGHT),
        (25.0, 50, Verdict.TIGHT),
        (24.9, 50, Verdict.OUT_OF_REACH),
    ],
)
def test_verdicts(concurrent: float, users: int, verdict: Verdict) -> None:
    assert verdict_of(concurrent, users) is verdict


def test_remedies_of_tokens_alone_come_in_the_guides_order() -> None:
    found = remedies(of_tokens(200_000, FIFTY_OF_4K), FIFTY_OF_4K, again=None)
    assert [one.change.split()[0] for one in found] == [
        "max-model-len",
        "kv-cache-dtype",
        "gpu-memory-utilization",
        "twice",
    ]
    assert found[1].concurrent == pytest.approx(97.7, abs=0.05)
    assert found[2].concurrent is None


def test_remedies_of_a_node_carry_what_each_change_gives() -> None:
    gpu = L40S.gpus[0]

    def again(settings: ResolvedSettings) -> Capacity:
        return of_gpu(LLAMA, gpu, settings, FIFTY_OF_4K)

    now = again(PLAIN)
    found = {one.change: one for one in remedies(now, FIFTY_OF_4K, again=again, shape=LLAMA, gpus=2)}
    assert list(found) == [
        "max-model-len 4096",
        "kv-cache-dtype fp8",
        "gpu-memory-utilization 0.9 -> 0.92",
        "TP 2",
        "PP 2",
        "DP 2",
    ]
    # Two hundredths of the card, in tokens of 131,072 bytes, whole blocks.
    more = 0.02 * gpu.memory_bytes / 131072
    assert found["gpu-memory-utilization 0.9 -> 0.92"].kv_tokens == pytest.approx(now.kv_tokens + more, abs=32)
    assert now.concurrent is not None
    assert found["kv-cache-dtype fp8"].concurrent == pytest.approx(2 * now.concurrent, rel=0.001)
    assert found["DP 2"].kv_tokens == 2 * now.kv_tokens
    assert found["TP 2"].kv_tokens is not None
    assert found["TP 2"].kv_tokens > 2 * now.kv_tokens  # the weights are shared
    assert "the node has" not in found["TP 2"].note
    four = {one.change: one for one in remedies(now, FIFTY_OF_4K, again=again, shape=LLAMA, gpus=1)}
    assert "the node has 1" in four["TP 2"].note


def test_fp8_is_no_remedy_where_the_cache_is_fp8() -> None:
    quantised = replace(LLAMA, kv_cache_dtype="fp8")

    def again(settings: ResolvedSettings) -> Capacity:
        return of_memory(quantised, settings, 4 * GIB, FIFTY_OF_4K)

    changes = [one.change for one in remedies(again(PLAIN), FIFTY_OF_4K, again=again, shape=quantised)]
    assert changes == ["max-model-len 4096"]


def test_what_does_not_fit_says_why() -> None:
    big = load_shape("meta-llama/Llama-3.1-70B", env={"HF_HUB_CACHE": "/nonexistent"})
    weights = of_gpu(big, L40S.gpus[0], PLAIN, None)
    assert not weights.fits
    assert "131 GiB of weights" in weights.reasons[0]
    # 16 GiB for 131,072 tokens of 131,072 bytes.
    short = of_memory(LLAMA, replace(PLAIN, max_model_len=131072), 4 * GIB, None)
    assert "one request of 131,072 tokens needs 16 GiB" in short.reasons[0]
    assert of_tokens(1000, None, 4096).reasons
    assert of_tokens(4096, None, 4096).fits


def test_short_requests_of_a_sliding_model_do_not_pay_for_its_window() -> None:
    slides = LayerShape(
        attention=LayerAttention(kind=AttentionKind.SLIDING, kv_heads=8, head_dim=128, window=1024),
        split_bytes=1,
        replicated_bytes=1,
        expert_bytes=0,
        parameters=1,
        active_parameters=1,
    )
    shape = replace(LLAMA, decoder=(slides,) * 32)
    # 64 GiB are 32,768 blocks of 16 tokens; 512 tokens take 32 + 1 of them, 32,768 take (1,023 + 2,048) / 16 + 1.
    found = of_memory(shape, PLAIN, 64 * GIB, Demand(users=1, tokens_per_request=512))
    assert found.concurrent == pytest.approx(32768 / 33)
    assert found.max_concurrency == pytest.approx(32768 / 193)


def test_layouts_use_even_parts_of_the_node() -> None:
    found = layouts(parse_node_name("4xL40S-48GB-PCIe"), PLAIN)
    sizes = [(one.tensor_parallel, one.pipeline_parallel, one.data_parallel) for one in found]
    assert sizes[0] == (1, 1, 1)
    assert set(sizes) == {
        (1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2),
        (4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2), (1, 1, 4),
    }  # fmt: skip
    assert len(sizes) == len(set(sizes))


def test_indivisible_layouts_are_named() -> None:
    assert indivisible(LLAMA, replace(PLAIN, tensor_parallel=8)) == ()
    three = indivisible(LLAMA, replace(PLAIN, tensor_parallel=3))
    whats = ("32 attention heads", "8 KV heads", "14336 MLP columns")
    assert all(what in reason for what, reason in zip(whats, three, strict=True))  # 128,256 words divide by three
    # DP 5 would cut each expert in five; a single GPU that deals experts to itself starts.
    mixture = load_shape("Qwen/Qwen3-30B-A3B", env={"HF_HUB_CACHE": "/nonexistent"})
    assert any("768 columns of an expert" in reason for reason in indivisible(mixture, replace(PLAIN, data_parallel=5)))
    assert indivisible(mixture, replace(PLAIN, expert_parallel=True)) == ()
    assert "pipeline stages" in indivisible(LLAMA, replace(PLAIN, pipeline_parallel=64))[0]
    assert "mixture" in indivisible(LLAMA, replace(PLAIN, expert_parallel=True))[0]


def test_the_largest_layout_is_one_that_fits() -> None:
    small, big = of_tokens(10, None, 5), of_tokens(100, None, 200)
    assert largest([small, big]) is small


@given(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(1, 10**5))
def test_more_tokens_never_make_the_verdict_worse(tokens: int, users: int, each: int) -> None:
    order = [Verdict.OUT_OF_REACH, Verdict.TIGHT, Verdict.FITS]
    demand = Demand(users=users, tokens_per_request=each)
    less, more = of_tokens(tokens, demand).concurrent, of_tokens(2 * tokens + 1, demand).concurrent
    assert less is not None
    assert more is not None
    assert order.index(verdict_of(more, users)) >= order.index(verdict_of(less, users))


def test_where_the_weights_leave_nothing_only_less_or_more_helps() -> None:
    gpu = parse_node_name("2xL4-24GB").gpus[0]
    shape = load_shape("google/gemma-3-27b-it", env={"HF_HUB_CACHE": "/nonexistent"})

    def again(settings: ResolvedSettings) -> Capacity:
        return of_gpu(shape, gpu, settings, FIFTY_OF_4K)

    quantised, split = remedies(again(PLAIN), FIFTY_OF_4K, again=again, shape=shape, gpus=2)
    assert quantised.change == "a quantised checkpoint"
    assert quantised.kv_tokens is None
    # 51.2 GiB: over three cards of 0.9 x 22 GiB the stage with the embedding has no room beside its activations.
    assert split.change == "TP 4 x PP 1"
    assert split.kv_tokens
    assert split.note == "needs 4 GPUs, the node has 2"
