"""The study's loop over a scripted engine: what is launched, what is retried, what is stored, what a resume does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from autotune.budget import Ending
from autotune.engine.compile_cache import REPLACED
from autotune.engine.fake import FAKE_ARGV, FakeEngine, Script
from autotune.errors import StudyFatal, StudyMismatch
from autotune.executor.base import Floor
from autotune.executor.local import LocalExecutor
from autotune.life import MOST_LOST, Event
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.recipe import LoadChoice, QualityChoice, Recipe
from autotune.records import Config, Failure, FailureClass, LevelRole, Origin, Outcome, Phase, Pick, QualityState, Trial
from autotune.scheduling.seats import Seats
from autotune.search.pareto import front_of, pick
from autotune.search.proposer import Proposer
from autotune.session import spec_of
from autotune.slo_text import parse_slo
from autotune.store.folder import StudyFolder
from autotune.store.projection import Projection
from autotune.store.repository import Store
from autotune.store.study_record import AttemptState, StudyState
from autotune.study import StudyRun
from autotune.trial_life import TrialLife

SPACE = """
name: s
parameters:
  max-num-seqs: {choices: [64, 128, 256], why: w}
  enable-prefix-caching: {choices: [true, false], why: w}
"""
TOO_SMALL = Failure(kind=FailureClass.KV_CACHE_TOO_SMALL, line="too small")
BUSY = Failure(kind=FailureClass.GPU_BUSY, line="busy")
CRASH = Failure(kind=FailureClass.CRASH, line="boom")
GATED = Failure(kind=FailureClass.MODEL_ACCESS, line="401", remedies=("Set HF_TOKEN.",))


class Quiet:
    """An observer that remembers notes and ends."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.ended: list[int] = []
        self.repeats_left: list[int] = []

    def trial_started(self, trial: Trial, *, counted: int, target: int, repeats_left: int) -> None:
        self.repeats_left.append(repeats_left)

    def phase(self, phase: Phase, detail: str, *, number: int) -> None:
        pass

    def trial_ended(self, trial: Trial, trials: Sequence[Trial]) -> None:
        self.ended.append(trial.number)

    def note(self, text: str) -> None:
        self.notes.append(text)


def plan_for(folder: Path, **values: Any) -> StudyPlan:
    path = folder / "space.yaml"
    path.write_text(SPACE, encoding="utf-8")
    here = Surroundings(environ={}, home=folder, probe=None, shm_bytes=None, has_kfd=False, cache_dir=folder / "cache")
    defaults = {
        "name": "s",
        "model": "meta-llama/Llama-3.1-8B",
        "workload": "tiny",
        "space": str(path),
        "node": "1xH100-80GB",
        "trials": 5,
        "repeats": 0,
        "sampler": "random",
    }
    return make_plan(Recipe(**{**defaults, **values}), here)


@contextmanager
def study_run(folder: Path, engine: FakeEngine, **values: Any) -> Iterator[tuple[StudyRun, Quiet]]:
    plan, observer = plan_for(folder, **values), Quiet()
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    with Store.open(folder / "autotune.db") as store, Projection.open(store) as projection:
        yield (
            StudyRun(
                plan=plan,
                study=store.create_or_resume_study(spec_of(plan)),
                store=store,
                folder=StudyFolder(root=folder, name="s"),
                executor=LocalExecutor(
                    engine=engine, floor=Floor(seats=Seats(plan.node)), clock_s=engine.now, wait=wait
                ),
                proposer=Proposer(plan.space, plan.recipe.sampler, plan.recipe.seed),
                projection=projection,
                observer=observer,
            ),
            observer,
        )


