"""One trial of a study, done to an end that counts: attempt after attempt, each on disk as it goes.

The study (`study.py`) says which trial, this module launches it through the executor and stores how it went.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from autotune.endings import Endings
from autotune.engine.base import LaunchPlan, Milestone, ServerIdentity
from autotune.engine.compile_cache import is_cured
from autotune.errors import AutotuneError, StorageError, StudyFatal, StudyMismatch, VllmCommandError
from autotune.executor.base import Assignment, Executor
from autotune.life import Event, Instruction, next_event, verdict
from autotune.planning import StudyPlan
from autotune.planning.guarding import quality_order
from autotune.records import Failure, FailureClass, LoadLevel, LoadPlan, Outcome, Phase, Slo, Trial, TrialResult
from autotune.search.again import salt_of, seed_of
from autotune.search.early import rivals_of
from autotune.store.folder import StudyFolder
from autotune.store.repository import Store
from autotune.store.study_record import StudyRecord
from autotune.study_parallel import SHARED, Place, with_company, with_interference
from autotune.trial import TrialOrder, TrialRun
from autotune.trial_life import TrialLife, forsaken


class StudyObserver(Protocol):
    """Told what happens, for people to watch; stores nothing and must not block."""

    def trial_started(self, trial: Trial, *, counted: int, target: int, repeats_left: int) -> None:
        """`repeats_left`: launches again that are still to come, this one included, as far as today's pick tells."""
        ...

    def phase(self, phase: Phase, detail: str, *, number: int) -> None:
        """`number`: of the trial; several may run at once."""
        ...

    def trial_ended(self, trial: Trial, trials: Sequence[Trial]) -> None:
        """`trials`: all of the study so far, this one included."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line that is no step of a trial."""
        ...


@dataclass(slots=True, kw_only=True)
class Attempts:
    """Does trials of one run of a study to their ends, several at once where they have places.

    Attributes:
        slo: what the pick must meet.
        told: is given each trial that has ended.
        places: of the trials that run beside others, by number.
        gpu_s: seconds times GPUs that attempts have used, in all runs.
    """

    plan: StudyPlan
    study: StudyRecord
    store: Store
    folder: StudyFolder
    executor: Executor
    observer: StudyObserver
    endings: Endings
    slo: Slo | None
    told: Callable[[Trial], None]
    places: dict[int, Place] = field(default_factory=dict)
    gpu_s: float = 0.0

    async def beside(self, trial: Trial, place: Place) -> None:
        """Do a trial to its end, beside others."""
        self.places[trial.number] = place
        try:
            await self.alone(trial)
        finally:
            del self.places[trial.number]

    async def alone(self, trial: Trial) -> None:
        """Launch a trial until it has an end that counts; faults of the environment are retried, boundedly.

        Raises:
            StudyFatal: what no config can cure. The trial stays open: cured, the study goes on with it.
        """
        kept = TrialLife(self.store, self.study.name, trial.number)
        while not kept.done:
            if self.endings.asked:
                raise asyncio.CancelledError
            event = next_event(kept.life)
            if event is Event.FORSAKEN:
                result, cancelled = forsaken(self.executor.clock, simulated=self.study.simulated), False
            else:
                run = await self._attempt(trial, kept)
                result, cancelled = run.result, run.cancelled
                event = self._verdict(kept, result)
            left, finished = kept.end(event, result)
            if finished is not None:
                self.told(finished)
            if cancelled or self.endings.asked:
                raise asyncio.CancelledError
            await self._perform_left(left, kept, trial, result.failure)

    def _place(self, trial: Trial) -> Place:
        """Where a trial runs: its place beside others, or a whole node."""
        found = self.places.get(trial.number)
        return found or Place(seat=self.executor.floor.seats.whole(self.plan.demand_of(trial.config)))

    def _host(self, trial: Trial) -> str | None:
        """The machine that a trial should run on: launches again go where the baseline was measured, so that baseline
        and pick have launches of their own on one machine."""
        first = self._trials()[0]
        return None if trial.origin in SHARED or first.result is None else first.result.host

    def _verdict(self, kept: TrialLife, result: TrialResult) -> Event:
        return verdict(
            kept.life,
            result,
            most_attempts=self.plan.recipe.attempts,
            cured=result.failure is not None and is_cured(result.failure),
            proven=any(trial.measured for trial in self._trials()),
        )

    async def _perform_left(
        self, left: Sequence[Instruction], kept: TrialLife, trial: Trial, failure: Failure | None
    ) -> None:
        """What the end of an attempt asks for beyond the store."""
        for instruction in left:
            if instruction is Instruction.STOP_STUDY and failure is not None:
                raise _fatal(trial.number, failure)
            if instruction is Instruction.BACK_OFF and failure is not None:
                why = failure.line or "no line of its log says why"
                self.observer.note(f"trial {trial.number}: {failure.kind}, launched again: {why}")
                await self.executor.sleep(kept.life.pause_s(self.plan.recipe.retry_pause_s))

    def _trials(self) -> tuple[Trial, ...]:
        return self.store.trials(self.study.name)

    async def _attempt(self, trial: Trial, kept: TrialLife) -> TrialRun:
        name, recipe = self.study.name, self.plan.recipe
        directory = self.folder.attempt(trial.number, kept.attempt + 1)
        kept.begin(directory)
        load = self.plan.load_for(self.store.get_load_plan(name))
        place, trials = self._place(trial), self._trials()
        salt = salt_of(trials, trial)
        # Beside others a config is slower: only others that were measured so show it to be worse.
        against = trials if place.company is None else [one for one in trials if not one.alone]
        order = TrialOrder(
            number=salt,
            launch=LaunchPlan(
                model=self.plan.model_of(trial.config),
                config=trial.config,
                gpu_indices=place.seat.indices,
                server_cores=place.seat.server_cores,
                extra_args=recipe.extra_args,
                directory=directory,
                start_deadline_s=recipe.start_deadline_s,
                stall_deadline_s=recipe.stall_deadline_s,
                trial=salt,
            ),
            workload=self.plan.workload,
            load=load,
            fixed_load=self.plan.fixed_load,
            gpus=max(1, trial.gpus),
            seed=seed_of(trials, trial, recipe.seed),
            level_deadline_s=recipe.level_deadline_s,
            slo=self.slo,
            objective=recipe.objective,
            # What runs today is measured to its end, however slow: what a change would bring is told against it.
            rivals=None if trial.config == self.plan.today else rivals_of(trial, against, recipe.abandon, self.slo),
            quality=quality_order(self.plan, trials, trial),
        )
        recorder = _Recorder(run=self, number=trial.number, kept=kept)
        self.endings.entered(trial.number, Phase.WAITING)
        try:
            seat = None if place.company is None else place.seat
            assignment = Assignment(trial=trial.number, order=order, host=self._host(trial), seat=seat)
            run = await self.executor.perform(assignment, recorder)
            found = with_company(run.result, place.company)
            run = replace(run, result=with_interference(self._trials(), trial, found))
        except (asyncio.CancelledError, AutotuneError) as error:
            with contextlib.suppress(StorageError):  # where the store is what failed, the next run marks the attempt
                kept.cut_off(Event.REFUSED if isinstance(error, StudyFatal | VllmCommandError) else Event.INTERRUPTED)
            raise
        finally:
            self.endings.entered(trial.number, Phase.ENDED)
            self.gpu_s += trial.gpus * recorder.lasted_s
        if run.argv:
            self.store.record_argv(name, trial.number, kept.attempt, run.argv)
        self._check_version(kept, run.result)
        if self.store.get_load_plan(name) is None and run.load and _carried_its_load(run.result):
            self.store.set_load_plan(name, run.load)
            self.observer.note(_describe_load(run.load))
        return run

    def _check_version(self, kept: TrialLife, result: TrialResult) -> None:
        """All trials of a study have one vLLM; a container's image, say, tells its version only once it runs.

        Raises:
            StudyMismatch: this server told another version than the trials before; the trial stays open.
        """
        told = result.facts.vllm_version if result.facts else None
        facts = (trial.result.facts for trial in self._trials() if trial.result)
        before = next((found.vllm_version for found in facts if found and found.vllm_version), None)
        if told is not None and before is not None and told != before:
            kept.cut_off(Event.REFUSED)
            raise StudyMismatch(self.study.name, (("vllm_version", before, told),))


