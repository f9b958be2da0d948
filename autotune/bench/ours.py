"""Our own sampler as a contender, and the control that is given its prior. Neither is handed a surface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.records import Config, Trial
from autotune.search.prior.candidates import best_places
from autotune.search.prior.expectation import Expectation, Floats, Observation, Prior
from autotune.search.proposer import Proposer
from autotune.search.space import SearchSpace

SAMPLER = "prior"


class OurContender:
    """The product's sampler, launched as a study launches it: the guide's config after the baseline, then its own.

    Args:
        prior: None for a plain Gaussian process.
        first: launched before the sampler is asked.
    """

    def __init__(
        self,
        space: SearchSpace,
        configs: tuple[Config, ...],
        seed: int,
        prior: Prior | None,
        first: Sequence[Config] = (),
    ) -> None:
        self._proposer = Proposer(space, SAMPLER, seed, prior=prior, configs=configs)
        self._allowed = frozenset(configs)
        self._first = [config for config in first if config in self._allowed]

    def propose(self, history: Sequence[Trial]) -> Config | None:
        """The guide's config once, then what the sampler wants."""
        launched = {trial.config for trial in history}
        while self._first:
            config = self._first.pop(0)
            if config not in launched:
                return config
        return self._proposer.propose(history, self._allowed.__contains__)


def best_of(prior: Prior, configs: tuple[Config, ...], count: int) -> tuple[Config, ...]:
    """The configs that a prior would launch first."""
    return tuple(configs[place] for place in best_places(prior.expect(configs), count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reversed:
    """A prior that is as wrong as can be: best and worst change places, in both objectives. It learns nothing."""

    inner: Prior

    def expect(self, configs: Sequence[Config]) -> Expectation:
        """The mirrored prediction."""
        return _mirrored(self.inner.expect(configs))

    def refine(self, configs: Sequence[Config]) -> Expectation:
        """The same: a slow prediction would tell the truth."""
        return self.expect(configs)

    def refit(self, observations: Sequence[Observation]) -> Prior:
        """Itself, whatever was seen."""
        del observations
        return self


_FIXED_PLACES = (6.0, -0.7)
"""Where log throughput and log TTFT are mirrored: anywhere, but the same for every list of configs."""


def _mirrored(one: Expectation) -> Expectation:
    def flipped(values: Floats, place: float) -> Floats:
        return np.asarray(2.0 * place - values, dtype=np.float64)

    return Expectation(
        log_throughput=flipped(one.log_throughput, _FIXED_PLACES[0]),
        log_ttft=flipped(one.log_ttft, _FIXED_PLACES[1]),
        feasible=one.feasible,
        minutes=one.minutes,
    )
