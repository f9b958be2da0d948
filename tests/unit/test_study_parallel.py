"""Several trials at once: who runs beside whom, what is measured alone, what neighbours cost, and how it all ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from autotune.engine.base import LaunchPlan, Milestone, ServerIdentity
from autotune.engine.fake import FakeEngine, Script
from autotune.engine.simulated import SimulatedEngine
from autotune.errors import InvalidOption, StudyFatal
from autotune.executor.base import Floor
from autotune.executor.building import trials_at_once
from autotune.executor.local import LocalExecutor
from autotune.load.workloads import load_workload
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.recipe import AUTO_PARALLEL, LoadChoice, Recipe, parse_parallel
from autotune.records import (
    Config,
    EngineKind,
    Failure,
    FailureClass,
    LoadLevel,
    LoadPlan,
    Origin,
    Outcome,
    Phase,
    Trial,
)
from autotune.scheduling.packing import Demand
from autotune.scheduling.seats import Seats
from autotune.search.again import salt_of
from autotune.search.finalists import next_finalist
from autotune.search.objective import points
from autotune.search.pareto import front_of, pick
from autotune.search.proposer import Proposer
from autotune.search.screening import interference
from autotune.session import reap_left_over, spec_of
from autotune.store.folder import StudyFolder
from autotune.store.projection import Projection
from autotune.store.repository import Store
from autotune.study import StudyRun
from autotune.study_parallel import Choice, ParallelSearch, Place, with_company
from autotune.trial import TrialOrder, run_trial

SPACE = """
name: s
parameters:
  max-num-seqs: {choices: [16, 32, 64, 128], why: w}
  enable-prefix-caching: {choices: [true, false], why: w}
"""
LIST = tuple(
    Config.of({"max-num-seqs": seqs, "enable-prefix-caching": caching})
    for seqs, caching in product((16, 32, 64, 128), (True, False))
)
GATED = Failure(kind=FailureClass.MODEL_ACCESS, line="401", remedies=("Set HF_TOKEN.",))


class Notes:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.phases: list[tuple[int, Phase]] = []

    def trial_started(self, trial: Trial, *, counted: int, target: int, repeats_left: int) -> None: ...

    def phase(self, phase: Phase, detail: str, *, number: int) -> None:
        self.phases.append((number, phase))

    def trial_ended(self, trial: Trial, trials: Sequence[Trial]) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


def plan_for(folder: Path, **values: Any) -> StudyPlan:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "space.yaml"
    path.write_text(SPACE, encoding="utf-8")
    here = Surroundings(environ={}, home=folder, probe=None, shm_bytes=None, has_kfd=False, cache_dir=folder / "cache")
    defaults = {
        "name": "s",
        "model": "meta-llama/Llama-3.1-8B",
        "workload": "tiny",
        "space": str(path),
        "node": "4xH100-80GB-NVLink",
        "trials": 9,
        "repeats": 0,
        "sampler": "random",
        "parallel": AUTO_PARALLEL,
        "starting_points": LIST,
        "load": LoadChoice(concurrency=8, rate_rps=8.0, requests=16),
    }
    return make_plan(Recipe(**{**defaults, **values}), here)


@contextmanager
def study_run(folder: Path, engine: FakeEngine, **values: Any) -> Iterator[tuple[StudyRun, Notes]]:
    plan, observer = plan_for(folder, **values), Notes()
    with Store.open(folder / "autotune.db") as store, Projection.open(store) as projection:
        yield (
            StudyRun(
                plan=plan,
                study=store.create_or_resume_study(spec_of(plan)),
                store=store,
                folder=StudyFolder(root=folder, name="s"),
                executor=LocalExecutor(
                    engine=engine,
                    floor=Floor(seats=Seats(plan.node), most=trials_at_once(plan, ()), turns=engine.time),
                    clock_s=engine.now,
                    wait=engine.time.sleep,
                ),
                proposer=Proposer(plan.space, plan.recipe.sampler, plan.recipe.seed),
                projection=projection,
                observer=observer,
            ),
            observer,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A study that is over."""

    trials: tuple[Trial, ...]
    engine: FakeEngine
    phases: tuple[tuple[int, Phase], ...]


def finished(folder: Path, script: Callable[[Config, int], Script], **values: Any) -> Ended:
    engine = FakeEngine(script=script)
    with study_run(folder, engine, **values) as (run, observer):
        asyncio.run(run.run())
        return Ended(trials=run.trials(), engine=engine, phases=tuple(observer.phases))


