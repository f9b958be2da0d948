"""The simulated engine against a study on a real H200, which its coefficients were not fitted to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.engine.base import LaunchPlan
from autotune.engine.simulated import SimulatedEngine
from autotune.load.measure import summarise
from autotune.load.requests import plan_requests
from autotune.load.workloads import load_workload
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import Arrivals, Config, LevelRole, LoadLevel

RECORDED = json.loads((Path(__file__).parents[2] / "data" / "h200-study" / "study.json").read_text("utf-8"))


@pytest.mark.parametrize("number", [0, 2])
async def test_throughput_is_within_eight_percent_of_the_recorded(tmp_path: Path, number: int) -> None:
    trial = RECORDED["trials"][number]
    engine = SimulatedEngine(node=parse_node_name("1xH200-141GB"), shape=load_shape("meta-llama/Llama-3.1-8B"), seed=0)
    plan = LaunchPlan(
        model="m",
        config=Config.of(trial["flags"]),
        gpu_indices=(0,),
        extra_args=(),
        directory=tmp_path,
        start_deadline_s=1200,
        stall_deadline_s=600,
    )
    server = await engine.launch(plan, on_identity=lambda _: None, on_milestone=lambda _: None)
    level = LoadLevel(
        name="throughput",
        role=LevelRole.THROUGHPUT,
        arrivals=Arrivals.CLOSED,
        concurrency=512,
        requests=2048,
        seed=1,
    )
    requests = plan_requests(load_workload("chat"), level, trial_salt=number)
    driven = await server.drive(level, requests, deadline_s=600)
    found = summarise(level, driven.records, driven.duration_s, engine.clock, server=driven.server)
    assert found.output_tok_s is not None
    assert found.output_tok_s.value == pytest.approx(trial["output_tok_s"], rel=0.08)
