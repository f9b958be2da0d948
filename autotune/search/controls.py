"""Stock Optuna samplers with their usual settings, as one study that goes on: the controls of the search benchmark.

`Proposer` makes a fresh Optuna study for every proposal, so that a study of ours can be resumed anywhere. A benchmark
that replays thousands of launches cannot afford that, and need not: here a study lives as long as its replay, which is
how Optuna is used everywhere else. What a sampler learns from is the same.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import optuna
from optuna.study import StudyDirection
from optuna.trial import TrialState

from autotune.records import Config, Value
from autotune.search.pareto import REFERENCE_THROUGHPUT_SHARE, REFERENCE_TTFT_FACTOR
from autotune.search.proposer import ASKS, ASKS_GP, POPULATION, STARTUP
from autotune.search.samplers import Dial, derived_seed, make_sampler, suggested
from autotune.search.space import SearchSpace

_CONSTRAINT = "infeasible"


class Stock(StrEnum):
    """Which sampler, and how it hears of configs that do not start.

    `TPE` is Optuna's default, parameters apart, infeasible trials pruned. The others are told of them by a constraint,
    and `MOTPE` models parameters together, as this program's own `--sampler tpe` does.
    """

    TPE = "tpe"
    MOTPE = "motpe"
    NSGA2 = "nsga2"
    GP = "gp"


_ASKS = {Stock.GP: ASKS_GP, Stock.TPE: 4}
"""Fewer where each costs more: a model of one parameter at a time is built anew for each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    config: Config
    trial: optuna.Trial


class StockStudy:
    """One study of one stock sampler: `ask`, launch, `tell`, in turn. Deterministic for seed and answers.

    A config that was tried, or that the rules refuse, costs no launch and teaches nothing: the sampler is asked again,
    and after `ASKS` times (fewer for slow ones) a seeded, uniform draw decides.

    Args:
        allowed: all configs that may be proposed.
        budget: launches that the study is meant to have; sets startup and population as a study of ours does.
    """

    def __init__(
        self, space: SearchSpace, stock: Stock, seed: int, allowed: Sequence[Config], budget: int | None = None
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._dials = tuple(Dial.of(parameter) for parameter in space.parameters)
        self._space = space
        self._stock = stock
        self._left = dict.fromkeys(allowed)
        self._rng = random.Random(derived_seed(seed, "control"))
        self._study = optuna.create_study(
            directions=(StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE),
            sampler=_sampler(stock, seed, space.conditional, budget),
        )
        self._told = 0
        self._startup = _within(STARTUP, budget, 4)
        self._worst: tuple[float, float] | None = None
        self._open: _Asked | None = None

    def ask(self) -> Config | None:
        """A config of the space that was not proposed yet; None when none is left."""
        if not self._left:
            return None
        most = _ASKS.get(self._stock, ASKS) if self._told >= self._startup else ASKS
        useless: list[optuna.Trial] = []
        found: Config | None = None
        for _ in range(most):
            trial = self._study.ask()
            config = suggested(self._space, self._dials, trial)
            if config in self._left:
                found = self._opened(config, trial)
                break
            # Left running until one is found: MOTPE then looks elsewhere. A failed trial is invisible to all of them.
            useless.append(trial)
        for trial in useless:
            self._study.tell(trial, state=TrialState.FAIL)
        return found or self.force(self._rng.choice(list(self._left)))

    def force(self, config: Config) -> Config:
        """`config` as the next one, whatever the sampler wants."""
        values = config.as_dict()
        self._study.enqueue_trial(
            {
                dial.parameter.name: dial.index(values[dial.parameter.name])
                for dial in self._dials
                if _asked(dial, values)
            }
        )
        trial = self._study.ask()
        suggested(self._space, self._dials, trial)
        return self._opened(config, trial)

    def tell(self, logs: tuple[float, float] | None) -> None:
        """How the last config asked for went.

        Args:
            logs: log throughput and log TTFT; None for a config that did not start. The first one told must have some:
                it is the baseline, from which the values of infeasible ones follow.

        Raises:
            ValueError: nothing was asked for, or the first config has no values.
        """
        if self._open is None:
            raise ValueError("nothing was asked for")
        trial, self._open = self._open.trial, None
        self._told += 1
        if logs is not None:
            if self._worst is None:
                self._worst = (
                    logs[0] + math.log(REFERENCE_THROUGHPUT_SHARE),
                    logs[1] + math.log(REFERENCE_TTFT_FACTOR),
                )
            trial.set_constraint(_CONSTRAINT, 0.0)
            self._study.tell(trial, logs)
        elif self._worst is None:
            raise ValueError("the first config told is the baseline and must have values")
        elif self._stock is Stock.TPE:
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            trial.set_constraint(_CONSTRAINT, 1.0)
            self._study.tell(trial, self._worst)

    def _opened(self, config: Config, trial: optuna.Trial) -> Config:
        self._left.pop(config, None)
        self._open = _Asked(config=config, trial=trial)
        return config


def _asked(dial: Dial, values: dict[str, Value]) -> bool:
    return dial.parameter.name in values and len(dial.order) > 1


def _sampler(stock: Stock, seed: int, conditional: bool, budget: int | None) -> optuna.samplers.BaseSampler:
    if stock is Stock.TPE:
        # The liar is for trials that run in parallel, of which there are none, and costs four fifths of the time.
        return optuna.samplers.TPESampler(seed=derived_seed(seed, "tpe"), constant_liar=False)
    return make_sampler(
        "tpe" if stock is Stock.MOTPE else str(stock),
        seed=derived_seed(seed, str(stock)),
        conditional=conditional,
        startup=_within(STARTUP, budget, 4),
        population=_within(POPULATION, budget, 6),
    )


def _within(bounds: tuple[int, int], budget: int | None, divisor: int) -> int:
    low, high = bounds
    return high if budget is None else max(low, min(high, budget // divisor))
