"""The shell of a study: ask for a config, perform the trial, store how it ended, tell the sampler, again.

Everything is on disk the moment it happens. A study that was killed at any moment goes on with the same command:
finished trials stay, the attempt that was running is stopped (if anything of it is left) and launched again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autotune.budget import Budget, Ending, Spent, gpu_seconds, kept_for_again, lacking, promises_too_little
from autotune.endings import Endings
from autotune.engine.base import Engine, LaunchPlan, Milestone, ServerIdentity
from autotune.engine.compile_cache import is_cured
from autotune.engine.holding import NodeHold
from autotune.errors import AutotuneError, StorageError, StudyFatal, StudyMismatch, VllmCommandError
from autotune.life import Event, Instruction, next_event, verdict
from autotune.planning import StudyPlan
from autotune.planning.calibration import NodeCalibration
from autotune.planning.guarding import quality_order
from autotune.planning.prior import SAMPLER, completer, prior_of, tried_first
from autotune.records import (
    Config,
    Failure,
    FailureClass,
    LoadLevel,
    LoadPlan,
    Origin,
    Outcome,
    Phase,
    Pick,
    Slo,
    Trial,
    TrialResult,
)
from autotune.search.again import Again, next_again, seed_of
from autotune.search.again import lacking as still_lacking
from autotune.search.asked import asked_lossy, asked_rule, asked_slo
from autotune.search.early import rivals_of
from autotune.search.lessons import is_discouraged, lessons
from autotune.search.pareto import pick
from autotune.search.prior.expectation import Reason
from autotune.search.proposer import Proposer
from autotune.search.reasons import why_line
from autotune.store.folder import StudyFolder
from autotune.store.projection import Projection
from autotune.store.repository import Store
from autotune.store.study_record import StudyRecord, StudyState
from autotune.trial import TrialOrder, TrialRun, run_trial
from autotune.trial_life import TrialLife, forsaken

_SHORT = {Ending.TIME: "time", Ending.GPU_HOURS: "GPU hours"}


class StudyObserver(Protocol):
    """Told what happens, for people to watch; stores nothing and must not block."""

    def trial_started(self, trial: Trial, *, counted: int, target: int, repeats_left: int) -> None:
        """`repeats_left`: launches again that are still to come, this one included, as far as today's pick tells."""
        ...

    def phase(self, phase: Phase, detail: str) -> None: ...

    def trial_ended(self, trial: Trial, trials: Sequence[Trial]) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(slots=True)
