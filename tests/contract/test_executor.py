"""The executors that need no cluster pass the seam's suite; test_ray_executor.py has it for Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest
from executor_contract import *  # noqa: F403 - the suite
from executor_contract import FINE, MODEL, Bench, Benched

from autotune.engine.base import ServerIdentity
from autotune.engine.fake import FakeEngine, Script
from autotune.executor.base import Executor
from autotune.executor.building import local_executor
from autotune.executor.fake import FakeExecutor
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.recipe import AUTO_PARALLEL, Recipe
from autotune.records import Config, Failure, FailureClass

TOO_SMALL = Failure(kind=FailureClass.KV_CACHE_TOO_SMALL, line="needs 24.0 GiB")


def plan_for(folder: Path, parallel: int) -> StudyPlan:
    here = Surroundings(environ={}, home=folder, probe=None, shm_bytes=None, has_kfd=False, cache_dir=folder / "cache")
    recipe = Recipe(
        name="s", model=MODEL, workload="tiny", space="scheduler", node="4xH100-80GB-NVLink", parallel=parallel
    )
    return make_plan(recipe, here)


def script(config: Config, _before: int) -> Script:
    return Script(launch_failure=None if config == FINE else TOO_SMALL)


@pytest.fixture(params=["fake", "local", "parallel"])
def executor(request: pytest.FixtureRequest, tmp_path: Path) -> Executor:
    if request.param == "fake":
        return FakeExecutor(engine=FakeEngine(script=script), hosts=("a", "b", "c"))
    parallel = AUTO_PARALLEL if request.param == "parallel" else 1
    return local_executor(plan_for(tmp_path, parallel), None, lambda _: None)


@pytest.fixture
def benched(executor: Executor, tmp_path: Path) -> Benched:
    def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
        async def whole() -> None:
            await executor.take()
            await scenario(Bench(executor=executor, folder=tmp_path / "studies"))

        with closing(executor):
            asyncio.run(whole())
        executor.close()

    return run


def test_what_ran_on_another_machine_is_not_looked_for_here(executor: Executor) -> None:
    elsewhere = ServerIdentity(pid=1, started=0.0, pgid=None, marker="m", host="some-other-machine")
    assert executor.reap(elsewhere) is None
