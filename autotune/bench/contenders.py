"""The samplers that are compared, behind one verb. They are given what a study knows, never the surface.

Ours is the product's (`Proposer`); stock samplers are Optuna's with their study kept over a replay; and
there are the two that need no history, what operators do by hand, and what vLLM ships.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from autotune.bench.ours import OurContender, Reversed, best_of
from autotune.errors import InvalidOption
from autotune.records import Config, Trial
from autotune.search.controls import Stock, StockStudy
from autotune.search.parameter import is_number
from autotune.search.prior.expectation import Prior
from autotune.search.samplers import check_sampler, derived_seed, halton
from autotune.search.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a study knows before its first launch.

    Attributes:
        configs: that no rule refuses.
        recipes: the guide's configs for the node, in order; empty where there is no node.
        budget: launches it will get at most.
        prior: what the product would believe; None where it makes none.
    """

    space: SearchSpace
    configs: tuple[Config, ...]
    baseline: Config
    recipes: tuple[Config, ...]
    budget: int
    prior: Prior | None = None


FROM_PRIOR = 10
"""Configs of the prior's that TPE is started from: as many as it would draw at random."""


class Contender(Protocol):
    """A sampler in a replay: asked once per launch, always with the whole history, whose first trial is the baseline.

    Each contender is made for one replay, and its proposals follow from seed and history.
    """

    def propose(self, history: Sequence[Trial]) -> Config | None:
        """A config that was not launched yet; None to give up, which ends the replay."""
        ...


class SamplerName(StrEnum):
    """Every sampler of the benchmark, by the name that `--samplers` and the JSON have."""

    PRIOR = "prior"
    NO_PRIOR = "no-prior"
    PRIOR_REVERSED = "prior-reversed"
    TPE_FROM_PRIOR = "tpe-from-prior"
    TPE = "tpe"
    MOTPE = "motpe"
    NSGA2 = "nsga2"
    GP = "gp"
    QMC = "qmc"
    RANDOM = "random"
    GRID = "grid"
    AUTO_TUNE = "vllm-auto-tune"


def available() -> tuple[SamplerName, ...]:
    """Those whose libraries are here."""
    try:
        check_sampler("gp")
    except InvalidOption:
        lacking = {SamplerName.GP}
    else:
        lacking = set()
    return tuple(name for name in SamplerName if name not in lacking)


def make_contender(name: SamplerName, known: Known, seed: int) -> Contender:
    """A fresh contender for one replay.

    Raises:
        InvalidOption: one whose libraries are missing.
    """
    match name:
        case SamplerName.PRIOR | SamplerName.PRIOR_REVERSED | SamplerName.TPE_FROM_PRIOR:
            return _with_prior(name, known, seed)
        case SamplerName.NO_PRIOR:
            return OurContender(known.space, known.configs, seed, None, known.recipes[:1])
        case SamplerName.TPE | SamplerName.MOTPE | SamplerName.NSGA2 | SamplerName.GP:
            if name is SamplerName.GP:
                check_sampler("gp", option="--samplers")
            return StockContender(known, Stock(str(name)), seed)
        case SamplerName.QMC:
            count = 64 + 16 * (known.budget + 1)
            return ListContender([*halton(known.space, seed, count), *_shuffled(known.configs, seed)], known.configs)
        case SamplerName.RANDOM:
            return ListContender(_shuffled(known.configs, seed), known.configs)
        case SamplerName.GRID:
            return ListContender(known.configs, known.configs)
        case SamplerName.AUTO_TUNE:
            return AutoTune(known)


def _with_prior(name: SamplerName, known: Known, seed: int) -> Contender:
    if known.prior is None:
        # A recorded study that does not say of which node it is: the product would do without as well.
        if name is SamplerName.TPE_FROM_PRIOR:
            return StockContender(known, Stock.MOTPE, seed)
        return OurContender(known.space, known.configs, seed, None, known.recipes[:1])
    if name is SamplerName.TPE_FROM_PRIOR:
        return StockContender(known, Stock.MOTPE, seed, best_of(known.prior, known.configs, FROM_PRIOR))
    prior = Reversed(inner=known.prior) if name is SamplerName.PRIOR_REVERSED else known.prior
    return OurContender(known.space, known.configs, seed, prior, known.recipes[:1])


