"""Doubts: each with a config that raises it and one that does not; none of them refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rule_cases import (
    AWQ_70B,
    CPU,
    DEEPSEEK_V3,
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL_8X7B,
    QWEN3_30B_A3B,
    config,
)

from autotune.node.gpus import parse_node_name
from autotune.records import ModelShape, Topology, Value
from autotune.search.rules import RuleContext, check, warnings_of
from autotune.search.rules_warnings import WARNING_RULES
from autotune.units import GIB

NGRAM = '{"method": "ngram", "num_speculative_tokens": 4}'

Doubt = tuple[str, str, ModelShape, dict[str, Value], dict[str, Value], str]

DOUBTS: list[Doubt] = [
    ("idle-gpus", "8xH100-80GB", LLAMA_8B, {"tensor_parallel_size": 2}, {"data_parallel_size": 8}, "2 of 8 GPUs"),
    (
        "slow-links", "4xL40S-48GB", LLAMA_8B, {"tensor_parallel_size": 4}, {"tensor_parallel_size": 2},
        "TP 4 over PCIe",
    ),
    (
        "replicated-kv", "8xH100-80GB", QWEN3_30B_A3B, {"tensor_parallel_size": 8}, {"tensor_parallel_size": 4},
        "each is stored 2 times",
    ),
    (
        "replicated-kv", "8xH200-141GB", DEEPSEEK_V3, {"tensor_parallel_size": 8},
        {"data_parallel_size": 8, "enable_expert_parallel": True}, "each of the 8 GPUs stores in full",
    ),
    (
        "uneven-experts", "6xH100-80GB", MIXTRAL_8X7B, {"data_parallel_size": 6, "enable_expert_parallel": True},
        {"data_parallel_size": 4, "enable_expert_parallel": True}, "some hold 2, some 1",
    ),
    ("kv-dtype", "1xA100-80GB", LLAMA_8B, {"kv_cache_dtype": "fp8"}, {"kv_cache_dtype": "auto"}, "8.0"),
    ("kv-dtype", "1xH100-80GB", LLAMA_8B, {"kv_cache_dtype": "fp8"}, {}, "no scales"),
    ("block-size", "1xH100-80GB", LLAMA_8B, {"block_size": 20}, {"block_size": 32}, "multiple of 16"),
    ("block-size", "1xH100-80GB", LLAMA_8B, {"block_size": 128}, {"block_size": 64}, "128 > 64"),
    ("quantization", "1xT4-16GB", LLAMA_8B, {"quantization": "mxfp4"}, {"quantization": "awq"}, "asks for 8.0"),
    (
        "quantization", "1xA100-80GB", LLAMA_8B, {"quantization": "fp8"}, {"quantization": "gptq"},
        "saves memory, not arithmetic",
    ),
    (
        "quantized-groups", "8xH100-80GB", replace(AWQ_70B, intermediate_size=29_568), {"tensor_parallel_size": 8},
        {}, "29568 MLP columns over 8 GPUs are 3696",
    ),
    (
        "quantized-groups", "8xH100-80GB", replace(QWEN3_30B_A3B, quantization="fp8"), {"tensor_parallel_size": 8},
        {"tensor_parallel_size": 8, "enable_expert_parallel": True}, "768 columns of an expert over 8 GPUs are 96",
    ),
    (
        "high-utilization", "1xH100-80GB", LLAMA_8B, {"gpu_memory_utilization": 0.96},
        {"gpu_memory_utilization": 0.95}, "0.96",
    ),
    ("numa-bind", "4xH100-80GB", LLAMA_8B, {"numa_bind": True}, {"numa_bind": False}, "one NUMA node"),
    (
        "speculation-limits", "2xH100-80GB", LLAMA_8B,
        {"speculative_config": NGRAM, "pipeline_parallel_size": 2}, {"pipeline_parallel_size": 2}, "PP 2",
    ),
    (
        "async-pipeline", "2xH100-80GB", LLAMA_8B, {"async_scheduling": True, "pipeline_parallel_size": 2},
        {"pipeline_parallel_size": 2}, "PP 2",
    ),
    (
        "graph-sizes", "1xH100-80GB", LLAMA_8B, {"max_cudagraph_capture_size": 128, "max_num_seqs": 256},
        {"max_cudagraph_capture_size": 256, "max_num_seqs": 256}, "129 to 256",
    ),
    (
        "batch-beyond-work", "1xH100-80GB", LLAMA_8B,
        {"max_num_batched_tokens": 8192, "max_num_seqs": 2, "max_model_len": 2048},
        {"max_num_batched_tokens": 4096, "max_num_seqs": 2, "max_model_len": 2048}, "8192 > 2 sequences",
    ),
    (
        "ray-on-one-node", "2xH100-80GB", LLAMA_8B, {"distributed_executor_backend": "ray"},
        {"distributed_executor_backend": "mp"}, "needs no cluster",
    ),
]  # fmt: skip


@pytest.mark.parametrize("doubt", DOUBTS, ids=[f"{index}-{doubt[0]}" for index, doubt in enumerate(DOUBTS)])
def test_each_doubt_by_its_name(doubt: Doubt) -> None:
    name, where, shape, raised, quiet, text = doubt
    node = parse_node_name(where)
    found = [one for one in warnings_of(config(**raised), node, shape) if one.name == name]
    assert any(text in one.text for one in found), found
    assert name not in {one.name for one in warnings_of(config(**quiet), node, shape)}
    # No rule has the same name: a doubt refuses nothing.
    assert name not in {one.name for one in check(config(**raised), node, shape)}


def test_mixed_cards_and_unknown_numa() -> None:
    node = parse_node_name("2xRTX4090-24GB")
    mixed = replace(node, gpus=(node.gpus[0], replace(node.gpus[1], memory_bytes=16 * GIB, name="other")))
    split = config(tensor_parallel_size=2)
    assert "mixed-gpus" in {one.name for one in warnings_of(split, mixed, LLAMA_8B)}
    assert "mixed-gpus" not in {one.name for one in warnings_of(split, node, LLAMA_8B)}
    nowhere = Topology(paths=((None, None), (None, None)), nvlinks=((0, 0), (0, 0)), numa=(None, None), numa_nodes=2)
    found = warnings_of(config(numa_bind=True), replace(node, topology=nowhere), LLAMA_8B)
    assert any("could not be told" in one.text for one in found)
    two = replace(nowhere, numa=(0, 1))
    assert not [
        x for x in warnings_of(config(numa_bind=True), replace(node, topology=two), LLAMA_8B) if x.name == "numa-bind"
    ]


def test_every_doubt_has_such_a_case() -> None:
    assert {doubt[0] for doubt in DOUBTS} | {"mixed-gpus"} == {rule.name for rule in WARNING_RULES}


def test_a_flag_against_the_checkpoint() -> None:
    node = parse_node_name("8xH100-80GB")
    found = warnings_of(config(tensor_parallel_size=8, quantization="gptq"), node, AWQ_70B)
    assert any("the checkpoint says awq" in one.text for one in found)
    for same in ("awq", "awq_marlin"):
        assert "quantization" not in {
            one.name for one in warnings_of(config(tensor_parallel_size=8, quantization=same), node, AWQ_70B)
        }


def test_nothing_to_say_of_what_cannot_be_read_or_is_not_known() -> None:
    node = parse_node_name("4xH100-80GB")
    assert warnings_of(config(max_num_seqs="many"), node, LLAMA_70B) == ()
    assert warnings_of(config(tensor_parallel_size=4), node, None) == ()
    assert warnings_of(config(), CPU, LLAMA_8B) == ()
    fixed = RuleContext(fixed=(("block-size", 20),))
    assert [one.name for one in warnings_of(config(data_parallel_size=4), node, LLAMA_8B, fixed)] == ["block-size"]
