"""What a verification of a stored study's trial finds before its first launch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import InvalidOption, UnknownName
from autotune.gate_session import other_than_studied, require_launchable, same_model, same_server
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.recipe import Recipe
from autotune.records import Config, EngineKind, GateSide, Value


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Surroundings:
    """A machine without a GPU."""
    folder = tmp_path_factory.mktemp("home")
    return Surroundings(environ={}, home=folder, probe=None, shm_bytes=None, has_kfd=False, cache_dir=folder / "cache")


@pytest.fixture(scope="module")
def plan(here: Surroundings) -> StudyPlan:
    recipe = Recipe(
        name="s", model="meta-llama/Llama-3.1-8B", workload="tiny", space="scheduler", node="1xH100-80GB", trials=2
    )
    return make_plan(recipe, here)


def test_another_node_and_another_vllm_are_said(plan: StudyPlan, here: Surroundings) -> None:
    real = replace(plan, engine=EngineKind.PROCESS, vllm_version="0.33.0")
    assert other_than_studied(real, "0.32.0", here) == (
        f"the study ran on {plan.node.name}, and this is cpu",
        "the study ran vLLM 0.32.0, and this is 0.33.0",
    )
    at_home = replace(real, node=replace(plan.node, name="cpu"))
    assert other_than_studied(at_home, "0.33.0", here) == ()
    assert other_than_studied(at_home, None, here) == ()


def test_a_simulated_study_is_of_no_machine(plan: StudyPlan, here: Surroundings) -> None:
    assert other_than_studied(plan, "0.32.0", here) == ()


def test_a_folder_is_the_same_model_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama").mkdir()
    monkeypatch.chdir(tmp_path)
    assert same_model("llama", str(tmp_path / "llama"))
    assert same_model("org/model", "org/model")
    assert not same_model("org/model", "org/model-awq")
    assert not same_model("llama", "org/model")


def test_sides_that_end_up_as_the_same_server_are_told_apart_from_others(plan: StudyPlan) -> None:
    def side(model: str = plan.recipe.model, **flags: Value) -> GateSide:
        return GateSide(
            label="x", config=Config.of({k.replace("_", "-"): v for k, v in flags.items()}), model=model, gpus=1
        )

    assert same_server(plan, side(), side(max_num_seqs=1024, tensor_parallel_size=1))
    assert not same_server(plan, side(), side(max_num_seqs=512))
    assert not same_server(plan, side(), side(model="org/other"))


def test_what_cannot_be_launched_here_is_not_launched(plan: StudyPlan) -> None:
    here = GateSide(label="today.yaml", config=Config.of({}), model=plan.recipe.model, gpus=1)
    require_launchable(plan, (), here)
    with pytest.raises(
        InvalidOption, match=r"'today.yaml with 8 GPUs' is not accepted; allowed: a config of at most 1"
    ):
        require_launchable(plan, (), replace(here, gpus=8))
    with pytest.raises(InvalidOption, match=r"with model org/other' .*allowed: meta-llama/Llama-3.1-8B: a simulation"):
        require_launchable(plan, (), replace(here, model="org/other"))
    require_launchable(replace(plan, engine=EngineKind.PROCESS), (), replace(here, model="org/other"))
    with pytest.raises(UnknownName, match=r"today.yaml: unknown flag 'max-num-seq' \(did you mean: max-num-seqs"):
        require_launchable(plan, (), replace(here, config=Config.of({"max-num-seq": 4})))
    with pytest.raises(InvalidOption, match=r"--dtype: 'half-ish' .*what this vLLM takes"):
        require_launchable(plan, (), replace(here, config=Config.of({"dtype": "half-ish"})))
    taken: dict[str, Value] = {
        "compilation-config.mode": 3,
        "env:X": "1",
        "model": "m",
        "max-num-seqs": None,
        "seed": 1,
    }
    require_launchable(plan, (), replace(here, config=Config.of(taken)))
