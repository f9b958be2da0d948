"""One attempt: phases in order, levels driven, what a failure means, and that the server is always stopped."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engine.base import LaunchPlan, Milestone, ServerIdentity
from autotune.engine.fake import FAKE_ARGV, FakeEngine, Script
from autotune.load.records_file import level_path, read_records
from autotune.load.workloads import load_workload
from autotune.records import (
    STUDY_FATAL_CLASSES,
    Caveat,
    ClockKind,
    Config,
    EarlyReason,
    Failure,
    FailureClass,
    LevelRole,
    LoadLevel,
    LoadPlan,
    Origin,
    Outcome,
    Phase,
    Trial,
)
from autotune.search.early import Rival, Rivals
from autotune.search.noise import RunNoise
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


def beaten_by(ttft_s: float, tok_s: float = 1e6) -> Rivals:
    rival = Rival(number=1, log_tok_s=math.log(tok_s), log_ttft=math.log(ttft_s), tok_s_variance=0, ttft_variance=0)
    return Rivals(
        rivals=(rival,),
        noise=RunNoise(throughput_sd=0.01, ttft_sd=0.1, repeats=0),
        ttft_variance=0.01,
        confidence=0.99,
        usual_s=60.0,
    )


LONG = replace(LOAD, ttft_requests_per_gpu=200)


async def test_a_config_that_another_one_beats_is_abandoned_with_what_it_showed(tmp_path: Path) -> None:
    engine = engine_of(Script(ttft_s=0.5))
    run = await perform(engine, replace(order(tmp_path, load=LONG), rivals=beaten_by(0.1)))
    assert run.result.outcome is Outcome.ABANDONED
    assert run.result.failure is None
    early, ttft = run.result.early, run.result.of_role(LevelRole.TTFT)
    assert early is not None
    assert ttft is not None
    assert ttft.ttft_s is not None
    assert (early.reason, early.rival, early.requests, early.planned) == (EarlyReason.DOMINATED, 1, 25, 200)
    assert ttft.ttft_s.p95.value == pytest.approx(0.5)
    assert ttft.completed == len(read_records(level_path(tmp_path, ttft.level)).records) == 25
    assert early.saved_s == pytest.approx(60.0 - ttft.duration_s)
    assert run.result.of_role(LevelRole.THROUGHPUT) is not None
    assert run.result.caveats[0].code == "dominated"
    assert engine.stopped == 1


@pytest.mark.parametrize("rivals", [None, beaten_by(3.0), beaten_by(0.1, tok_s=1.0)], ids=["none", "slower", "less"])
async def test_a_config_that_nothing_beats_is_measured_whole(tmp_path: Path, rivals: Rivals | None) -> None:
    run = await perform(engine_of(Script(ttft_s=2.0)), replace(order(tmp_path, load=LONG), rivals=rivals))
    assert run.result.outcome is Outcome.MEASURED
    assert run.result.early is None
    ttft = run.result.of_role(LevelRole.TTFT)
    assert ttft is not None
    assert ttft.completed == 200


async def test_a_level_that_waited_for_a_compiler_decides_only_when_driven_again(tmp_path: Path) -> None:
    # The TTFT level stands still for 20 s in its middle; again, it does not.
    engine = engine_of(Script(ttft_s=0.2, compiles=(0, 0, 3, 0)))
    run = await perform(engine, replace(order(tmp_path, load=LONG), rivals=beaten_by(1.0)))
    assert run.result.outcome is Outcome.MEASURED


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


# --- warm-up until quiet, and levels that the client limits --------------------------------------------------------


def real(script: Script) -> FakeEngine:
    """The same in a clock that says it is the wall's: a real server is warmed up until it is quiet."""
    return FakeEngine(script=lambda _config, _before: script, clock=ClockKind.WALL)


def names(watcher: Watcher) -> list[str]:
    return [level.name for level in watcher.levels]


async def test_warm_up_goes_on_until_nothing_is_compiled_and_nothing_gets_faster(tmp_path: Path) -> None:
    watcher = Watcher()
    run = await perform(real(Script(compiles=(3, 1, 0, 0))), order(tmp_path), watcher)
    # The first two compile; the third is twice as fast as they were, so a fourth has to show that it stays so.
    assert names(watcher) == ["warmup", "warmup-2", "warmup-3", "warmup-4", "throughput", "ttft"]
    throughput = run.result.of_role(LevelRole.THROUGHPUT)
    assert throughput is not None
    clean = await perform(engine_of(Script()), order(tmp_path))
    expected = clean.result.of_role(LevelRole.THROUGHPUT)
    assert expected is not None
    assert throughput.output_tok_s == expected.output_tok_s
    assert throughput.use is not None
    assert throughput.use.jit_compiles == 0
    assert {"never_quiet", "jit_compiling"}.isdisjoint(code.code for code in run.result.caveats + throughput.caveats)