def speeds(config: Config, _before: int) -> Script:
    """More sequences: faster tokens, later first token; without caching both later. Beside others a tenth slower."""
    seqs = config.get("max-num-seqs") or 100
    assert isinstance(seqs, int)
    slower = 1.0 if config.get("enable-prefix-caching") is True else 1.3
    return Script(ttft_s=0.001 * seqs * slower, token_s=slower / seqs, slower_beside=0.1)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The list, as many at once as the node takes."""
    return finished(tmp_path_factory.mktemp("beside"), speeds)


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The same, one after the other."""
    return finished(tmp_path_factory.mktemp("serial"), speeds, parallel=1)


def test_the_baseline_is_alone_and_the_others_share_the_node(beside: Ended) -> None:
    trials = beside.trials
    assert trials[0].origin is Origin.BASELINE
    assert trials[0].alone
    shared = [trial for trial in trials if not trial.alone]
    assert {trial.number for trial in shared} == set(range(1, 10))  # the list of eight, and the probe
    assert all("beside_neighbours" in [caveat.code for caveat in trial.caveats] for trial in shared)
    assert max(trial.result.neighbours for trial in shared if trial.result) == 3
    assert sum(trial.counted for trial in trials) == 9
    assert {index for leased in beside.engine.leased for index in leased} == {0, 1, 2, 3}
    assert {number for number, _ in beside.phases} == {trial.number for trial in trials}


def test_the_baseline_is_launched_beside_others_once_and_what_differs_is_told(beside: Ended) -> None:
    (probe,) = [trial for trial in beside.trials if trial.origin is Origin.PROBE]
    assert probe.config == beside.trials[0].config
    assert not probe.alone
    assert not probe.counted
    cost = interference(beside.trials)
    assert cost is not None
    assert cost.throughput.ratio == pytest.approx(1 / 1.1, rel=0.01)
    assert cost.ttft.ratio == pytest.approx(1.1, rel=0.01)
    (told,) = [caveat for caveat in probe.caveats if caveat.code == "interference"]
    assert "against alone: throughput -9.1%" in told.text
    assert "p95 TTFT +10.0%" in told.text


def test_the_front_is_measured_alone_and_decided_by_that(beside: Ended) -> None:
    trials = beside.trials
    front = front_of(trials)
    assert len(front) > 1
    by_number = {trial.number: trial for trial in trials}
    for point in points(trials):
        if point.number in front:
            assert all(by_number[number].alone for number in point.numbers)
    finalists = [trial for trial in trials if trial.origin is Origin.REPEAT]
    assert {trial.repeat_of for trial in finalists} >= set(front) - {0}
    assert len(finalists) < 8
    assert all(trial.alone for trial in finalists)
    assert "it was measured beside others" in finalists[0].why
    chosen = pick(trials)
    assert chosen is not None
    assert chosen.number in front


def test_one_after_the_other_nothing_is_new(serial: Ended) -> None:
    assert all(trial.alone for trial in serial.trials)
    assert [trial.origin for trial in serial.trials] == [Origin.BASELINE, *[Origin.ENQUEUED] * 8]


def test_both_ways_find_the_same_front_and_send_the_same_prompts(serial: Ended, beside: Ended) -> None:
    def front(trials: Sequence[Trial]) -> set[Config]:
        return {trial.config for trial in trials if trial.number in front_of(trials)}

    assert front(serial.trials) == front(beside.trials)
    salts = {trial.config: salt_of(serial.trials, trial) for trial in serial.trials}
    counted = [trial for trial in beside.trials if trial.counted]
    assert {trial.config: salt_of(beside.trials, trial) for trial in counted} == salts


@pytest.mark.no_cover
def test_repeats_come_on_top_of_the_first_measurement_alone(tmp_path: Path) -> None:
    ended = finished(tmp_path, speeds, repeats=1)
    chosen = pick(ended.trials)
    assert chosen is not None
    launches = [trial for trial in ended.trials if trial.repeat_of == chosen.number]
    assert [trial.origin for trial in launches] == [Origin.REPEAT, Origin.VALIDATION]


