"""What a study may spend, by hand-worked numbers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from autotune.budget import Budget, Ending, Spent, attempt_s, gpu_seconds, lacking, launch_gpu_s, promises_too_little
from autotune.life import Event, State, Transition
from autotune.records import (
    ClockKind,
    Config,
    Estimate,
    Latency,
    Measurement,
    Origin,
    Outcome,
    Phase,
    Trial,
    TrialResult,
)
from autotune.records.load import Arrivals, LevelRole, LoadLevel
from autotune.store.study_record import AttemptRecord, AttemptState, TransitionRecord

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def level(role: LevelRole) -> Measurement:
    one = Estimate(value=1.0)
    return Measurement(
        level=LoadLevel(name=role.value, role=role, arrivals=Arrivals.CLOSED, requests=1, seed=0),
        clock=ClockKind.WALL,
        duration_s=1.0,
        steady_s=1.0,
        planned=1,
        completed=1,
        failed=0,
        errors=(),
        prompt_tokens=1,
        output_tokens=1,
        output_tok_s=one,
        total_tok_s=None,
        request_rps=None,
        goodput_rps=None,
        ttft_s=Latency(count=1, mean=one, p50=one, p90=one, p95=one, p99=one),
        ttft_from_send_s=None,
        tpot_s=None,
        itl_s=None,
        e2e_s=None,
    )


def trial(number: int, gpus: int, seconds: float) -> Trial:
    result = TrialResult(
        outcome=Outcome.MEASURED,
        clock=ClockKind.WALL,
        simulated=False,
        measurements=(level(LevelRole.THROUGHPUT), level(LevelRole.TTFT)),
        phase_seconds=((Phase.LAUNCHING, seconds),),
    )
    config = Config.of({"x": number})
    return Trial(number=number, config=config, origin=Origin.SAMPLER, gpus=gpus, attempts=1, result=result)


def attempt(*elapsed_s: float) -> AttemptRecord:
    move = Transition(before=State.WAITING, event=Event.LAUNCH, after=State.LAUNCHING)
    moves = [TransitionRecord(move=move, at_utc=NOW, elapsed_s=each, clock=ClockKind.WALL) for each in elapsed_s]
    moves.append(TransitionRecord(move=move, at_utc=NOW))
    return AttemptRecord(
        study="s",
        trial=0,
        number=1,
        state=AttemptState.ENDED,
        started_at=NOW,
        ended_at=None,
        directory="",
        argv=(),
        identity=None,
        result=None,
        transitions=tuple(moves),
    )


TRIALS = (trial(0, 1, 100.0), trial(1, 2, 100.0), trial(2, 4, 100.0))


@pytest.mark.parametrize(
    ("budget", "launches", "short"),
    [
        (Budget(), 1000, None),
        (Budget(max_time_s=431.0), 3, None),  # 100 s spent, 3 x 100 s to come, two of which may take 15 % longer
        (Budget(max_time_s=429.0), 3, Ending.TIME),
        (Budget(max_gpu_s=1361.0), 3, None),  # 700 GPU s spent, the same 330 s x 2 GPUs to come
        (Budget(max_gpu_s=1359.0), 3, Ending.GPU_HOURS),
        (Budget(max_time_s=1.0, max_gpu_s=1.0), 1, Ending.TIME),
    ],
)
def test_launches_must_fit_into_every_limit(budget: Budget, launches: int, short: Ending | None) -> None:
    assert lacking(budget, Spent(time_s=100.0, gpu_s=700.0), launches, TRIALS) is short


def test_before_anything_was_measured_a_launch_may_begin_while_something_is_left() -> None:
    assert launch_gpu_s(()) is None
    assert lacking(Budget(max_gpu_s=10.0), Spent(time_s=0.0, gpu_s=9.0), 5, ()) is None
    assert lacking(Budget(max_gpu_s=10.0), Spent(time_s=0.0, gpu_s=10.0), 5, ()) is Ending.GPU_HOURS


def test_attempts_cost_their_gpus_until_their_last_change_of_phase() -> None:
    assert attempt_s(attempt()) == 0.0
    assert gpu_seconds([(2, attempt(0.0, 30.0, 90.0)), (4, attempt(0.0, 10.0)), (0, attempt(0.0, 99.0))]) == 220.0


def test_failed_trials_do_not_tell_how_many_gpus_a_launch_takes() -> None:
    assert TRIALS[2].result is not None
    failed = replace(TRIALS[2], number=3, gpus=8, result=replace(TRIALS[2].result, outcome=Outcome.INFEASIBLE))
    assert launch_gpu_s((*TRIALS, failed)) == 200.0


@pytest.mark.parametrize(
    ("gain", "least", "ends"),
    [(0.005, 0.01, True), (0.01, 0.01, False), (None, 0.01, False), (0.0, None, False), (0.0, 1e-6, True)],
)
def test_a_proposal_that_promises_too_little(gain: float | None, least: float | None, ends: bool) -> None:
    assert promises_too_little(gain, least) is ends
