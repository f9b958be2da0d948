"""The baseline and the first configs to try."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rule_cases import AWQ_70B, DEEPSEEK_V3, FP8_405B, LLAMA_8B, LLAMA_70B, MIXTRAL_8X7B, QWEN3_30B_A3B

from autotune.errors import NoFeasibleConfig
from autotune.node.defaults import resolve
from autotune.node.gpus import parse_node_name
from autotune.node.memory import estimate
from autotune.node.model_shape import load_shape
from autotune.records import Config, Experts, Link, ModelShape, Node, Value
from autotune.search.rules import RuleContext, check
from autotune.search.space import load_space, parse_space
from autotune.search.starting import baseline, starting_points
from autotune.units import GIB

NO_CACHE = {"HF_HUB_CACHE": "/nonexistent"}
CPU = Node(name="cpu", gpus=(), link=Link.NONE, simulated=False)


@pytest.mark.parametrize(
    ("node", "model", "needed", "expected"),
    [
        ("1xH100-80GB", "Llama-3.1-8B", 4096, {}),
        ("8xH100-80GB", "Llama-3.1-8B", 4096, {}),
        # 131 GiB of weights: not on one GPU of 79 GiB; two leave 8 % of 72.8 GiB each for KV.
        ("4xH100-80GB", "Llama-3.1-70B", None, {"tensor-parallel-size": 4}),
        ("4xH100-80GB", "Llama-3.1-70B", 4096, {"tensor-parallel-size": 4}),
        ("2xH100-80GB", "Llama-3.1-70B", 4096, {"tensor-parallel-size": 2, "max-model-len": 8192}),
        ("1xL4-24GB", "Llama-3.1-8B", 4096, {"max-model-len": 8192}),
        ("8xH200-141GB", "Llama-3.1-70B", 4096, {"tensor-parallel-size": 2}),
        # 24 GB card: 15 GiB of weights leave too little for 131,072 tokens (16 GiB), enough for 8,192 (1 GiB).
        ("1xRTX4090-24GB", "Llama-3.1-8B", 3000, {"max-model-len": 8192}),
        ("2xRTX4090-24GB", "Llama-3.1-8B", 3000, {"max-model-len": 8192}),
        ("2xRTX4090-24GB", "Llama-3.1-8B", None, {"tensor-parallel-size": 2}),
        # 28 heads: of up to 8 GPUs TP can be 1, 2, 4 or 7.
        ("8xL4-24GB", "Qwen2.5-7B", 20000, {"max-model-len": 32768}),
    ],
)
def test_baseline(node: str, model: str, needed: int | None, expected: dict[str, Value]) -> None:
    shape = load_shape(model, env=NO_CACHE)
    config, changes = baseline(parse_node_name(node), shape, needed)
    assert config.as_dict() == expected
    assert len(changes) == len(expected)
    assert all(
        text.startswith(f"{name} {value}: ") for text, (name, value) in zip(sorted(changes), config, strict=True)
    )
    settings = resolve(config, parse_node_name(node), shape)
    assert estimate(shape, parse_node_name(node).gpus[0], settings).fits


def test_baseline_by_pipeline_where_tp_cannot_divide_or_cards_are_mixed() -> None:
    # 63 heads: TP could be 3, which does not divide the MLP's 28,672 columns.
    shape = replace(load_shape("Llama-3.1-70B", env=NO_CACHE), heads=63, kv_heads=63)
    config, _ = baseline(parse_node_name("4xH100-80GB"), shape, 4096)
    assert config.as_dict() == {"pipeline-parallel-size": 4, "max-model-len": 8192}
    node = parse_node_name("2xRTX4090-24GB")
    mixed = replace(node, gpus=(node.gpus[0], replace(node.gpus[1], memory_bytes=22 * GIB)))
    config, _ = baseline(mixed, load_shape("Llama-2-13b-hf", env=NO_CACHE), 1000)
    assert config.get("pipeline-parallel-size") == 2
    assert config.get("tensor-parallel-size") is None


def test_a_baseline_that_skips_a_smaller_split_says_which_are_meant() -> None:
    # 61 GiB start on 4 cards of 23.6 GiB, but leave 2 of the 6 idle.
    config, why = baseline(parse_node_name("6xRTX3090-24GB"), load_shape("Qwen3-32B", env=NO_CACHE), 4096)
    assert config.get("tensor-parallel-size") == 2
    assert config.get("pipeline-parallel-size") == 3
    assert all(text.endswith("on fewer GPUs of 23.6 GiB that divide the 6 of the node") for text in why[:2])
    _, why = baseline(parse_node_name("4xL40S-48GB"), load_shape("Llama-3.1-70B", env=NO_CACHE), 4096)
    assert why[0].endswith("on fewer GPUs of 44.4 GiB")


def test_baseline_leaves_fixed_flags_alone() -> None:
    shape = load_shape("Llama-3.1-8B", env=NO_CACHE)
    config, changes = baseline(
        parse_node_name("1xRTX4090-24GB"), shape, 3000, fixed=[("max-model-len", 4096), ("max-num-batched-tokens", 64)]
    )
    # vLLM lowers its own default of max-num-seqs to a smaller max-num-batched-tokens (arg_utils.py 0.32).
    assert (config.as_dict(), changes) == ({}, ())


def test_nothing_is_changed_where_nothing_can_be_computed() -> None:
    assert baseline(CPU, load_shape("Qwen3-0.6B", env=NO_CACHE), 512) == (Config.of({}), ())
    assert baseline(parse_node_name("1xL4-24GB"), None, 512) == (Config.of({}), ())
    assert starting_points(load_space("cpu-tiny"), CPU, None) == ()


def test_no_baseline_says_why() -> None:
    with pytest.raises(NoFeasibleConfig, match="131 GiB of weights") as caught:
        baseline(parse_node_name("1xH100-80GB"), load_shape("Llama-3.1-70B", env=NO_CACHE), 4096)
    assert "larger --node" in str(caught.value)
    with pytest.raises(NoFeasibleConfig, match="longest request has 9000") as caught:
        baseline(parse_node_name("1xH100-80GB"), load_shape("Llama-2-7b-hf", env=NO_CACHE), 9000)
    assert "shorter requests" in str(caught.value)


def layout(config: Config) -> tuple[Value, ...]:
    return tuple(config.get(f"{kind}-parallel-size") for kind in ("tensor", "pipeline", "data"))


@pytest.mark.parametrize(
    ("node", "model", "layouts"),
    [
        ("1xH100-80GB", "Llama-3.1-8B", [(1, 1, 1)]),
        ("4xH100-80GB", "Llama-3.1-8B", [(1, 1, 4), (4, 1, 1), (2, 1, 2)]),  # G20, and TP to compare
        ("8xH200-141GB", "Llama-3.1-70B", [(2, 1, 4), (8, 1, 1), (4, 2, 1), (4, 1, 2)]),  # G21
        ("4xL40S-48GB", "Llama-3.1-8B", [(1, 1, 4), (2, 1, 2), (1, 2, 2), (2, 2, 1)]),  # G22
        ("4xL40S-48GB", "Llama-3.1-70B", [(2, 2, 1), (1, 4, 1), (4, 1, 1)]),  # G22: PP compared
    ],
)
def test_starting_points(node: str, model: str, layouts: list[tuple[int, int, int]]) -> None:
    space, shape = load_space("default"), load_shape(model, env=NO_CACHE)
    context = RuleContext(needed_len=4096, fixed=(("max-model-len", 8192),))
    points = starting_points(space, parse_node_name(node), shape, context)
    assert len(set(points)) == len(points)
    # Layouts first, then the first of them set for throughput and for latency.
    assert [layout(point) for point in points] == [*layouts, layouts[0], layouts[0]]
    assert [point.get("max-num-seqs") for point in points] == [*[256] * len(layouts), 512, 64]
    for point in points:
        assert space.contains(point)
        assert check(point, parse_node_name(node), shape, context) == ()


def test_layouts_that_a_space_cannot_say_are_not_moved_to_others() -> None:
    text = """