def test_a_study_that_was_interrupted_goes_on_beside_others(tmp_path: Path) -> None:
    engine = FakeEngine(script=speeds)

    class Killed(BaseException):
        pass

    class Killing(Notes):
        def phase(self, phase: Phase, detail: str, *, number: int) -> None:
            if number == 6 and phase is Phase.MEASURING:
                raise Killed

    with study_run(tmp_path, engine) as (run, _):
        run.observer = run.attempts.observer = Killing()
        with pytest.raises(Killed):
            asyncio.run(run.run())
        left = [trial.number for trial in run.trials() if trial.result is None]
        assert len(left) >= 2
        assert all(record.trial in left for record in run.store.unfinished_attempts("s"))
        reap_left_over(run.store, "s", Notes(), run.executor.reap)
    again = FakeEngine(script=speeds)
    with study_run(tmp_path, again) as (run, observer):
        asyncio.run(run.run())
        trials = run.trials()
    assert [note for note in observer.notes if "was interrupted" in note] != []
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert sum(trial.counted for trial in trials) == 9
    assert all(trial.result is not None for trial in trials)
    relaunched = [trial for trial in trials if trial.number in left]
    assert any(not trial.alone for trial in relaunched)


def test_what_no_config_can_cure_ends_all_of_them(tmp_path: Path) -> None:
    def script(config: Config, before: int) -> Script:
        gated = config.get("max-num-seqs") == 32
        return replace(speeds(config, before), launch_failure=GATED, start_s=40.0) if gated else speeds(config, before)

    engine = FakeEngine(script=script)
    with study_run(tmp_path, engine) as (run, _):
        with pytest.raises(StudyFatal, match="401"):
            asyncio.run(run.run())
        assert engine.running == 0
        assert run.store.unfinished_attempts("s") == ()


def test_a_config_that_cannot_start_leaves_its_gpus_to_the_next(tmp_path: Path) -> None:
    small = Failure(kind=FailureClass.KV_CACHE_TOO_SMALL, line="too small")

    def script(config: Config, before: int) -> Script:
        return Script(launch_failure=small) if config.get("max-num-seqs") == 64 else speeds(config, before)

    ended = finished(tmp_path, script)
    infeasible = [t for t in ended.trials if t.result and t.result.outcome is Outcome.INFEASIBLE]
    assert len(infeasible) == 2
    assert ended.engine.running == 0


def test_ctrl_c_lets_what_is_measured_end_and_begins_nothing_more(tmp_path: Path) -> None:
    engine = FakeEngine(script=lambda config, before: replace(speeds(config, before), start_s=5.0 + engine.running))

    class Asking(Notes):
        def phase(self, phase: Phase, detail: str, *, number: int) -> None:
            super().phase(phase, detail, number=number)
            if number == 2 and phase is Phase.MEASURING and not run.endings.asked:
                run.endings.ask()

    with study_run(tmp_path, engine) as (run, _):
        run.observer = run.attempts.observer = asking = Asking()
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(run.run())
        trials = run.trials()
        assert engine.running == 0
        assert run.store.unfinished_attempts("s") == ()
    assert trials[2].measured
    asked = asking.phases.index((2, Phase.MEASURING))
    assert not [number for number, phase in asking.phases[asked:] if phase is Phase.LAUNCHING]
    measuring = {number for number, phase in asking.phases[:asked] if phase is Phase.MEASURING}
    assert all(trials[number].result is not None for number in measuring)
    assert len(trials) < 9


# --- how many at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "at_once"), [(AUTO_PARALLEL, 4), (1, 1), (3, 3), (16, 4)])
def test_no_more_at_once_than_gpus(tmp_path: Path, asked: int, at_once: int) -> None:
    assert trials_at_once(plan_for(tmp_path, parallel=asked), ()) == at_once


@pytest.mark.parametrize(("cores", "at_once"), [(4, 1), (8, 2), (64, 4)])
def test_real_servers_need_cores_as_well(tmp_path: Path, cores: int, at_once: int) -> None:
    real = replace(plan_for(tmp_path), engine=EngineKind.PROCESS)
    assert trials_at_once(real, range(cores)) == at_once
    assert trials_at_once(replace(real, recipe=replace(real.recipe, parallel=3)), range(cores)) == 3


def test_the_words_of_the_option() -> None:
    assert (parse_parallel("auto"), parse_parallel(" 4 ")) == (AUTO_PARALLEL, 4)
    for bad in ("0", "-1", "many", "65", "1.5", "", "9" * 5000, "٣"):
        with pytest.raises(InvalidOption, match="auto, or a number"):
            parse_parallel(bad)


# --- how much sooner ------------------------------------------------------------------------------------------------

