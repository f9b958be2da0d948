"""The shell of a study: ask for a config, perform the trial, store how it ended, tell the sampler, again.

Everything is on disk the moment it happens. A study that was killed at any moment goes on with the same command:
finished trials stay, the attempt that was running is stopped (if anything of it is left) and launched again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from autotune.budget import Budget, Ending, Spent, gpu_seconds, kept_for_again, lacking, promises_too_little
from autotune.endings import Endings
from autotune.engine.base import LaunchPlan, Milestone, ServerIdentity
from autotune.engine.compile_cache import is_cured
from autotune.errors import AutotuneError, StorageError, StudyFatal, StudyMismatch, VllmCommandError
from autotune.executor.base import Assignment, Executor
from autotune.life import Event, Instruction, next_event, verdict
from autotune.planning import StudyPlan
from autotune.planning.calibration import NodeCalibration
from autotune.planning.guarding import quality_order
from autotune.planning.prior import SAMPLER, completer, prior_of, tried_first, why_tried
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
from autotune.search.again import Again, next_again, salt_of, seed_of
from autotune.search.again import lacking as still_lacking
from autotune.search.asked import asked_lossy, asked_rule, asked_slo
from autotune.search.early import rivals_of
from autotune.search.finalists import next_finalist
from autotune.search.lessons import is_discouraged, lessons
from autotune.search.pareto import pick
from autotune.search.prior.expectation import Reason
from autotune.search.proposer import Proposer
from autotune.search.reasons import why_line
from autotune.store.folder import StudyFolder
from autotune.store.projection import Projection
from autotune.store.repository import Store
from autotune.store.study_record import StudyRecord, StudyState
from autotune.study_parallel import SHARED, Choice, ParallelSearch, Place, with_company, with_interference
from autotune.time_limit import launch_s
from autotune.trial import TrialOrder, TrialRun
from autotune.trial_life import TrialLife, forsaken

_SHORT = {Ending.TIME: "time", Ending.GPU_HOURS: "GPU hours"}
_TOLD = {
    Ending.TIME: "no time for another config",
    Ending.GPU_HOURS: "no GPU hours for another config",
    Ending.SPACE: "every config of the space that can start here has been tried",
}


class StudyObserver(Protocol):
    """Told what happens, for people to watch; stores nothing and must not block."""

    def trial_started(self, trial: Trial, *, counted: int, target: int, repeats_left: int) -> None:
        """`repeats_left`: launches again that are still to come, this one included, as far as today's pick tells."""
        ...

    def phase(self, phase: Phase, detail: str, *, number: int) -> None:
        """`number`: of the trial; several may run at once."""
        ...

    def trial_ended(self, trial: Trial, trials: Sequence[Trial]) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(slots=True)
