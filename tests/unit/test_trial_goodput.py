"""The search for a goodput inside an attempt: levels driven, what is kept, what no rate within the SLO means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engine.base import LaunchPlan, Milestone, ServerIdentity
from autotune.engine.fake import FakeEngine, Script
from autotune.engine.simulated import SimulatedEngine
from autotune.load.goodput import LEVELS, Step, seen_of
from autotune.load.records_file import level_path
from autotune.load.workloads import load_workload
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import (
    Config,
    FailureClass,
    GoodputEnd,
    LevelRole,
    LoadLevel,
    LoadPlan,
    Objective,
    Origin,
    Outcome,
    Phase,
    Slo,
    Trial,
)
from autotune.trial import TrialOrder, TrialRun, run_trial
from autotune.trial_goodput import GoodputOrder, goodput_level

LOAD = LoadPlan(
    concurrency_per_gpu=4,
    rate_rps_per_gpu=5.0,
    throughput_requests_per_gpu=60,
    ttft_requests_per_gpu=120,
    warmup_requests_per_gpu=4,
)


class Watcher:
    def __init__(self) -> None:
        self.levels: list[LoadLevel] = []

    def phase(self, phase: Phase, elapsed_s: float) -> None: ...

    def identity(self, identity: ServerIdentity) -> None: ...

    def milestone(self, milestone: Milestone) -> None: ...

    def level(self, level: LoadLevel) -> None:
        self.levels.append(level)


def order(directory: Path, slo: Slo, **values: object) -> TrialOrder:
    made = TrialOrder(
        number=3,
        launch=LaunchPlan(
            model="m",
            config=Config.of({"max-num-seqs": 64}),
            gpu_indices=(),
            extra_args=(),
            directory=directory,
            start_deadline_s=100,
            stall_deadline_s=100,
        ),
        workload=load_workload("tiny"),
        load=LOAD,
        gpus=1,
        seed=1,
        level_deadline_s=600,
        slo=slo,
        objective=Objective.GOODPUT,
    )
    return replace(made, **values)


async def perform(engine: FakeEngine | SimulatedEngine, what: TrialOrder) -> tuple[TrialRun, Watcher]:
    watcher = Watcher()
    return await run_trial(engine, what, clock=engine.now, observer=watcher), watcher


def trial_of(run: TrialRun, gpus: int = 1) -> Trial:
    return Trial(
        number=3,
        config=Config.of({}),
        origin=Origin.SAMPLER,
        gpus=gpus,
        attempts=1,
        result=run.result,
    )


def fake(script: Script) -> FakeEngine:
    return FakeEngine(script=lambda _config, _before: script)


async def test_a_server_that_never_slows_down_has_a_goodput_of_at_least_what_was_tried(tmp_path: Path) -> None:
    engine = fake(Script(ttft_s=0.05))
    run, watcher = await perform(engine, order(tmp_path, Slo.of(ttft_p95=0.5)))
    found = run.result.goodput
    assert found is not None
    assert found.rate_rps is not None
    assert found.end in {GoodputEnd.LEVELS, GoodputEnd.SECONDS}
    assert 4 <= found.levels <= LEVELS
    assert found.is_open
    rates = [level.rate_rps for level in watcher.levels if level.role is LevelRole.GOODPUT]
    assert found.rate_rps.value == pytest.approx(max(rate for rate in rates if rate))
    assert "goodput_open" in {caveat.code for caveat in run.result.caveats}
    # Tokens per second at that rate: `tiny` asks for its own mean output, which the fake answers exactly.
    measured = run.result.of_role(LevelRole.GOODPUT)
    assert measured is not None
    assert measured.output_tokens is not None
    assert found.output_tok_s is not None
    per_request = found.output_tok_s.value / found.rate_rps.value
    assert per_request == pytest.approx(measured.output_tokens / measured.completed, rel=0.1)
    assert len({level.seed for level in watcher.levels}) == len(watcher.levels)
    assert level_path(tmp_path, measured.level).exists()


async def test_a_config_that_meets_the_slo_at_no_rate_is_infeasible(tmp_path: Path) -> None:
    engine = fake(Script(ttft_s=2.0))
    run, _ = await perform(engine, order(tmp_path, Slo.of(ttft_p95=0.5)))
    assert run.result.outcome is Outcome.INFEASIBLE
    assert run.result.failure is not None
    assert run.result.failure.kind is FailureClass.SLO_MISSED
    assert "ttft_p95 2" in (run.result.failure.line or "")
    assert run.result.goodput is not None
    assert run.result.goodput.rate_rps is None
    assert trial_of(run).objectives is None
    assert run.result.of_role(LevelRole.THROUGHPUT) is not None  # the evidence stays


async def test_without_that_objective_nothing_is_searched(tmp_path: Path) -> None:
    engine = fake(Script())
    run, watcher = await perform(engine, order(tmp_path, Slo.of(ttft_p95=0.5), objective=Objective.THROUGHPUT))
    assert run.result.goodput is None
    assert LevelRole.GOODPUT not in {level.role for level in watcher.levels}


@pytest.mark.parametrize(
    ("rate", "seconds", "requests"),
    # `chat` has levels of 20 s. 100 requests need 5 s at 20/s, 50 s at 2/s; at 0.5/s they are waited for no more
    # than 60 s, and at 40/s and twice the usual length 1,600 come.
    [(20.0, 20.0, 400), (2.0, 20.0, 100), (0.5, 20.0, 30), (40.0, 40.0, 1600)],
)
def test_how_many_requests_a_level_has(rate: float, seconds: float, requests: int) -> None:
    what = GoodputOrder(slo=Slo.of(ttft_p95=0.5), workload=load_workload("chat"), gpus=1, longest_s=300.0)
    level = goodput_level(what, Step(rate_rps=rate, seconds=seconds), 1, seed=7)
    assert (level.requests, level.rate_rps, level.role, level.name) == (requests, rate, LevelRole.GOODPUT, "goodput-1")


async def test_what_the_client_could_not_send_is_no_goodput(tmp_path: Path) -> None:
    engine = fake(Script(ttft_s=0.02, late_s=0.3))
    run, _ = await perform(engine, order(tmp_path, Slo.of(ttft_p95=0.5)))
    assert run.result.goodput is not None
    assert run.result.goodput.end is GoodputEnd.CLIENT_LIMIT
    assert trial_of(run).void is not None
    assert trial_of(run).objectives is None


@pytest.mark.no_cover
async def test_the_rate_of_a_simulated_server_is_where_its_ttft_passes_the_limit(tmp_path: Path) -> None:
    slo = Slo.of(ttft_p95=0.3, error_rate=0.0)
    chat = load_workload("chat")
    load = replace(LOAD, concurrency_per_gpu=256, rate_rps_per_gpu=40.0, throughput_requests_per_gpu=1024)
    shape, node = load_shape("meta-llama/Llama-3.1-8B-Instruct"), parse_node_name("1xH100-80GB")
    engine = SimulatedEngine(node=node, shape=shape, seed=3)
    what = order(tmp_path, slo, workload=chat, load=load)
    what = replace(what, launch=replace(what.launch, config=Config.of({"max-num-seqs": 256})))
    run, _ = await perform(engine, what)
    found = run.result.goodput
    assert found is not None
    assert found.rate_rps is not None
    assert found.levels <= LEVELS
    trial = trial_of(run, gpus=2)
    assert trial.objectives is not None
    assert found.output_tok_s is not None
    assert trial.objectives[0].value == pytest.approx(found.output_tok_s.value / 2)
    # Away from the limit on both sides, in launches of their own: 0.85 of the rate meets it, 1.15 does not.
    for factor, within in ((0.85, True), (1.15, False)):
        other = replace(load, rate_rps_per_gpu=factor * found.rate_rps.value, ttft_requests_per_gpu=2000)
        again, _ = await perform(engine, replace(what, number=7, load=other, objective=Objective.THROUGHPUT))
        level = again.result.of_role(LevelRole.TTFT)
        assert level is not None
        assert (seen_of(level, slo).stress < 0) is within
