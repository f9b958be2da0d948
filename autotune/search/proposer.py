"""Which config to try next.

A proposal is a pure function of the study's seed, its space and its history: a fresh in-memory Optuna study is made
from the history for every proposal, and its sampler is seeded by (seed, number of the next trial). So a study that was
killed and resumed proposes exactly what an uninterrupted one would have, and nothing has to be saved.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.records import Config, Outcome, Slo, Trial
from autotune.search.noise import run_noise
from autotune.search.objective import Point, is_goodput, points, violations
from autotune.search.pareto import REFERENCE_THROUGHPUT_SHARE, REFERENCE_TTFT_FACTOR
from autotune.search.prior.candidates import Candidates
from autotune.search.prior.evidence import shown_until_abandoned
from autotune.search.prior.expectation import Floats, Prior, Proposal, Reason
from autotune.search.prior.propose import propose
from autotune.search.samplers import Dial, check_sampler, derived_seed, halton, make_sampler, shuffled, suggested
from autotune.search.space import SearchSpace

ASKS = 48
"""Proposals of the sampler that may be known or refused before a seeded draw decides; each costs milliseconds."""

ASKS_GP = 4
"""The same for the Gaussian process, which takes seconds each."""

STARTUP = (4, 10)
"""Random trials before a model takes over: a quarter of the budget within these bounds."""

POPULATION = (4, 50)
"""NSGA-II's population: a sixth of the budget within these bounds, so that a few generations are bred."""

LISTABLE = 200_000
"""Spaces up to this size are listed for a draw; larger ones are drawn from parameter by parameter first."""

MAX_INFEASIBLE_PER_MEASURED = 9
"""TPE calls the best tenth of all it knows good, infeasible ones included. Were more than nine tenths infeasible, some
of them would stand among the good and be proposed for it."""