class ListContender:
    """Configs in an order that no result changes, those that the rules refuse left out."""

    def __init__(self, order: Sequence[Config], allowed: Sequence[Config]) -> None:
        permitted = set(allowed)
        self._order = [config for config in dict.fromkeys(order) if config in permitted]

    def propose(self, history: Sequence[Trial]) -> Config | None:
        """The next one that was not launched."""
        launched = {trial.config for trial in history}
        return next((config for config in self._order if config not in launched), None)


class StockContender:
    """A stock sampler of Optuna's; what was launched without it (the baseline) is told to it all the same."""

    def __init__(self, known: Known, stock: Stock, seed: int, first: Sequence[Config] = ()) -> None:
        """Args: first: launched before the sampler is asked, in this order."""
        self._study = StockStudy(known.space, stock, seed, known.configs, known.budget)
        self._first = list(dict.fromkeys(config for config in first if config != known.baseline))
        self._told = 0

    def propose(self, history: Sequence[Trial]) -> Config | None:
        """Tell what happened since, then ask."""
        for trial in history[self._told :]:
            if self._told == 0:
                self._study.force(trial.config)
            pair = trial.objectives
            self._study.tell(None if pair is None else _logs(pair[0].value, pair[1].value))
            self._told += 1
        if self._first:
            return self._study.force(self._first.pop(0))
        return self._study.ask()


def _logs(throughput: float, ttft: float) -> tuple[float, float]:
    return math.log(throughput), math.log(ttft)


class AutoTune:
    """What vLLM's `benchmarks/auto_tune/auto_tune.sh` (0.10) does, on this space.

    The layout is the operator's, here the baseline's, and so are all other flags. The largest share of GPU memory that
    starts with the largest batch is looked for first, downwards, and nothing is tuned where none does; then every
    `max-num-seqs` with every `max-num-batched-tokens`, in the order of the script's two loops. Then it is over.
    """

    def __init__(self, known: Known) -> None:
        self._baseline = known.baseline.as_dict()
        self._permitted = set(known.configs)
        shares, seqs, tokens = (
            _numbers(known.space, name) for name in ("gpu-memory-utilization", "max-num-seqs", "max-num-batched-tokens")
        )
        self._shares, self._seqs, self._tokens = shares[::-1], seqs, tokens

    def propose(self, history: Sequence[Trial]) -> Config | None:
        """The next share of memory while none has started, then the next of the nested loops."""
        launched = {trial.config: trial.measured for trial in history}
        for share in self._shares:
            largest = self._changed(share, self._seqs[-1], self._tokens[-1])
            if largest not in self._permitted:
                continue
            if largest not in launched:
                return largest
            if launched[largest]:
                inner = (self._changed(share, seqs, tokens) for seqs in self._seqs for tokens in self._tokens)
                return next((one for one in inner if one in self._permitted and one not in launched), None)
        return None

    def _changed(self, share: float | None, seqs: float | None, tokens: float | None) -> Config:
        names = ("gpu-memory-utilization", "max-num-seqs", "max-num-batched-tokens")
        given = {name: value for name, value in zip(names, (share, seqs, tokens), strict=True) if value is not None}
        return Config.of({**self._baseline, **given})


def _numbers(space: SearchSpace, name: str) -> tuple[float | None, ...]:
    """The numbers that a parameter may have, rising; None alone where it has none and stays the baseline's."""
    parameter = space.parameter(name)
    found = () if parameter is None else tuple(sorted(one for one in parameter.choices if is_number(one)))
    return found or (None,)


def _shuffled(configs: Sequence[Config], seed: int) -> list[Config]:
    order = list(configs)
    random.Random(derived_seed(seed, "order")).shuffle(order)
    return order
