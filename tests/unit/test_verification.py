"""The shell of the gate, on a scripted engine in virtual time."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime

import pytest

from autotune.engine.fake import FakeEngine, Script
from autotune.errors import InvalidOption
from autotune.load.arrival_windows import WindowRule
from autotune.load.measure import summarise
from autotune.load.workloads import load_workload
from autotune.quality.prompts import load_prompts
from autotune.records import (
    Arrivals,
    ClockKind,
    Config,
    CriterionState,
    Failure,
    FailureClass,
    GateRecord,
    GateSide,
    GateVerdict,
    LevelRole,
    LoadLevel,
    LoadPlan,
    QualityState,
    RequestRecord,
)
from autotune.search.noise import RunNoise
from autotune.store.codec import decode, encode
from autotune.trial_further import Drive, FurtherLoad, drive_further
from autotune.verification import gate_seed_of, order_of, verify
from autotune.verification_launch import FIRST_NUMBER, GateOrder

OLD, NEW = Config.of({"max-num-seqs": 64}), Config.of({"max-num-seqs": 128})
NOW = datetime(2026, 11, 30, 8, 0, tzinfo=UTC)


class Watcher:
    def __init__(self):
        self.launches, self.notes, self.levels = [], [], []

    def launch_started(self, place, launches, side):
        self.launches.append((place, launches, side.label))

    def phase(self, phase, detail):
        self.levels.append(detail)

    def note(self, text):
        self.notes.append(text)


def side(label, config):
    return GateSide(label=label, config=config, model="m", gpus=1)


def order(tmp_path, **changes):
    values = {
        "study": "s",
        "study_seed": 0,
        "gate_seed": 77,
        "candidate": side("trial 7", NEW),
        "against": side("the baseline", OLD),
        "workload": load_workload("tiny"),
        "load": LoadPlan(
            concurrency_per_gpu=4,
            rate_rps_per_gpu=4.0,
            throughput_requests_per_gpu=40,
            ttft_requests_per_gpu=110,
            warmup_requests_per_gpu=4,
            ttft_most_requests_per_gpu=400,
        ),
        "noise": RunNoise(throughput_sd=0.01, ttft_sd=0.1, repeats=0),
        "directory": tmp_path / "gate",
        "windows": WindowRule(least=2, most=4, target_sd=0.04),
    }
    return GateOrder(**{**values, **changes})


def run(tmp_path, script, **changes):
    """Verify on servers that follow `script(config, earlier launches of it)`."""
    engine, watcher = FakeEngine(script=script), Watcher()
    found = asyncio.run(verify(order(tmp_path, **changes), engine, clock=engine.now, utc=lambda: NOW, observer=watcher))
    return found, engine, watcher


def healthy(**changes):
    return Script(**{"max_model_len": 2048, "preemptions": 0, **changes})


def faster(config, _earlier):
    return healthy(ttft_s=0.06, token_s=0.009) if config == NEW else healthy()


def test_a_faster_candidate_passes_and_the_record_tells_everything(tmp_path):
    found, engine, watcher = run(tmp_path, faster)
    assert (found.verdict, found.order) == (GateVerdict.PASSED, "ABBA")
    assert engine.launched == [OLD, NEW, NEW, OLD]
    assert engine.stopped == 4
    assert watcher.launches[1] == (2, 4, "trial 7")
    names = [one.level.name for one in found.launches[0].levels]
    assert names == ["throughput", "ttft", "ttft-2", "rate-plus", "longest"]
    assert all(
        [one.level for one in launch.levels] == [one.level for one in found.launches[0].levels][:5]
        for launch in found.launches
    )
    assert found.launches[1].level("rate-plus").level.rate_rps == pytest.approx(4.8)
    # 2048 tokens, less 16 to generate and 21 of room.
    assert found.launches[1].longest_prompt_tokens == 2011
    assert (found.clock, found.simulated, found.gate_seed) == (ClockKind.VIRTUAL, True, 77)
    assert decode(GateRecord, json.loads(json.dumps(encode(found)))) == found
    assert (tmp_path / "gate" / "launch-2-candidate" / "level-ttft-2.jsonl.gz").exists()
    assert not list((tmp_path / "gate").glob("*/server.json"))


def test_windows_and_levels_have_seeds_that_no_trial_had(tmp_path):
    found, _, _ = run(tmp_path, faster)
    seeds = {one.level.seed for one in found.launches[0].levels}
    assert len(seeds) == 5
    assert min(seeds) > 77 * 1_000_003 - 1


def test_noisy_windows_make_more_of_them_and_the_longest_request_comes_last():
    driven = []

    level = LoadLevel(name="ttft", role=LevelRole.TTFT, arrivals=Arrivals.POISSON, requests=1, seed=3, rate_rps=5.0)

    def measured(p95_s):
        record = RequestRecord(
            index=0,
            scheduled_s=0.0,
            sent_s=0.0,
            first_byte_s=p95_s,
            first_token_s=p95_s,
            last_token_s=1.0,
            done_s=1.0,
            token_times_s=(p95_s, 1.0),
            prompt_tokens=8,
            output_tokens=2,
            counted_tokens=2,
            wanted_output_tokens=2,
        )
        return summarise(level, [record], 1.0, ClockKind.VIRTUAL)

    async def drive(level, requests=()):
        driven.append((level, requests))
        return measured(0.1 if len(driven) % 2 else 0.2)

    first = measured(0.2)
    rule = WindowRule(least=2, most=4, target_sd=0.04)
    asyncio.run(
        drive_further(
            FurtherLoad(windows=rule, rate_factor=1.2),
            first,
            1000,
            drive=Drive(level=drive, attempt=drive, fixed=drive),
            seed_of=lambda place: 5_000 + place,
        )
    )
    assert [level.name for level, _ in driven] == ["ttft-2", "ttft-3", "ttft-4", "rate-plus", "longest"]
    assert len({level.seed for level, _ in driven}) == 5
    assert driven[3][0].rate_rps == pytest.approx(1.2 * first.level.rate_rps)
    (request,) = driven[4][1]
    assert (request.prompt_tokens, request.output_tokens) == (1000 - 16 - 16, 16)


def test_no_difference_is_inconclusive_and_is_not_gone_on_with_for_ever(tmp_path):
    found, _, _ = run(tmp_path, lambda *_: healthy(), noise=RunNoise(throughput_sd=0.01, ttft_sd=0.1, repeats=0))
    assert found.verdict is GateVerdict.INCONCLUSIVE
    assert [one.name for one in found.undecided] == ["gain"]
    # 40 launches are allowed; without any difference it is soon clear that they would show none.
    assert [one.launches for one in found.looks] == [4]
    assert "would hardly show" in found.looks[-1].outlook


def test_what_four_launches_leave_open_is_gone_on_with_in_the_same_order(tmp_path):
    def script(config, earlier):
        # Launches of one config differ by half, and the candidate waits a third less.
        unlike = (1.0, 1.5, 1.2, 1.3, 1.0, 1.4)[earlier % 6]
        return healthy(ttft_s=(0.066 if config == NEW else 0.1) * unlike)

    found, engine, watcher = run(tmp_path, script)
    assert [one.verdict for one in found.looks] == [GateVerdict.INCONCLUSIVE, GateVerdict.PASSED]
    assert (found.order, len(engine.launched)) == ("ABBAABBA", 8)
    assert [watcher.launches[at][:2] for at in (3, 4)] == [(4, 4), (5, 8)]
    length, open_ = watcher.notes
    assert re.fullmatch(
        r"4 launches like this take about \d+ min \d\d s of virtual time, "
        r"and 40, the most, 1 h \d\d min of virtual time",
        length,
    )
    assert open_.startswith(
        "undecided after 4 launches (about 22 launches would show it); going on to 8, which takes about"
    )
    capped, engine, _ = run(tmp_path / "capped", script, most_launches=4)
    assert (capped.verdict, len(engine.launched)) == (GateVerdict.INCONCLUSIVE, 4)
    assert capped.looks[0].outlook.startswith("4 launches were not enough")


def test_a_candidate_that_does_not_start_fails_without_further_launches(tmp_path):
    bad = Failure(kind=FailureClass.OOM_AT_LOAD, line="CUDA out of memory")

    def script(config, _):
        return healthy(launch_failure=bad if config == NEW else None)

    found, engine, watcher = run(tmp_path, script)
    assert found.verdict is GateVerdict.FAILED
    assert found.criterion("restart").found == "launch 2: oom_at_load: CUDA out of memory"
    assert engine.launched == [OLD, NEW]
    assert "CUDA out of memory" in watcher.notes[-1]


def test_a_candidate_that_dies_on_its_second_launch_fails(tmp_path):
    dead = Failure(kind=FailureClass.OOM_UNDER_LOAD, line="out of memory")

    def script(config, earlier):
        again = config == NEW and earlier
        return healthy(dies_at=LevelRole.EXTRA if again else None, death=dead, ttft_s=0.05 if config == NEW else 0.1)

    found, engine, _ = run(tmp_path, script)
    assert found.verdict is GateVerdict.FAILED
    assert found.criterion("restart").state is CriterionState.BROKEN
    assert engine.stopped == 3


def test_today_that_does_not_start_decides_nothing(tmp_path):
    busy = Failure(kind=FailureClass.GPU_BUSY, line="GPU 0 is in use")
    found, engine, _ = run(tmp_path, lambda config, _: healthy(launch_failure=busy if config == OLD else None))
    assert found.verdict is GateVerdict.INCONCLUSIVE
    assert engine.launched == [OLD]


def test_requests_that_fail_beyond_the_rate_fail_it(tmp_path):
    def script(config, _earlier):
        fails = (LevelRole.EXTRA, 112, "http_5xx") if config == NEW else None
        return healthy(ttft_s=0.05 if config == NEW else 0.1, error_after=fails)

    found, _, _ = run(tmp_path, script)
    assert found.verdict is GateVerdict.FAILED
    assert {one.name for one in found.broken} == {"no_failed_request", "overload"}


def test_launches_alternate_in_pairs():
    assert "".join(order_of(4, 4)) == "ABBA"
    assert "".join(order_of(4, 6)) == "ABBAAB"
    assert order_of(4, 8).count("A") == 4
    for launches, most in ((0, 4), (3, 4), (102, 102), (8, 4), (4, 7), (4, 102)):
        with pytest.raises(InvalidOption, match="even number"):
            order_of(launches, most)


def test_a_gates_seed_is_its_questions_and_none_of_the_studys():
    a, b = side("a", OLD), side("b", NEW)
    first = gate_seed_of(0, b, a, frozenset())
    assert first == gate_seed_of(0, b, a, frozenset({0}))
    assert first != gate_seed_of(0, b, a, frozenset({first}))
    assert first != gate_seed_of(0, b, a, frozenset(), again=1)
    assert FIRST_NUMBER > 100_000


def test_where_numerics_change_the_candidates_answers_are_held_against_the_first_launch(tmp_path):
    def script(config, _):
        return healthy(logprob=-1.2 if config == NEW else -1.0, ttft_s=0.05 if config == NEW else 0.1)

    found, _, _ = run(tmp_path, script, lossy=("kv-cache-dtype=fp8",), prompts=load_prompts())
    states = [(launch.side.value, launch.quality.state, launch.quality.reference) for launch in found.launches]
    assert states == [
        ("A", QualityState.REFERENCE, None),
        ("B", QualityState.LOST, "the baseline"),
        ("B", QualityState.LOST, "the baseline"),
        ("A", QualityState.REFERENCE, "the baseline"),
    ]
    # What a scripted server says of its answers is marked as such, and decides nothing.
    assert found.criterion("quality").state is CriterionState.NOT_APPLICABLE
    assert found.verdict is GateVerdict.PASSED
    untouched, _, _ = run(tmp_path / "same", script)
    assert all(launch.quality is None for launch in untouched.launches)