SEQS = (2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32)
ONE_GPU = tuple(
    Config.of({"quantization": kind, "async-scheduling": is_async, "max-num-seqs": seqs})
    for kind, is_async, seqs in product((None, "fp8"), (True, False), SEQS)
)[1:]
"""47 configs without ties; with the baseline and its probe they fill eight GPUs six times."""
LOAD = LoadPlan(
    concurrency_per_gpu=32,
    rate_rps_per_gpu=8.0,
    throughput_requests_per_gpu=40,
    ttft_requests_per_gpu=24,
    warmup_requests_per_gpu=4,
)


class Memory:
    """A study without a store: a list of configs on a simulated node."""

    def __init__(self, plan: StudyPlan, folder: Path) -> None:
        assert plan.shape is not None
        self.plan, self.folder = plan, folder
        self.engine = SimulatedEngine(node=plan.node, shape=plan.shape, seed=0)
        self.workload = load_workload("tiny")
        self.found: list[Trial] = []
        self.list_s = 0.0

    def trials(self) -> Sequence[Trial]:
        return tuple(self.found)

    def may_begin(self) -> bool:
        return True

    def choose(self, fits: Callable[[Config], bool]) -> Choice | None:
        tried = {trial.config for trial in self.found}
        config = next((one for one in (Config.of({}), *ONE_GPU) if one not in tried and fits(one)), None)
        return None if config is None else Choice(config=config, origin=Origin.ENQUEUED, why="")

    def begin(self, choice: Choice) -> Trial:
        number = len(self.found)
        origin = choice.origin if number else Origin.BASELINE
        config, again = choice.config, choice.repeat_of
        trial = Trial(number=number, config=config, origin=origin, gpus=1, attempts=1, result=None, repeat_of=again)
        self.found.append(trial)
        return trial

    async def perform(self, trial: Trial, place: Place) -> None:
        salt = salt_of(self.found, trial)
        launch = LaunchPlan(
            model="m",
            config=trial.config,
            gpu_indices=place.seat.indices,
            extra_args=(),
            directory=self.folder,
            start_deadline_s=600.0,
            stall_deadline_s=600.0,
            trial=salt,
        )
        order = TrialOrder(
            number=salt, launch=launch, workload=self.workload, load=LOAD, gpus=1, seed=0, level_deadline_s=600.0
        )
        run = await run_trial(self.engine, order, clock=self.engine.now, observer=Deaf())
        result = with_company(run.result, place.company)
        self.found[trial.number] = replace(trial, result=result)
        self.list_s = self.engine.now()

    async def alone(self, choice: Choice) -> None:
        await self.perform(self.begin(choice), Place(seat=Seats(self.plan.node).whole(Demand(group=1))))

    async def one_after_the_other(self, most: int = 1000) -> None:
        while len(self.found) < most and (choice := self.choose(lambda _: True)) is not None:
            await self.alone(choice)


class Deaf:
    """A trial's observer that remembers nothing."""

    def phase(self, phase: Phase, elapsed_s: float) -> None: ...

    def identity(self, identity: ServerIdentity) -> None: ...

    def milestone(self, milestone: Milestone) -> None: ...

    def level(self, level: LoadLevel) -> None: ...


@pytest.mark.no_cover
def test_eight_gpus_finish_a_list_of_one_gpu_configs_six_times_sooner_with_the_same_front(tmp_path: Path) -> None:
    """In virtual time; `python -m benchmarks.parallel` measures whole studies with their store."""
    plan = plan_for(tmp_path, node="8xH200-141GB")
    serial, beside = Memory(plan, tmp_path), Memory(plan, tmp_path)
    asyncio.run(serial.one_after_the_other())

    async def search() -> None:
        await beside.one_after_the_other(most=1)
        floor = Floor(seats=Seats(plan.node), most=8, turns=beside.engine.time)
        await ParallelSearch(plan, floor, beside).run()

    asyncio.run(search())
    assert len(serial.found) == 48
    assert len(beside.found) == 49
    listed_s = beside.list_s

    async def finish() -> None:
        while (finalist := next_finalist(beside.found, pick(beside.found))) is not None:
            await beside.alone(Choice(config=finalist.config, origin=Origin.REPEAT, why="", repeat_of=finalist.number))

    asyncio.run(finish())
    fronts = [
        {trial.config for trial in trials if trial.number in front_of(trials)}
        for trials in (serial.found, beside.found)
    ]
    assert fronts[0] == fronts[1]
    assert len(fronts[0]) == 2
    assert serial.list_s / listed_s >= 6.0
    cost = interference(beside.found)
    assert cost is not None
    assert not cost.found  # neighbours cost nothing in the simulation
