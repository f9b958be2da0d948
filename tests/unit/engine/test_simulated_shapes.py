"""Several checkpoints behind one simulated engine, and what a start says about the new settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engine.base import LaunchFailed, LaunchPlan
from autotune.engine.simulated import GRAPHS_S, SimulatedEngine, SimulatedServer
from autotune.errors import UnknownName
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import Config, FailureClass, Value

NODE = parse_node_name("4xH100-80GB")
PLAIN = load_shape("meta-llama/Llama-3.1-8B")
HALVED = replace(PLAIN, name="half", weight_bytes=PLAIN.weight_bytes // 2, quantization="fp8", weight_bits=8)


def plan(directory: Path, model: str, **params: Value) -> LaunchPlan:
    values: dict[str, Value] = {"max-model-len": 8192}
    values |= {name.replace("_", "-"): value for name, value in params.items()}
    return LaunchPlan(
        model=model,
        config=Config.of(values),
        gpu_indices=(0,),
        extra_args=(),
        directory=directory,
        start_deadline_s=1200,
        stall_deadline_s=600,
    )


async def launched(engine: SimulatedEngine, plan: LaunchPlan) -> SimulatedServer:
    return await engine.launch(plan, on_identity=lambda _: None, on_milestone=lambda _: None)


async def test_the_plans_model_names_its_shape(tmp_path: Path) -> None:
    engine = SimulatedEngine(node=NODE, shapes={"plain": PLAIN, "half": HALVED}, seed=0)
    plain, half = [(await launched(engine, plan(tmp_path, model))).facts for model in ("plain", "half")]
    assert plain.weights_bytes is not None
    assert half.weights_bytes is not None
    assert half.weights_bytes == pytest.approx(plain.weights_bytes / 2, rel=0.05)
    assert plain.kv_cache_tokens is not None
    assert half.kv_cache_tokens is not None
    assert half.kv_cache_tokens > plain.kv_cache_tokens
    with pytest.raises(UnknownName, match="other"):
        await launched(engine, plan(tmp_path, "other"))


async def test_one_shape_stands_for_any_name(tmp_path: Path) -> None:
    engine = SimulatedEngine(node=NODE, shape=PLAIN, shapes={"half": HALVED}, seed=0)
    any_name, half = [(await launched(engine, plan(tmp_path, model))).facts for model in ("any", "half")]
    assert any_name.weights_bytes != half.weights_bytes


async def test_finer_graphs_take_longer_to_capture(tmp_path: Path) -> None:
    engine = SimulatedEngine(node=NODE, shape=PLAIN, seed=0)
    times = [
        (await launched(engine, plan(tmp_path, "m", **params))).facts.graph_capture_s
        for params in ({}, {"performance_mode": "interactivity"}, {"enforce_eager": True})
    ]
    # 51 sizes as recorded; of the 32 sizes up to 32 they hold seven (1, 2, 4, 8, 16, 24, 32).
    assert times == [GRAPHS_S, pytest.approx(GRAPHS_S * (51 + 25) / 51), 0.0]


async def test_expert_parallel_of_a_dense_model_is_refused(tmp_path: Path) -> None:
    engine = SimulatedEngine(node=NODE, shape=PLAIN, seed=0)
    with pytest.raises(LaunchFailed) as refused:
        await launched(engine, plan(tmp_path, "m", enable_expert_parallel=True))
    assert refused.value.failure.kind is FailureClass.INVALID_COMBINATION


async def test_a_kv_dtype_that_cannot_be_simulated_is_a_failed_launch_that_took_no_loading(tmp_path: Path) -> None:
    engine = SimulatedEngine(node=NODE, shape=PLAIN, seed=0)
    with pytest.raises(LaunchFailed, match="size of KV dtype 'nvfp4' is not known"):
        await launched(engine, plan(tmp_path, "m", kv_cache_dtype="nvfp4"))
    assert 0 < engine.now() < 30
