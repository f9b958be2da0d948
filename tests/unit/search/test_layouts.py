"""Which layout first, and why: the guide's decision procedure on its own recipes and on odd nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import (
    AWQ_70B,
    CPU,
    DEEPSEEK_V3,
    FP8_405B,
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL_8X7B,
    QWEN3_30B_A3B,
    QWEN_7B,
)

from autotune.node.gpus import parse_node_name
from autotune.records import Config, ModelShape, Node
from autotune.search.layouts import LayoutPlan, no_layout_hint, plan_layouts
from autotune.search.rules import RuleContext, check
from autotune.units import GIB

CONTEXT = RuleContext(needed_len=4096, fixed=(("max-model-len", 8192),))
EXPERTS_OF_4 = ["TP 4 x PP 1 x DP 1 + EP", "TP 1 x PP 1 x DP 4 + EP"]
EXPERTS_OF_8 = ["TP 8 x PP 1 x DP 1 + EP", "TP 1 x PP 1 x DP 8 + EP"]
HEADS_63 = replace(LLAMA_70B, heads=63, kv_heads=63)
HEADS_40 = replace(LLAMA_70B, heads=40, kv_heads=8)
HEADS_14 = replace(LLAMA_8B, heads=14, kv_heads=2)


def labels(node: Node | str, shape: ModelShape | None, context: RuleContext = CONTEXT) -> list[str]:
    found = plan_layouts(parse_node_name(node) if isinstance(node, str) else node, shape, context)
    return [plan.label for plan in found]


@pytest.mark.parametrize(
    ("node", "shape", "row", "first"),
    [
        # R1: 37 GiB do not fit 23.5; PCIe, so TP 2, PP 2 compared.
        ("2xRTX4090-24GB", AWQ_70B, "G22", ["TP 2 x PP 1 x DP 1", "TP 1 x PP 2 x DP 1"]),
        # R2, R3: 131 GiB on 79; two GPUs leave 7 % for KV.
        ("4xH100-80GB", LLAMA_70B, "G21", ["TP 4 x PP 1 x DP 1", "TP 2 x PP 2 x DP 1", "TP 2 x PP 1 x DP 2"]),
        ("4xA100-80GB", LLAMA_70B, "G21", ["TP 4 x PP 1 x DP 1"]),
        # R4: two GPUs of 140 GiB leave half of it; TP 8 is compared.
        ("8xH200-141GB", LLAMA_70B, "G21", ["TP 2 x PP 1 x DP 4", "TP 8 x PP 1 x DP 1"]),
        # R5: 382 GiB.
        ("8xH100-80GB", FP8_405B, "G21", ["TP 8 x PP 1 x DP 1", "TP 4 x PP 2 x DP 1"]),
        # R6
        ("4xL40S-48GB", LLAMA_70B, "G22", ["TP 2 x PP 2 x DP 1", "TP 1 x PP 4 x DP 1", "TP 4 x PP 1 x DP 1"]),
        # R7
        ("4xH100-80GB", LLAMA_8B, "G20", ["TP 1 x PP 1 x DP 4", "TP 4 x PP 1 x DP 1", "TP 2 x PP 1 x DP 2"]),
        # R8
        ("8xH200-141GB", DEEPSEEK_V3, "G21", [*EXPERTS_OF_8, "TP 8 x PP 1 x DP 1"]),
        ("4xH100-80GB", MIXTRAL_8X7B, "G21", [*EXPERTS_OF_4, "TP 4 x PP 1 x DP 1"]),
        ("8xH100-80GB", QWEN3_30B_A3B, "G20", ["TP 1 x PP 1 x DP 8", *reversed(EXPERTS_OF_8)]),
        # Odd ones: no TP divides both 3 GPUs and the model; 6 GPUs of which TP can use 2.
        ("3xH100-80GB", LLAMA_70B, "G23", ["TP 1 x PP 3 x DP 1"]),
        ("3xH100-80GB", LLAMA_8B, "G20", ["TP 1 x PP 1 x DP 3"]),
        ("6xL40S-48GB", LLAMA_8B, "G20", ["TP 1 x PP 1 x DP 6", "TP 2 x PP 1 x DP 3", "TP 1 x PP 2 x DP 3"]),
        # 28 heads, 4 KV heads: TP 1, 2 or 4.
        ("8xL4-24GB", QWEN_7B, "G20", ["TP 1 x PP 1 x DP 8", "TP 2 x PP 1 x DP 4", "TP 1 x PP 2 x DP 4"]),
        ("8xA100-80GB", QWEN_7B, "G20", ["TP 1 x PP 1 x DP 8", "TP 4 x PP 1 x DP 2", "TP 2 x PP 1 x DP 4"]),
        ("8xA100-80GB", HEADS_40, "G21", ["TP 4 x PP 1 x DP 2", "TP 8 x PP 1 x DP 1"]),
        # 14 heads, 2 KV heads: TP 2 at most (7 is no multiple of 2).
        ("8xH100-80GB", HEADS_14, "G20", ["TP 1 x PP 1 x DP 8", "TP 2 x PP 1 x DP 4"]),
        ("4xH100-80GB", HEADS_63, "G23", ["TP 1 x PP 4 x DP 1"]),
        ("1xH100-80GB", LLAMA_8B, "one GPU", ["TP 1 x PP 1 x DP 1"]),
    ],
)  # fmt: skip
def test_judgement(node: str, shape: ModelShape, row: str, first: list[str]) -> None:
    plans = plan_layouts(parse_node_name(node), shape, CONTEXT)
    assert [plan.label for plan in plans][: len(first)] == first
    assert plans[0].why.startswith(row)
    assert [plan.order for plan in plans] == list(range(len(plans)))


def test_mixed_cards_go_by_stages() -> None:
    node = parse_node_name("2xRTX4090-24GB")
    mixed = replace(node, gpus=(node.gpus[0], replace(node.gpus[1], memory_bytes=22 * GIB)))
    plans = plan_layouts(mixed, AWQ_70B, RuleContext(fixed=(("max-model-len", 4096),)))
    assert plans[0].label == "TP 1 x PP 2 x DP 1"
    assert plans[0].why.startswith("G23: cards of different memory")
    assert labels(mixed, LLAMA_8B)[:2] == ["TP 1 x PP 1 x DP 2", "TP 1 x PP 2 x DP 1"]


def test_smaller_layouts_are_always_there() -> None:
    """G25: more GPUs are not always better."""
    found = labels("8xH100-80GB", LLAMA_8B)
    assert {"TP 1 x PP 1 x DP 1", "TP 2 x PP 1 x DP 1", "TP 4 x PP 1 x DP 1"} <= set(found)
    # Layouts that leave GPUs idle come behind those that do not.
    assert [gpus_of(label) for label in found] == sorted((gpus_of(label) for label in found), reverse=True)


def gpus_of(label: str) -> int:
    tensor, pipeline, data = (int(part.split()[1]) for part in label.removesuffix(" + EP").split(" x "))
    return tensor * pipeline * data


def test_without_a_shape_or_gpus() -> None:
    assert labels(CPU, LLAMA_8B) == []
    plans = plan_layouts(parse_node_name("4xH100-80GB"), None)
    assert {plan.label for plan in plans} >= {"TP 4 x PP 1 x DP 1", "TP 1 x PP 1 x DP 4", "TP 1 x PP 1 x DP 1"}
    assert {plan.kv_tokens_predicted for plan in plans} == {None}


def test_a_fixed_size_leaves_no_other() -> None:
    context = replace(CONTEXT, fixed=(*CONTEXT.fixed, ("tensor-parallel-size", 2)))
    plans = plan_layouts(parse_node_name("4xH100-80GB"), LLAMA_8B, context)
    assert {plan.tensor for plan in plans} == {2}
    assert plans[0].label == "TP 2 x PP 1 x DP 2"


def test_predicted_kv_of_a_layout() -> None:
    """Recorded starts of Llama-3.1-8B on an H200 leave 107-112 GiB at 0.92: 131,072 bytes per token."""
    (plan,) = plan_layouts(parse_node_name("1xH200-141GB"), LLAMA_8B, CONTEXT)
    assert plan.kv_tokens_predicted == pytest.approx(110 * GIB / 131_072, rel=0.05)
    assert plan.max_concurrency == pytest.approx(plan.kv_tokens_predicted / 8192, rel=0.01)
    assert plan.flags == {
        "tensor-parallel-size": 1,
        "pipeline-parallel-size": 1,
        "data-parallel-size": 1,
        "enable-expert-parallel": False,
    }


def test_what_does_not_fit_the_node_is_planned_across_nodes() -> None:
    """G24: 16-bit 405B is 754 GiB: 94 GiB for each of 8 GPUs, 47 for each of 16."""
    plain = replace(FP8_405B, quantization=None, weight_bits=16, weight_bytes=2 * 405 * 10**9)
    node = parse_node_name("8xH100-80GB")
    assert plan_layouts(node, plain, CONTEXT) == ()
    assert "TP 8 inside each node x PP 2 between 2 nodes" in no_layout_hint(node, plain, CONTEXT)
    assert "longer context" in no_layout_hint(node, plain, RuleContext(needed_len=10**6))
    assert "Across nodes" not in no_layout_hint(CPU, plain, CONTEXT)


kinds = st.sampled_from(["H100-80GB", "H200-141GB", "L40S-48GB", "L4-24GB", "RTX4090-24GB", "T4-16GB"])
shapes = st.sampled_from([LLAMA_8B, LLAMA_70B, QWEN_7B, AWQ_70B, MIXTRAL_8X7B, QWEN3_30B_A3B, HEADS_63, HEADS_14])


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 8), kind=kinds, shape=shapes)
def test_every_layout_is_within_the_node_and_once(count: int, kind: str, shape: ModelShape) -> None:
    node = parse_node_name(f"{count}x{kind}")
    plans = plan_layouts(node, shape, CONTEXT)
    assert len({tuple(plan.flags.items()) for plan in plans}) == len(plans)
    for plan in plans:
        assert plan.gpus <= count
        assert gpus_of(plan.label) == plan.gpus
        assert plan.why
        sparing = {"gpu-memory-utilization": 0.94, "max-num-seqs": 64, "max-num-batched-tokens": 2048}
        assert startable(plan, node, shape, sparing) or startable(plan, node, shape, {"gpu-memory-utilization": 0.92})


def startable(plan: LayoutPlan, node: Node, shape: ModelShape, rest: dict[str, float]) -> bool:
    return not check(Config.of({**plan.flags, **rest}), node, shape, CONTEXT)


def test_room_for_kv_is_a_share_of_the_budget_that_the_operator_fixed() -> None:
    # 0.3 x 79 GiB hold 15 GiB of weights and 7 GiB of KV: a third of that budget, a tenth of the usual one.
    shared = replace(CONTEXT, fixed=(*CONTEXT.fixed, ("gpu-memory-utilization", 0.3)))
    assert labels("4xH100-80GB", LLAMA_8B, shared)[0] == "TP 1 x PP 1 x DP 4"
