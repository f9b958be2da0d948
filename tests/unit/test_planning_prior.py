"""What a study believes before it launches: made from its plan, left out where nothing is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.planning.prior import completer, has_physics, prior_of, tried_first
from autotune.recipe import Recipe
from autotune.records import Config, LoadPlan

LOAD = LoadPlan(
    concurrency_per_gpu=128,
    rate_rps_per_gpu=20.0,
    throughput_requests_per_gpu=512,
    ttft_requests_per_gpu=300,
    warmup_requests_per_gpu=128,
)


def plan_of(**values: Any) -> StudyPlan:
    nowhere = Path("/nonexistent")
    here = Surroundings(environ={}, home=nowhere, probe=None, shm_bytes=None, has_kfd=False, cache_dir=nowhere)
    model, node = "meta-llama/Llama-3.1-8B-Instruct", "2xH100-80GB-NVLink"
    asked: dict[str, Any] = {"name": "s", "model": model, "node": node, **values}
    return make_plan(Recipe(**asked), here)


def test_the_prior_knows_the_load_the_workload_and_the_fixed_flags() -> None:
    plan = plan_of()
    prior = prior_of(plan, LOAD)
    assert prior is not None
    offered = prior.offered
    assert (offered.concurrency, offered.rate_rps, offered.requests) == (128, 20.0, 300)
    assert 450 < offered.prompt_tokens < 570  # chat: 512 on average
    assert dict(prior.fixed)["max-model-len"] == dict(plan.fixed)["max-model-len"]


def test_it_ranks_the_space_as_arithmetic_does() -> None:
    plan = plan_of()
    prior = prior_of(plan, LOAD)
    assert prior is not None
    few, many = ({"max-num-seqs": seqs, "tensor-parallel-size": 1, "data-parallel-size": 2} for seqs in (8, 256))
    expected = prior.expect([Config.of(few), Config.of(many)])
    assert expected.log_throughput[0] < expected.log_throughput[1] - 0.5  # 8 of 128 clients at once
    assert expected.log_ttft[0] > expected.log_ttft[1]
    assert np.all(expected.feasible > 0.9)


def test_without_known_peaks_or_shape_nothing_is_believed_and_every_layout_is_tried() -> None:
    plan = plan_of()
    unknown = tuple(replace(gpu, bf16_flops=None) for gpu in plan.node.gpus)
    blind = replace(plan, node=replace(plan.node, gpus=unknown))
    assert has_physics(plan)
    for one in (blind, replace(plan, shape=None), replace(plan, node=replace(plan.node, gpus=()))):
        assert not has_physics(one)
        assert prior_of(one, LOAD) is None
        assert tried_first(one) == plan.starting_points


def test_with_a_prior_the_guides_first_config_is_enough_beside_those_asked_for() -> None:
    plan = plan_of()
    assert len(plan.starting_points) > 1
    assert tried_first(plan) == plan.starting_points[:1]
    assert tried_first(plan_of(sampler="tpe")) == plan.starting_points
    points = plan.starting_points
    names = {parameter.name for parameter in plan.space.parameters}
    given = tuple(Config.of({n: v for n, v in point if n in names}) for point in points[:2])
    assert tried_first(plan_of(starting_points=given)) == points[:2]


def test_a_baseline_without_flags_is_told_in_the_words_of_the_space() -> None:
    plan = plan_of()
    found = completer(plan)(Config.of({})).as_dict()
    # vLLM's own: https://docs.vllm.ai/en/latest/configuration/engine_args.html
    assert found["enable-prefix-caching"] is True
    assert found["tensor-parallel-size"] == 1
    assert completer(replace(plan, shape=None))(Config.of({})) == Config.of({})
