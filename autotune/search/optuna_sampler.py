"""Our sampler for any Optuna study: `optuna.create_study(sampler=PriorSampler())`.

One or two objectives in any direction, over integers, stepped floats and categories; any other parameter is left to the
independent sampler. Objectives of any kind are brought to the scale that the sampler's beliefs are in: for figures that
are compared by their ratio (tokens/s, seconds) pass `logarithms=True`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.search_space import IntersectionSearchSpace
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.records import Config, Value
from autotune.search.parameter import Parameter
from autotune.search.prior.candidates import Candidates
from autotune.search.prior.expectation import Observation, Prior
from autotune.search.prior.propose import propose_after
from autotune.search.samplers import derived_seed
from autotune.search.space import SearchSpace

MOST_STEPS = 64
"""Values that a range is listed with; longer ranges are thinned out evenly."""

MOST_CONFIGS = 1_000_000

_SPREAD = 0.5
"""What one standard deviation of the objectives seen so far is made: the sampler's beliefs are in logarithms."""


class PriorSampler(optuna.samplers.BaseSampler):
    """Expected hypervolume improvement on a Gaussian process, from a prior where one is given.

    Args:
        seed: equal seeds and histories propose the same.
        prior: expects (log of the first objective, log of the second) of configs by parameter name; it needs two
            objectives, to maximise and to minimise, and `logarithms`.
        logarithms: objectives are positive and compared by ratio.
    """

    def __init__(self, seed: int = 0, *, prior: Prior | None = None, logarithms: bool = False) -> None:
        self._seed, self._prior = seed, prior
        self._logarithms = logarithms or prior is not None
        self._intersection = IntersectionSearchSpace()
        self._listed: tuple[dict[str, BaseDistribution], Candidates] | None = None
        self._random = optuna.samplers.RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Parameters that all finished trials share and whose values can be listed."""
        del trial
        found = self._intersection.calculate(study)
        kept = {name: one for name, one in sorted(found.items()) if not one.single() and _choices(one) is not None}
        size = math.prod(len(_choices(one) or ()) for one in kept.values())
        return kept if len(study.directions) <= 2 and size <= MOST_CONFIGS else {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The proposal; {} where nothing is known, or everything was tried."""
        if not search_space:
            return {}
        listed = self._candidates(search_space)
        others = [one for one in study.get_trials(deepcopy=False) if one.number != trial.number]
        seen = self._observations(study.directions, others, search_space)
        running = [
            _config(one, search_space)
            for one in others
            if one.state is TrialState.RUNNING and all(name in one.params for name in search_space)
        ]
        found = propose_after(
            seen,
            running,
            [*(one.config for one in seen), *running],
            listed,
            self._prior,
            np.random.default_rng(derived_seed(self._seed, trial.number)),
        )
        return {} if found is None else dict(found.config)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """At random: the first trial, and what cannot be listed."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """For workers of one study that must not draw alike."""
        self._random.reseed_rng()

    def _candidates(self, search_space: dict[str, BaseDistribution]) -> Candidates:
        if self._listed is None or self._listed[0] != search_space:
            parameters = tuple(Parameter(name=name, choices=_choices(one) or ()) for name, one in search_space.items())
            space = SearchSpace(name="optuna", parameters=parameters)
            self._listed = (dict(search_space), Candidates.of(space, self._prior, seed=self._seed))
        return self._listed[1]

    def _observations(
        self, directions: Sequence[StudyDirection], trials: Sequence[FrozenTrial], search_space: Mapping[str, Any]
    ) -> list[Observation]:
        """Finished trials that have the parameters; each config once, with the mean of its values."""
        values: dict[Config, list[list[float]]] = {}
        fails: dict[Config, bool] = {}
        for one in trials:
            if one.state not in (TrialState.COMPLETE, TrialState.FAIL) or any(
                n not in one.params for n in search_space
            ):
                continue
            config = _config(one, search_space)
            broken = one.state is TrialState.FAIL or any(limit > 0 for limit in one.constraints.values())
            fails[config] = fails.get(config, True) and broken
            scaled = [self._scaled(value) for value in one.values or ()]
            if not broken and scaled and all(math.isfinite(value) for value in scaled):
                values.setdefault(config, []).append(scaled)
        means = {config: np.mean(rows, axis=0) for config, rows in values.items()}
        gains = _gains(means, directions, standard=not self._logarithms)
        return [
            Observation(config=config, feasible=not broken, logs=gains.get(config)) for config, broken in fails.items()
        ]

    def _scaled(self, value: float) -> float:
        """As the sampler compares it; infinite where there is no ratio: such a trial started and has no figures."""
        if not self._logarithms:
            return value
        return math.log(value) if value > 0 else -math.inf


def _gains(
    means: Mapping[Config, Any], directions: Sequence[StudyDirection], *, standard: bool
) -> dict[Config, tuple[float, float]]:
    """(to maximise, to minimise) of each config; a study of one objective has a second that is always 0."""
    if not means:
        return {}
    table = np.array(list(means.values()), dtype=np.float64)
    if standard:
        table = (table - table.mean(axis=0)) / np.maximum(table.std(axis=0), 1e-12) * _SPREAD
    signs = [1.0 if direction is StudyDirection.MAXIMIZE else -1.0 for direction in directions]
    first = table[:, 0] * signs[0]
    second = -table[:, 1] * signs[1] if len(signs) > 1 else np.zeros(len(table))
    return {config: (float(x), float(y)) for config, x, y in zip(means, first, second, strict=True)}


def _config(trial: FrozenTrial, names: Mapping[str, Any]) -> Config:
    return Config.of({name: trial.params[name] for name in names})


def _choices(distribution: BaseDistribution) -> tuple[Value, ...] | None:
    """The values of a parameter; None where they cannot be listed."""
    if isinstance(distribution, CategoricalDistribution):
        plain = all(one is None or isinstance(one, str | bool | int | float) for one in distribution.choices)
        return tuple(distribution.choices) if plain else None
    if isinstance(distribution, IntDistribution | FloatDistribution):
        if isinstance(distribution, IntDistribution) and distribution.log:
            sizes = np.unique(np.geomspace(distribution.low, distribution.high, MOST_STEPS).round().astype(int))
            return tuple(int(size) for size in sizes)
        if distribution.step is None:
            return _thinned(distribution)
        count = round((distribution.high - distribution.low) / distribution.step) + 1
        places = np.unique(np.linspace(0, count - 1, min(count, MOST_STEPS)).round().astype(int))
        if isinstance(distribution, IntDistribution):
            return tuple(distribution.low + int(place) * distribution.step for place in places)
        return tuple(round(distribution.low + int(place) * distribution.step, 12) for place in places)
    return None


def _thinned(distribution: FloatDistribution) -> tuple[Value, ...]:
    low, high = distribution.low, distribution.high
    values = np.geomspace(low, high, 17) if distribution.log else np.linspace(low, high, 17)
    return tuple(float(min(max(value, low), high)) for value in values)