def speeds(config: Config, _before: int) -> Script:
    """More sequences: faster tokens, later first token."""
    seqs = config.get("max-num-seqs") or 100
    assert isinstance(seqs, int)
    return Script(ttft_s=0.001 * seqs, token_s=1.0 / seqs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a finished study left behind."""

    trials: tuple[Trial, ...]
    front: tuple[int, ...]
    pick: Pick | None
    notes: tuple[str, ...]


def finished(folder: Path, script: Callable[[Config, int], Script], **values: Any) -> tuple[Left, FakeEngine]:
    engine = FakeEngine(script=script)
    with study_run(folder, engine, **values) as (run, observer):
        asyncio.run(run.run())
        assert run.store.study("s").state is StudyState.FINISHED
        trials = run.store.trials("s")
    return Left(trials=trials, front=front_of(trials), pick=pick(trials), notes=tuple(observer.notes)), engine


def test_a_study_measures_its_trials_and_picks_from_the_front(tmp_path: Path) -> None:
    outcome, engine = finished(tmp_path, speeds)
    assert [trial.number for trial in outcome.trials] == [0, 1, 2, 3, 4]
    assert outcome.trials[0].origin is Origin.BASELINE
    assert all(trial.measured for trial in outcome.trials)
    assert engine.stopped == len(engine.launched) == 5
    assert outcome.pick is not None
    assert outcome.pick.number in outcome.front
    assert not any("has been tried" in note for note in outcome.notes)


def test_no_config_is_launched_twice_and_a_spent_space_ends_the_study(tmp_path: Path) -> None:
    outcome, engine = finished(tmp_path, speeds, trials=50)
    # Six configs of the space and the baseline, whose defaults (1,024 sequences) none of them repeats.
    assert len(engine.launched) == len({config.hash for config in engine.launched}) == 7
    assert any("has been tried" in note for note in outcome.notes)


def test_repeats_are_trials_of_their_own(tmp_path: Path) -> None:
    outcome, _ = finished(tmp_path, speeds, trials=3, repeats=1)
    repeats = [trial for trial in outcome.trials if trial.repeat_of is not None]
    # The pick is the baseline, but trial 1 may be as good.
    assert outcome.pick is not None
    assert outcome.pick.number == 0
    assert [(trial.repeat_of, trial.origin) for trial in repeats] == [(0, Origin.REPEAT), (1, Origin.VALIDATION)]
    assert len(outcome.trials) == 3 + len(repeats)
    assert not set(outcome.front) & {trial.number for trial in repeats}


def test_repeats_to_come_are_told_from_the_first_measured_trial_on(tmp_path: Path) -> None:
    def slower_without_caching(config: Config, before: int) -> Script:
        # No two configs are alike, or the pick would change from one to the other by a hair.
        as_usual = speeds(config, before)
        return as_usual if config.get("enable-prefix-caching") else replace(as_usual, token_s=1.2 * as_usual.token_s)

    engine = FakeEngine(script=slower_without_caching)
    # Only 64 sequences meet the limit (64 ms), so baseline and pick differ and are launched again twice each.
    with study_run(tmp_path, engine, trials=7, repeats=2, slo="90ms") as (run, observer):
        asyncio.run(run.run())
        started = [trial.repeat_of for trial in run.store.trials("s")]
    repeats = [left for of, left in zip(started, observer.repeats_left, strict=True) if of is not None]
    # The second one is of the config that is as late and slower: it may be on the front, or not.
    assert repeats == [4, 4, 3, 2, 1]
    assert observer.repeats_left[0] == 0
    assert observer.repeats_left[6] == 4


def test_an_infeasible_config_is_stored_with_its_reason_and_counts(tmp_path: Path) -> None:
    def script(config: Config, before: int) -> Script:
        return Script(launch_failure=TOO_SMALL) if config.get("max-num-seqs") == 256 else speeds(config, before)

    outcome, engine = finished(tmp_path, script, trials=7)
    infeasible = [t for t in outcome.trials if t.result and t.result.outcome is Outcome.INFEASIBLE]
    assert all(trial.argv == FAKE_ARGV for trial in infeasible)
    assert len(infeasible) == 2
    assert all(t.result and t.result.failure == TOO_SMALL for t in infeasible)
    assert not set(outcome.front) & {t.number for t in infeasible}
    # A config that is bad is not launched again.
    assert len(engine.launched) == 7


def test_an_environment_fault_is_retried_once_and_then_measured(tmp_path: Path) -> None:
    def script(config: Config, before: int) -> Script:
        busy = config.get("max-num-seqs") == 64 and before == 0
        return Script(launch_failure=BUSY) if busy else speeds(config, before)

    outcome, engine = finished(tmp_path, script, trials=7)
    assert all(trial.measured for trial in outcome.trials)
    retried = [trial for trial in outcome.trials if trial.config.get("max-num-seqs") == 64]
    assert [trial.attempts for trial in retried] == [2, 2]
    assert len(engine.launched) == 9


def test_a_fault_that_stays_is_faulted_after_bounded_attempts(tmp_path: Path) -> None:
    def script(config: Config, before: int) -> Script:
        return Script(launch_failure=BUSY) if config.get("max-num-seqs") == 64 else speeds(config, before)

    outcome, _ = finished(tmp_path, script, trials=7, attempts=3)
    faulted = [t for t in outcome.trials if t.result and t.result.outcome is Outcome.FAULTED]
    assert [trial.attempts for trial in faulted] == [3, 3]


def test_a_replaced_compile_cache_is_not_charged_to_the_config(tmp_path: Path) -> None:
    cured = Failure(kind=FailureClass.COMPILE_CACHE, line="truncated", facts=((REPLACED, "/cache/slot-0.replaced"),))

    def script(config: Config, before: int) -> Script:
        # Afterwards the usual number of attempts is still there: one busy GPU, then measured.
        failure = {0: cured, 1: BUSY}.get(before) if config.get("max-num-seqs") == 64 else None
        return Script(launch_failure=failure) if failure else speeds(config, before)

    outcome, _ = finished(tmp_path, script, trials=7, attempts=2)
    assert all(trial.measured for trial in outcome.trials)
    assert [trial.attempts for trial in outcome.trials if trial.config.get("max-num-seqs") == 64] == [3, 3]


def test_a_config_that_cannot_be_compiled_is_infeasible_at_once(tmp_path: Path) -> None:
    refused = Failure(kind=FailureClass.COMPILE_FAILED, line="OutOfResources")

    def script(config: Config, before: int) -> Script:
        return Script(launch_failure=refused) if config.get("max-num-seqs") == 64 else speeds(config, before)

    outcome, _ = finished(tmp_path, script, trials=7)
    ended = [t for t in outcome.trials if t.result and t.result.failure == refused]
    assert [(t.attempts, t.result and t.result.outcome) for t in ended] == [(1, Outcome.INFEASIBLE)] * 2


def test_a_crash_that_every_attempt_repeats_is_the_configs_own(tmp_path: Path) -> None:
    def script(config: Config, before: int) -> Script:
        death = config.get("max-num-seqs") == 64
        return Script(dies_at=LevelRole.THROUGHPUT, death=CRASH) if death else speeds(config, before)

    outcome, _ = finished(tmp_path, script, trials=7)
    assert sum(1 for t in outcome.trials if t.result and t.result.outcome is Outcome.INFEASIBLE) == 2


def test_a_package_that_one_config_lacks_does_not_end_a_study_that_has_served(tmp_path: Path) -> None:
    lacking = Failure(kind=FailureClass.MISSING_DEPENDENCY, line="No module named 'flashinfer'")

    def script(config: Config, before: int) -> Script:
        return Script(launch_failure=lacking) if config.get("max-num-seqs") == 64 else speeds(config, before)

    outcome, _ = finished(tmp_path, script, trials=7)
    ended = [t for t in outcome.trials if t.result and t.result.failure == lacking]
    assert [(t.attempts, t.result and t.result.outcome) for t in ended] == [(1, Outcome.INFEASIBLE)] * 2


def test_every_move_is_stored_and_a_trial_that_kills_its_tuner_each_time_is_given_up(tmp_path: Path) -> None:
    def script(config: Config, before: int) -> Script:
        return Script(launch_failure=BUSY) if before == 0 else speeds(config, before)

    with study_run(tmp_path, FakeEngine(script=script), trials=1) as (run, _):
        asyncio.run(run.run())
        told = [str(found.move) for attempt in run.store.attempts("s", 0) for found in attempt.transitions]
    assert told == [
        "proposed -attempt-> waiting", "waiting -launch-> launching", "launching -end-> ended",
        "ended -spoilt (gpu_busy)-> backing_off", "backing_off -attempt-> waiting", "waiting -launch-> launching",
        "launching -ready-> warming", "warming -warm-> measuring", "measuring -stop-> stopping",
        "stopping -end-> ended", "ended -measured-> done",
    ]  # fmt: skip
    (tmp_path / "lost").mkdir()
    with study_run(tmp_path / "lost", FakeEngine(script=speeds), trials=1) as (run, _):
        run.begin(run.choose(lambda _: True) or pytest.fail("nothing to launch"))
        for _ in range(MOST_LOST):
            TrialLife(run.store, "s", 0).begin(tmp_path)
            TrialLife(run.store, "s", 0).cut_off(Event.LOST)
        asyncio.run(run.run())
        (given_up,) = run.store.trials("s")
    assert given_up.attempts == MOST_LOST
    assert given_up.result is not None
    assert given_up.result.outcome is Outcome.FAULTED
    assert given_up.result.failure is not None
    assert f"killed in {MOST_LOST} attempts" in (given_up.result.failure.line or "")


def test_a_crash_once_is_nothing_to_learn_from(tmp_path: Path) -> None:
    def script(config: Config, before: int) -> Script:
        death = config.get("max-num-seqs") == 64 and before == 0
        return Script(dies_at=LevelRole.TTFT, death=CRASH) if death else speeds(config, before)

    outcome, _ = finished(tmp_path, script, trials=7)
    assert all(trial.measured for trial in outcome.trials)


def test_what_no_config_can_cure_stops_the_study_with_the_remedy(tmp_path: Path) -> None:
    engine = FakeEngine(script=lambda _config, _before: Script(launch_failure=GATED))
    with study_run(tmp_path, engine) as (run, _):
        with pytest.raises(StudyFatal, match="model_access") as caught:
            asyncio.run(run.run())
        assert caught.value.hint == "Set HF_TOKEN. Then the same command goes on."
        assert [trial.result for trial in run.store.trials("s")] == [None]
        (attempt,) = run.store.attempts("s", 0)
        assert attempt.result is not None
        assert attempt.result.outcome is Outcome.FAULTED
    assert len(engine.launched) == 1


def test_once_cured_the_study_goes_on_with_that_very_trial(tmp_path: Path) -> None:
    gated = FakeEngine(script=lambda _config, _before: Script(launch_failure=GATED))
    for _ in range(3):  # more often than a trial has attempts: what was cured does not count
        with study_run(tmp_path, gated) as (run, _), pytest.raises(StudyFatal):
            asyncio.run(run.run())
    outcome, _ = finished(tmp_path, speeds, trials=3)
    assert outcome.trials[0].origin is Origin.BASELINE
    assert outcome.trials[0].attempts == 4
    assert all(trial.measured for trial in outcome.trials)


def test_a_baseline_that_cannot_start_leaves_the_load_to_the_next_trial(tmp_path: Path) -> None:
    def script(config: Config, before: int) -> Script:
        return Script(launch_failure=TOO_SMALL) if not config.params else speeds(config, before)

    outcome, _ = finished(tmp_path, script, trials=4)
    assert outcome.trials[0].result is not None
    assert outcome.trials[0].result.outcome is Outcome.INFEASIBLE
    ramped = outcome.trials[1].result
    assert ramped is not None
    assert any(m.level.role is LevelRole.RAMP for m in ramped.measurements)
    assert all(trial.measured for trial in outcome.trials[1:])
    assert outcome.pick is not None
    assert outcome.pick.throughput_gain is None


def test_the_load_is_found_once_and_is_the_same_for_every_trial(tmp_path: Path) -> None:
    outcome, _ = finished(tmp_path, speeds)
    rates = set()
    for trial in outcome.trials:
        level = trial.result.of_role(LevelRole.TTFT) if trial.result else None
        assert level is not None
        rates.add((level.level.rate_rps, level.level.requests))
        assert any(m.level.role is LevelRole.RAMP for m in trial.result.measurements) is (trial.number == 0)
    assert len(rates) == 1


def test_a_cancelled_study_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def blocking(config: Config, before: int) -> Script:
        return Script(blocks_at=LevelRole.TTFT) if config.get("max-num-seqs") == 64 else speeds(config, before)

    engine = FakeEngine(script=blocking)

    async def cancelled(run: StudyRun) -> None:
        task = asyncio.ensure_future(run.run())
        while not any(config.get("max-num-seqs") == 64 for config in engine.launched):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with study_run(tmp_path, engine, trials=7) as (run, _):
        asyncio.run(cancelled(run))
        stopped_at = run.store.trials("s")
        assert stopped_at[-1].result is None
        assert run.store.attempts("s", stopped_at[-1].number)[-1].state is AttemptState.INTERRUPTED
    assert engine.stopped == len(engine.launched)

    outcome, again = finished(tmp_path, speeds, trials=7)
    assert [trial.number for trial in outcome.trials] == list(range(7))
    assert all(trial.measured for trial in outcome.trials)
    # Only what had no end is launched again, first of all the one that was interrupted.
    assert again.launched[0] == stopped_at[-1].config
    assert len(again.launched) == 7 - len(stopped_at) + 1
    assert outcome.trials[stopped_at[-1].number].attempts == 2


def test_a_resumed_study_proposes_what_an_uninterrupted_one_would(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    expected, _ = finished(whole, speeds, trials=6, sampler="tpe")
    for target in (2, 4, 6):
        engine = FakeEngine(script=speeds)
        with study_run(parts, engine, trials=6, sampler="tpe") as (run, _):
            # As a kill would: everything in memory is lost between the parts.
            run.study = run.store.study("s")
            run.observer = run.attempts.observer = Quiet()
            asyncio.run(_only(run, target))
    with Store.open(parts / "autotune.db") as store:
        got = store.trials("s")
    assert [t.config for t in got] == [t.config for t in expected.trials]


def test_another_vllm_under_way_is_refused_and_its_trial_stays_open(tmp_path: Path) -> None:
    # As when a container's tag was moved: nothing before the launch can tell.
    finished(tmp_path, speeds, trials=2)
    engine = FakeEngine(script=speeds, version="0.99")
    with study_run(tmp_path, engine, trials=2) as (run, _):
        run.store.set_target("s", 3)
        run.study = run.store.study("s")
        with pytest.raises(StudyMismatch) as caught:
            asyncio.run(run.run())
        assert caught.value.differences == (("vllm_version", "fake", "0.99"),)
        assert run.store.trials("s")[-1].result is None
    assert engine.stopped == 1


async def _only(run: StudyRun, count: int) -> None:
    while run._counted() < count:
        chosen = run.choose(lambda _: True)
        assert chosen is not None
        await run._attempts(run.begin(chosen))


def test_a_study_keeps_to_its_time_and_keeps_room_for_the_launches_again(tmp_path: Path) -> None:
    def steady(_config: Config, _before: int) -> Script:
        return Script(ttft_s=0.1, token_s=0.01)

    load = LoadChoice(concurrency=8, rate_rps=4.0)
    once, engine = finished(tmp_path, steady, trials=1, load=load)
    each_s = engine.now()
    (tmp_path / "limited").mkdir()
    # Room for five launches and a half; two of them are baseline and pick again.
    outcome, engine = finished(tmp_path / "limited", steady, load=load, trials=20, repeats=1, max_time_s=5.5 * each_s)
    assert len(once.trials) == 1
    assert engine.now() <= 5.5 * each_s
    # After two, 2 + 1 + 2 still fit; after three, 3 + 1 + 2 do not. All are alike: the pick is the baseline itself, and
    # what is left of the time goes to a config that may be as good.
    assert [trial.repeat_of for trial in outcome.trials][:4] == [None, None, None, 0]
    assert [trial.repeat_of for trial in outcome.trials][4:] in ([1], [2])
    assert any("no time for another config" in note for note in outcome.notes)


def test_gpu_hours_are_of_all_runs_together(tmp_path: Path) -> None:
    """The second run of a study has what the first has left, which is no launch more; a larger budget has."""
    load = LoadChoice(concurrency=8, rate_rps=4.0)
    _, engine = finished(tmp_path, speeds, trials=1, load=load)
    (tmp_path / "limited").mkdir()
    limit_s = 3.5 * engine.now()
    counts = []
    for max_gpu_s in (limit_s, limit_s, 2 * limit_s):
        engine = FakeEngine(script=speeds)
        with study_run(tmp_path / "limited", engine, load=load, trials=20, max_gpu_s=max_gpu_s) as (run, observer):
            asyncio.run(run.run())
            counts.append(len(run.store.trials("s")))
            assert run.ending is (Ending.GPU_HOURS if counts[-1] < 7 else Ending.SPACE)
            assert run.attempts.gpu_s <= max_gpu_s
        if run.ending is Ending.GPU_HOURS:
            assert any("no GPU hours for another config" in note for note in observer.notes)
    assert counts[0] == counts[1] == 3
    assert counts[2] > 3


async def test_a_study_that_is_asked_to_end_measures_what_it_measures(tmp_path: Path) -> None:
    engine = FakeEngine(script=speeds)
    with study_run(tmp_path, engine, load=LoadChoice(concurrency=8, rate_rps=4.0)) as (run, observer):

        class Asks(Quiet):
            def phase(self, phase: Phase, detail: str, *, number: int) -> None:
                if phase is Phase.MEASURING and detail == "ttft" and len(run.store.trials("s")) == 2:
                    run.endings.ask()

        run.observer = run.attempts.observer = Asks()
        task = asyncio.create_task(run.run())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [trial.measured for trial in run.store.trials("s")] == [True, True]
        assert engine.stopped == 2
        del observer


def test_only_the_last_launch_again_of_a_config_has_fresh_seeds(tmp_path: Path) -> None:
    outcome, _ = finished(tmp_path, speeds, trials=7, repeats=2, slo="90ms")
    seeds: dict[bool, set[int]] = {True: set(), False: set()}
    for trial in outcome.trials:
        level = trial.result.of_role(LevelRole.TTFT) if trial.result else None
        assert level is not None
        seeds[trial.origin is Origin.VALIDATION].add(level.level.seed)
    assert len(seeds[False]) == len(seeds[True]) == 1
    assert seeds[False] != seeds[True]
    chosen = pick(outcome.trials, slo=parse_slo("90ms"))
    assert chosen is not None
    assert chosen.number > 0
    again = [trial.origin for trial in outcome.trials if trial.repeat_of == chosen.number]
    assert again == [Origin.REPEAT, Origin.VALIDATION]
    assert [trial.origin for trial in outcome.trials if trial.repeat_of == 0] == [Origin.REPEAT, Origin.REPEAT]
    assert outcome.trials[7].repeat_of == outcome.trials[-1].repeat_of == 0


LOSSY_SPACE = """
name: lossy
parameters:
  max-num-seqs: {choices: [64, 128], why: w}
  kv-cache-dtype: {choices: [auto, fp8], why: w, lossy: true}
"""


def answering(config: Config, before: int) -> Script:
    """fp8 is twice as fast, and every token of a prompt is less likely to it."""
    fp8 = config.get("kv-cache-dtype") == "fp8"
    plain = speeds(config, before)
    faster = {"ttft_s": plain.ttft_s / 2, "token_s": plain.token_s / 2} if fp8 else {}
    return replace(plain, logprob=-1.5 if fp8 else -1.0, **faster)


def test_what_changes_numerics_is_asked_and_never_the_pick_when_it_lost_its_answers(tmp_path: Path) -> None:
    space = tmp_path / "lossy.yaml"
    space.write_text(LOSSY_SPACE, encoding="utf-8")
    outcome, _ = finished(tmp_path, answering, space=str(space), trials=5, repeats=1)
    asked = {trial.number: trial.result.quality for trial in outcome.trials if trial.result}
    first = asked[0]
    assert first is not None
    assert (first.state, first.reference, first.simulated) == (QualityState.REFERENCE, None, True)
    for trial in outcome.trials[1:]:
        found = asked[trial.number]
        assert found is not None
        if trial.config.get("kv-cache-dtype") == "fp8":
            assert (found.state, found.reference) == (QualityState.LOST, "trial 0")
            assert found.logprob_gap is not None
            assert found.logprob_gap.value == pytest.approx(0.5)
            assert found.lossy == ("kv-cache-dtype=fp8",)
        elif trial.repeat_of == 0:
            assert (found.state, found.reference) == (QualityState.REFERENCE, "trial 0")
            assert found.agreement is not None
        else:
            assert found.state is QualityState.LOSSLESS
    fast = {trial.number for trial in outcome.trials if trial.config.get("kv-cache-dtype") == "fp8"}
    assert fast
    assert fast & set(outcome.front)
    assert outcome.pick is not None
    assert outcome.pick.number not in fast


def test_nothing_is_asked_where_nothing_changes_numerics_or_the_guard_is_off(tmp_path: Path) -> None:
    outcome, _ = finished(tmp_path, answering, trials=2)
    assert all(trial.result and trial.result.quality is None for trial in outcome.trials)
    space = tmp_path / "lossy.yaml"
    space.write_text(LOSSY_SPACE, encoding="utf-8")
    assert plan_for(tmp_path, space=str(space)).prompts is not None
    assert plan_for(tmp_path, space=str(space), quality=QualityChoice(enabled=False)).prompts is None


def test_what_runs_today_is_launched_right_after_the_baseline_as_it_is(tmp_path: Path) -> None:
    # Neither value is one of the space's, and its length is its own.
    today = Config.of({"max-num-seqs": 96, "max-model-len": 4096, "stream-interval": 2})
    outcome, engine = finished(tmp_path, speeds, trials=3, today=today)
    assert engine.launched[1] == today
    assert (outcome.trials[1].origin, outcome.trials[1].measured) == (Origin.ENQUEUED, True)
    assert "what runs today" in (outcome.trials[1].why or "")
    assert engine.launched[2] != today


def test_what_runs_today_is_measured_to_its_end_however_slow(tmp_path: Path) -> None:
    slow = Config.of({"max-num-seqs": 96, "max-model-len": 4096})

    def script(config: Config, before: int) -> Script:
        return Script(ttft_s=5.0, token_s=1.0) if config.get("max-num-seqs") == 96 else speeds(config, before)

    outcome, engine = finished(tmp_path, script, trials=3, today=slow)
    assert engine.launched[1] == slow
    assert outcome.trials[1].measured
    assert outcome.trials[1].result is not None
    assert outcome.trials[1].result.early is None


def test_what_runs_today_and_is_the_baseline_is_launched_once(tmp_path: Path) -> None:
    # 1,024 sequences are what vLLM takes on this GPU.
    outcome, engine = finished(tmp_path, speeds, trials=2, today=Config.of({"max-num-seqs": 1024}))
    assert engine.launched[0] == Config.of({})
    assert all("what runs today" not in (trial.why or "") for trial in outcome.trials)
