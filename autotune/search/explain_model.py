"""What a study's own surrogate believes once the study is over: asked for an explanation instead of a proposal. Pure.

The parts are the sampler's (`search.prior`): its candidates, its prior refitted to what was measured, its processes on
what the prior misses. Configs that end up as the same server are one here, whatever their flags say, so that launches
of both count as repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.records import Config, Trial
from autotune.search.parameter import value_key
from autotune.search.prior.candidates import Candidates, unknown_expectation
from autotune.search.prior.evidence import observations
from autotune.search.prior.expectation import THROUGHPUT, TTFT, Expectation, Floats, Observation, Prior
from autotune.search.prior.feasibility import probabilities
from autotune.search.prior.surrogate import Surrogate, learn
from autotune.search.space import SearchSpace

OBJECTIVES = (THROUGHPUT, TTFT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A study as an explanation needs it.

    Attributes:
        configs: those of the space that the rules allow.
        prior: what its sampler believed; None for an unknown model or GPU.
        complete: fills in what vLLM takes for parameters of the space that a config lacks.
        same: equal for configs that end up as the same server. Configs come with the flags of every launch, or
            without: it knows them.
        refusal: why a rule refuses a config; None where none does.
        seed: the study's.
    """

    space: SearchSpace
    configs: tuple[Config, ...]
    prior: Prior | None = None
    complete: Callable[[Config], Config] = lambda config: config
    same: Callable[[Config], str] = lambda config: config.hash
    refusal: Callable[[Config], str | None] = lambda _: None
    seed: int = 0

    def inside(self, config: Config) -> Config:
        """The part of a config that the space speaks of, with what it lacks filled in."""
        names = {parameter.name for parameter in self.space.parameters}
        return Config.of({name: value for name, value in self.complete(config) if name in names})


@dataclass(frozen=True, slots=True)
class Beliefs:
    """Everything believed at the end of a study.

    Attributes:
        seen: one observation for each server that was launched, the baseline's first.
        launched: numbers of the trials by the server they ended up as, in order.
        surrogates: of throughput and TTFT, in natural logarithms.
        expected: of every candidate, by the refitted prior.
        codes: for each candidate and parameter of the space the place of its value, -1 where it has none.
    """

    question: Question
    listed: Candidates
    prior: Prior | None
    seen: tuple[Observation, ...]
    launched: dict[str, tuple[int, ...]] = field(repr=False)
    surrogates: tuple[Surrogate, Surrogate]
    expected: Expectation = field(repr=False)
    codes: np.ndarray = field(repr=False)

    @property
    def measured(self) -> int:
        """Servers with figures."""
        return sum(one.logs is not None for one in self.seen)

    @property
    def contradicted(self) -> tuple[str, ...]:
        """Objectives of which the prior's word is not used, because trials contradict it."""
        words = ("throughput", "TTFT")
        return tuple(
            word for word, one in zip(words, self.surrogates, strict=True) if self.prior is not None and not one.trusted
        )

    def joint(self, configs: Sequence[Config]) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        """(means, covariance) of throughput and of TTFT, natural logarithms, without the noise of a launch."""
        at, believed = self.listed.coder.encode(configs), self.listed.expectation_of(configs, self.prior).logs
        throughput, ttft = (self.surrogates[one].joint(at, believed[one]) for one in OBJECTIVES)
        return throughput, ttft

    def predicted(self) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        """(means, standard deviations) of every candidate, per objective."""
        throughput, ttft = (self.surrogates[one].predict(self.listed.at, self.expected.logs[one]) for one in OBJECTIVES)
        return throughput, ttft

    def feasible(self) -> Floats:
        """Probability that each candidate starts and serves."""
        configs = [one.config for one in self.seen]
        prior = None if self.prior is None or not configs else self.prior.expect(configs)
        return probabilities(
            self.listed.coder,
            self.seen,
            self.listed.coder.encode(configs),
            (prior or unknown_expectation(len(configs))).feasible,
            self.listed.at,
            self.expected.feasible,
            self.expected.memory_sd_bytes,
        )


def _whole(seen: Sequence[Observation]) -> Iterator[Observation]:
    """Observations without figures of levels that ended early: nothing is explained by them."""
    return (replace(one, logs=None) if one.partial else one for one in seen)


def learnt(trials: Sequence[Trial], question: Question) -> Beliefs:
    """What the study's surrogate believes after all of `trials`."""
    launched: dict[str, list[int]] = {}
    first: dict[str, Config] = {}
    merged = []
    for trial in trials:
        key = question.same(trial.config)
        launched.setdefault(key, []).append(trial.number)
        merged.append(replace(trial, config=first.setdefault(key, trial.config)))
    seen = tuple(replace(one, config=question.inside(one.config)) for one in _whole(observations(merged)))
    listed = Candidates.of(question.space, question.prior, question.configs, question.seed)
    prior = None if question.prior is None else question.prior.refit(seen)
    expected = listed.expectation(prior) or unknown_expectation(len(listed.configs))
    told = [one for one in seen if one.logs is not None]
    believed = None if prior is None else listed.expectation_of([one.config for one in told], prior).logs
    return Beliefs(
        question,
        listed,
        prior,
        seen,
        {key: tuple(numbers) for key, numbers in launched.items()},
        _surrogates(listed, told, believed, expected),
        expected,
        _codes(question.space, listed.configs),
    )


def _surrogates(
    listed: Candidates,
    told: Sequence[Observation],
    believed: tuple[Floats, Floats] | None,
    expected: Expectation | None,
) -> tuple[Surrogate, Surrogate]:
    logs = np.array([one.logs for one in told if one.logs is not None]).reshape(-1, 2)
    sds = np.array([one.sds for one in told if one.logs is not None]).reshape(-1, 2)
    at = listed.coder.encode([one.config for one in told if one.logs is not None])
    throughput, ttft = (
        learn(
            one,
            at,
            logs[:, one],
            sds[:, one],
            None if believed is None else believed[one],
            listed.coder.groups,
            0.0 if believed is None or expected is None else float(np.mean(expected.logs[one])),
        )
        for one in OBJECTIVES
    )
    return throughput, ttft


def _codes(space: SearchSpace, configs: Sequence[Config]) -> np.ndarray:
    places = [{value_key(value): place for place, value in enumerate(one.choices)} for one in space.parameters]
    names = [one.name for one in space.parameters]
    codes = np.full((len(configs), len(names)), -1, dtype=np.int32)
    for row, config in enumerate(configs):
        values = dict(config.params)
        for column, name in enumerate(names):
            if name in values:
                codes[row, column] = places[column].get(value_key(values[name]), -1)
    return codes
