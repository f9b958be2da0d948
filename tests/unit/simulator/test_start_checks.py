"""Starts that vLLM refuses, and ones that it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from model_shapes import deepseek_v3, dense_70b, mixtral

from autotune.node.defaults import resolve
from autotune.node.gpus import parse_node_name
from autotune.node.memory import estimate
from autotune.node.model_shape import load_shape
from autotune.records import Config, FailureClass, ModelShape, Value
from autotune.simulator.start_checks import StartProblem, config_problem, memory_problem

NGRAM = '{"method": "ngram", "num_speculative_tokens": 4}'


def problem(shape: ModelShape, node: str = "8xH100-80GB", **params: Value) -> StartProblem | None:
    named = parse_node_name(node)
    config = Config.of({name.replace("_", "-"): value for name, value in params.items()})
    return config_problem(named, shape, resolve(config, named, shape))


@pytest.mark.parametrize(
    ("shape", "node", "params", "failure", "text"),
    [
        (dense_70b(), "8xH100-80GB", {"enable_expert_parallel": True}, "invalid_combination", "Number of experts"),
        (dense_70b(), "8xH100-80GB", {"tensor_parallel_size": 7}, "indivisible", "attention heads (64)"),
        (replace(dense_70b(), kv_heads=6, heads=96), "8xH100-80GB", {"tensor_parallel_size": 4}, "indivisible", "_kv"),
        (replace(dense_70b(), layers=2), "8xH100-80GB", {"pipeline_parallel_size": 4}, "indivisible", "layers (2)"),
        (dense_70b(quantization="fbgemm_fp8", bits=8), "1xT4-16GB", {}, "invalid_combination", "capability: 80"),
        (dense_70b(quantization="mxfp4", bits=4), "1xH100-80GB", {"dtype": "float16"}, "invalid_combination", "16]"),
        (dense_70b(quantization="awq", bits=4), "1xH100-80GB", {"quantization": "fp8"}, "invalid_combination", "(awq)"),
        (dense_70b(), "8xH100-80GB", {"dtype": "bfloat16"}, None, ""),
        (dense_70b(), "1xT4-16GB", {"dtype": "bfloat16"}, "invalid_combination", "Bfloat16 is only supported"),
        (dense_70b(), "8xH100-80GB", {"speculative_config": NGRAM}, None, ""),
        (
            dense_70b(),
            "8xH100-80GB",
            {"speculative_config": NGRAM, "async_scheduling": True},
            "invalid_combination",
            "async scheduling is only supported",
        ),
        (dense_70b(quantization="awq", bits=4), "2xRTX4090-24GB", {"dtype": "bfloat16"}, None, ""),
        (dense_70b(quantization="awq", bits=4), "1xT4-16GB", {}, None, ""),
        (dense_70b(quantization="awq", bits=4), "1xH100-80GB", {"quantization": "awq_marlin"}, None, ""),
        (dense_70b(quantization="fp8", bits=8), "4xA100-80GB", {"tensor_parallel_size": 4}, None, ""),
        (dense_70b(), "8xH100-80GB", {"tensor_parallel_size": 8}, None, ""),
        (deepseek_v3(), "8xH200-141GB", {"tensor_parallel_size": 8, "enable_expert_parallel": True}, None, ""),
        (mixtral(), "8xH100-80GB", {"data_parallel_size": 8, "enable_expert_parallel": True}, None, ""),
    ],
)  # fmt: skip
def test_refusals_name_the_cause(
    shape: ModelShape, node: str, params: dict[str, Value], failure: str | None, text: str
) -> None:
    found = problem(shape, node, **params)
    assert (found.failure if found else None) == (FailureClass(failure) if failure else None)
    assert text in (found.message if found else "")


@pytest.mark.parametrize(
    ("model", "node", "utilization", "starts"),
    [
        # Graphs of a small model are small: 24 of 32 layers of 0.98 GiB beside 0.25 GiB of context in 8 % of 14.6 GiB.
        ("Qwen/Qwen2.5-0.5B-Instruct", "1xT4-16GB", 0.92, True),
        ("Qwen/Qwen2.5-0.5B-Instruct", "1xT4-16GB", 0.96, False),
        # 80 layers count as the 32 that were recorded.
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "1xL40S-48GB-PCIe", 0.92, True),
        ("meta-llama/Llama-3.1-8B-Instruct", "1xH200-141GB", 0.92, True),
        ("meta-llama/Llama-3.1-8B-Instruct", "1xH200-141GB", 0.995, False),
    ],
)
def test_graphs_on_top_of_the_share_grow_with_the_model(
    model: str, node: str, utilization: float, starts: bool
) -> None:
    shape, named = load_shape(model), parse_node_name(node)
    config = Config.of({"gpu-memory-utilization": utilization, "max-model-len": 4096})
    settings = resolve(config, named, shape)
    found = memory_problem(named, shape, settings, estimate(shape, named.gpus[0], settings))
    assert (found is None) is starts
    assert found is None or found.failure is FailureClass.OOM_AT_WARMUP