class StudyRun:
    """One run of a study in this process.

    Attributes:
        executor: performs its attempts; closed by whoever made it.
        calibration: what is known of the node from earlier studies; None where nothing can be.
        places: of the trials that run beside others, by number.
        endings: asks the study to end.
        ending: why it ended.
        gain_left: what the sampler expected of its last proposal, as a share of the front's hypervolume.
        gpu_s: seconds times GPUs that its attempts have used, in all runs.
        ended: trials that ended in this run: an earlier one has learnt from the others.
        slo: what the pick must meet; the plan's, or where that leaves it open, the one the study was made with.
    """

    plan: StudyPlan
    study: StudyRecord
    store: Store
    folder: StudyFolder
    executor: Executor
    proposer: Proposer
    projection: Projection
    observer: StudyObserver
    calibration: NodeCalibration | None = None
    places: dict[int, Place] = field(init=False, default_factory=dict)
    endings: Endings = field(default_factory=Endings)
    ending: Ending = field(init=False, default=Ending.TRIALS)
    gain_left: float = field(init=False, default=0.0)
    gpu_s: float = field(init=False, default=0.0)
    feasible: frozenset[Config] = field(init=False)
    slo: Slo | None = field(init=False)
    began_s: float = field(init=False)
    informed: bool = field(init=False, default=False)
    ended: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.feasible = frozenset(self.plan.feasible)
        self.slo = asked_slo(self.study.spec, self.plan.recipe.slo)
        self.began_s = self.executor.now()

    async def run(self) -> None:
        """Until the target is reached, no untried config is left, or the time is up.

        Raises:
            StudyFatal: no config can cure what happened; everything so far is kept.
            NodeBusy: somebody else uses the GPUs, for longer than the study waits.
        """
        await self.executor.take()
        self.projection.sync(self.study.name)
        if self.calibration is not None and self.calibration.told is not None:
            self.observer.note(self.calibration.told)
        self.gpu_s = self._stored_gpu_s()
        await self._search(await self._finish_interrupted())
        await self._repeat()
        await self._learn()
        self.store.set_study_state(self.study.name, StudyState.FINISHED)

    async def _search(self, interrupted: Sequence[Trial]) -> None:
        """Config after config; beside each other where the node is shared, from when on the load is known.

        Args:
            interrupted: trials to be done first, beside each other.
        """
        while interrupted or self.may_begin():
            if self._is_shared():
                await ParallelSearch(self.plan, self.executor.floor, self, interrupted).run()
                break
            choice = self.choose(lambda _: True)
            if choice is None:
                break
            await self._attempts(self.begin(choice))
        if self._counted() >= self.study.target_trials:
            self.ending = Ending.TRIALS
        else:
            told = _TOLD.get(self.ending) or (
                f"no config left is expected to enlarge the front's hypervolume by more than {self.gain_left:.2%}"
            )
            self.observer.note(f"{told}: {self._counted()} of {self.study.target_trials} trials")

    def _is_shared(self) -> bool:
        """Whether trials may run beside each other now: the baseline, which finds the load, is measured alone."""
        load = self.plan.load_for(self.store.get_load_plan(self.study.name))
        trials = self.trials()
        return self.executor.floor.most > 1 and load is not None and bool(trials) and trials[0].result is not None

    async def _learn(self) -> None:
        """Keep what this run's trials say about the node for the next study, now that nothing is measured."""
        if self.calibration is None:
            return
        own = [trial for trial in self.trials() if trial.number in self.ended]
        told = await asyncio.to_thread(self.calibration.learn, own)
        if told is not None:
            self.observer.note(told)

    # --- which config is next ---------------------------------------------------------------------------------------

    def may_begin(self) -> bool:
        """Whether one more trial may begin beside those that run."""
        running = [one for one in self.trials() if one.result is None]
        begun = self._counted() + sum(one.repeat_of is None for one in running)
        if self.endings.asked or begun >= self.study.target_trials:
            return False
        short = self._short_of(1 + self._repeats_to_come(), beside=running)
        if short is not None:
            self.ending = short
        return short is None

    def choose(self, fits: Callable[[Config], bool]) -> Choice | None:
        """What is launched next, and why; None when nothing untried is left that `fits` and promises enough."""
        trials = self.trials()
        if not trials:
            why = why_line(Reason.BASELINE, "everything else is measured against it")
            return Choice(config=self.plan.baseline, origin=Origin.BASELINE, why=why)
        tried = {self.plan.effective(trial.config) for trial in trials}
        for config in tried_first(self.plan):
            if self.plan.effective(config) not in tried and fits(config):
                why = why_line(Reason.RECIPE, why_tried(self.plan, config))
                return Choice(config=config, origin=Origin.ENQUEUED, why=why)
        learnt = lessons(trials, self.plan.setting)
        self._inform()

        def is_allowed(config: Config) -> bool:
            whole = self.plan.complete(config)
            return config in self.feasible and self.plan.effective(whole) not in tried and fits(whole)

        proposed = self.proposer.proposal(
            trials,
            is_allowed=is_allowed,
            budget=self.study.target_trials,
            is_discouraged=lambda config: is_discouraged(self.plan.complete(config), learnt),
        )
        if proposed is None:
            self.ending = Ending.SPACE
            return None
        if promises_too_little(proposed.gain, self.plan.recipe.min_gain):
            self.ending, self.gain_left = Ending.GAIN, proposed.gain or 0.0
            return None
        why = why_line(proposed.reason, proposed.why)
        return Choice(config=self.plan.complete(proposed.config), origin=Origin.SAMPLER, why=why)

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

    def trials(self) -> tuple[Trial, ...]:
        """All so far, those that run included."""
        return self.store.trials(self.study.name)

    def _counted(self) -> int:
        return sum(trial.counted for trial in self.trials())

    async def _repeat(self) -> None:
        """Launch baseline, pick and those that may belong on the front again, until both are sure or often enough.

        A repeat can change the pick; the new one is repeated as well, on fresh seeds at last, so that no pick rests on
        one lucky launch. Before that, what the front has of trials beside others is measured alone.
        """
        while (finalist := next_finalist(self.trials(), self._pick(self.trials()))) is not None:
            if (short := self._short_of(1)) is not None:
                self.observer.note(f"no {_SHORT[short]} to measure all of the front alone; some was beside others only")
                return
            why = why_line(Reason.REPEAT, f"trial {finalist.number} alone: it was measured beside others")
            await self._launch_again(finalist, Origin.REPEAT, why)
        while (again := self._again()) is not None:
            if (short := self._short_of(1)) is not None:
                self.observer.note(f"no {_SHORT[short]} to launch baseline and pick again as often as asked")
                return
            origin = Origin.VALIDATION if again.fresh else Origin.REPEAT
            why = why_line(Reason.REPEAT, again.why)
            await self._launch_again(again.original, origin, why)

    async def _launch_again(self, original: Trial, origin: Origin, why: str) -> None:
        again = Choice(config=original.config, origin=origin, why=why, repeat_of=original.number)
        await self._attempts(self.begin(again))

    def _again(self) -> Again | None:
        """The next launch again; where time is short, of baseline and pick only."""
        trials, repeats = self.trials(), self.plan.recipe.repeats
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
        trials = self.trials()
        running = sum(one.result is None and one.repeat_of is not None and one.origin not in SHARED for one in trials)
        return running + still_lacking(trials, self._pick(trials), self.plan.recipe.repeats)

    def _short_of(self, launches: int, beside: Sequence[Trial] = ()) -> Ending | None:
        """What would not suffice for as many further launches; None where all does.

        Args:
            beside: trials that run, whose GPU time is as good as spent.
        """
        trials = self.trials()
        running_gpu_s = sum(one.gpus for one in beside) * (launch_s(trials) or 0.0)
        spent = Spent(time_s=self.executor.now() - self.began_s, gpu_s=self.gpu_s + running_gpu_s)
        return lacking(self._budget, spent, launches, trials)

    @property
    def _budget(self) -> Budget:
        return Budget(max_time_s=self.plan.recipe.max_time_s, max_gpu_s=self.plan.recipe.max_gpu_s)

    def _stored_gpu_s(self) -> float:
        name = self.study.name
        return gpu_seconds(
            (trial.gpus, attempt) for trial in self.trials() for attempt in self.store.attempts(name, trial.number)
        )

    def _repeats_to_come(self) -> int:
        """Launches again that today's pick, or another one, will have at the end."""
        if not self.trials():
            return 0
        # The pick may change until then, and the baseline may be the pick: room is kept for both.
        asked = max(self._repeats_left(), 2 * self.plan.recipe.repeats)
        return kept_for_again(self._budget, asked, self.trials())

    # --- one trial --------------------------------------------------------------------------------------------------

    async def _finish_interrupted(self) -> tuple[Trial, ...]:
        """Trials that a killed tuner left without an end are launched again under their own number.

        Returns:
            Those that are left to be done beside each other, as they were begun.
        """
        beside = []
        for trial in self.trials():
            if trial.result is None:
                self.observer.note(f"trial {trial.number} was interrupted and is launched again")
                if trial.origin in SHARED and self._is_shared():
                    beside.append(trial)
                else:
                    await self._attempts(trial)
        return tuple(beside)

    def begin(self, choice: Choice) -> Trial:
        """Put a trial on record."""
        return self.store.begin_trial(
            self.study.name,
            number=len(self.trials()),
            config=choice.config,
            origin=choice.origin,
            gpus=self.plan.gpus_of(choice.config),
            repeat_of=choice.repeat_of,
            why=choice.why,
        )

    async def perform(self, trial: Trial, place: Place) -> None:
        """Do a trial to its end, beside others."""
        self.places[trial.number] = place
        try:
            await self._attempts(trial)
        finally:
            del self.places[trial.number]

    def _place(self, trial: Trial) -> Place:
        """Where a trial runs: its place beside others, or a whole node."""
        found = self.places.get(trial.number)
        return found or Place(seat=self.executor.floor.seats.whole(self.plan.demand_of(trial.config)))

    def _host(self, trial: Trial) -> str | None:
        """The machine that a trial should run on: launches again go where the baseline was measured, so that baseline
        and pick have launches of their own on one machine."""
        first = self.trials()[0]
        return None if trial.origin in SHARED or first.result is None else first.result.host

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
            proven=any(trial.measured for trial in self.trials()),
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

    def _tell(self, finished: Trial) -> None:
        self.ended.add(finished.number)
        self.projection.sync(self.study.name)
        self.observer.trial_ended(finished, self.trials())

    async def _attempt(self, trial: Trial, kept: TrialLife) -> TrialRun:
        name, recipe = self.study.name, self.plan.recipe
        directory = self.folder.attempt(trial.number, kept.attempt + 1)
        kept.begin(directory)
        load = self.plan.load_for(self.store.get_load_plan(name))
        place, trials = self._place(trial), self.trials()
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
            rivals=rivals_of(trial, against, recipe.abandon, self.slo),
            quality=quality_order(self.plan, trials, trial),
        )
        recorder = _Recorder(run=self, number=trial.number, kept=kept)
        self.endings.entered(trial.number, Phase.WAITING)
        try:
            seat = None if place.company is None else place.seat
            assignment = Assignment(trial=trial.number, order=order, host=self._host(trial), seat=seat)
            run = await self.executor.perform(assignment, recorder)
            found = with_company(run.result, place.company)
            run = replace(run, result=with_interference(self.trials(), trial, found))
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
        facts = (trial.result.facts for trial in self.trials() if trial.result)
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
