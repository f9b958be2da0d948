"""Judging a whole space at once says the same as judging its configs one by one."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import CPU, DEEPSEEK_V3, LLAMA_8B, LLAMA_70B, MIXTRAL_8X7B, QWEN_7B

from autotune.engine.flag_cache import known_flags
from autotune.node.gpus import parse_node_name
from autotune.records import ModelShape, Node, Value
from autotune.search.rules import RULES, RuleContext, check, feasible, funnel
from autotune.search.space import Parameter, SearchSpace, load_space

_CHOICES: dict[str, list[Value]] = {
    "tensor-parallel-size": [1, 2, 3, 4, 8, "two"],
    "pipeline-parallel-size": [1, 2, 3],
    "data-parallel-size": [1, 2, 8],
    "enable-expert-parallel": [False, True, None],
    "gpu-memory-utilization": [0.2, 0.9, 0.94, 0.99, 1.0],
    "max-num-seqs": [16, 256, 2048, None, 0],
    "max-num-batched-tokens": [512, 2048, 32768, None],
    "max-model-len": [2048, 16384, 131072, 500000, None, "16k"],
    "kv-cache-dtype": ["auto", "fp8", "nvfp4", "fp9"],
    "enable-chunked-prefill": [True, False],
    "enable-prefix-caching": [True, False],
    "enforce-eager": [True, False],
    "dtype": ["auto", "bfloat16", "float16"],
    "block-size": [16, 64, None],
    "performance-mode": ["balanced", "throughput", "wild", None],
    "max-cudagraph-capture-size": [64, 1024, None],
    "async-scheduling": [True, False, None],
    "stream-interval": [1, 4],
    "api-server-count": [1, 0],
    "numa-bind": [True, False],
    "no-such-flag": [1],
    "speculative-config": [
        None,
        '{"method": "ngram", "num_speculative_tokens": 4}',
        '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 5, "prompt_lookup_max": 2}',
        "{",
    ],
    "quantization": [None, "fp8"],
    "model": [None, "mixtral", "unheard-of"],
    "env:VLLM_ALLOW_LONG_MAX_MODEL_LEN": [None, True],
}


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    names = draw(st.lists(st.sampled_from(sorted(_CHOICES)), min_size=1, max_size=6, unique=True))
    parameters: list[Parameter] = []
    for name in names:
        choices = tuple(draw(st.lists(st.sampled_from(_CHOICES[name]), min_size=1, max_size=3, unique_by=repr)))
        when: tuple[tuple[str, tuple[Value, ...]], ...] = ()
        if parameters and draw(st.booleans()):
            parent = draw(st.sampled_from(parameters))
            when = ((parent.name, (draw(st.sampled_from(parent.choices)),)),)
        parameters.append(Parameter(name=name, choices=choices, when=when))
    rest = sorted(set(_CHOICES) - set(names))
    fixed = tuple(
        (name, draw(st.sampled_from(_CHOICES[name]))) for name in draw(st.sets(st.sampled_from(rest), max_size=2))
    )
    return SearchSpace(name="drawn", parameters=tuple(parameters), fixed=fixed)


nodes = st.sampled_from(["1xT4-16GB", "2xL4-24GB", "4xA100-80GB", "8xH200-141GB", "cpu"])
shapes = st.sampled_from([LLAMA_8B, LLAMA_70B, QWEN_7B, MIXTRAL_8X7B, DEEPSEEK_V3, None])


def node_of(name: str) -> Node:
    return CPU if name == "cpu" else parse_node_name(name)


@pytest.mark.no_cover
@settings(max_examples=250, deadline=None)
@given(space=spaces(), name=nodes, shape=shapes, needed=st.sampled_from([None, 3000, 40000]), asks=st.booleans())
def test_the_whole_space_at_once_is_the_same_as_one_by_one(
    space: SearchSpace, name: str, shape: ModelShape | None, needed: int | None, asks: bool
) -> None:
    node = node_of(name)
    context = RuleContext(
        needed_len=needed,
        min_model_len=needed and needed // 2 * 3,
        accepted=known_flags() if asks else None,
        shapes={"mixtral": MIXTRAL_8X7B},
    )
    slowly = replace(context, fixed=space.fixed)
    first = {config: next(iter(check(config, node, shape, slowly)), None) for config in space}
    kept, reasons = feasible(space, node, shape, context)
    assert kept == tuple(config for config, violation in first.items() if violation is None)
    assert dict(reasons) == Counter(violation.reason for violation in first.values() if violation is not None)
    by_rule = Counter(violation.name for violation in first.values() if violation is not None)
    counts = funnel(space, node, shape, context)
    assert {count.name: count.refused for count in counts if count.refused} == by_rule
    left = len(first)
    for count in counts:
        left -= count.refused
        assert count.left == left
    assert left == len(kept)


def test_the_order_of_counting_is_the_registrys() -> None:
    space = load_space("default")
    counts = funnel(space, parse_node_name("2xL4-24GB"), LLAMA_8B)
    assert [count.name for count in counts] == ["known-flags", "flag-values", *(rule.name for rule in RULES)]
    assert len({rule.name for rule in RULES}) == len(RULES)
    arithmetic = next(count for count in counts if count.name == "gpu-arithmetic")
    # Of the 48 layouts those of at most two GPUs: 1x1x1, 2x1x1, 1x2x1, 1x1x2.
    assert (arithmetic.row, arithmetic.left) == ("G5", space.size * 4 // 48)


def test_a_space_too_large_for_an_array_is_judged_one_by_one() -> None:
    # Each parameter is there only beside the first choice of the one before: 1 + 1 + ... + 8 configs, 8 ** 8 cells.
    names = [f"env:P{index}" for index in range(8)]
    parameters = tuple(
        Parameter(
            name=name,
            choices=tuple(range(8)),
            when=((names[index - 1], (0,)),) if index else (),
        )
        for index, name in enumerate(names)
    )
    space = SearchSpace(name="deep", parameters=parameters)
    assert space.size == 7 * 8 + 1
    counts = funnel(space, CPU, None)
    assert counts[-1].left == 57
    assert len(feasible(space, CPU, None)[0]) == 57


@pytest.mark.parametrize("doubled", [False, True])
def test_parameters_that_decide_nothing_only_multiply(doubled: bool) -> None:
    free = tuple(Parameter(name=f"env:FREE{index}", choices=(0, 1)) for index in range(10 if doubled else 9))
    layout = Parameter(name="tensor-parallel-size", choices=(1, 2, 4, 8))
    space = SearchSpace(name="free", parameters=(layout, *free))
    started = time.process_time()
    kept, reasons = feasible(space, parse_node_name("4xH100-80GB"), LLAMA_8B)
    assert len(kept) == 3 * 2 ** len(free)
    assert dict(reasons) == {"TP x PP x DP is more GPUs than are visible": 2 ** len(free)}
    # Judging each on its own takes about 40 microseconds; four verdicts and a listing take next to nothing.
    assert time.process_time() - started < 2
