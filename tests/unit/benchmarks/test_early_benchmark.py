"""Recorded studies with and without early ends: a small one whose right answer is known, and the command's figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from autotune.load.arrivals import open_level
from autotune.load.measure import summarise
from autotune.records import (
    ArrivalProcess,
    ClockKind,
    Config,
    EarlyReason,
    Estimate,
    LevelRole,
    Measurement,
    Origin,
    Outcome,
    Phase,
    RequestRecord,
    Trial,
    TrialResult,
)
from benchmarks import early
from benchmarks.early import LLAMA, Situation, replays, row, show
from benchmarks.early_replay import Recorded, replayed, waited

RATE = 10.0
LEVEL = open_level("ttft", LevelRole.TTFT, ArrivalProcess(), rate_rps=RATE, requests=300, seed=0, most_requests=600)


def records(ttfts: Sequence[float]) -> tuple[RequestRecord, ...]:
    return tuple(
        RequestRecord(
            index=at,
            scheduled_s=at / RATE,
            sent_s=at / RATE,
            first_byte_s=at / RATE + ttft,
            first_token_s=at / RATE + ttft,
            last_token_s=at / RATE + ttft + 1.0,
            done_s=at / RATE + ttft + 1.0,
            token_times_s=(at / RATE + ttft, at / RATE + ttft + 1.0),
            prompt_tokens=10,
            output_tokens=2,
            counted_tokens=2,
            wanted_output_tokens=2,
        )
        for at, ttft in enumerate(ttfts)
    )


def trial(number: int, tok_s: float, ttfts: Sequence[float]) -> Recorded:
    found = records(ttfts)
    ttft = summarise(LEVEL, found, max(one.done_s or 0.0 for one in found), ClockKind.VIRTUAL)
    throughput = summarise(
        open_level("throughput", LevelRole.THROUGHPUT, ArrivalProcess(), rate_rps=RATE, requests=300, seed=0),
        found,
        30.0,
        ClockKind.VIRTUAL,
    )
    one = Estimate(value=tok_s)
    result = TrialResult(
        outcome=Outcome.MEASURED,
        clock=ClockKind.VIRTUAL,
        simulated=True,
        measurements=(_with(throughput, one), ttft),
        phase_seconds=((Phase.LAUNCHING, 60.0), (Phase.MEASURING, 30.0 + ttft.duration_s)),
    )
    config = Config.of({"x": number})
    made = Trial(number=number, config=config, origin=Origin.SAMPLER, gpus=1, attempts=1, result=result)
    return Recorded(trial=made, waited=waited(found))


def _with(measurement: Measurement, tok_s: Estimate) -> Measurement:
    return replace(measurement, output_tok_s=tok_s, caveats=())


@pytest.fixture(scope="module")
def study() -> list[Recorded]:
    rng = np.random.default_rng(5)
    quick, slow = rng.exponential(0.1, 300), rng.exponential(1.0, 300)
    return [
        trial(0, 1000.0, quick),  # the baseline
        trial(1, 2000.0, 1.1 * quick),  # more throughput, about as quick
        trial(2, 1500.0, slow),  # beaten by trial 1 in both
        trial(3, 900.0, 0.02 * np.arange(300)),  # its queue grows
        trial(4, 900.0, 0.3 * quick),  # less throughput, and the quickest
        trial(5, 3000.0, slow),  # the most throughput
    ]


def test_what_is_beaten_ends_and_what_stands_on_the_front_does_not(study: list[Recorded]) -> None:
    found = replayed(study, 0.99)
    assert found.same_front
    assert [end.reason for end in found.ends] == [EarlyReason.DOMINATED, EarlyReason.SATURATED]
    assert not any(end.wrong for end in found.ends)
    dominated, saturated = found.ends
    assert dominated.requests == 38
    # 38 requests take 3.7 s and what was in flight; the whole level 29.9 s and its last requests.
    assert 20.0 < dominated.saved_s < 28.0
    assert saturated.shown < 0.8 * saturated.full
    assert found.total_s == pytest.approx(sum(one.seconds for one in study))
    assert 0.0 < found.saved_s < found.later_s < found.total_s


def test_before_its_rival_was_measured_nothing_is_beaten(study: list[Recorded]) -> None:
    later = [study[2], study[5], study[1]]  # no config of these two has more throughput and is quicker, before the last
    assert replayed(later, 0.99).ends == ()


def test_a_wrong_end_would_be_seen(study: list[Recorded]) -> None:
    """Its figures are those of a config on the front, its records those of a slow one."""
    torn = replace(study[4], waited=study[2].waited)
    found = replayed([study[0], study[1], torn], 0.99)
    assert [end.wrong for end in found.ends] == [True]
    assert not found.same_front
    assert row("s", [found])["same_front"] == 0.0


def test_the_table_is_of_all_replays(study: list[Recorded]) -> None:
    figures = row("s", replays(study, 20, 0.99))
    assert figures["same_front"] == 1.0
    assert figures["wrong"] == 0
    assert 0.0 < figures["saturated_share"] < figures["early_share"] < 0.5
    assert 0.0 < figures["saved_of_study"] < figures["saved_of_levels"] < 1.0


def test_simulated_studies_are_recorded_whole_and_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    made = early.recorded(Situation(node="1xH100-80GB", model=LLAMA, workload="tiny"), 4)
    assert len(made) == 4
    assert all(one.trial.measured for one in made)
    level = made[1].trial.result.of_role(LevelRole.TTFT) if made[1].trial.result else None
    assert level is not None
    assert len(made[1].waited) == level.completed >= level.level.requests
    rows = [row("small", replays(made, 5, 0.99))]
    show(rows, 5, 0.99, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["met"] is True
    assert document["studies"][0]["study"] == "small"
    show(rows, 5, 0.99, as_json=False)
    assert "the same front in 95% of the seeds: met (100.0%)" in capsys.readouterr().out
