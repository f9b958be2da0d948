"""Node, model, workload, space and rules brought together, without a machine: probe and environment are handed in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.engine.flags import AcceptedFlags, FlagSpec
from autotune.errors import InvalidOption, NoFeasibleConfig, UnknownName, VllmCommandError
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.planning.prior import tried_first
from autotune.recipe import EngineChoice, LoadChoice, Recipe
from autotune.records import Config, EngineKind, LoadPlan, Objective

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
SPACE = """
name: s
parameters:
  max-num-seqs: {choices: [64, 1024], why: w}
  tensor-parallel-size: {choices: [1, 2], why: w}
"""


class Here(Surroundings):
    """A machine without GPUs whose vLLM accepts few flags."""

    def ask(self, command: object, *, deadline_s: float) -> tuple[str | None, AcceptedFlags]:
        names = ("dtype", "gpu-memory-utilization", "max-model-len", "max-num-seqs", "tensor-parallel-size")
        return "0.32.0", AcceptedFlags(flags=tuple(FlagSpec(name=name, takes_value=True) for name in names))


@pytest.fixture
def here(tmp_path: Path) -> Surroundings:
    return Here(
        environ={"PATH": "/usr/bin:/bin"},
        home=tmp_path,
        probe=None,
        shm_bytes=None,
        has_kfd=False,
        cache_dir=tmp_path / "cache",
    )


@pytest.fixture
def space(tmp_path: Path) -> str:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE, encoding="utf-8")
    return str(path)


def recipe(**values: Any) -> Recipe:
    return Recipe(**{"name": "s", "model": LLAMA, **values})


def plan_of(here: Surroundings, **values: Any) -> StudyPlan:
    return make_plan(recipe(**values), here)


def test_gpu_hours_need_gpus(tmp_path: Path) -> None:
    here = Surroundings(
        environ={}, home=tmp_path, probe=None, shm_bytes=None, has_kfd=False, cache_dir=tmp_path / "cache"
    )
    recipe = Recipe(
        name="s", model="meta-llama/Llama-3.1-8B", workload="tiny", engine=EngineChoice.PROCESS, max_gpu_s=60.0
    )
    with pytest.raises(InvalidOption, match="a node with GPUs"):
        make_plan(recipe, here)


def test_without_a_gpu_the_default_node_is_simulated_and_said(here: Surroundings) -> None:
    plan = plan_of(here)
    assert plan.engine is EngineKind.SIMULATED
    assert plan.node.name == "1xH100-80GB"
    assert "No GPU was found" in plan.notes[0]
    assert "SIMULATED" in plan.notes[0]


def test_a_named_node_is_simulated_without_a_word_about_gpus(here: Surroundings) -> None:
    plan = plan_of(here, node="4xA100-80GB-NVLink")
    assert plan.node.gpu_count == 4
    assert plan.notes == ("The baseline uses 1 of 4 GPUs, the others stay idle; figures are per GPU used.",)


def test_length_comes_from_the_workload_not_from_the_model_card(here: Surroundings) -> None:
    # chat's longest request is far below 8,192; the model's own length is 131,072.
    assert dict(plan_of(here).fixed)["max-model-len"] == 8192
    assert plan_of(here).baseline == Config.of({})


def test_a_length_that_the_operator_gave_is_left_alone(here: Surroundings) -> None:
    plan = plan_of(here, extra_args=("--max-model-len", "4096"))
    assert "max-model-len" not in dict(plan.fixed)
    assert dict(plan.extra)["max-model-len"] == 4096


def test_configs_that_end_up_as_the_same_server_are_one(here: Surroundings, space: str) -> None:
    plan = plan_of(here, space=space)
    spelled = plan.complete(Config.of({"max-num-seqs": 1024, "tensor-parallel-size": 1}))
    bare = Config.of({"max-model-len": 8192})
    assert plan.effective(spelled) == plan.effective(bare)
    other = plan.complete(Config.of({"max-num-seqs": 64, "tensor-parallel-size": 1}))
    assert plan.effective(other) != plan.effective(bare)
    # Another environment variable is another server.
    assert plan.effective(Config.of({**bare.as_dict(), "env:X": 1})) != plan.effective(bare)


def test_what_runs_today_is_tried_first_where_it_can_start(here: Surroundings, space: str) -> None:
    today = Config.of({"max-num-seqs": 96, "max-model-len": 4096})
    plan = plan_of(here, space=space, today=today)
    assert plan.today == tried_first(plan)[0] == today
    assert plan.space == plan_of(here, space=space).space
    # What is given for every launch is no part of it.
    assert plan_of(here, space=space, today=today, extra_args=("--max-model-len", "8192")).today == Config.of(
        {"max-num-seqs": 96}
    )
    wide = plan_of(here, space=space, today=Config.of({"tensor-parallel-size": 16}))
    assert wide.today is None
    assert any(note.startswith("What runs today is not tried, as it cannot serve this: ") for note in wide.notes)
    with pytest.raises(UnknownName, match="--today: unknown flag 'max-num-seq'"):
        plan_of(here, space=space, today=Config.of({"max-num-seq": 96}))


@pytest.mark.parametrize(
    ("sampler", "guides"), [("prior", 1), ("tpe", None), ("nsga2", None), ("random", 0), ("qmc", 0), ("grid", 0)]
)
def test_a_control_begins_with_nothing_that_it_was_told(here: Surroundings, sampler: str, guides: int | None) -> None:
    plan = plan_of(here, sampler=sampler)
    known = len(plan.starting_points)
    assert known > 1
    assert tried_first(plan) == plan.starting_points[:guides]
    asked = plan_of(here, sampler=sampler, starting_points=(Config.of({"max-num-seqs": 64}),))
    assert dict(tried_first(asked)[0].params)["max-num-seqs"] == 64
    # Asked for, one stands in the place of the guide's; a sampler that learns from them has them all behind it.
    assert len(tried_first(asked)) == (len(asked.starting_points) if guides is None else 1)


def test_what_cannot_start_is_counted_by_reason(here: Surroundings, space: str) -> None:
    plan = plan_of(here, space=space)
    assert len(plan.feasible) == 2
    assert plan.refused == (("TP x PP x DP is more GPUs than are visible", 2),)


def test_a_space_without_a_feasible_config(here: Surroundings, tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_text("name: big\nparameters:\n  tensor-parallel-size: {choices: [2, 4], why: w}\n", encoding="utf-8")
    with pytest.raises(NoFeasibleConfig, match=r"big.*1xH100-80GB"):
        plan_of(here, space=str(path))


def test_gpus_and_leases(here: Surroundings) -> None:
    plan = plan_of(here, node="4xA100-80GB-NVLink")
    config = Config.of({"tensor-parallel-size": 2, "data-parallel-size": 2})
    assert plan.gpus_of(config) == 4
    given = plan_of(here, node="4xA100-80GB-NVLink", space="scheduler", extra_args=("-tp", "2"))
    assert given.gpus_of(Config.of({})) == 2


def test_a_flag_is_either_searched_or_fixed(here: Surroundings, space: str) -> None:
    with pytest.raises(InvalidOption, match="max-num-seqs"):
        plan_of(here, space=space, extra_args=("--max-num-seqs", "8"))


@pytest.mark.parametrize("flag", ["--port", "--host", "--model"])
def test_flags_that_the_tuner_sets(here: Surroundings, flag: str) -> None:
    with pytest.raises(InvalidOption, match=flag):
        plan_of(here, extra_args=(flag, "1"))


@pytest.mark.parametrize("words", [("--api-key", "hunter2"), ("--api_key=hunter2",), ("--hf-token", "hunter2")])
def test_secrets_come_by_the_environment(here: Surroundings, words: tuple[str, ...]) -> None:
    # What follows `--` is stored with the study, and the load client could not know the key.
    with pytest.raises(InvalidOption, match="no secrets") as refused:
        plan_of(here, extra_args=words)
    assert "hunter2" not in str(refused.value)
    assert "TOKEN" in refused.value.hint or "VLLM_API_KEY" in refused.value.hint


def test_real_servers_need_a_command_that_exists(here: Surroundings) -> None:
    with pytest.raises(VllmCommandError, match="/nope/vllm"):
        make_plan(recipe(engine=EngineChoice.PROCESS), here, vllm_command="/nope/vllm serve")


def test_flags_are_checked_against_the_installed_parser(here: Surroundings, space: str) -> None:
    with pytest.raises(UnknownName, match="max-num-sekvenser"):
        make_plan(
            recipe(engine=EngineChoice.PROCESS, space=space, extra_args=("--max-num-sekvenser", "3")),
            here,
            vllm_command="/bin/true serve",
        )
    with pytest.raises(UnknownName, match="search space 'scheduler'"):
        make_plan(recipe(engine=EngineChoice.PROCESS, space="scheduler"), here, vllm_command="/bin/true serve")


def test_real_servers_on_a_cpu(here: Surroundings, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("name: c\nparameters:\n  max-num-seqs: {choices: [4, 8], why: w}\n", encoding="utf-8")
    plan = make_plan(recipe(engine=EngineChoice.PROCESS, space=str(path)), here, vllm_command="/bin/true serve")
    assert plan.engine is EngineKind.PROCESS
    assert not plan.simulated
    assert plan.gpus_of(Config.of({})) == 0
    assert plan.vllm_version == "0.32.0"


def test_a_node_is_only_named_to_be_simulated(here: Surroundings) -> None:
    with pytest.raises(InvalidOption, match="--node"):
        plan_of(here, engine=EngineChoice.PROCESS, node="1xL4-24GB")


def test_a_hub_model_that_is_not_here_yet_is_for_vllm_to_fetch(here: Surroundings, space: str) -> None:
    values = {"model": "some-org/new-model", "space": space, "engine": EngineChoice.PROCESS}
    plan = make_plan(recipe(**values), here, vllm_command="/bin/true serve")
    assert plan.shape is None
    assert "cannot be checked" in plan.notes[0]
    with pytest.raises(UnknownName, match="some-org/new-model"):
        plan_of(here, model="some-org/new-model")
    with pytest.raises(UnknownName):
        make_plan(recipe(**{**values, "model": "./missing"}), here, vllm_command="/bin/true serve")


def test_starting_points_of_a_study_file_are_checked(here: Surroundings, space: str) -> None:
    good = Config.of({"max-num-seqs": 64, "tensor-parallel-size": 1})
    plan = plan_of(here, space=space, starting_points=(good,))
    assert plan.starting_points == (plan.complete(good),)
    for bad, why in (
        ({"max-num-seqs": 63, "tensor-parallel-size": 1}, "choices"),
        ({"max-num-seqs": 64, "tensor-parallel-size": 2}, "GPU"),
    ):
        with pytest.raises(InvalidOption, match=why):
            plan_of(here, space=space, starting_points=(Config.of(bad),))


def test_identity_names_all_that_makes_results_comparable(here: Surroundings) -> None:
    plan = plan_of(here)
    kept = {"model", "workload", "space", "node", "vllm_version", "load", "fixed flags", "objective"}
    assert set(plan.identity) == kept
    assert json.dumps(plan.identity)
    longer = replace(plan.recipe, load=LoadChoice(rate_rps=3.0))
    assert make_plan(longer, here).identity != plan.identity


def test_a_goodput_needs_an_slo_and_is_comparable_under_that_alone(here: Surroundings) -> None:
    with pytest.raises(InvalidOption, match="--objective"):
        plan_of(here, objective=Objective.GOODPUT)
    one = plan_of(here, objective=Objective.GOODPUT, slo="error_rate<=0,ttft_p95<=0.5s").identity["objective"]
    assert one == "goodput within ttft_p95<=500ms,error_rate<=0"
    assert plan_of(here, objective=Objective.GOODPUT, slo="1s").identity["objective"] != one
    assert plan_of(here, slo="1s").identity == plan_of(here).identity


def test_a_load_that_the_operator_fixed_needs_no_ramp(here: Surroundings) -> None:
    plan = plan_of(here, load=LoadChoice(concurrency=4, rate_rps=2.0, requests=24))
    found = plan.load_for(None)
    assert found is not None
    assert (found.concurrency_per_gpu, found.rate_rps_per_gpu) == (4, 2.0)
    assert (found.throughput_requests_per_gpu, found.ttft_requests_per_gpu) == (24, 24)
    stored = LoadPlan(
        concurrency_per_gpu=1,
        rate_rps_per_gpu=1,
        throughput_requests_per_gpu=1,
        ttft_requests_per_gpu=1,
        warmup_requests_per_gpu=1,
    )
    assert plan.load_for(stored) == stored
    assert found.ttft_most_requests_per_gpu is None  # as many as were asked for
    assert plan_of(here, load=LoadChoice(rate_rps=2.0)).load_for(None) is None


def test_a_rate_that_the_operator_fixed_grows_like_one_that_was_found(here: Surroundings) -> None:
    plan = plan_of(here, load=LoadChoice(concurrency=4, rate_rps=20.0))
    found = plan.load_for(None)
    assert found is not None
    counts = plan.workload.requests
    most = min(counts.most, int(20.0 * counts.ttft_most_s))
    assert counts.ttft < most
    assert (found.ttft_requests_per_gpu, found.ttft_most_requests_per_gpu) == (counts.ttft, most)
    short = replace(plan.recipe, level_deadline_s=2 * (counts.ttft + 20) / 20.0)  # half of it for the last ones to end
    bounded = make_plan(short, here).load_for(None)
    assert bounded is not None
    assert bounded.ttft_most_requests_per_gpu == counts.ttft + 20


def test_flags_are_checked_where_nothing_is_launched_too(here: Surroundings, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="max-num-sekvenser"):
        plan_of(here, extra_args=("--max-num-sekvenser", "3"))
    with pytest.raises(InvalidOption, match="--kv-cache-dtype fp9 is not one of auto"):
        plan_of(here, extra_args=("--kv-cache-dtype", "fp9"), space="scheduler")
    path = tmp_path / "space.yaml"
    path.write_text("name: c\nparameters:\n  max-num-sekvenser: {choices: [4], why: w}\n", encoding="utf-8")
    with pytest.raises(UnknownName, match="search space 'c'"):
        plan_of(here, space=str(path))
    assert plan_of(here, extra_args=("--tool-call-parser", "hermes")).extra == (("tool-call-parser", "hermes"),)
