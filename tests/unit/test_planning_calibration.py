"""Real trials calibrate the next study on the node; simulated ones never; nothing of it ends a study."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from autotune.engine.base import LaunchPlan, Milestone, ServerIdentity
from autotune.engine.simulated import SimulatedEngine, SimulatedServer
from autotune.executor.base import Floor
from autotune.executor.local import LocalExecutor
from autotune.load.records_file import read_records, write_records
from autotune.node.defaults import resolve
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.planning.calibration import NodeCalibration, chosen_loads, measured_loads
from autotune.planning.prior import prior_of
from autotune.recipe import LoadChoice, Recipe
from autotune.records import ClockKind, EngineKind, LoadPlan, Phase, Trial
from autotune.scheduling.seats import Seats
from autotune.search.proposer import Proposer
from autotune.session import spec_of
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.engine_model import Simulation
from autotune.store.calibrations import Origin, load_calibration
from autotune.store.folder import StudyFolder
from autotune.store.projection import Projection
from autotune.store.repository import Store
from autotune.store.study_record import StudyState
from autotune.study import StudyRun

TRUTH = replace(
    Coefficients(), weight_read_share=0.5, step_overhead_s=2.5e-3, compute_share=0.48, sustained_compute_share=0.46
)
"""What the servers of these tests are made of: reading and arithmetic a third slower than the simulation believes."""

SPACE = """
name: s
parameters:
  max-num-seqs: {choices: [8, 64, 256], why: w}
  enforce-eager: {choices: [false, true], why: w}
