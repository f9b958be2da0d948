"""Which checkpoints are fetched before a study's first launch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engine.command import parse_command
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.planning.weights import weights_wanted
from autotune.recipe import Recipe
from autotune.records import EngineKind
from autotune.search.space import load_space

SPACE = """
name: s
parameters:
  model: {choices: [acme/small, acme/small-fp8], why: w}
  speculative-config:
    choices: ['{"method": "ngram"}', '{"model": "acme/draft", "num_speculative_tokens": 3}']
    why: w
"""
MODEL = "meta-llama/Llama-3.1-8B"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> StudyPlan:
    folder = tmp_path_factory.mktemp("plan")
    here = Surroundings(
        environ={"HF_HUB_OFFLINE": "1"}, home=folder, probe=None, shm_bytes=None, has_kfd=False, cache_dir=folder
    )
    recipe = Recipe(name="s", model=MODEL, workload="tiny", space="default", node="1xH100-80GB", trials=2)
    return make_plan(recipe, here)


def real(plan: StudyPlan, command: str = "/opt/vllm/bin/vllm serve", **others: object) -> StudyPlan:
    changes = {"engine": EngineKind.PROCESS, "vllm_version": "0.25.1", "extra": (), **others}
    return replace(plan, command=parse_command(command, source="test"), **changes)


def names(plan: StudyPlan, **environ: str) -> list[str]:
    return [order.model for order in weights_wanted(plan, environ, Path("/home/u"))]


def test_the_studys_model_from_the_cache_that_its_servers_look_in(simulated: StudyPlan) -> None:
    (order,) = weights_wanted(real(simulated), {"HF_HOME": "/hf"}, Path("/home/u"))
    assert (order.model, order.cache, order.load_format, order.version) == (MODEL, Path("/hf/hub"), "auto", (0, 25, 1))
    extra = (("download-dir", "/weights"), ("revision", "abc"), ("load-format", "dummy"))
    (order,) = weights_wanted(real(simulated, extra=extra), {}, Path("/home/u"))
    assert (order.cache, order.revision, order.load_format) == (Path("/weights"), "abc", "dummy")


def test_checkpoints_of_the_space_and_drafts(simulated: StudyPlan, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE, encoding="utf-8")
    plan = real(simulated, space=load_space(str(path)))
    assert names(plan) == [MODEL, "acme/small", "acme/small-fp8", "acme/draft"]
    draft = ("speculative-config", '{"model": "acme/eagle"}')
    assert names(real(simulated, extra=(draft,))) == [MODEL, "acme/eagle"]


def test_servers_that_have_another_cache_or_none_fetch_for_themselves(simulated: StudyPlan) -> None:
    assert names(simulated) == []
    assert names(real(simulated, "docker run -p {port}:8000 vllm/vllm-openai --model {model}")) == []
    assert names(real(simulated, vllm_version=None)) == []
    assert names(real(simulated, "/opt/bin/autotune simulate-server")) == []
    assert names(real(simulated), VLLM_USE_MODELSCOPE="True") == []


@pytest.mark.parametrize("name", ["/models/llama", "./a", "a/b/c", "gpt", "a/../b", "~/x"])
def test_what_is_no_hub_id_is_not_asked_for(simulated: StudyPlan, name: str) -> None:
    assert names(real(simulated, recipe=replace(simulated.recipe, model=name))) == []
