"""Spaces made for a node, model and workload."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

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

from autotune.engine.flag_cache import known_flags
from autotune.engine.flags import AcceptedFlags, FlagSpec
from autotune.errors import NoFeasibleConfig
from autotune.node.gpus import parse_node_name
from autotune.records import ModelShape, Node, Topology, Value
from autotune.search.generate import MAX_FEASIBLE, GeneratedSpace, generate_space
from autotune.search.need import Traffic
from autotune.search.rules import RuleContext, check, feasible
from autotune.search.starting import starting_points
from autotune.units import GIB

CHAT = Traffic(prompt_mean=1000, prompt_p95=3000, output_mean=250, shares_prefixes=True)


def made(node: Node | str, shape: ModelShape | None, needed_len: int | None = 4096, **more: object) -> GeneratedSpace:
    """Generated anew; `kept` gives what was generated before for the same question."""
    given = {"traffic": CHAT, "accepted": known_flags(), **more}
    where = parse_node_name(node) if isinstance(node, str) else node
    return generate_space(where, shape, needed_len=needed_len, **given)


kept = cache(made)


def choices(space: GeneratedSpace, name: str) -> tuple[Value, ...] | None:
    found = space.space.parameter(name)
    return None if found is None else found.choices


def omitted(space: GeneratedSpace, name: str) -> str:
    return dict(space.left_out)[name]


RECIPES = [
    ("2xRTX4090-24GB", AWQ_70B),
    ("4xH100-80GB", LLAMA_70B),
    ("8xH200-141GB", LLAMA_70B),
    ("8xH100-80GB", FP8_405B),
    ("4xL40S-48GB", LLAMA_70B),
    ("4xH100-80GB", LLAMA_8B),
    ("8xH200-141GB", DEEPSEEK_V3),
    ("4xH100-80GB", MIXTRAL_8X7B),
    pytest.param("8xH100-80GB", QWEN3_30B_A3B, marks=pytest.mark.no_cover),
]


@pytest.mark.parametrize(("node", "shape"), RECIPES)
def test_the_recipes_nodes(node: str, shape: ModelShape) -> None:
    space = kept(node, shape)
    assert space.space.name == "auto"
    assert 100 < space.feasible <= MAX_FEASIBLE
    assert dict(space.space.fixed)["max-model-len"] == 8192
    # Layout first, then memory, then the scheduler; every dimension has a choice and a reason.
    names = [parameter.name for parameter in space.space.parameters]
    assert names[0] == "tensor-parallel-size"
    assert names.index("gpu-memory-utilization") < names.index("max-num-seqs") < names.index("enable-prefix-caching")
    assert all(len(parameter.choices) > 1 and parameter.why for parameter in space.space.parameters)
    assert all(why for _, why in space.left_out)


def test_the_same_question_gives_the_same_space() -> None:
    assert made("4xL40S-48GB", LLAMA_70B) == made("4xL40S-48GB", LLAMA_70B)


@pytest.mark.parametrize(("node", "shape"), RECIPES)
def test_layouts_and_points_are_those_of_the_space(node: str, shape: ModelShape) -> None:
    space, where = kept(node, shape), parse_node_name(node)
    context = RuleContext(needed_len=4096, accepted=known_flags())
    configs, _ = feasible(space.space, where, shape, context)
    assert len(configs) == space.feasible
    fixed = dict(space.space.fixed)
    names = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "enable-expert-parallel")
    defaults = dict(zip(names, (1, 1, 1, False), strict=True))
    seen = {tuple(one.get(name, fixed.get(name, defaults[name])) for name in names) for one in configs}
    assert seen == {tuple(plan.flags[name] for name in names) for plan in space.layouts}
    points = starting_points(space.space, where, shape, context)
    first = points[0].as_dict()
    assert {name: first.get(name, fixed.get(name, defaults[name])) for name in names} == space.layouts[0].flags
    assert set(points) <= set(configs)


def test_the_length_comes_from_the_requests() -> None:
    assert dict(kept("1xH100-80GB", LLAMA_8B, 9000).space.fixed) == {"max-model-len": 16_384}
    assert dict(made("1xH100-80GB", LLAMA_8B, 3000, min_model_len=20_000).space.fixed) == {"max-model-len": 32_768}
    # 24 GB: about 5 GiB of KV hold 40,000 tokens, and the 65,536 that 33,000 would be rounded up to only in fp8.
    assert dict(kept("1xRTX4090-24GB", LLAMA_8B, 33_000).space.fixed) == {"max-model-len": 33_000}
    # Nobody said: the model's own length where it fits, else the longest of the guide's that does.
    assert dict(kept("1xH100-80GB", LLAMA_8B, None).space.fixed) == {}
    assert dict(kept("1xRTX4090-24GB", LLAMA_8B, None).space.fixed)["max-model-len"] in (16_384, 32_768)
    space = made("1xH100-80GB", LLAMA_8B, 3000, fixed=(("max-model-len", 5000), ("max-num-seqs", 64)))
    assert space.space.fixed == ()
    assert omitted(space, "max-num-seqs") == "fixed by you: 64"


def test_sequences_are_sized_by_what_kv_holds() -> None:
    # R1: some 7,000 to 14,000 tokens of KV are six requests of 1,250.
    assert choices(kept("2xRTX4090-24GB", AWQ_70B), "max-num-seqs") == (8, 16, 32)
    # TP 4 holds about 500,000 tokens: 400 requests.
    assert choices(kept("4xH100-80GB", LLAMA_70B), "max-num-seqs") == (32, 64, 128, 256, 512)
    few = replace(CHAT, concurrency=20)
    assert choices(made("4xH100-80GB", LLAMA_70B, traffic=few), "max-num-seqs") == (8, 16, 32, 64)


def test_memory_of_a_shared_gpu_and_fp8_by_generation() -> None:
    assert choices(kept("1xH100-80GB", LLAMA_8B), "gpu-memory-utilization") == (0.90, 0.92, 0.94)
    # 79.1 GiB less 8 and a margin are 89 %, less 20 are 74 %.
    assert choices(made("1xH100-80GB", LLAMA_8B, others_bytes=8 * GIB), "gpu-memory-utilization") == (0.80, 0.84, 0.88)
    assert choices(made("1xH100-80GB", LLAMA_8B, others_bytes=20 * GIB), "gpu-memory-utilization") == (0.70, 0.74)
    assert choices(kept("1xH100-80GB", LLAMA_8B), "kv-cache-dtype") == ("auto", "fp8")
    assert kept("1xH100-80GB", LLAMA_8B).space.parameter("kv-cache-dtype").lossy
    # 80 GB of an A100 hold 370 average requests; a 24 GB card of that generation holds 25.
    assert "KV is ample" in omitted(kept("1xA100-80GB", LLAMA_8B), "kv-cache-dtype")
    assert choices(kept("1xRTX3090-24GB", LLAMA_8B), "kv-cache-dtype") == ("auto", "fp8_e5m2")
    assert "no fp8 units" in omitted(made("1xT4-16GB", replace(QWEN_7B, weight_bytes=5 * GIB)), "kv-cache-dtype")
    assert "fp8 already" in omitted(made("1xH100-80GB", replace(LLAMA_8B, kv_cache_dtype="fp8")), "kv-cache-dtype")


def test_secondary_parameters_have_a_reason_in_this_case() -> None:
    plain = kept("4xL40S-48GB", LLAMA_70B)
    assert choices(plain, "speculative-config") is None
    assert "one NUMA node" in omitted(plain, "numa-bind")
    assert "captured" in omitted(plain, "max-cudagraph-capture-size")
    code = made("1xH100-80GB", LLAMA_8B, traffic=replace(CHAT, repeats_input=True))
    speculation = choices(code, "speculative-config")
    assert speculation is not None
    assert speculation[0] is None
    assert json.loads(str(speculation[1]))["method"] == "ngram"
    # Many short steps: more than one HTTP process, and graphs beyond 512 sequences.
    small = kept("4xH100-80GB", LLAMA_8B)
    assert choices(small, "api-server-count") == (None, 4)
    assert choices(small, "max-cudagraph-capture-size") == (None, 1024)
    node = parse_node_name("2xH100-80GB")
    two = Topology(paths=((None, None), (None, None)), nvlinks=((0, 18), (18, 0)), numa=(0, 1), numa_nodes=2)
    assert choices(made(replace(node, topology=two), LLAMA_8B), "numa-bind") == (False, True)
    assert choices(made("1xH100-80GB", LLAMA_8B, vllm_version="0.12.0"), "async-scheduling") == (None, True)
    assert choices(made("1xH100-80GB", LLAMA_8B, vllm_version="0.32.0"), "async-scheduling") is None


@pytest.mark.parametrize(
    ("node", "shape", "gpus", "bytes_per_s"),
    [
        pytest.param("8xH200-141GB-NVLink", DEEPSEEK_V3, 8, 4.8e12, marks=pytest.mark.no_cover),
        ("2xL40S-48GB-PCIe", QWEN3_30B_A3B, 2, 0.864e12),
    ],
)
def test_a_batch_reads_all_experts(node: str, shape: ModelShape, gpus: int, bytes_per_s: float) -> None:
    """256 sequences hit nearly every expert: no step is shorter than reading 0.97 of the weights once."""
    found = kept(node, shape)
    chosen = found.space.parameter("api-server-count")
    why = chosen.why if chosen is not None else omitted(found, "api-server-count")
    rate = float(why.removeprefix("up to about ").split(" tokens/s")[0].replace(",", ""))
    bound = 256 / (0.97 * shape.weight_bytes / gpus / bytes_per_s)
    assert bound / 4 < rate < bound


def test_speculation_is_not_searched_with_stages() -> None:
    space = made("4xL40S-48GB", LLAMA_70B, traffic=replace(CHAT, repeats_input=True))
    parameter = space.space.parameter("speculative-config")
    assert parameter is not None
    # TP 4 is the only layout of one stage.
    assert parameter.when == (("pipeline-parallel-size", (1,)),)
    assert all(config.get("pipeline-parallel-size") == 1 for config in space.space if config.get("speculative-config"))


def test_only_flags_that_this_vllm_has() -> None:
    none = made("4xH100-80GB", LLAMA_8B, accepted=None)
    assert choices(none, "api-server-count") is None
    assert "not known" in omitted(none, "api-server-count")
    old = AcceptedFlags(
        flags=tuple(
            FlagSpec(name=name, takes_value=True, choices=taken)
            for name, taken in (
                ("data-parallel-size", ()),
                ("kv-cache-dtype", ("auto", "fp8_e5m2")),
                ("max-model-len", ()),
                ("max-num-seqs", ()),
                ("tensor-parallel-size", ()),
            )
        )
    )
    space = made("4xH100-80GB", LLAMA_8B, accepted=old)
    assert {p.name for p in space.space.parameters} == {"tensor-parallel-size", "data-parallel-size", "max-num-seqs"}
    assert omitted(space, "kv-cache-dtype=fp8") == "this vLLM does not take it"
    assert omitted(space, "gpu-memory-utilization") == "this vLLM has no such flag"


def test_checkpoints_are_a_parameter() -> None:
    space = made("4xH100-80GB", LLAMA_70B, checkpoints={"70b-awq": AWQ_70B})
    assert space.space.parameters[0].name == "model"
    assert choices(space, "model") == (None, "70b-awq")
    assert space.space.parameters[0].lossy
    # 37 GiB fit one GPU of 79: layouts that only this checkpoint can use come behind the model's own.
    assert space.layouts[0].label == "TP 4 x PP 1 x DP 1"
    assert any(plan.label == "TP 1 x PP 1 x DP 4" and "70b-awq" in plan.why for plan in space.layouts)
    # Where the model itself fits nothing, the other checkpoint is part of every launch.
    only = made("2xRTX4090-24GB", LLAMA_70B, checkpoints={"70b-awq": AWQ_70B})
    assert choices(only, "model") is None
    assert dict(only.space.fixed)["model"] == "70b-awq"
    assert omitted(only, "model=the model's own checkpoint") == "fits no layout of this node"


@pytest.mark.no_cover
def test_wide_has_more_and_narrow_says_what_it_left_out() -> None:
    narrow, wide = kept("2xH100-80GB", LLAMA_8B), made("2xH100-80GB", LLAMA_8B, wide=True)
    assert narrow.feasible <= MAX_FEASIBLE < wide.feasible
    crowded = kept("4xH100-80GB", MIXTRAL_8X7B)
    assert any("more than 20,000" in why for _, why in crowded.left_out)
    assert {p.name for p in narrow.space.parameters} < {p.name for p in wide.space.parameters}


def test_no_gpu_one_gpu_unknown_shape_and_what_fits_nowhere() -> None:
    cpu = kept(CPU, LLAMA_8B, 512)
    assert [p.name for p in cpu.space.parameters][:2] == ["max-num-seqs", "max-num-batched-tokens"]
    assert cpu.layouts == ()
    one = kept("1xH100-80GB", LLAMA_8B)
    assert choices(one, "tensor-parallel-size") is None
    assert omitted(one, "tensor-parallel-size") == "one GPU is visible"
    assert "no experts" in omitted(kept("4xH100-80GB", LLAMA_8B), "enable-expert-parallel")
    assert [plan.label for plan in one.layouts] == ["TP 1 x PP 1 x DP 1"]
    unknown = kept("4xH100-80GB", None)
    assert choices(unknown, "tensor-parallel-size") == (1, 2, 4)
    assert unknown.space.fixed == ()
    with pytest.raises(NoFeasibleConfig, match="131 GiB of weights") as caught:
        kept("1xH100-80GB", LLAMA_70B)
    assert "Across nodes it fits with TP 1 inside each node x PP 2" in caught.value.hint
    with pytest.raises(NoFeasibleConfig, match="positions"):
        kept("8xH200-141GB", QWEN3_30B_A3B, 100_000)


kinds = st.sampled_from(["H100-80GB", "L40S-48GB", "RTX3090-24GB", "T4-16GB"])
shapes = st.sampled_from([LLAMA_8B, LLAMA_70B, QWEN_7B, AWQ_70B, MIXTRAL_8X7B, QWEN3_30B_A3B, None])


@pytest.mark.no_cover
@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 8), kind=kinds, shape=shapes, needed=st.sampled_from([None, 600, 9000, 30_000]))
def test_what_is_admitted_passes_every_rule(
    count: int, kind: str, shape: ModelShape | None, needed: int | None
) -> None:
    node = parse_node_name(f"{count}x{kind}")
    try:
        space = made(node, shape, needed)
    except NoFeasibleConfig:
        return
    context = RuleContext(needed_len=needed, accepted=known_flags(), fixed=space.space.fixed)
    configs, _ = feasible(space.space, node, shape, replace(context, fixed=()))
    assert 0 < len(configs) == space.feasible <= MAX_FEASIBLE
    for config in configs[:: max(1, len(configs) // 40)]:
        assert space.space.contains(config)
        assert check(config, node, shape, context) == ()
    assert all(plan.gpus <= count for plan in space.layouts)
