"""What a study has learnt, in words that can be checked: why each trial was launched, which parameters mattered, what
each gains or costs, which did nothing, and what nobody has tried. Pure.

docs/explain.md says how to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from autotune.one_thread import in_one_thread
from autotune.records import Trial
from autotune.search.explain_changes import Change, changes
from autotune.search.explain_knobs import Weight, same_servers, weights
from autotune.search.explain_model import Beliefs, Question, learnt
from autotune.search.explain_untried import Region, Untried, untried
from autotune.search.knob import Values
from autotune.search.noise import RunNoise, run_noise
from autotune.search.objective import is_goodput
from autotune.search.prior.expectation import Reason
from autotune.search.reasons import launch_reason, plain_why

LEAST_MEASURED = 2
"""Servers with figures below which nothing can be said of differences."""


class PriorUse(StrEnum):
    """What became of what was believed before any trial."""

    NONE = "none"
    USED = "used"
    PARTLY = "partly"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Why a trial was launched."""

    number: int
    reason: Reason
    why: str


class Nothing(StrEnum):
    """How it is known that a knob did nothing."""

    SAME_SERVER = "same server"
    """Its values resolve to the same settings."""
    MEASURED = "within noise"
    """Its values were launched, and no two of them differ by more than noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """A knob, or some values of it, that made no difference.

    Attributes:
        values: those that do not differ from each other.
    """

    knob: str
    values: tuple[Values, ...]
    how: Nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A study explained.

    Attributes:
        launched, measured: servers that were launched, and those with figures; launches of one server count once.
        lines: one for each trial.
        noise: between launches of one config.
        contradicted: objectives in which the prior is not used.
        weights: knobs, those that mattered most first; empty before anything can be compared.
        changes: each knob alone against the baseline.
        merged: numbers of trials whose configs differ and whose servers are the same.
        untried, regions: see `explain_untried`.
        left: configs that may start and were never launched; of those listed, where there are too many to list.
        goodput: the first objective is the goodput, in output tokens/s at its rate.
    """

    launched: int
    measured: int
    lines: tuple[Line, ...]
    noise: RunNoise
    prior: PriorUse
    contradicted: tuple[str, ...]
    weights: tuple[Weight, ...] = ()
    changes: tuple[Change, ...] = ()
    idle: tuple[Idle, ...] = ()
    merged: tuple[tuple[int, ...], ...] = ()
    untried: tuple[Untried, ...] = ()
    regions: tuple[Region, ...] = ()
    left: int = 0
    goodput: bool = False


@in_one_thread
def explain(trials: Sequence[Trial], question: Question) -> Explanation:
    """Everything that `trials` say about the question; deterministic."""
    beliefs = learnt(trials, question)
    noise = run_noise(trials)
    known = beliefs.measured >= LEAST_MEASURED and len(beliefs.listed.configs) > 0
    found = weights(beliefs, noise) if known else ()
    best, regions, left = untried(beliefs)
    return Explanation(
        launched=len(beliefs.launched),
        measured=beliefs.measured,
        lines=tuple(Line(number=one.number, reason=launch_reason(one), why=plain_why(one)) for one in trials),
        noise=noise,
        prior=_prior_use(beliefs),
        contradicted=beliefs.contradicted,
        weights=found,
        changes=changes(beliefs, trials, noise) if known else (),
        idle=_idle(beliefs, found),
        merged=_merged(beliefs, trials),
        untried=best,
        regions=regions,
        left=left,
        goodput=is_goodput(trials),
    )


def _prior_use(beliefs: Beliefs) -> PriorUse:
    if beliefs.prior is None:
        return PriorUse.NONE
    return (PriorUse.USED, PriorUse.PARTLY, PriorUse.CONTRADICTED)[len(beliefs.contradicted)]


def _idle(beliefs: Beliefs, found: Sequence[Weight]) -> tuple[Idle, ...]:
    """What resolves to the same server is known without a launch; the rest must have been launched to be told."""
    told: list[Idle] = []
    for one in found:
        same = same_servers(beliefs, one.knob)
        told += [Idle(knob=one.knob.name, values=values, how=Nothing.SAME_SERVER) for values in same]
        if not same and one.flat:
            told.append(Idle(knob=one.knob.name, values=one.measured, how=Nothing.MEASURED))
    return tuple(told)


def _merged(beliefs: Beliefs, trials: Sequence[Trial]) -> tuple[tuple[int, ...], ...]:
    """Trials of one server under several configs, repeats of the same config left out."""
    configs = {trial.number: trial.config.hash for trial in trials}
    return tuple(numbers for numbers in beliefs.launched.values() if len({configs[number] for number in numbers}) > 1)