class StudyRun:
    """One run of a study in this process.

    Attributes:
        clock: seconds on the engine's clock; durations only.
        sleep: waits between attempts; virtual engines pass one that returns at once.
        calibration: what is known of the node from earlier studies; None where nothing can be.
        hold: on the study's GPUs; taken by `run`, released by whoever made it.
        endings: asks the study to end.
        ending: why it ended.
        gpu_s: seconds times GPUs that its attempts have used, in all runs.
        ended: trials that ended in this run: an earlier one has learnt from the others.
        slo: what the pick must meet; the plan's, or where that leaves it open, the one the study was made with.
    """

    plan: StudyPlan
    study: StudyRecord
    store: Store
    folder: StudyFolder
    engine: Engine
    proposer: Proposer
    projection: Projection
    observer: StudyObserver
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    calibration: NodeCalibration | None = None
    hold: NodeHold = field(default_factory=NodeHold)
    endings: Endings = field(default_factory=Endings)
    ending: Ending = field(init=False, default=Ending.TRIALS)
    gpu_s: float = field(init=False, default=0.0)
    feasible: frozenset[Config] = field(init=False)
    slo: Slo | None = field(init=False)
    began_s: float = field(init=False)
    informed: bool = field(init=False, default=False)
    ended: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.feasible = frozenset(self.plan.feasible)
        self.slo = asked_slo(self.study.spec, self.plan.recipe.slo)
        self.began_s = self.clock()

    async def run(self) -> None:
        """Until the target is reached, no untried config is left, or the time is up.

        Raises:
            StudyFatal: no config can cure what happened; everything so far is kept.
            NodeBusy: somebody else uses the GPUs, for longer than the study waits.
        """
        await self.hold.take()
        self.projection.sync(self.study.name)
        if self.calibration is not None and self.calibration.told is not None:
            self.observer.note(self.calibration.told)
        self.gpu_s = self._stored_gpu_s()
        await self._finish_interrupted()
        while self._counted() < self.study.target_trials:
            if (short := self._short_of(1 + self._repeats_to_come())) is not None:
                self.ending = short
                self.observer.note(
                    f"no {_SHORT[short]} for another config: {self._counted()} of {self.study.target_trials} trials"
                )
                break
            chosen = self._next()
            if chosen is None:
                break
            config, origin, why = chosen
            await self._perform(config, origin, why)
        await self._repeat()
        await self._learn()
        self.store.set_study_state(self.study.name, StudyState.FINISHED)

    async def _learn(self) -> None:
        """Keep what this run's trials say about the node for the next study, now that nothing is measured."""
        if self.calibration is None:
            return
        own = [trial for trial in self._trials() if trial.number in self.ended]
        told = await asyncio.to_thread(self.calibration.learn, own)
        if told is not None:
            self.observer.note(told)

    # --- which config is next ---------------------------------------------------------------------------------------

    def _next(self) -> tuple[Config, Origin, str] | None:
        """What is launched next, and why; None when nothing untried is left."""
        trials = self._trials()
        if not trials:
            return (
                self.plan.baseline,
                Origin.BASELINE,
                why_line(Reason.BASELINE, "everything else is measured against it"),
            )
        tried = {self.plan.effective(trial.config) for trial in trials}
        for place, config in enumerate(tried_first(self.plan)):
            if self.plan.effective(config) not in tried:
                asked = place < len(self.plan.recipe.starting_points)
                text = "asked for by the study" if asked else "what the guide tries first for this model on this node"
                return config, Origin.ENQUEUED, why_line(Reason.RECIPE, text)
        learnt = lessons(trials, self.plan.setting)
        self._inform()
        proposed = self.proposer.proposal(
            trials,
            is_allowed=lambda config: (
                config in self.feasible and self.plan.effective(self.plan.complete(config)) not in tried
            ),
            budget=self.study.target_trials,
            is_discouraged=lambda config: is_discouraged(self.plan.complete(config), learnt),
        )
        if proposed is None:
            self.ending = Ending.SPACE
            self.observer.note("every config of the space that can start here has been tried")
            return None
        if promises_too_little(proposed.gain, self.plan.recipe.min_gain):
            self.ending = Ending.GAIN
            self.observer.note(
                f"no config left is expected to enlarge the front's hypervolume by more than {proposed.gain:.2%}: "
                f"{self._counted()} of {self.study.target_trials} trials"
            )
            return None
        return self.plan.complete(proposed.config), Origin.SAMPLER, why_line(proposed.reason, proposed.why)

    def _inform(self) -> None:
        """Give the sampler its prior, which depends on the load: once, when that has been found."""
        load = self.plan.load_for(self.store.get_load_plan(self.study.name))
        if self.informed or self.plan.recipe.sampler != SAMPLER or load is None:
            return
        self.informed = True
        learnt = None if self.calibration is None else self.calibration.coefficients
        self.proposer.believe(prior_of(self.plan, load, coefficients=learnt), completer(self.plan))

    def _pick(self, trials: Sequence[Trial]) -> Pick | None:
        spec = self.study.spec
        return pick(trials, rule=asked_rule(spec, self.plan.pick_rule), slo=self.slo, lossy=asked_lossy(spec))

    def _trials(self) -> tuple[Trial, ...]:
        return self.store.trials(self.study.name)

    def _counted(self) -> int:
        return sum(trial.counted for trial in self._trials())

    async def _repeat(self) -> None:
        """Launch baseline, pick and those that may belong on the front again, until both are sure or often enough.

        A repeat can change the pick; the new one is repeated as well, on fresh seeds at last, so that no pick rests on
        one lucky launch.
        """
        while (again := self._again()) is not None:
            if (short := self._short_of(1)) is not None:
                self.observer.note(f"no {_SHORT[short]} to launch baseline and pick again as often as asked")
                return
            origin = Origin.VALIDATION if again.fresh else Origin.REPEAT
            why = why_line(Reason.REPEAT, again.why)
            await self._perform(again.original.config, origin, why, repeat_of=again.original.number)

    def _again(self) -> Again | None:
        """The next launch again; where time is short, of baseline and pick only."""
        trials, repeats = self._trials(), self.plan.recipe.repeats
        chosen = self._pick(trials)
        return next_again(
            trials,
            chosen,
            repeats,
            rule=asked_rule(self.study.spec, self.plan.pick_rule),
            slo=self.slo,
            lossy=asked_lossy(self.study.spec),
            spare=self._short_of(1 + still_lacking(trials, chosen, repeats)) is None,
            last=self._short_of(2) is not None,
        )

    def _repeats_left(self) -> int:
        trials = self._trials()
        running = sum(1 for trial in trials if trial.repeat_of is not None and trial.result is None)
        return running + still_lacking(trials, self._pick(trials), self.plan.recipe.repeats)

    def _short_of(self, launches: int) -> Ending | None:
        """What would not suffice for as many further launches; None where all does."""
        spent = Spent(time_s=self.clock() - self.began_s, gpu_s=self.gpu_s)
        return lacking(self._budget, spent, launches, self._trials())

    @property
    def _budget(self) -> Budget:
        return Budget(max_time_s=self.plan.recipe.max_time_s, max_gpu_s=self.plan.recipe.max_gpu_s)

    def _stored_gpu_s(self) -> float:
        name = self.study.name
        return gpu_seconds(
            (trial.gpus, attempt) for trial in self._trials() for attempt in self.store.attempts(name, trial.number)
        )

    def _repeats_to_come(self) -> int:
        """Launches again that today's pick, or another one, will have at the end."""
        if not self._trials():
            return 0
        # The pick may change until then, and the baseline may be the pick: room is kept for both.
        asked = max(self._repeats_left(), 2 * self.plan.recipe.repeats)
        return kept_for_again(self._budget, asked, self._trials())

    # --- one trial --------------------------------------------------------------------------------------------------

    async def _finish_interrupted(self) -> None:
        """Trials that a killed tuner left without an end are launched again under their own number."""
        for trial in self._trials():
            if trial.result is None:
                self.observer.note(f"trial {trial.number} was interrupted and is launched again")
                await self._attempts(trial)

    async def _perform(self, config: Config, origin: Origin, why: str, repeat_of: int | None = None) -> None:
        trial = self.store.begin_trial(
            self.study.name,
            number=len(self._trials()),
            config=config,
            origin=origin,
            gpus=self.plan.gpus_of(config),
            repeat_of=repeat_of,
            why=why,
        )
        await self._attempts(trial)

    async def _attempts(self, trial: Trial) -> None:
        """Launch a trial until it has an end that counts; faults of the environment are retried, boundedly.

        Raises:
            StudyFatal: what no config can cure. The trial stays open: cured, the study goes on with it.
        """
        self.observer.trial_started(
            trial, counted=self._counted(), target=self.study.target_trials, repeats_left=self._repeats_left()
        )
        kept = TrialLife(self.store, self.study.name, trial.number)
        while not kept.done:
            event = next_event(kept.life)
            if event is Event.FORSAKEN:
                result, cancelled = forsaken(self.engine.clock, simulated=self.study.simulated), False
            else:
                run = await self._attempt(trial, kept)
                result, cancelled = run.result, run.cancelled
                event = self._verdict(kept, result)
            left, finished = kept.end(event, result)
            if finished is not None:
                self._tell(finished)
            if cancelled or self.endings.asked:
                raise asyncio.CancelledError
            await self._perform_left(left, kept, trial, result.failure)

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
                await self.sleep(kept.life.pause_s(self.plan.recipe.retry_pause_s))

    def _tell(self, finished: Trial) -> None:
        self.ended.add(finished.number)
        self.projection.sync(self.study.name)
        self.observer.trial_ended(finished, self._trials())

    async def _attempt(self, trial: Trial, kept: TrialLife) -> TrialRun:
        name, recipe = self.study.name, self.plan.recipe
        directory = self.folder.attempt(trial.number, kept.attempt + 1)
        kept.begin(directory)
        load = self.plan.load_for(self.store.get_load_plan(name))
        order = TrialOrder(
            number=trial.number,
            launch=LaunchPlan(
                model=self.plan.model_of(trial.config),
                config=trial.config,
                gpu_indices=self.plan.lease(trial.gpus),
                extra_args=recipe.extra_args,
                directory=directory,
                start_deadline_s=recipe.start_deadline_s,
                stall_deadline_s=recipe.stall_deadline_s,
                trial=trial.number,
            ),
            workload=self.plan.workload,
            load=load,
            fixed_load=self.plan.fixed_load,
            gpus=max(1, trial.gpus),
            seed=seed_of(self._trials(), trial, recipe.seed),
            level_deadline_s=recipe.level_deadline_s,
            slo=self.slo,
            objective=recipe.objective,
            rivals=rivals_of(trial, self._trials(), recipe.abandon, self.slo),
            quality=quality_order(self.plan, self._trials(), trial),
        )
        recorder = _Recorder(run=self, number=trial.number, kept=kept)
        begun_s = self.clock()
        try:
            await self.hold.prove_free(order.launch.gpu_indices)
            run = await run_trial(self.engine, order, clock=self.clock, observer=recorder)
        except (asyncio.CancelledError, AutotuneError) as error:
            with contextlib.suppress(StorageError):  # where the store is what failed, the next run marks the attempt
                kept.cut_off(Event.REFUSED if isinstance(error, StudyFatal | VllmCommandError) else Event.INTERRUPTED)
            raise
        finally:
            self.gpu_s += trial.gpus * (self.clock() - begun_s)
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

    run: StudyRun
    number: int
    kept: TrialLife
    _phase: Phase = Phase.WAITING

    def phase(self, phase: Phase, elapsed_s: float) -> None:
        self._phase = phase
        self.run.endings.entered(self.number, phase)
        self.kept.enter(phase, elapsed_s, self.run.engine.clock)
        self.run.observer.phase(phase, "")

    def identity(self, identity: ServerIdentity) -> None:
        self.run.store.record_identity(self.run.study.name, self.number, self.kept.attempt, identity)

    def milestone(self, milestone: Milestone) -> None:
        self.run.observer.phase(self._phase, milestone.name)

    def level(self, level: LoadLevel) -> None:
        self.run.observer.phase(self._phase, level.name)


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
