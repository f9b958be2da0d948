"""What each knob gains or costs when it alone is turned away from the baseline. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from autotune.records import Config, Outcome, Trial, Value
from autotune.search.explain_effect import UNSEEN, Basis, Effect, Standing, effect, margins, quantile
from autotune.search.explain_evidence import Evidence
from autotune.search.explain_model import OBJECTIVES, Beliefs
from autotune.search.knob import LAYOUT, Knob, Values, key_of, knobs, value_of
from autotune.search.noise import RunNoise

_NOTHING = Effect(ratio=1.0, low=1.0, high=1.0, standing=Standing.NOISE, basis=Basis.MEASURED)

MOST_COMBINATIONS = 200
"""Of the values of flags that are turned together."""

MOST_LAYOUTS = 12
"""Changes of the layout that are shown: a node of eight GPUs has dozens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One knob at one other value, everything else as the baseline has it.

    Attributes:
        values: what the knob is turned to; `before` what the baseline's server has there.
        effects: on throughput and TTFT, as ratios to the baseline; None where it cannot start.
        trials: that launched just this server.
        failure: how those ended that could not be measured: their class of failure.
        refusal: why a rule refuses it.
        same: it is the baseline's server under another name.
    """

    knob: str
    values: Values
    before: Values
    effects: tuple[Effect, Effect] | None
    trials: tuple[int, ...] = ()
    failure: str | None = None
    refusal: str | None = None
    same: bool = False


def changes(beliefs: Beliefs, trials: Sequence[Trial], noise: RunNoise) -> tuple[Change, ...]:
    """Every single change, knob by knob in the space's order; empty before the baseline was measured."""
    if not beliefs.seen or beliefs.seen[0].logs is None:
        return ()
    home, question = beliefs.seen[0].config, beliefs.question
    own = question.same(home)
    told: list[tuple[Knob, Values, Config]] = []
    for knob in knobs(question.space):
        there = key_of(value_of(knob, home))
        others = [(values, config) for values, config in _turned(beliefs, knob, home) if key_of(values) != there]
        told += [(knob, values, config) for values, config in others]
    refusals = [question.refusal(config) for _, _, config in told]
    able = [one for one, refusal in zip(told, refusals, strict=True) if refusal is None]
    effects = iter(_effects(beliefs, home, able, margins(noise)))
    found = []
    for (knob, values, config), refusal in zip(told, refusals, strict=True):
        key = question.same(config)
        shown = None if refusal is not None else next(effects)
        launched = beliefs.launched.get(key, ())
        found.append(
            Change(
                knob=knob.name,
                values=values,
                before=value_of(knob, home),
                effects=(_NOTHING, _NOTHING) if shown is not None and key == own else shown,
                trials=launched,
                failure=_failure(trials, launched),
                refusal=refusal,
                same=key == own,
            )
        )
    return _shortened(found)


def _turned(beliefs: Beliefs, knob: Knob, home: Config) -> Iterator[tuple[Values, Config]]:
    """The baseline's config with a knob's values one after the other; those that have no meaning there left out."""
    space = beliefs.question.space
    base: dict[str, Value] = {one.name: home.get(one.name) for one in space.parameters}
    for one in space.parameters:
        if base[one.name] is None and None not in one.choices and one.name not in home.as_dict():
            base[one.name] = one.choices[0]  # it only comes into force with the knob: the space's first choice
    for number, chosen in enumerate(product(*(one.choices for one in knob.parameters))):
        if number >= MOST_COMBINATIONS:
            return
        wanted = dict(zip((one.name for one in knob.parameters), chosen, strict=True))
        config = space.canonical({**base, **wanted})
        values = value_of(knob, config)
        if len(values) == len(wanted):
            yield values, config


def _effects(
    beliefs: Beliefs, home: Config, able: Sequence[tuple[Knob, Values, Config]], margin: tuple[float, float]
) -> list[tuple[Effect, Effect]]:
    """Differences to the baseline's config, with what is believed of both together."""
    joint, z = beliefs.joint([home, *(config for _, _, config in able)]), quantile(beliefs.measured)
    bases = _bases(beliefs, able)
    columns = []
    for objective in OBJECTIVES:
        means, covariance = joint[objective]
        spread = np.diag(covariance)
        sds = np.sqrt(np.maximum(spread + covariance[0, 0] - 2.0 * covariance[0], 0.0))
        columns.append(
            [
                effect(
                    float(means[row] - means[0]),
                    float(sds[row]),
                    margin[objective],
                    z if basis is Basis.MEASURED else UNSEEN * z,
                    basis,
                )
                for row, basis in enumerate(bases, start=1)
            ]
        )
    return list(zip(columns[0], columns[1], strict=True))


def _bases(beliefs: Beliefs, able: Sequence[tuple[Knob, Values, Config]]) -> list[Basis]:
    """Measured is what was launched just so."""
    question, evidence = beliefs.question, dict[str, Evidence]()
    measured = {question.same(one.config) for one in beliefs.seen if one.logs is not None}
    found = []
    for knob, values, config in able:
        if knob.name not in evidence:
            evidence[knob.name] = Evidence.of(beliefs, knob)
        if question.same(config) in measured:
            found.append(Basis.MEASURED)
        else:
            found.append(Basis.INFERRED if evidence[knob.name].has(values) else Basis.EXPECTED)
    return found


def _failure(trials: Sequence[Trial], numbers: Sequence[int]) -> str | None:
    """The class of a failure, where no launch of the server was measured."""
    results = [trial.result for trial in trials if trial.number in numbers and trial.result is not None]
    if any(result.outcome is Outcome.MEASURED for result in results):
        return None
    return next((str(one.failure.kind) if one.failure else str(one.outcome) for one in results), None)


def _shortened(found: Sequence[Change]) -> tuple[Change, ...]:
    """Without layouts that cannot start, and of those that can the ones with most to say."""
    layouts = [one for one in found if one.knob == LAYOUT and one.effects is not None]
    kept = sorted(layouts, key=lambda one: (not one.trials, -_size(one)))[:MOST_LAYOUTS]
    return tuple(one for one in found if one.knob != LAYOUT or one in kept)


def _size(change: Change) -> float:
    assert change.effects is not None  # only such are asked about
    return max(abs(float(np.log(one.ratio))) for one in change.effects)
