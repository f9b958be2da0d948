"""The guide's orders, with numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.advice import Case, Toward, advise
from autotune.bottleneck import Limit
from autotune.node.defaults import resolve
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import Config, FailureClass, Value

LLAMA70 = load_shape("meta-llama/Llama-3.1-70B-Instruct")


def case(node: str = "4xA100-80GB-NVLink", **flags: Value) -> Case:
    found = parse_node_name(node)
    config = Config.of({name.replace("_", "-"): value for name, value in flags.items()})
    return Case(settings=resolve(config, found, LLAMA70), shape=LLAMA70, node=found, needed_len=6300)


def texts(topic: FailureClass | Limit, given: Case) -> list[str]:
    return [advice.text for advice in advise(topic, given)]


def moved(topic: FailureClass | Limit, given: Case) -> list[str]:
    return [move.parameter for advice in advise(topic, given) for move in advice.moves]


def test_oom_at_load_in_the_guides_order_with_numbers() -> None:
    found = texts(FailureClass.OOM_AT_LOAD, case())
    assert found[0] == "Lower --max-model-len from 131,072 to 8,192: the longest request has 6,300 tokens."
    # 70.55e9 parameters: 141 GB are 131 GiB in 16 bit, half of it in FP8.
    assert "131 GiB of weights become about 65.7 GiB (FP8)" in found[1]
    assert found[2].startswith("Split the model over more GPUs: --tensor-parallel-size 2 instead of 1")
    assert found[3].startswith("Choose a smaller model")
    assert len(found) == 4
    assert "--pipeline-parallel-size 2 instead of 1" in texts(FailureClass.OOM_AT_LOAD, case("4xL40S-48GB-PCIe"))[2]


def test_oom_under_load_in_the_guides_order() -> None:
    assert moved(FailureClass.OOM_UNDER_LOAD, case()) == [
        "max-model-len",
        "max-num-seqs",
        "kv-cache-dtype",
        "gpu-memory-utilization",
        "tensor-parallel-size",
        "pipeline-parallel-size",
    ]
    high = texts(FailureClass.OOM_UNDER_LOAD, case(gpu_memory_utilization=0.96))
    assert any(text.startswith("Lower --gpu-memory-utilization from 0.96 to 0.92") for text in high)
    low = texts(FailureClass.OOM_UNDER_LOAD, case(gpu_memory_utilization=0.9))
    # 0.02 of the 79.15 GiB of an A100.
    assert any("from 0.9 to 0.92: 1.58 GiB more per GPU" in text for text in low)


def test_preemption_in_the_guides_order_with_what_ran() -> None:
    given = case(gpu_memory_utilization=0.9, max_num_seqs=512, max_num_batched_tokens=8192)
    found = advise(Limit.KV_MEMORY, replace(given, running_max=190.0))
    assert [advice.moves[0].parameter for advice in found] == [
        "gpu-memory-utilization",
        "max-num-seqs",
        "max-num-batched-tokens",
        "max-model-len",
        "kv-cache-dtype",
        "data-parallel-size",
    ]
    assert found[1].text == "Lower --max-num-seqs from 512 to 128 (190 ran at once)."


def test_what_is_done_already_is_left_out() -> None:
    given = case(kv_cache_dtype="fp8", max_model_len=6300, max_num_batched_tokens=2048, tensor_parallel_size=4)
    assert "kv-cache-dtype" not in moved(FailureClass.OOM_UNDER_LOAD, given)
    assert "max-model-len" not in moved(FailureClass.OOM_UNDER_LOAD, given)
    assert "max-num-batched-tokens" not in moved(FailureClass.KV_CACHE_NONE, given)
    assert texts(FailureClass.OOM_AT_LOAD, given)[-2].startswith("Each replica already spans 4 of 4 GPUs")


def test_vllms_own_estimate_is_taken_unless_the_workload_needs_more() -> None:
    told = replace(case(), facts={"estimated_max_model_len": 20_000})
    assert texts(FailureClass.KV_CACHE_TOO_SMALL, told)[0].startswith(
        "Lower --max-model-len from 131,072 to 20,000 or less"
    )
    short = replace(case(), facts={"estimated_max_model_len": 4_000})
    first = advise(FailureClass.KV_CACHE_TOO_SMALL, short)[0]
    assert "but the longest request has 6,300" in first.text
    assert first.moves == ()


@pytest.mark.parametrize(
    ("limit", "flags", "parameter", "toward"),
    [
        (Limit.SEQUENCE_CAP, {"max_num_seqs": 64}, "max-num-seqs", Toward.RAISE),
        (Limit.PREFILL, {"max_num_batched_tokens": 2048}, "max-num-batched-tokens", Toward.RAISE),
        (Limit.COMMUNICATION, {"tensor_parallel_size": 4}, "tensor-parallel-size", Toward.LOWER),
        (Limit.PREFIX_MISSED, {"enable_prefix_caching": False}, "enable-prefix-caching", Toward.CHANGE),
        (Limit.API_SERVER, {}, "api-server-count", Toward.RAISE),
    ],
)
def test_each_limit_has_its_first_move(limit: Limit, flags: dict[str, Value], parameter: str, toward: Toward) -> None:
    first = advise(limit, case(**flags))[0].moves[0]
    assert (first.parameter, first.toward) == (parameter, toward)


def test_topics_without_an_order_of_the_guide_have_no_advice() -> None:
    assert advise(FailureClass.MODEL_ACCESS, case()) == ()
    assert advise(Limit.COMMUNICATION, case()) == ()


def test_a_length_is_lowered_to_the_guides_next_step_then_to_the_need() -> None:
    for now, wanted in ((32768, "8,192"), (8192, "3,000")):
        given = replace(case(max_model_len=now), needed_len=3000)
        first = advise(FailureClass.OOM_AT_LOAD, given)[0]
        assert f"from {now:,} to {wanted}" in first.text
