"""The profile's peak and CUDA graphs against recorded figures and hand arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.node.activations import (
    activation_peak,
    full_graphs,
    graph_bytes,
    graph_bytes_in_budget,
    second_runner,
)
from autotune.node.defaults import ResolvedSettings
from autotune.node.model_shape import load_shape
from autotune.records import AttentionKind, Experts, LayerAttention, LayerShape, ModelShape
from autotune.units import GIB

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


def mixture(kind: AttentionKind = AttentionKind.FULL, **changes: object) -> ModelShape:
    layer = LayerShape(
        attention=LayerAttention(kind=kind, kv_heads=1, head_dim=576),
        split_bytes=1,
        replicated_bytes=1,
        expert_bytes=1,
        parameters=1,
        active_parameters=1,
    )
    shape = replace(LLAMA, decoder=(layer,) * 32, experts=Experts(count=8, per_token=2, intermediate_size=14336))
    return replace(shape, **changes)


@pytest.mark.parametrize(("seqs", "recorded_gib"), [(1024, 0.98), (256, 0.59), (32, 0.16)])
def test_graphs_as_recorded(seqs: int, recorded_gib: float) -> None:
    # "Graph capturing finished ..., took 0.98 GiB", vLLM 0.25.1, Llama-3.1-8B on an H200.
    settings = replace(PLAIN, max_num_seqs=seqs)
    assert graph_bytes(LLAMA, settings) / GIB == pytest.approx(recorded_gib, abs=0.08)
    assert graph_bytes(LLAMA, replace(settings, enforce_eager=True)) == 0


@pytest.mark.parametrize(("seqs", "graphs"), [(1024, 51), (256, 35), (32, 7), (1, 1), (3, 2)])
def test_number_of_full_graphs(seqs: int, graphs: int) -> None:
    # "Capturing CUDA graphs (FULL): 51/51" and "35/35" in the recorded logs.
    assert full_graphs(replace(PLAIN, max_num_seqs=seqs)) == graphs


def test_graphs_are_in_the_budget_by_version_and_runner() -> None:
    dense, experts = LLAMA, mixture(architecture="MixtralForCausalLM")
    inside = {
        (version, shape.architecture): graph_bytes_in_budget(shape, PLAIN, version) > 0
        for version in ((0, 20, 0), (0, 24, 0), (0, 25, 1), (0, 32, 0))
        for shape in (dense, experts)
    }
    assert [inside[v, "LlamaForCausalLM"] for v in ((0, 20, 0), (0, 24, 0), (0, 25, 1), (0, 32, 0))] == [
        False,
        True,
        False,
        True,
    ]
    assert [inside[v, "MixtralForCausalLM"] for v in ((0, 20, 0), (0, 25, 1), (0, 32, 0))] == [False, True, True]


def test_which_models_the_second_runner_serves() -> None:
    assert second_runner(LLAMA, (0, 25, 1))
    assert not second_runner(LLAMA, (0, 24, 0))
    assert not second_runner(mixture(architecture="MixtralForCausalLM"), (0, 25, 1))
    assert second_runner(mixture(architecture="DeepseekV2ForCausalLM"), (0, 25, 1))
    assert not second_runner(mixture(AttentionKind.STATE, experts=None), (0, 25, 1))
    assert second_runner(mixture(architecture="MixtralForCausalLM"), (0, 32, 0))


def test_two_workspaces_of_the_experts() -> None:
    # Mixtral: 2 experts of a token, 14,336 and 2 x 14,336 numbers of 2 bytes, and 3.5 rows of 4,096.
    eager = replace(PLAIN, enforce_eager=True, max_num_seqs=1)
    per_token = 2 * (14336 + 28672) * 2 + 3.5 * 4096 * 2
    assert activation_peak(mixture(), eager, compiled=True) == round(8192 * per_token)
    # Narrow experts are bound by the hidden size; DP ranks bring twice the tokens together.
    narrow = mixture(experts=Experts(count=8, per_token=2, intermediate_size=1024))
    per_token = 2 * (4096 + 4096) * 2
    assert activation_peak(narrow, replace(eager, data_parallel=2), compiled=True) == round(
        8192 * (2 * per_token + 3.5 * 4096 * 2)
    )


def test_mla_decompresses_a_full_workspace_of_latents() -> None:
    # DeepSeek-V2-Lite: 16 heads of 192 (64 of them rotary); 65,536 latents of 576 to 16 x (128 + 128).
    lite = mixture(AttentionKind.LATENT, heads=16, head_dim=192, experts=None, intermediate_size=16)
    eager = replace(PLAIN, enforce_eager=True, max_num_seqs=1, max_num_batched_tokens=512)
    workspace = 65536 * (16 * 256 + 576) * 2
    assert activation_peak(lite, eager, compiled=True) == workspace + round(512 * 3.5 * 4096 * 2)
    half = activation_peak(lite, replace(eager, tensor_parallel=2), compiled=True)
    assert half == 65536 * (8 * 256 + 576) * 2 + round(512 * 3.5 * 4096 * 2)


def test_many_sequences_of_a_large_vocabulary_are_the_peak() -> None:
    eager = replace(PLAIN, enforce_eager=True, max_num_seqs=1024, max_num_batched_tokens=2048)
    logits, rows = 1024 * 128256, 2048 * 4096 * 2
    assert activation_peak(LLAMA, eager, compiled=True, version=(0, 25, 1)) == 6 * logits + rows
    assert activation_peak(LLAMA, eager, compiled=True, version=(0, 24, 0)) == 14 * logits + rows
    assert activation_peak(LLAMA, eager, compiled=True, version=(0, 11, 0)) == 36 * logits + rows
