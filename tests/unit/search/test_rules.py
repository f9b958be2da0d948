"""Rules before launch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.flags import AcceptedFlags, FlagSpec
from autotune.errors import ExitCode, NoFeasibleConfig
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import Config, Link, ModelShape, Node, Value
from autotune.search.rules import RuleContext, check, feasible, require_feasible
from autotune.search.space import Parameter, SearchSpace, load_space
from autotune.units import GIB

NO_CACHE = {"HF_HUB_CACHE": "/nonexistent"}
LLAMA_8B = load_shape("Llama-3.1-8B", env=NO_CACHE)
LLAMA_70B = load_shape("Llama-3.1-70B", env=NO_CACHE)
QWEN_7B = load_shape("Qwen2.5-7B", env=NO_CACHE)
CPU = Node(name="cpu", gpus=(), link=Link.NONE, simulated=False)


def broken(
    node: str, shape: ModelShape | None, context: RuleContext | None = None, **flags: Value
) -> list[tuple[str, str]]:
    config = Config.of({name.replace("_", "-"): value for name, value in flags.items()})
    return [(v.rule, v.text) for v in check(config, parse_node_name(node), shape, context)]


def test_defaults_of_a_model_that_fits_break_nothing() -> None:
    assert broken("1xH200-141GB", LLAMA_8B) == []
    assert broken("4xH100-80GB", LLAMA_70B, tensor_parallel_size=4) == []


@pytest.mark.parametrize(
    ("node", "shape", "flags", "rule", "says"),
    [
        ("4xH100-80GB", LLAMA_8B, {"tensor_parallel_size": 4, "data_parallel_size": 4}, "G5", "= 16 GPUs, 4 are"),
        ("8xH100-80GB", QWEN_7B, {"tensor_parallel_size": 8}, "G1", "28 attention heads"),
        ("8xH100-80GB", QWEN_7B, {"tensor_parallel_size": 7}, "G1", "4 KV heads"),
        ("3xH100-80GB", LLAMA_8B, {"tensor_parallel_size": 3}, "G1", "32 attention heads"),
        ("1xH100-80GB", LLAMA_8B, {"gpu_memory_utilization": 1.0}, "G6", "utilization 1"),
        (
            "1xH100-80GB",
            LLAMA_8B,
            {"max_num_batched_tokens": 512, "max_num_seqs": 1024},
            "G8",
            "512 < max-num-seqs 1024",
        ),
        (
            "1xH200-141GB",  # recorded: refused with exactly these flags
            LLAMA_8B,
            {"max_model_len": 8192, "max_num_batched_tokens": 4096, "enable_chunked_prefill": False},
            "G10",
            "4096 < max-model-len 8192",
        ),
        ("1xH100-80GB", LLAMA_8B, {"max_model_len": 200000}, "G7", "131072 positions"),
        ("1xH100-80GB", LLAMA_70B, {}, "G34", "131 GiB of weights"),
        # Recorded: util 0.05 had -9.11 GiB for KV, util 0.15 4.64 GiB where 16 GiB were needed.
        ("1xH200-141GB", LLAMA_8B, {"gpu_memory_utilization": 0.05}, "G34", "leave nothing"),
        ("1xH200-141GB", LLAMA_8B, {"gpu_memory_utilization": 0.15}, "G33", "needs 16 GiB of KV"),
        ("1xT4-16GB", LLAMA_8B, {"dtype": "bfloat16"}, "G12", "7.5"),
        ("1xH100-80GB", LLAMA_8B, {"max_num_seqs": "many"}, "flags", "--max-num-seqs"),
    ],
)
def test_refusals(node: str, shape: ModelShape, flags: dict[str, Value], rule: str, says: str) -> None:
    found = broken(node, shape, None, **flags)
    assert found
    assert found[0][0] == rule
    assert says in found[0][1]


@pytest.mark.parametrize(
    ("node", "shape", "flags"),
    [
        # Legal with chunked prefill, vLLM's default.
        ("1xH100-80GB", LLAMA_8B, {"max_num_batched_tokens": 2048}),
        # 8 KV heads over 16 GPUs are replicated.
        ("16xH100-80GB", LLAMA_70B, {"tensor_parallel_size": 16}),
        # fp8 KV below compute capability 8.9 works with some backends.
        ("1xA100-80GB", LLAMA_8B, {"kv_cache_dtype": "fp8"}),
        # A KV dtype whose size we do not know is the launch's question.
        ("1xL4-24GB", LLAMA_8B, {"kv_cache_dtype": "nvfp4"}),
        # Idle GPUs are no reason to refuse.
        ("8xH100-80GB", LLAMA_8B, {"tensor_parallel_size": 2}),
        # Recorded as started: util 0.18 leaves 9.06 GiB.
        ("1xH200-141GB", LLAMA_8B, {"gpu_memory_utilization": 0.18, "max_model_len": 8192}),
        # Publicly logged as started: 20,000 tokens on a 24 GB card.
        ("1xRTX3090-24GB", LLAMA_8B, {"gpu_memory_utilization": 0.9, "max_model_len": 20000}),
        ("1xT4-16GB", load_shape("Qwen2.5-1.5B", env=NO_CACHE), {"max_model_len": 32768}),
        ("1xH100-80GB", LLAMA_8B, {"max_num_batched_tokens": 512}),  # vLLM lowers its default of max-num-seqs
    ],
)
def test_what_may_start_is_not_refused(node: str, shape: ModelShape, flags: dict[str, Value]) -> None:
    assert broken(node, shape, None, **flags) == []


def test_the_workloads_longest_request() -> None:
    context = RuleContext(needed_len=9000)
    assert broken("1xH100-80GB", LLAMA_8B, context) == []
    [(rule, text)] = broken("1xH100-80GB", LLAMA_8B, context, max_model_len=8192)
    assert (rule, "9000 tokens" in text) == ("G7", True)


def test_fixed_flags_are_judged_with_the_config() -> None:
    context = RuleContext(fixed=(("max-num-batched-tokens", 128), ("gpu-memory-utilization", 1.0)))
    assert [rule for rule, _ in broken("1xH100-80GB", LLAMA_8B, context, max_num_seqs=256)] == ["G6", "G8"]
    won = broken("1xH100-80GB", LLAMA_8B, context, max_num_seqs=128, gpu_memory_utilization=0.9)
    assert won == []


def test_flags_of_the_installed_vllm() -> None:
    accepted = AcceptedFlags(
        flags=(
            FlagSpec(name="kv-cache-dtype", takes_value=True, choices=("auto", "fp8")),
            FlagSpec(name="max-num-seqs", takes_value=True),
        )
    )
    context = RuleContext(accepted=accepted)
    assert broken("1xH100-80GB", LLAMA_8B, context, max_num_seqs=8, kv_cache_dtype="fp8") == []
    assert broken("1xH100-80GB", LLAMA_8B, context, kv_cache_dtype="fp9")[0][0] == "flags"
    assert "no flag --numa-bind" in broken("1xH100-80GB", LLAMA_8B, context, numa_bind=True)[0][1]


def test_without_a_shape_or_gpus_only_what_can_be_known() -> None:
    assert broken("1xH100-80GB", None, tensor_parallel_size=2)[0][0] == "G5"
    assert broken("1xH100-80GB", None, RuleContext(needed_len=10**6)) == []
    assert broken("1xH100-80GB", None, None, enable_chunked_prefill=False, max_num_batched_tokens=4096) == []
    config = Config.of({"max-num-seqs": 64, "max-num-batched-tokens": 32, "env:VLLM_CPU_KVCACHE_SPACE": 1})
    assert [v.rule for v in check(config, CPU, LLAMA_8B)] == ["G8"]


def test_a_mixed_node_is_judged_by_its_smallest_gpu() -> None:
    node = parse_node_name("2xH100-80GB")
    small = replace(node.gpus[1], memory_bytes=14 * GIB)
    mixed = replace(node, gpus=(node.gpus[0], small))
    assert check(Config.of({}), mixed, LLAMA_8B)[0].rule == "G34"
    assert check(Config.of({}), node, LLAMA_8B) == ()


def test_feasible_counts_each_config_once() -> None:
    space = load_space("default")
    node = parse_node_name("2xL4-24GB")
    context = RuleContext(needed_len=4096, fixed=(("max-model-len", 8192),))
    configs, reasons = feasible(space, node, LLAMA_8B, context)
    assert len(configs) + sum(count for _, count in reasons) == space.size
    # Layouts of at most 2 GPUs: 1x1x1, 2x1x1, 1x2x1, 1x1x2 of 4 x 3 x 4; the rest is G5.
    assert dict(reasons)["TP x PP x DP is more GPUs than are visible"] == space.size // 48 * 44
    assert all(not check(config, node, LLAMA_8B, context) for config in configs[:50])
    kept = set(configs)
    assert [c for c in space if c in kept] == list(configs)


def test_a_space_without_a_feasible_config() -> None:
    space = SearchSpace(name="big", parameters=(Parameter(name="tensor-parallel-size", choices=(1, 2, 16)),))
    with pytest.raises(NoFeasibleConfig) as caught:
        require_feasible(space, parse_node_name("2xL4-24GB"), LLAMA_70B)
    assert caught.value.exit_code is ExitCode.NO_FEASIBLE_CONFIG
    assert dict(caught.value.reasons) == {
        "weights and activations do not fit the GPU": 2,
        "TP x PP x DP is more GPUs than are visible": 1,
    }
    assert len(require_feasible(space, parse_node_name("2xL4-24GB"), None)[0]) == 2
    fixed = replace(space, fixed=(("data-parallel-size", 2),))
    assert len(require_feasible(fixed, parse_node_name("2xL4-24GB"), None)[0]) == 1


sizes = st.sampled_from([1, 2, 3, 4, 8])


@given(tp=sizes, pp=sizes, dp=sizes, gpus=st.integers(1, 8), shape=st.sampled_from([LLAMA_8B, LLAMA_70B, QWEN_7B]))
def test_what_passes_divides_and_is_there(tp: int, pp: int, dp: int, gpus: int, shape: ModelShape) -> None:
    config = Config.of({"tensor-parallel-size": tp, "pipeline-parallel-size": pp, "data-parallel-size": dp})
    node = parse_node_name(f"{gpus}xH200-141GB")
    if not check(config, node, shape):
        assert tp * pp * dp <= gpus
        assert shape.heads % tp == 0
        assert shape.kv_heads % tp == 0 or tp % shape.kv_heads == 0
        # Weights alone, by hand, within 92 % of the GPU.
        assert shape.weight_bytes / (tp * pp) < 0.94 * 139.8 * GIB


def test_without_a_gpu_parallel_sizes_stay_at_one() -> None:
    assert not check(Config.of({"tensor-parallel-size": 1}), CPU, None)
    (found,) = check(Config.of({"tensor-parallel-size": 2}), CPU, None)
    assert (found.rule, found.reason) == ("G5", "TP x PP x DP above 1 needs GPUs, and none is visible")
