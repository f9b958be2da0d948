"""Preemptions of a real server with too small a KV cache for its load, against a simulation of the same requests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autotune.load.requests import plan_requests
from autotune.load.workloads import load_workload
from autotune.node.defaults import resolve
from autotune.planning.stored import stored_plan
from autotune.records import Config, LevelRole, Trial
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.engine_model import Simulation
from autotune.store.repository import Store

STUDY = Path(__file__).parents[3] / "studies" / "h200-tight-memory"
CHAT = load_workload("chat")


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Trial, Simulation]]:
    """By number, with the simulated server of the same flags and KV capacity."""
    path = tmp_path_factory.mktemp("tight") / "autotune.db"
    shutil.copy(STUDY / "autotune.db", path)
    with Store.open(path, create=False) as store:
        (study,) = store.studies()
        found = store.trials(study.name)
    plan = stored_plan(study, found).plan
    servers = {}
    for trial in found:
        if trial.result is not None and trial.result.facts is not None and trial.result.facts.kv_cache_tokens:
            config = Config.of({**dict(plan.extra), **trial.config.as_dict()})
            settings = resolve(config, plan.node, plan.shape, plan.vllm_version)
            servers[trial.number] = (
                trial,
                Simulation(plan.node, plan.shape, settings, trial.result.facts.kv_cache_tokens, Coefficients()),
            )
    return servers


@pytest.mark.parametrize(
    ("number", "preempted"),
    # KV tokens: 919,824; 16,944; 39,856; 97,120; 37,984 with at most 64 at once.
    [(0, 0), (3, 56), (4, 31), (5, 0), (6, 15)],
)
def test_as_many_are_preempted(trials: dict[int, tuple[Trial, Simulation]], number: int, preempted: int) -> None:
    trial, server = trials[number]
    assert trial.result is not None
    measured = trial.result.of_role(LevelRole.THROUGHPUT)
    assert measured is not None
    assert measured.server is not None
    assert measured.server.preemptions == preempted
    requests = plan_requests(CHAT, measured.level, trial.number)
    simulated = server.run(measured.level, requests)
    assert simulated.server.preemptions == pytest.approx(preempted, rel=0.25)
    # Data-sheet coefficients, which know nothing of this machine.
    rate = sum(record.output_tokens or 0 for record in simulated.records) / simulated.duration_s
    assert rate == pytest.approx(measured.output_tokens / measured.duration_s, rel=0.15)