@dataclass(slots=True)
class _Recorder:
    """Stores what an attempt does, and shows it."""

    run: Attempts
    number: int
    kept: TrialLife
    lasted_s: float = 0.0
    _phase: Phase = Phase.WAITING

    def phase(self, phase: Phase, elapsed_s: float) -> None:
        self._phase, self.lasted_s = phase, elapsed_s
        self.run.endings.entered(self.number, phase)
        self.kept.enter(phase, elapsed_s, self.run.executor.clock)
        self.run.observer.phase(phase, "", number=self.number)

    def identity(self, identity: ServerIdentity) -> None:
        self.run.store.record_identity(self.run.study.name, self.number, self.kept.attempt, identity)

    def milestone(self, milestone: Milestone) -> None:
        self.run.observer.phase(self._phase, milestone.name, number=self.number)

    def level(self, level: LoadLevel) -> None:
        self.run.observer.phase(self._phase, level.name, number=self.number)


def _fatal(trial: int, failure: Failure) -> StudyFatal:
    line = failure.line or "see server.log"
    return StudyFatal(
        f"trial {trial} ended with {failure.kind}, which no config can cure: {line}",
        hint=" ".join((*failure.remedies[:2], "Then the same command goes on.")),
    )


def _carried_its_load(result: TrialResult) -> bool:
    """Whether a trial that found the load was driven with it to the end, if only to meet the SLO at no rate."""
    missed = result.failure is not None and result.failure.kind is FailureClass.SLO_MISSED
    return result.outcome is Outcome.MEASURED or missed


def _describe_load(load: LoadPlan) -> str:
    capacity = (
        "" if load.capacity_rps_per_gpu is None else f" (capacity {load.capacity_rps_per_gpu:.2f} requests/s per GPU)"
    )
    return (
        f"load fixed for the study: {load.concurrency_per_gpu} at once for throughput, "
        f"{load.rate_rps_per_gpu:.2f} requests/s Poisson for TTFT, per GPU used{capacity}"
    )
