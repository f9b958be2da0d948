"""What every executor must do, fake, local and Ray: one suite. A module takes it over and gives it a `bench`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autotune.engine.base import LaunchPlan, Milestone, ServerIdentity
from autotune.errors import StorageError
from autotune.executor.base import Assignment, Executor
from autotune.load.records_file import read_records
from autotune.load.workloads import load_workload
from autotune.records import Config, FailureClass, LoadLevel, LoadPlan, Outcome, Phase
from autotune.trial import TrialOrder

MODEL = "meta-llama/Llama-3.1-8B"
LOAD = LoadPlan(
    concurrency_per_gpu=2,
    rate_rps_per_gpu=4.0,
    throughput_requests_per_gpu=8,
    ttft_requests_per_gpu=8,
    warmup_requests_per_gpu=2,
)
WHOLE = [Phase.LAUNCHING, Phase.WARMING, Phase.MEASURING, Phase.STOPPING, Phase.ENDED]
TOO_LARGE = Config.of({"max-model-len": 131072, "gpu-memory-utilization": 0.3})
FINE = Config.of({"max-model-len": 2048})


@dataclass
class Watcher:
    """Remembers what it was told; `fails_at` is a phase of which the store wants to know nothing."""

    fails_at: Phase | None = None
    phases: list[Phase] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    levels: list[str] = field(default_factory=list)
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    def phase(self, phase: Phase, elapsed_s: float) -> None:
        self.phases.append(phase)
        self.times.append(elapsed_s)
        self.reached.set()
        if phase is self.fails_at:
            raise StorageError("no room")

    def identity(self, identity: ServerIdentity) -> None: ...

    def milestone(self, milestone: Milestone) -> None: ...

    def level(self, level: LoadLevel) -> None:
        self.levels.append(level.name)


@dataclass
class Bench:
    """An executor, and the study's folder.

    `hold` has a trial's next attempt last until it is ended, where an executor's are real seconds long.
    """

    executor: Executor
    folder: Path
    begun: int = 0
    hold: Callable[[int], None] = lambda _: None

    def assignment(self, config: Config = FINE) -> Assignment:
        self.begun += 1
        directory = self.folder / f"trial-{self.begun:04d}"
        directory.mkdir(parents=True)
        order = TrialOrder(
            number=self.begun,
            launch=LaunchPlan(
                model=MODEL,
                config=config,
                gpu_indices=(),
                extra_args=(),
                directory=directory,
                start_deadline_s=600.0,
                stall_deadline_s=600.0,
                trial=self.begun,
            ),
            workload=load_workload("tiny"),
            load=LOAD,
            gpus=1,
            seed=0,
            level_deadline_s=600.0,
        )
        return Assignment(trial=self.begun, order=order)


Benched = Callable[[Callable[[Bench], Awaitable[None]]], None]
"""Runs a scenario with a bench, in a loop."""


def test_an_attempt_is_performed_and_told(benched: Benched) -> None:
    async def scenario(bench: Bench) -> None:
        watcher, assignment = Watcher(), bench.assignment()
        run = await bench.executor.perform(assignment, watcher)
        assert run.result.outcome is Outcome.MEASURED
        assert watcher.phases == WHOLE
        assert watcher.times == sorted(watcher.times)
        assert watcher.levels[-2:] == ["throughput", "ttft"]
        assert not run.cancelled
        for found in run.result.measurements:
            path = assignment.order.launch.directory / f"level-{found.level.name}.jsonl.gz"
            assert len(read_records(path).records) == found.planned

    benched(scenario)


def test_what_cannot_start_is_a_result(benched: Benched) -> None:
    async def scenario(bench: Bench) -> None:
        watcher = Watcher()
        run = await bench.executor.perform(bench.assignment(TOO_LARGE), watcher)
        assert run.result.outcome is Outcome.INFEASIBLE
        assert run.result.failure is not None
        assert run.result.failure.kind is FailureClass.KV_CACHE_TOO_SMALL
        assert watcher.phases == [Phase.LAUNCHING, Phase.ENDED]

    benched(scenario)


def test_as_many_at_once_as_the_floor_has_room_for(benched: Benched) -> None:
    async def scenario(bench: Bench) -> None:
        most = bench.executor.floor.most
        turns = bench.executor.floor.turns

        async def one() -> Outcome:
            try:
                return (await bench.executor.perform(bench.assignment(), Watcher())).result.outcome
            finally:
                turns.leave()

        for _ in range(most):
            turns.join()
        assert await asyncio.gather(*(one() for _ in range(most))) == [Outcome.MEASURED] * most

    benched(scenario)


def test_a_cancelled_attempt_passes_that_on_and_leaves_room_for_the_next(benched: Benched) -> None:
    async def scenario(bench: Bench) -> None:
        watcher, assignment = Watcher(), bench.assignment()
        bench.hold(assignment.trial)
        task = asyncio.ensure_future(bench.executor.perform(assignment, watcher))
        await watcher.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await bench.executor.perform(bench.assignment(), Watcher())).result.outcome is Outcome.MEASURED

    benched(scenario)


def test_what_the_store_refuses_ends_the_attempt(benched: Benched) -> None:
    async def scenario(bench: Bench) -> None:
        with pytest.raises(StorageError, match="no room"):
            await bench.executor.perform(bench.assignment(), Watcher(fails_at=Phase.WARMING))
        assert (await bench.executor.perform(bench.assignment(), Watcher())).result.outcome is Outcome.MEASURED

    benched(scenario)
