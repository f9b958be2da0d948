"""Each rule by its name: a config that breaks it, the nearest one that does not, and a remedy with numbers."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from rule_cases import (
    AWQ_70B,
    DEEPSEEK_V3,
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL_8X7B,
    QWEN3_30B_A3B,
    QWEN_7B,
    config,
)

from autotune.node.defaults import ResolvedSettings, resolve
from autotune.node.gpus import parse_node_name
from autotune.records import AttentionKind, Config, LayerAttention, ModelShape, Value
from autotune.search.rules import RULES, RuleContext, Violation, check
from autotune.search.rules_base import BATCH_FLAGS, MEMORY_FLAGS

NGRAM = '{"method": "ngram", "num_speculative_tokens": 4}'
BACKWARDS = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 5, "prompt_lookup_max": 2}'

Case = tuple[str, str, ModelShape, dict[str, Value], dict[str, Value], str, str]

CASES: list[Case] = [
    # name, node, shape, breaks, does not, in the text, in the remedy
    (
        "gpu-arithmetic", "4xH100-80GB", LLAMA_8B,
        {"tensor_parallel_size": 2, "data_parallel_size": 4}, {"tensor_parallel_size": 2, "data_parallel_size": 2},
        "TP 2 x PP 1 x DP 4 = 8 GPUs, 4 are visible", "data-parallel-size 2 at most",
    ),
    (
        "attention-heads", "8xH100-80GB", QWEN_7B, {"tensor_parallel_size": 8}, {"tensor_parallel_size": 4},
        "28 attention heads", "tensor-parallel-size 1, 2, 4 divide this model",
    ),
    (
        "kv-heads", "8xH100-80GB", replace(LLAMA_8B, kv_heads=6, heads=48), {"tensor_parallel_size": 4},
        {"tensor_parallel_size": 2}, "6 KV heads", "tensor-parallel-size 1, 2 divide",
    ),
    (
        "mlp-columns", "4xH100-80GB", replace(LLAMA_8B, intermediate_size=14_338), {"tensor_parallel_size": 4},
        {"tensor_parallel_size": 2}, "14338 MLP columns", "tensor-parallel-size 1, 2 divide",
    ),
    (
        # 64 x 501 rows are divided by 4, and 501 is divided by 3, so 6 divides 32,064 and 128 does not.
        "vocabulary", "4xH100-80GB",
        replace(LLAMA_8B, vocab_size=32_060, heads=24, kv_heads=24, intermediate_size=14_400),
        {"tensor_parallel_size": 128}, {"tensor_parallel_size": 3}, "32064 padded vocabulary", "divide",
    ),
    (
        "pipeline-layers", "8xH100-80GB", replace(LLAMA_8B, layers=4), {"pipeline_parallel_size": 8},
        {"pipeline_parallel_size": 4}, "8 > 4 layers", "pipeline-parallel-size 4 at most",
    ),
    (
        "expert-parallel-moe", "4xH100-80GB", LLAMA_8B,
        {"tensor_parallel_size": 2, "enable_expert_parallel": True}, {"tensor_parallel_size": 2},
        "is dense", "leave --enable-expert-parallel off",
    ),
    (
        "expert-parallel-group", "4xH100-80GB", QWEN3_30B_A3B,
        {"enable_expert_parallel": True}, {"enable_expert_parallel": True, "data_parallel_size": 2},
        "one GPU to deal experts to", "use TP or DP",
    ),
    (
        # 768 columns over 2 x 5 do not divide; whole experts need not.
        "expert-columns", "10xH100-80GB", QWEN3_30B_A3B,
        {"tensor_parallel_size": 2, "data_parallel_size": 5},
        {"tensor_parallel_size": 2, "data_parallel_size": 5, "enable_expert_parallel": True},
        "768 columns", "--enable-expert-parallel",
    ),
    (
        "utilization", "1xH100-80GB", LLAMA_8B, {"gpu_memory_utilization": 0.99}, {"gpu_memory_utilization": 0.98},
        "utilization 0.99", "0.95 on a dedicated node",
    ),
    (
        "bfloat16-capability", "1xT4-16GB", QWEN_7B, {"dtype": "bfloat16"}, {"dtype": "float16"},
        "compute capability 7.5", "float16",
    ),
    (
        "batch-holds-sequences", "1xH100-80GB", LLAMA_8B, {"max_num_batched_tokens": 256, "max_num_seqs": 257},
        {"max_num_batched_tokens": 256, "max_num_seqs": 256}, "256 < max-num-seqs 257", "max-num-seqs 256 or less",
    ),
    (
        "unchunked-batch", "1xH100-80GB", LLAMA_8B,
        {"max_num_batched_tokens": 4096, "max_model_len": 8192, "enable_chunked_prefill": False},
        {"max_num_batched_tokens": 4096, "max_model_len": 8192, "enable_chunked_prefill": True},
        "4096 < max-model-len 8192", "max-num-batched-tokens 8192",
    ),
    (
        "speculation", "1xH100-80GB", LLAMA_8B, {"speculative_config": BACKWARDS}, {"speculative_config": NGRAM},
        "5 > prompt_lookup_max 2", "prompt_lookup_min 2",
    ),
    (
        "speculation-async", "1xH100-80GB", LLAMA_8B,
        {"speculative_config": NGRAM, "async_scheduling": True},
        {"speculative_config": NGRAM, "async_scheduling": False},
        "refuses to start", "--async-scheduling off",
    ),
    (
        "positions", "1xH100-80GB", LLAMA_8B, {"max_model_len": 131_073}, {"max_model_len": 131_072},
        "131072 positions", "131072 at most",
    ),
    (
        "workload-length", "1xH100-80GB", LLAMA_8B, {"max_model_len": 8999}, {"max_model_len": 12_000},
        "9000 tokens", "max-model-len 9000 or more",
    ),
    (
        "floor-length", "1xH100-80GB", LLAMA_8B, {"max_model_len": 9500}, {"max_model_len": 12_000},
        "9500 < 12000", "max-model-len 12000 or more",
    ),
    (
        "weights-fit", "4xH100-80GB", LLAMA_70B, {"max_model_len": 12_000},
        {"max_model_len": 12_000, "tensor_parallel_size": 4}, "131 GiB of weights", "TP 2 x PP 1 (2 GPUs per replica)",
    ),
    (
        "one-request-fits", "2xRTX4090-24GB", LLAMA_8B, {"max_model_len": 131_072}, {"max_model_len": 12_000},
        "131072 tokens needs 16 GiB", "TP 2 x PP 1",
    ),
    (
        "flag-values", "1xH100-80GB", LLAMA_8B, {"api_server_count": 0}, {"api_server_count": 1},
        "--api-server-count", "at least 1",
    ),
    (
        "flag-values", "1xH100-80GB", LLAMA_8B, {"speculative_config": "[" * 5000}, {"speculative_config": NGRAM},
        "--speculative-config", "JSON object",
    ),
]  # fmt: skip

CONTEXT = RuleContext(needed_len=9000, min_model_len=12_000)


def judged(node: str, shape: ModelShape, flags: dict[str, Value], name: str) -> list[Violation]:
    context = CONTEXT if name in ("workload-length", "floor-length", "weights-fit") else RuleContext()
    return [one for one in check(config(**flags), parse_node_name(node), shape, context) if one.name == name]


@pytest.mark.parametrize("case", CASES, ids=[f"{index}-{case[0]}" for index, case in enumerate(CASES)])
def test_each_rule_by_its_name(case: Case) -> None:
    name, node, shape, bad, good, text, remedy = case
    found = judged(node, shape, bad, name)
    assert found
    assert text in found[0].text
    assert remedy in found[0].remedy
    assert judged(node, shape, good, name) == []


def test_every_rule_has_such_a_case() -> None:
    assert {case[0] for case in CASES} == {"flag-values", *(rule.name for rule in RULES)}


def test_remedies_of_memory_have_the_numbers_of_the_case() -> None:
    node = parse_node_name("2xRTX4090-24GB")
    (found,) = check(config(max_model_len=131_072), node, LLAMA_8B)
    # 0.92 x 23.55 GiB less 15 of weights and 0.22 outside torch leave 6.4 GiB for activations and KV; with 0 to 2.5 GiB
    # of activations and 131,072 bytes per token that is 32,000 to 53,000 tokens.
    longest = int(found.remedy.split("max-model-len ")[1].split(" ")[0])
    assert 32_000 < longest < 53_000
    assert check(config(max_model_len=longest), node, LLAMA_8B) == ()
    (tight,) = check(config(max_model_len=longest * 2 - 8000), node, LLAMA_8B)
    assert "kv-cache-dtype fp8" in tight.remedy
    (large,) = check(config(), parse_node_name("1xH100-80GB"), LLAMA_70B)
    assert "quantised checkpoint" in large.remedy
    # One request of 131,072 tokens is 40 GiB of KV: (131 + 40) / 2 = 86 GiB is more than 72.8, a third of it is not.
    assert "3 nodes like this: TP 1 inside each x PP 3" in large.remedy


def test_experts_are_dealt_out_over_tp_and_dp() -> None:
    # One byte per parameter: 623 GiB over 8 GPUs of 140 GiB are 78 each; without experts over DP each would hold all.
    node = parse_node_name("8xH200-141GB")
    for flags in (
        {"tensor_parallel_size": 8},
        {"data_parallel_size": 8},
        {"tensor_parallel_size": 2, "data_parallel_size": 4},
    ):
        both = config(**flags, enable_expert_parallel=True, max_model_len=8192)
        assert check(both, node, DEEPSEEK_V3) == ()
    assert [v.name for v in check(config(tensor_parallel_size=4, max_model_len=8192), node, DEEPSEEK_V3)] == [
        "weights-fit"
    ]


def test_heads_that_tp_does_not_split_do_not_matter() -> None:
    # The latent of MLA counts as one KV head, which every GPU holds in full.
    node = parse_node_name("8xH200-141GB")
    assert check(config(tensor_parallel_size=8, max_model_len=8192), node, DEEPSEEK_V3) == ()
    assert DEEPSEEK_V3.kv_heads == 1
    # Layers with other KV heads are each asked: 16 of some and 3 of others.
    layer = MIXTRAL_8X7B.decoder[0]
    few = replace(layer, attention=LayerAttention(kind=AttentionKind.SLIDING, kv_heads=3, head_dim=128, window=1024))
    mixed = replace(MIXTRAL_8X7B, decoder=(*MIXTRAL_8X7B.decoder[:-1], few))
    found = check(config(tensor_parallel_size=2), parse_node_name("4xH100-80GB"), mixed)
    assert [(v.name, "3 KV heads" in v.text) for v in found] == [("kv-heads", True)]


def test_a_checkpoint_is_judged_by_its_own_shape() -> None:
    node = parse_node_name("2xRTX4090-24GB")
    context = RuleContext(shapes={"awq": AWQ_70B})
    flags: dict[str, Value] = {"tensor_parallel_size": 2, "max_model_len": 8192, "max_num_seqs": 64}
    assert check(config(**flags, max_num_batched_tokens=2048), node, LLAMA_70B, context)[0].name == "weights-fit"
    assert check(config(**flags, max_num_batched_tokens=2048, model="awq"), node, LLAMA_70B, context) == ()
    # What nobody described is only asked what needs no shape.
    assert check(config(**flags, model="else"), node, LLAMA_70B, context) == ()
    named = config(**flags, model=LLAMA_70B.name)
    assert check(named, node, LLAMA_70B, context)[0].name == "weights-fit"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("tensor-parallel-size", 2),
        ("pipeline-parallel-size", 2),
        ("data-parallel-size", 2),
        ("gpu-memory-utilization", 0.5),
        ("max-model-len", 4096),
        ("max-num-seqs", 7),
        ("max-num-batched-tokens", 777),
        ("kv-cache-dtype", "fp8"),
        ("dtype", "float16"),
        ("enable-prefix-caching", False),
        ("enable-chunked-prefill", False),
        ("enforce-eager", True),
        ("block-size", 32),
        ("enable-expert-parallel", True),
        ("async-scheduling", False),
        ("max-cudagraph-capture-size", 8),
        ("performance-mode", "throughput"),
        ("speculative-config", NGRAM),
        ("quantization", "fp8"),
        ("stream-interval", 4),
        ("api-server-count", 3),
    ],
)
def test_what_decides_the_settings_is_among_what_rules_read(flag: str, value: Value) -> None:
    """A flag that changes a setting, also through a default, must be read by the rules that use the setting."""
    node = parse_node_name("4xH100-80GB")
    for other in ({}, {"max-num-seqs": 5}, {"enable-chunked-prefill": False}):
        before, after = (resolve(Config.of({**other, **extra}), node, LLAMA_8B) for extra in ({}, {flag: value}))
        changed = {f.name for f in fields(ResolvedSettings) if getattr(before, f.name) != getattr(after, f.name)}
        if changed - {"stream_interval", "api_server_count"}:
            assert flag in MEMORY_FLAGS
        if changed & {"max_num_seqs", "max_num_batched_tokens", "max_model_len"}:
            assert flag in BATCH_FLAGS