_CONSTRAINT = "infeasible"
_DIRECTIONS = (StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lesson:
    """One config that the sampler is told about: values None for one that is running, or was abandoned before it showed
    both.

    Attributes:
        violations: of each constraint, above 0 where it is not kept; all at most 0 for a good config.
    """

    config: Config
    state: TrialState
    values: tuple[float, float] | None
    violations: Mapping[str, float] | None


class Proposer:
    """Proposes configs of one space by one sampler."""

    def __init__(
        self,
        space: SearchSpace,
        sampler_name: str,
        seed: int,
        prior: Prior | None = None,
        *,
        configs: Iterable[Config] | None = None,
        complete: Callable[[Config], Config] = lambda config: config,
        limits: Slo | None = None,
        gpus_of: Callable[[Config], int] | None = None,
    ) -> None:
        """Args:
            sampler_name: one of `SAMPLERS`.
            prior: what is believed before any trial; only the sampler `prior` asks it, and does without.
            configs: those of the space that the rules allow, for the same sampler; the whole space where not given.
            complete: fills in what vLLM takes for parameters that a config lacks, so that the baseline teaches.
            limits: what a config has to keep to; each is a constraint of its own for Optuna's samplers.
            gpus_of: GPUs that a config uses, where they are what is scarce: the sampler `prior` then weighs what a
                config gains by the minutes of GPUs that it takes. None where a launch has the node to itself.

        Raises:
            InvalidOption: an unknown sampler, or one whose libraries are missing.
        """
        self.space = space
        self.sampler_name = check_sampler(sampler_name)
        self.seed = seed
        self._prior, self._given, self._complete = prior, configs, complete
        self._limits, self._gpus_of = limits, gpus_of
        self._gpus: Floats | None = None
        self._candidates: Candidates | None = None
        self._dials = tuple(Dial.of(parameter) for parameter in space.parameters)
        self._names = {parameter.name for parameter in space.parameters}
        self._conditional = space.conditional
        self._size = space.size
        self._listed: list[Config] | None = None
        optuna.logging.set_verbosity(optuna.logging.WARNING)

    def propose(
        self,
        history: Sequence[Trial],
        is_allowed: Callable[[Config], bool] = lambda _: True,
        budget: int | None = None,
        is_discouraged: Callable[[Config], bool] = lambda _: False,
    ) -> Config | None:
        """A config of the space that was not tried yet; None when none is left.

        Args:
            history: all trials so far, running ones included. Their configs may hold more than the space's parameters.
            is_allowed: the rules; asked about each candidate. What they refuse is forgotten afterwards.
            budget: trials the study is meant to have; sets how many of them are random.
            is_discouraged: what is proposed only when nothing else is found; see `search.lessons`.
        """
        proposal = self.proposal(history, is_allowed, budget, is_discouraged)
        return None if proposal is None else proposal.config

    def believe(self, prior: Prior | None, complete: Callable[[Config], Config]) -> None:
        """What is expected of configs, once the load is known that they are measured under.

        Args:
            complete: as in `__init__`.
        """
        self._prior, self._complete, self._candidates = prior, complete, None

    def proposal(
        self,
        history: Sequence[Trial],
        is_allowed: Callable[[Config], bool] = lambda _: True,
        budget: int | None = None,
        is_discouraged: Callable[[Config], bool] = lambda _: False,
    ) -> Proposal | None:
        """As `propose`, with the reason in one line."""
        if self.sampler_name == "prior":
            return self._weigh(history, is_allowed, is_discouraged)
        tried = {self._key(trial.config) for trial in history}

        def allowed(config: Config) -> bool:
            return self._key(config) not in tried and is_allowed(config)

        def preferred(config: Config) -> bool:
            return allowed(config) and not is_discouraged(config)

        found = self._propose(history, tried, preferred, budget) or self._propose(history, tried, allowed, budget)
        why = f"proposed by the sampler {self.sampler_name}"
        return None if found is None else Proposal(config=found, reason=Reason.SAMPLER, why=why)

    def _weigh(
        self,
        history: Sequence[Trial],
        is_allowed: Callable[[Config], bool],
        is_discouraged: Callable[[Config], bool],
    ) -> Proposal | None:
        """What `search.prior` proposes; the list of configs and the prior's own figures are kept between proposals."""
        if self._candidates is None:
            self._candidates = Candidates.of(self.space, self._prior, self._given, self.seed)
            if self._gpus_of is not None:
                self._gpus = np.array([float(self._gpus_of(one)) for one in self._candidates.configs])
        number = max((trial.number for trial in history), default=-1) + 1
        return propose(
            history,
            self.space,
            self._prior,
            np.random.default_rng([self.seed, number]),
            candidates=self._candidates,
            is_allowed=is_allowed,
            is_discouraged=is_discouraged,
            complete=self._complete,
            limits=self._limits,
            gpus=self._gpus,
        )

    def _propose(
        self, history: Sequence[Trial], tried: set[str], fresh: Callable[[Config], bool], budget: int | None
    ) -> Config | None:
        number = max((trial.number for trial in history), default=-1) + 1
        found: Config | None = None
        if self.sampler_name == "qmc":
            sequence = halton(self.space, self.seed, 64 + 16 * (len(tried) + 1))
            found = next((config for config in sequence if fresh(config)), None)
        elif self.sampler_name == "grid" and self._size <= LISTABLE:
            return next((config for config in self._configs() if fresh(config)), None)
        elif self.sampler_name != "grid":
            found = self._ask(number, history, tried, fresh, budget)
        return found if found is not None else self._draw(number, fresh)

    # What the sampler is told

    def _lessons(self, history: Sequence[Trial]) -> list[_Lesson]:
        """What there is to learn from trials, oldest first; each config once.

        Faulted trials teach nothing: the environment was bad, not the config. A config that lacks a parameter of the
        space (vLLM's own defaults as the baseline) is left out: samplers that model parameters jointly would drop every
        parameter it lacks.
        """
        measured = {point.config_hash: point for point in points(history)}
        worst = self._worst(history)
        good: list[tuple[int, _Lesson]] = []
        bad: list[tuple[int, _Lesson]] = []
        told: set[str] = set()
        for trial in history:
            config, key = self._projected(trial.config), self._key(trial.config)
            if config is None or key in told:
                continue
            if trial.config.hash in measured:
                values = measured[trial.config.hash].logs
                kept = {_CONSTRAINT: 0.0, **self._violations(measured[trial.config.hash], history)}
                lesson = _Lesson(config=config, state=TrialState.COMPLETE, values=values, violations=kept)
                good.append((trial.number, lesson))
            elif trial.result is None:
                good.append(
                    (trial.number, _Lesson(config=config, state=TrialState.RUNNING, values=None, violations=None))
                )
            elif trial.result.outcome is Outcome.ABANDONED:
                good.append((trial.number, self._abandoned(trial, config, history)))
            elif trial.result.outcome is Outcome.INFEASIBLE:
                bad.append((trial.number, self._infeasible(config, worst)))
            else:
                continue
            told.add(key)
        complete = sum(1 for _, lesson in good if lesson.state is TrialState.COMPLETE)
        bad = bad[-MAX_INFEASIBLE_PER_MEASURED * complete :] if complete else []
        return [lesson for _, lesson in sorted([*good, *bad], key=lambda pair: pair[0])]

    def _abandoned(self, trial: Trial, config: Config, history: Sequence[Trial]) -> _Lesson:
        """What a trial showed until it was abandoned counts as measured: its rival beats it in both."""
        shown = None if is_goodput(history) else shown_until_abandoned(trial, run_noise(history))
        if shown is None:
            return _Lesson(config=config, state=TrialState.PRUNED, values=None, violations=None)
        limits = self._limits.limits if self._limits else ()
        kept = {_CONSTRAINT: 0.0, **{limit.metric.value: 0.0 for limit in limits}}
        return _Lesson(config=config, state=TrialState.COMPLETE, values=shown[0], violations=kept)

    @property
    def _cannot_start(self) -> dict[str, float]:
        """Constraints of a config without figures: the Gaussian process wants all of them, and 0 takes no side."""
        limits = self._limits.limits if self._limits else ()
        return {_CONSTRAINT: 1.0, **{limit.metric.value: 0.0 for limit in limits}}

    def _infeasible(self, config: Config, worst: tuple[float, float]) -> _Lesson:
        """A config that cannot start, with values for samplers that do not look at constraints."""
        return _Lesson(config=config, state=TrialState.COMPLETE, values=worst, violations=self._cannot_start)

    def _violations(self, point: Point, history: Sequence[Trial]) -> dict[str, float]:
        return {} if self._limits is None else violations(point, history, self._limits)

    def _worst(self, history: Sequence[Trial]) -> tuple[float, float]:
        """Log objectives for infeasible configs: worse than the baseline, and never seen outside this study."""
        measured = [trial.objectives for trial in history if trial.objectives is not None]
        if not measured:
            return math.log(REFERENCE_THROUGHPUT_SHARE), math.log(REFERENCE_TTFT_FACTOR)
        throughput, ttft = measured[0]
        return (
            math.log(throughput.value * REFERENCE_THROUGHPUT_SHARE),
            math.log(ttft.value * REFERENCE_TTFT_FACTOR),
        )

    def _projected(self, config: Config) -> Config | None:
        """The config of the space inside `config`; None when it lacks a parameter or holds another value."""
        inside = Config.of({name: value for name, value in config if name in self._names})
        return inside if self.space.contains(inside) else None

    def _key(self, config: Config) -> str:
        """What makes two configs the same trial: the hash over the space's own parameters."""
        return Config.of({name: value for name, value in config if name in self._names}).hash

    # Asking Optuna

    def _ask(
        self,
        number: int,
        history: Sequence[Trial],
        tried: set[str],
        fresh: Callable[[Config], bool],
        budget: int | None,
    ) -> Config | None:
        lessons = self._lessons(history)
        startup = _within(STARTUP, budget, 4)
        learning = sum(1 for lesson in lessons if lesson.state is not TrialState.RUNNING) >= startup
        # Without one measured trial a model would call the first infeasible config good, for want of a better one.
        some_good = any(lesson.violations and lesson.violations[_CONSTRAINT] == 0.0 for lesson in lessons)
        sampler = make_sampler(
            self.sampler_name if some_good else "random",
            seed=derived_seed(self.seed, number),
            conditional=self._conditional,
            startup=startup,
            population=_within(POPULATION, budget, 6),
        )
        study = optuna.create_study(directions=_DIRECTIONS, sampler=sampler)
        for lesson in lessons:
            self._teach(study, sampler, lesson)
        worst = self._worst(history)
        for _ in range(ASKS_GP if self.sampler_name == "gp" and learning else ASKS):
            trial = study.ask()
            config = suggested(self.space, self._dials, trial)
            if fresh(config):
                return config
            if self._key(config) in tried or not learning:
                # A config that was tried stays RUNNING here, which makes TPE look elsewhere for the next one.
                continue
            for name, violation in self._cannot_start.items():
                trial.set_constraint(name, violation)
            study.tell(trial, worst)
        return None

    def _teach(self, study: optuna.Study, sampler: optuna.samplers.BaseSampler, lesson: _Lesson) -> None:
        if not isinstance(sampler, optuna.samplers.NSGAIISampler) or lesson.state is not TrialState.COMPLETE:
            study.add_trial(self._frozen(lesson))
            return
        # NSGA-II numbers generations while trials run, so each one has to run for a moment.
        study.add_trial(self._frozen(replace(lesson, state=TrialState.RUNNING, values=None)))
        running = study.get_trials(deepcopy=False)[-1]
        sampler.get_trial_generation(study, running)
        study.tell(running.number, lesson.values)

    def _frozen(self, lesson: _Lesson) -> FrozenTrial:
        config = lesson.config.as_dict()
        active = [dial for dial in self._dials if dial.parameter.name in config and len(dial.order) > 1]
        return optuna.trial.create_trial(
            state=lesson.state,
            values=lesson.values,
            params={dial.parameter.name: dial.index(config[dial.parameter.name]) for dial in active},
            distributions={dial.parameter.name: dial.distribution for dial in active},
            constraints=None if lesson.violations is None else dict(lesson.violations),
        )

    # Without a model

    def _draw(self, number: int, fresh: Callable[[Config], bool]) -> Config | None:
        """A seeded, uniform choice of what is left; None when nothing is."""
        rng = random.Random(derived_seed(self.seed, number, "draw"))
        if self._size > LISTABLE:
            for _ in range(20 * ASKS):
                drawn = {parameter.name: rng.choice(parameter.choices) for parameter in self.space.parameters}
                config = self.space.canonical(drawn)
                if fresh(config):
                    return config
            return next((config for config in self.space if fresh(config)), None)
        # The first that passes of a shuffled list is a uniform choice, and asks the rules no more often than needed.
        configs = list(self._configs())
        rng.shuffle(configs)
        return next((config for config in configs if fresh(config)), None)

    def _configs(self) -> list[Config]:
        if self._listed is None:
            self._listed = shuffled(self.space, self.seed)
        return self._listed


def _within(bounds: tuple[int, int], budget: int | None, parts: int) -> int:
    low, high = bounds
    return high if budget is None else max(low, min(high, budget // parts))