name: pairs
parameters:
  tensor-parallel-size: {choices: [null, 2]}
  max-num-seqs: {choices: [128]}
"""
    points = starting_points(parse_space(text, file="f"), parse_node_name("4xL40S-48GB"), LLAMA_8B)
    # Without DP the layouts are TP 2 and one GPU; the larger one is tried first, and null says the default of 1.
    assert [point.get("tensor-parallel-size") for point in points] == [2]
    single = parse_space(text.replace("null, 2", "null, 16"), file="f")
    points = starting_points(single, parse_node_name("4xL40S-48GB"), LLAMA_8B)
    assert [point.get("tensor-parallel-size") for point in points] == [None]


@pytest.mark.parametrize(
    ("node", "shape", "expected"),
    [
        # 623 GiB over 8 x 140 GiB; 4 GPUs would be 156 GiB each.
        ("8xH200-141GB", DEEPSEEK_V3, {"tensor-parallel-size": 8}),
        # 87 GiB over 2 x 79 GiB.
        ("4xH100-80GB", MIXTRAL_8X7B, {"tensor-parallel-size": 2}),
        # 37 GiB of 4-bit weights over 2 x 23.5 GiB: KV for one request only once the length is cut.
        ("2xRTX4090-24GB", AWQ_70B, {"tensor-parallel-size": 2, "max-model-len": 8192}),
        ("8xH100-80GB", QWEN3_30B_A3B, {}),
    ],
)
def test_baseline_of_mixtures_and_quantised_checkpoints(
    node: str, shape: ModelShape, expected: dict[str, Value]
) -> None:
    config, changes = baseline(parse_node_name(node), shape, 4096)
    assert config.as_dict() == expected
    assert len(changes) == len(expected)
    assert check(config, parse_node_name(node), shape, RuleContext(needed_len=4096)) == ()


def test_baseline_deals_experts_out_where_they_cannot_be_split() -> None:
    # 87 GiB need two GPUs, and 14,335 columns of an expert do not divide by 2.
    odd = replace(MIXTRAL_8X7B, experts=Experts(count=8, per_token=2, intermediate_size=14_335))
    config, changes = baseline(parse_node_name("2xH100-80GB"), odd, 4096)
    assert config.as_dict() == {"tensor-parallel-size": 2, "enable-expert-parallel": True}
    assert any("cannot be split" in change for change in changes)


def test_baseline_admits_the_floor_and_takes_another_checkpoint_where_it_must() -> None:
    node = parse_node_name("1xRTX4090-24GB")
    cut, _ = baseline(node, LLAMA_8B, 3000, min_model_len=20_000)
    assert cut.get("max-model-len") == 32_768
    config, changes = baseline(parse_node_name("2xRTX4090-24GB"), LLAMA_70B, 4096, checkpoints={"awq": AWQ_70B})
    assert config.get("model") == "awq"
    assert "131 GiB" in changes[0]
    with pytest.raises(NoFeasibleConfig):
        baseline(parse_node_name("1xRTX4090-24GB"), LLAMA_70B, 4096, checkpoints={"awq": AWQ_70B})


def test_what_fits_nowhere_is_named_with_a_bound_of_its_activations() -> None:
    shape = load_shape("Llama-3.1-405B", env=NO_CACHE)
    with pytest.raises(NoFeasibleConfig) as caught:
        baseline(parse_node_name("4xA100-80GB-NVLink"), shape, 4096)
    said = str(caught.value)
    assert f"{shape.name} in any layout has no config that can start on 4xA100-80GB-NVLink" in said
    # The rule takes the least that a start can need, so its figure is below the one that `capacity` predicts.
    assert "of weights and at least" in said


def test_too_large_for_the_node_says_the_plan_across_nodes() -> None:
    with pytest.raises(NoFeasibleConfig) as caught:
        baseline(
            parse_node_name("8xA100-80GB"), replace(FP8_405B, quantization=None, weight_bytes=2 * 405 * 10**9), 4096
        )
    # 754 GiB over 16 GPUs are 47 GiB each; over 8 they are 94.
    assert "TP 8 inside each node x PP 2 between 2 nodes" in caught.value.hint


def test_points_fit_a_narrow_space() -> None:
    space = load_space("scheduler")
    points = starting_points(space, parse_node_name("1xH100-80GB"), load_shape("Llama-3.1-8B", env=NO_CACHE))
    assert all(space.contains(point) for point in points)
    assert [point.get("max-num-seqs") for point in points] == [256, 512, 64]
    assert [point.get("max-num-batched-tokens") for point in points] == [8192, 16384, 2048]


def test_wishes_move_to_the_nearest_choice_by_ratio() -> None:
    text = """
name: narrow
parameters:
  max-num-seqs: {choices: [100, 700]}
  gpu-memory-utilization: {choices: [0.85, 0.95]}
  kv-cache-dtype: {choices: [fp8_e5m2]}
  stream-interval: {choices: [4, 1]}
fixed: {max-num-batched-tokens: 4096}
"""
    space = parse_space(text, file="f")
    points = starting_points(space, parse_node_name("1xH100-80GB"), load_shape("Llama-3.1-8B", env=NO_CACHE))
    # Wished: 256, 512 and 64 sequences; 256 is 2.56 times 100 and 700 is 2.73 times 256.
    assert [point.get("max-num-seqs") for point in points] == [100, 700]
    assert {point.get("gpu-memory-utilization") for point in points} == {0.95}
    assert {(point.get("kv-cache-dtype"), point.get("stream-interval")) for point in points} == {("fp8_e5m2", 4)}


def test_no_points_where_the_model_does_not_fit() -> None:
    shape = load_shape("Llama-3.1-70B", env=NO_CACHE)
    assert starting_points(load_space("default"), parse_node_name("1xL4-24GB"), shape) == ()