async def test_a_server_quiet_from_the_start_is_warmed_up_twice_and_a_simulated_one_once(tmp_path: Path) -> None:
    watcher, simulated = Watcher(), Watcher()
    await perform(real(Script()), order(tmp_path), watcher)
    assert names(watcher) == ["warmup", "warmup-2", "throughput", "ttft"]
    passes = watcher.levels[:2]
    assert passes[0].seed != passes[1].seed
    assert [one.requests for one in passes] == [4, 4]
    await perform(engine_of(Script(compiles=(1,))), order(tmp_path), simulated)
    assert names(simulated) == ["warmup", "throughput", "ttft"]


async def test_a_server_that_never_gets_quiet_is_measured_with_a_caveat(tmp_path: Path) -> None:
    watcher = Watcher()
    run = await perform(real(Script(compiles=(2,) * 6)), order(tmp_path), watcher)
    assert names(watcher)[:6] == ["warmup", *(f"warmup-{n}" for n in range(2, 7))]
    (doubt,) = [caveat for caveat in run.result.caveats if caveat.code == "never_quiet"]
    assert "4 in flight: the server compiled 2 kernels in the last of 6 warm-up passes" in doubt.text
    assert run.result.outcome is Outcome.MEASURED


async def test_warm_up_ends_with_its_time(tmp_path: Path) -> None:
    watcher = Watcher()
    # One pass: about 16 tokens of 10 s each while it compiles. A second would not end within 180 s.
    run = await perform(real(Script(token_s=5.0, compiles=(1, 1, 1))), order(tmp_path), watcher)
    assert names(watcher)[:2] == ["warmup", "throughput"]
    assert [caveat.code for caveat in run.result.caveats] == ["never_quiet"]


async def test_a_level_in_which_kernels_were_compiled_is_driven_again_once(tmp_path: Path) -> None:
    watcher = Watcher()
    run = await perform(real(Script(compiles=(0, 0, 5, 0, 1, 1))), order(tmp_path), watcher)
    assert names(watcher) == ["warmup", "warmup-2", "throughput", "throughput", "ttft", "ttft"]
    throughput, ttft = run.result.measurements
    assert throughput.use is not None
    assert throughput.use.jit_compiles == 0
    assert "jit_compiling" not in {caveat.code for caveat in throughput.caveats}
    assert "jit_compiling" in {caveat.code for caveat in ttft.caveats}
    kept = read_records(level_path(tmp_path, ttft.level))
    assert kept.use == ttft.use


async def test_a_level_in_which_everything_paused_is_driven_again_once(tmp_path: Path) -> None:
    """vLLM's log tells of each kernel only once, so what arrives has to tell of the next shape's."""
    watcher = Watcher()
    run = await perform(real(Script(stalls_s=(0.0, 0.0, 2.0))), order(tmp_path), watcher)
    assert names(watcher) == ["warmup", "warmup-2", "throughput", "throughput", "ttft"]
    clean = await perform(engine_of(Script()), order(tmp_path))
    figures = [one.result.measurements[0].output_tok_s for one in (run, clean)]
    assert figures[0] == figures[1] is not None
    still = await perform(real(Script(stalls_s=(0.0, 0.0, 2.0, 2.0))), order(tmp_path))
    assert "pauses" in {caveat.code for caveat in still.result.measurements[0].caveats}


async def test_after_the_ramp_the_real_concurrency_is_warmed_up_as_well(tmp_path: Path) -> None:
    watcher = Watcher()
    run = await perform(real(Script()), order(tmp_path, load=None), watcher)
    assert run.load is not None
    last = names(watcher).index("throughput")
    assert names(watcher)[last - 2 : last] == ["warmup", "warmup-2"]
    assert watcher.levels[last - 1].concurrency == watcher.levels[last].concurrency
    assert len({level.seed for level in watcher.levels}) == len(watcher.levels)


async def test_a_client_that_is_the_limit_leaves_figures_and_no_objective(tmp_path: Path) -> None:
    run = await perform(real(Script(ttft_s=0.2, late_s=0.05)), order(tmp_path))
    trial = Trial(number=1, config=Config.of({}), origin=Origin.SAMPLER, gpus=1, attempts=1, result=run.result)
    assert run.result.outcome is Outcome.MEASURED
    assert trial.output_tok_s is not None
    assert trial.void is not None
    assert trial.void.code == "client_late"
    assert (trial.measured, trial.objectives) == (False, None)
    on_time = await perform(real(Script(ttft_s=0.2, late_s=0.002)), order(tmp_path))
    assert replace(trial, result=on_time.result).objectives is not None


async def test_the_ramp_stops_where_the_client_is_the_limit(tmp_path: Path) -> None:
    watcher = Watcher()
    await perform(real(Script(ttft_s=0.2, late_s=0.05)), order(tmp_path, load=None), watcher)
    assert [level.concurrency for level in watcher.levels if level.role is LevelRole.RAMP] == [2, 4]
