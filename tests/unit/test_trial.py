"""One attempt: phases in order, levels driven, what a failure means, and that the server is always stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.engine.base import LaunchPlan, Milestone, ServerIdentity
from autotune.engine.fake import FAKE_ARGV, FakeEngine, Script
from autotune.load.records_file import level_path, read_records
from autotune.load.workloads import load_workload
from autotune.records import (
    STUDY_FATAL_CLASSES,
    Caveat,
    Config,
    Failure,
    FailureClass,
    LevelRole,
    LoadLevel,
    LoadPlan,
    Outcome,
    Phase,
)
from autotune.trial import FixedLoad, TrialOrder, run_trial

LOAD = LoadPlan(
    concurrency_per_gpu=4,
    rate_rps_per_gpu=5.0,
    throughput_requests_per_gpu=60,
    ttft_requests_per_gpu=50,
    warmup_requests_per_gpu=4,
)
TOO_SMALL = Failure(kind=FailureClass.KV_CACHE_TOO_SMALL, line="needs 24.0 GiB")


class Watcher:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.levels: list[LoadLevel] = []
        self.milestones: list[str] = []
        self.identities: list[ServerIdentity] = []

    def phase(self, phase: Phase, elapsed_s: float) -> None:
        assert elapsed_s >= 0
        self.phases.append(phase)

    def identity(self, identity: ServerIdentity) -> None:
        self.identities.append(identity)

    def milestone(self, milestone: Milestone) -> None:
        self.milestones.append(milestone.name)

    def level(self, level: LoadLevel) -> None:
        self.levels.append(level)


def order(
    directory: Path, *, load: LoadPlan | None = LOAD, gpus: int = 1, fixed: FixedLoad | None = None
) -> TrialOrder:
    return TrialOrder(
        number=3,
        launch=LaunchPlan(
            model="m",
            config=Config.of({"max-num-seqs": 8}),
            gpu_indices=(),
            extra_args=(),
            directory=directory,
            start_deadline_s=100,
            stall_deadline_s=100,
        ),
        workload=load_workload("tiny"),
        load=load,
        fixed_load=fixed or FixedLoad(),
        gpus=gpus,
        seed=1,
        level_deadline_s=600,
    )


def engine_of(script: Script) -> FakeEngine:
    return FakeEngine(script=lambda _config, _before: script)


async def perform(engine: FakeEngine, what: TrialOrder, watcher: Watcher | None = None):
    return await run_trial(engine, what, clock=engine.now, observer=watcher or Watcher())


async def test_a_good_config_is_measured_at_both_levels(tmp_path: Path) -> None:
    engine, watcher = engine_of(Script(ttft_s=0.2, token_s=0.01)), Watcher()
    run = await perform(engine, order(tmp_path), watcher)
    assert run.result.outcome is Outcome.MEASURED
    assert watcher.phases == [Phase.LAUNCHING, Phase.WARMING, Phase.MEASURING, Phase.STOPPING, Phase.ENDED]
    assert [level.role for level in watcher.levels] == [LevelRole.WARMUP, LevelRole.THROUGHPUT, LevelRole.TTFT]
    ttft = run.result.of_role(LevelRole.TTFT)
    assert ttft is not None
    assert ttft.ttft_s is not None
    assert ttft.ttft_s.p95.value == pytest.approx(0.2)
    assert engine.stopped == 1
    seconds = dict(run.result.phase_seconds)
    assert seconds[Phase.LAUNCHING] == pytest.approx(30.0)
    assert seconds[Phase.STOPPING] == pytest.approx(0.6)


async def test_raw_records_lie_beside_and_give_the_same_count(tmp_path: Path) -> None:
    run = await perform(engine_of(Script()), order(tmp_path))
    for measurement in run.result.measurements:
        kept = read_records(level_path(tmp_path, measurement.level))
        assert len(kept.records) == measurement.completed
        assert kept.level == measurement.level


async def test_levels_scale_with_the_gpus_used(tmp_path: Path) -> None:
    watcher = Watcher()
    await perform(engine_of(Script()), order(tmp_path, gpus=4), watcher)
    throughput, ttft = watcher.levels[1:]
    assert (throughput.concurrency, throughput.requests) == (16, 240)
    assert ttft.rate_rps == pytest.approx(20.0)


async def test_prompts_differ_between_levels_in_content_only(tmp_path: Path) -> None:
    watcher = Watcher()
    await perform(engine_of(Script()), order(tmp_path), watcher)
    assert len({level.seed for level in watcher.levels}) == len(watcher.levels)


async def test_the_baseline_finds_its_load(tmp_path: Path) -> None:
    watcher = Watcher()
    run = await perform(engine_of(Script(ttft_s=0.1, token_s=0.01)), order(tmp_path, load=None), watcher)
    ramp = [level.concurrency for level in watcher.levels if level.role is LevelRole.RAMP]
    # The scripted server never saturates, so the ramp goes to the workload's limit: 2, 4, 8.
    assert ramp == [2, 4, 8]
    assert run.load is not None
    assert run.load.capacity_rps_per_gpu is not None
    # Eight at once, each for 0.1 s and 15 gaps of 10 ms on average: about 32 requests/s.
    assert run.load.capacity_rps_per_gpu == pytest.approx(8 / 0.25, rel=0.15)
    assert run.load.rate_rps_per_gpu == pytest.approx(0.85 * run.load.capacity_rps_per_gpu)


async def test_what_the_operator_fixed_replaces_what_the_ramp_finds(tmp_path: Path) -> None:
    fixed = FixedLoad(rate_rps_per_gpu=3.0)
    run = await perform(engine_of(Script()), order(tmp_path, load=None, fixed=fixed))
    assert run.load is not None
    assert run.load.rate_rps_per_gpu == 3.0


async def test_a_fixed_concurrency_gets_the_requests_that_reach_it(tmp_path: Path) -> None:
    # The ramp ends at 8 in flight, and its counts are for that many.
    fixed = FixedLoad(concurrency_per_gpu=64)
    watcher = Watcher()
    run = await perform(engine_of(Script()), order(tmp_path, load=None, fixed=fixed), watcher)
    throughput = next(level for level in watcher.levels if level.role is LevelRole.THROUGHPUT)
    counts = load_workload("tiny").requests
    assert throughput.concurrency == 64
    assert throughput.requests >= counts.per_slot * 64
    assert run.load is not None
    assert run.load.warmup_requests_per_gpu == counts.warmup_per_slot * 64
    asked = FixedLoad(concurrency_per_gpu=64, throughput_requests_per_gpu=100, ttft_requests_per_gpu=100)
    run = await perform(engine_of(Script()), order(tmp_path, load=None, fixed=asked))
    assert run.load is not None
    assert run.load.throughput_requests_per_gpu == 100


async def test_a_refused_launch_is_infeasible_and_nothing_is_stopped_twice(tmp_path: Path) -> None:
    engine, watcher = engine_of(Script(launch_failure=TOO_SMALL)), Watcher()
    run = await perform(engine, order(tmp_path), watcher)
    assert run.result.outcome is Outcome.INFEASIBLE
    assert run.result.failure == TOO_SMALL
    assert run.argv == FAKE_ARGV
    assert watcher.phases == [Phase.LAUNCHING, Phase.ENDED]
    assert engine.stopped == 0


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        (FailureClass.OOM_UNDER_LOAD, Outcome.INFEASIBLE),
        (FailureClass.CRASH, Outcome.FAULTED),
        (FailureClass.GPU_BUSY, Outcome.FAULTED),
        (FailureClass.MODEL_ACCESS, Outcome.FAULTED),
    ],
)
async def test_death_under_load(tmp_path: Path, kind: FailureClass, outcome: Outcome) -> None:
    death = Failure(kind=kind, line="it died")
    engine = engine_of(Script(dies_at=LevelRole.TTFT, death=death))
    run = await perform(engine, order(tmp_path))
    assert run.result.outcome is outcome
    assert run.result.failure == death
    assert engine.stopped == 1
    # What was measured before is kept as evidence, but the trial counts as not measured.
    assert run.result.of_role(LevelRole.THROUGHPUT) is not None


@pytest.mark.parametrize(
    ("error", "outcome", "kind"),
    [
        ("http_4xx", Outcome.INFEASIBLE, FailureClass.INVALID_COMBINATION),
        ("http_auth", Outcome.FAULTED, FailureClass.MODEL_ACCESS),
        ("http_5xx", Outcome.FAULTED, FailureClass.CRASH),
        ("stalled", Outcome.FAULTED, FailureClass.HANG),
        ("deadline", Outcome.FAULTED, FailureClass.HANG),
    ],
)
async def test_requests_that_fail_are_no_figures(
    tmp_path: Path, error: str, outcome: Outcome, kind: FailureClass
) -> None:
    run = await perform(engine_of(Script(error=error)), order(tmp_path))
    assert run.result.outcome is outcome
    assert run.result.failure is not None
    assert run.result.failure.kind is kind
    assert error in (run.result.failure.line or "")


async def test_a_server_that_wants_a_key_is_nothing_a_config_cures(tmp_path: Path) -> None:
    run = await perform(engine_of(Script(error="http_auth")), order(tmp_path))
    assert run.result.failure is not None
    assert run.result.failure.kind in STUDY_FATAL_CLASSES
    assert "VLLM_API_KEY" in " ".join(run.result.failure.remedies)


async def test_what_a_server_says_against_its_figures_is_kept(tmp_path: Path) -> None:
    doubt = Caveat(code="x", text="a guess", remedy="none")
    run = await perform(engine_of(Script(caveats=(doubt,))), order(tmp_path))
    assert run.result.outcome is Outcome.MEASURED
    assert run.result.caveats == (doubt,)


async def test_a_config_too_slow_for_its_level_is_abandoned(tmp_path: Path) -> None:
    doubt = Caveat(code="x", text="a guess", remedy="none")
    engine = engine_of(Script(error_after=(LevelRole.THROUGHPUT, 20, "deadline"), caveats=(doubt,)))
    run = await perform(engine, order(tmp_path))
    assert run.result.outcome is Outcome.ABANDONED
    assert run.result.failure is None
    assert [caveat.code for caveat in run.result.caveats] == ["too_slow", "x"]


async def test_cancellation_stops_the_server_before_it_propagates(tmp_path: Path) -> None:
    engine = engine_of(Script(blocks_at=LevelRole.THROUGHPUT))
    watcher = Watcher()
    task = asyncio.ensure_future(perform(engine, order(tmp_path), watcher))
    await until(lambda: any(level.role is LevelRole.THROUGHPUT for level in watcher.levels))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.stopped == 1
    assert watcher.phases[-2:] == [Phase.STOPPING, Phase.ENDED]


async def test_a_measured_trial_survives_a_cancellation_while_its_server_stops(tmp_path: Path) -> None:
    gate, watcher = asyncio.Event(), Watcher()
    engine = engine_of(Script(stop_gate=gate))
    task = asyncio.ensure_future(perform(engine, order(tmp_path), watcher))
    await until(lambda: Phase.STOPPING in watcher.phases)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    gate.set()
    run = await task
    assert run.cancelled
    assert run.result.outcome is Outcome.MEASURED
    assert engine.stopped == 1


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not happen")
