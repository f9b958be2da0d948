"""The shell of a study: ask for a config, perform the trial, store how it ended, tell the sampler, again.

Everything is on disk the moment it happens. A study that was killed at any moment goes on with the same command:
finished trials stay, the attempt that was running is stopped (if anything of it is left) and launched again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autotune.budget import Budget, Ending, Spent, gpu_seconds, kept_for_again, lacking, promises_too_little
from autotune.endings import Endings
from autotune.executor.base import Executor
from autotune.planning import StudyPlan
from autotune.planning.calibration import NodeCalibration
from autotune.planning.prior import SAMPLER, completer, prior_of, tried_first, why_tried
from autotune.records import (
    Config,
    Origin,
    Pick,
    Slo,
    Trial,
)
from autotune.search.again import Again, next_again
from autotune.search.again import lacking as still_lacking
from autotune.search.asked import asked_lossy, asked_rule, asked_slo
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
from autotune.study_attempts import Attempts, StudyObserver
from autotune.study_parallel import SHARED, Choice, ParallelSearch, Place
from autotune.time_limit import launch_s
from autotune.units import plural

_SHORT = {Ending.TIME: "time", Ending.GPU_HOURS: "GPU hours"}
_TOLD = {
    Ending.TIME: "no time for another config",
    Ending.GPU_HOURS: "no GPU hours for another config",
    Ending.SPACE: "every config of the space that can start here has been tried",
}


@dataclass(slots=True)
class StudyRun:
    """One run of a study in this process.

    Attributes:
        executor: performs its attempts; closed by whoever made it.
        calibration: what is known of the node from earlier studies; None where nothing can be.
        endings: asks the study to end.
        ending: why it ended.
        gain_left: what the sampler expected of its last proposal, as a share of the front's hypervolume.
        attempts: does its trials.
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
    endings: Endings = field(default_factory=Endings)
    ending: Ending = field(init=False, default=Ending.TRIALS)
    gain_left: float = field(init=False, default=0.0)
    feasible: frozenset[Config] = field(init=False)
    slo: Slo | None = field(init=False)
    attempts: Attempts = field(init=False)
    began_s: float = field(init=False)
    informed: bool = field(init=False, default=False)
    ended: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.feasible = frozenset(self.plan.feasible)
        self.slo = asked_slo(self.study.spec, self.plan.recipe.slo)
        self.began_s = self.executor.now()
        self.attempts = Attempts(
            plan=self.plan,
            study=self.study,
            store=self.store,
            folder=self.folder,
            executor=self.executor,
            observer=self.observer,
            endings=self.endings,
            slo=self.slo,
            told=self._tell,
        )

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
        self.attempts.gpu_s = self._stored_gpu_s()
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
            self.observer.note(f"{told}: {self._counted()} of {plural(self.study.target_trials, 'trial')}")

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
        spent = Spent(time_s=self.executor.now() - self.began_s, gpu_s=self.attempts.gpu_s + running_gpu_s)
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
        self._show(trial)
        await self.attempts.beside(trial, place)

    async def _attempts(self, trial: Trial) -> None:
        """Do a trial to its end, alone."""
        self._show(trial)
        await self.attempts.alone(trial)

    def _show(self, trial: Trial) -> None:
        self.observer.trial_started(
            trial, counted=self._counted(), target=self.study.target_trials, repeats_left=self._repeats_left()
        )

    def _tell(self, finished: Trial) -> None:
        self.ended.add(finished.number)
        self.projection.sync(self.study.name)
        self.observer.trial_ended(finished, self.trials())