"""


@dataclass(slots=True, kw_only=True)
class Node(SimulatedEngine):
    """A real node as far as a study can see."""

    kind: EngineKind = EngineKind.PROCESS
    clock: ClockKind = ClockKind.WALL

    async def launch(
        self,
        plan: LaunchPlan,
        *,
        on_identity: Callable[[ServerIdentity], None],
        on_milestone: Callable[[Milestone], None],
    ) -> SimulatedServer:
        server = await SimulatedEngine.launch(self, plan, on_identity=on_identity, on_milestone=on_milestone)
        assert self.shape is not None
        settings = resolve(plan.config, self.node, self.shape, extra=dict(self.fixed))
        kv_tokens = server.facts.kv_cache_tokens or 0
        server.simulation = Simulation(self.node, self.shape, settings, kv_tokens, TRUTH, seed=plan.trial)
        server.facts = replace(server.facts, simulated=False)
        return server


class Notes:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def trial_started(self, trial: Trial, *, counted: int, target: int, repeats_left: int) -> None: ...

    def phase(self, phase: Phase, detail: str, *, number: int) -> None: ...

    def trial_ended(self, trial: Trial, trials: Sequence[Trial]) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


def plan_for(folder: Path, name: str = "one", version: str | None = "0.25.1") -> StudyPlan:
    path = folder / "space.yaml"
    path.write_text(SPACE, encoding="utf-8")
    here = Surroundings(environ={}, home=folder, probe=None, shm_bytes=None, has_kfd=False, cache_dir=folder / "cache")
    asked = Recipe(
        name=name,
        model="meta-llama/Llama-3.1-8B-Instruct",
        workload="chat",
        space=str(path),
        node="1xH100-80GB",
        trials=3,
        repeats=0,
        load=LoadChoice(concurrency=24, rate_rps=4.0, requests=60),
    )
    return replace(make_plan(asked, here), engine=EngineKind.PROCESS, vllm_version=version)


@contextmanager
def study_run(folder: Path, plan: StudyPlan, machine: str = "here") -> Iterator[tuple[StudyRun, Notes]]:
    assert plan.shape is not None
    engine = Node(node=plan.node, shape=plan.shape, seed=3)
    told = Notes()

    with Store.open(folder / "autotune.db") as store, Projection.open(store) as projection:
        yield (
            StudyRun(
                plan=plan,
                study=store.create_or_resume_study(spec_of(plan)),
                store=store,
                folder=StudyFolder(root=folder, name=plan.recipe.name),
                executor=LocalExecutor(
                    engine=engine, floor=Floor(seats=Seats(plan.node)), clock_s=engine.now, wait=engine.time.sleep
                ),
                proposer=Proposer(plan.space, plan.recipe.sampler, plan.recipe.seed, configs=plan.feasible),
                projection=projection,
                observer=told,
                calibration=NodeCalibration.of(plan, machine),
            ),
            told,
        )


def finished(folder: Path, name: str = "one") -> tuple[StudyPlan, tuple[Trial, ...], LoadPlan, list[str]]:
    plan = plan_for(folder, name)
    with study_run(folder, plan) as (run, told):
        asyncio.run(run.run())
        assert run.store.study(name).state is StudyState.FINISHED
        load = run.store.get_load_plan(name)
        assert load is not None
        return plan, run.store.trials(name), load, told.notes


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyPlan, tuple[Trial, ...], LoadPlan, list[str]]:
    folder = tmp_path_factory.mktemp("calibrated")
    return folder, *finished(folder)


First = tuple[Path, StudyPlan, tuple[Trial, ...], LoadPlan, list[str]]


def error(plan: StudyPlan, trials: Sequence[Trial], load: LoadPlan, coefficients: Coefficients | None) -> float:
    """Mean size of the error of log throughput that the prior makes about what was measured."""
    prior = prior_of(plan, load, coefficients=coefficients)
    assert prior is not None
    expected = prior.expect([trial.config for trial in trials]).log_throughput
    truths = [trial.output_tok_s_per_gpu for trial in trials]
    return sum(abs(e - math.log(t.value)) for e, t in zip(expected, truths, strict=True) if t) / len(truths)


@pytest.mark.no_cover
def test_the_second_study_on_a_node_begins_closer_to_the_truth(first: First) -> None:
    folder, plan, trials, load, notes = first
    assert all(trial.measured for trial in trials)
    assert any(note.startswith("learnt from ") for note in notes)
    known = NodeCalibration.of(plan, "here")
    assert known is not None
    assert known.stored is not None
    assert known.stored.origin is Origin.SAME
    assert known.coefficients is not None
    assert error(plan, trials, load, known.coefficients) < 0.6 * error(plan, trials, load, None)
    assert abs(known.coefficients.weight_read_share - 0.5) < abs(Coefficients().weight_read_share - 0.5)
    second, again, _, told = finished(folder, "two")
    assert "predictions begin from" in told[0]
    assert "measured on this node on" in told[0]
    assert error(second, again, load, known.coefficients) < 0.6 * error(second, again, load, None)


def test_another_version_and_another_machine_say_what_they_are(first: First) -> None:
    _, plan, *_ = first
    newer = NodeCalibration.of(replace(plan, vllm_version="0.33.0"), "here")
    away = NodeCalibration.of(plan, "elsewhere")
    assert newer is not None
    assert newer.told is not None
    assert "on this node with vLLM 0.25.1" in newer.told
    assert away is not None
    assert away.told is not None
    assert "on here, another machine with" in away.told
    other = replace(plan, node=replace(plan.node, gpus=tuple(replace(g, name="Another") for g in plan.node.gpus)))
    unknown = NodeCalibration.of(other, "here")
    assert unknown is not None
    assert (unknown.stored, unknown.told, unknown.coefficients) == (None, None, None)


def test_where_nothing_can_be_learnt_there_is_no_calibration(first: First) -> None:
    _, plan, *_ = first
    two = replace(plan.node.gpus[0], name="Another", index=1)
    for one in (
        replace(plan, engine=EngineKind.SIMULATED),
        replace(plan, vllm_version=None),
        replace(plan, cache_dir=None),
        replace(plan, shape=None),
        replace(plan, node=replace(plan.node, gpus=())),
        replace(plan, node=replace(plan.node, gpus=(*plan.node.gpus, two))),
    ):
        assert NodeCalibration.of(one, "here") is None


def test_simulated_and_failed_trials_and_those_whose_records_are_gone_teach_nothing(
    first: First, tmp_path: Path
) -> None:
    _, plan, trials, *_ = first
    assert len(chosen_loads(plan, trials)) == 6
    made_up = [replace(t, result=replace(t.result, simulated=True)) for t in trials if t.result]
    assert chosen_loads(plan, made_up) == ()
    gone = [replace(trial, directory=str(tmp_path)) for trial in trials]
    assert chosen_loads(plan, gone) == ()
    known = NodeCalibration.of(plan, "here")
    assert known is not None
    assert known.learn(gone) is None
    assert known.learn([]) is None


def test_a_level_is_simulated_as_it_was_sent(first: First) -> None:
    _, plan, trials, *_ = first
    busy, steady = measured_loads(plan, trials[0])
    assert (busy.level.concurrency, steady.level.rate_rps) == (24, 4.0)
    assert len(busy.requests) == len(steady.requests) == 60
    facts = trials[0].result.facts if trials[0].result else None
    assert facts is not None
    assert busy.kv_tokens == facts.kv_cache_tokens
    # The truth's own coefficients give back what was measured, but for the noise of a run.
    figures, _ = busy.simulate(TRUTH, seed=0)
    assert figures.output_tok_s == pytest.approx(busy.measured.output_tok_s, rel=0.05)


def test_records_that_are_damaged_and_a_folder_that_cannot_be_written_are_told_and_end_nothing(
    first: First, tmp_path: Path
) -> None:
    _, plan, trials, *_ = first
    broken = tmp_path / "broken"
    broken.mkdir()
    assert trials[0].directory is not None
    for path in Path(trials[0].directory).glob("level-*"):
        (broken / path.name).write_bytes(b"no gzip")
    known = NodeCalibration.of(plan, "here")
    assert known is not None
    told = known.learn([replace(trials[0], directory=str(broken))])
    assert told is not None
    assert told.startswith("nothing was learnt for the next study's predictions")
    (tmp_path / "file").write_text("")
    nowhere = replace(known, folder=tmp_path / "file" / "below")
    assert "cannot be written" in (nowhere.learn(trials[:1]) or "")


def test_a_run_learns_only_from_trials_of_its_own(first: First) -> None:
    folder, plan, *_ = first
    before = {path: path.read_bytes() for path in (folder / "cache").glob("calibration-*.json")}
    with study_run(folder, plan) as (run, told):
        asyncio.run(run.run())  # finished already: nothing is launched
    assert not any(note.startswith("learnt") for note in told.notes)
    assert {path: path.read_bytes() for path in (folder / "cache").glob("calibration-*.json")} == before


def test_what_a_study_tells_nothing_of_stays_as_sure_as_it_was(first: First, tmp_path: Path) -> None:
    _, plan, trials, *_ = first
    known = NodeCalibration.of(plan, "here")
    assert known is not None
    assert known.stored is not None
    doubts = {**known.stored.uncertainties, "rank_overhead_s": 0.11}  # of tensor parallelism, seen by an earlier study
    before = replace(known, folder=tmp_path, stored=replace(known.stored, uncertainties=doubts))
    assert "learnt from" in (before.learn(trials[:1]) or "")
    after = load_calibration(tmp_path, known.place, Coefficients())
    assert after is not None
    assert after.uncertainties["rank_overhead_s"] == pytest.approx(0.11)
    assert after.uncertainties["weight_read_share"] < doubts["weight_read_share"]


def test_levels_of_single_tokens_teach_nothing(first: First, tmp_path: Path) -> None:
    _, plan, trials, *_ = first
    assert trials[0].directory is not None
    for path in Path(trials[0].directory).glob("level-*"):
        kept = read_records(path)
        single = tuple(replace(one, output_tokens=1) for one in kept.records)
        write_records(tmp_path / path.name, kept.level, kept.clock, single, kept.duration_s)
    assert list(measured_loads(plan, trials[0]))
    assert list(measured_loads(plan, replace(trials[0], directory=str(tmp_path)))) == []
