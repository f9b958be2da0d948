"""What was never tried, and what is expected there. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.records import Config, Estimate
from autotune.search.explain_effect import UNSEEN, quantile
from autotune.search.explain_evidence import Evidence
from autotune.search.explain_model import OBJECTIVES, Beliefs
from autotune.search.knob import Knob, Values, key_of, knobs, value_of
from autotune.search.parameter import value_key
from autotune.search.pareto import REFERENCE_THROUGHPUT_SHARE, REFERENCE_TTFT_FACTOR
from autotune.search.prior.expectation import THROUGHPUT, TTFT, Floats
from autotune.search.prior.improvement import Pair, expected_improvement, front_of, improvement
from autotune.search.prior.parsimony import changes, in_order

BEST = 5
"""Untried configs that are told of."""

MOST_REGIONS = 12
"""Values without a measured trial that are told of, those of most promise first."""

_FANTASY_SD = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Untried:
    """A config that was never launched.

    Attributes:
        changed: its parameters that differ from the baseline's.
        tok_s_per_gpu, ttft_p95_s: expected, with 95 % intervals of the true value.
        feasible: probability that it starts and serves.
        gain: expected growth of the front's hypervolume (in log objectives), as a share of what it is.
    """

    config: Config
    changed: Values
    tok_s_per_gpu: Estimate
    ttft_p95_s: Estimate
    feasible: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A value of a knob that no measured trial has.

    Attributes:
        configs: that have it and may start here.
        failed: launches that had it and could not be measured.
        best: the most promising of those configs.
    """

    knob: str
    values: Values
    configs: int
    failed: tuple[int, ...]
    best: Untried


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What is expected of every candidate, and what that would be worth."""

    means: tuple[Floats, Floats]
    sds: tuple[Floats, Floats]
    feasible: Floats
    front: Sequence[Pair]
    reference: Pair
    gains: Floats


def untried(beliefs: Beliefs) -> tuple[tuple[Untried, ...], tuple[Region, ...], int]:
    """The best configs never launched, the values never measured, and how many configs were never launched.

    The best are chosen one after another, each as if those before it had been measured, so that they are not all
    neighbours.
    """
    free = np.ones(len(beliefs.listed.configs), dtype=np.bool_)
    for one in beliefs.seen:
        place = beliefs.listed.place(one.config)
        if place is not None:
            free[place] = False
    left = int(free.sum())
    if not left or not beliefs.measured:
        return (), (), left
    outlook = _outlook(beliefs)
    return _best(beliefs, outlook, free.copy()), _regions(beliefs, outlook, free), left


def _outlook(beliefs: Beliefs) -> _Outlook:
    throughput, ttft = beliefs.predicted()
    known = [one for one in beliefs.seen if one.logs is not None]
    (seen_throughput, _), (seen_ttft, _) = beliefs.joint([one.config for one in known])
    points = [(float(x), -float(y)) for x, y in zip(seen_throughput, seen_ttft, strict=True)]
    reference = (
        points[0][0] + math.log(REFERENCE_THROUGHPUT_SHARE),
        points[0][1] - math.log(REFERENCE_TTFT_FACTOR),
    )
    front = front_of(points, reference)
    means, sds, feasible = (throughput[0], ttft[0]), (throughput[1], ttft[1]), beliefs.feasible()
    gains = expected_improvement(front, reference, (means[0], -means[1]), sds) * feasible
    return _Outlook(means, sds, feasible, front, reference, gains)


def _volume(outlook: _Outlook) -> float:
    total, kept = 0.0, list[Pair]()
    for point in outlook.front:
        total += improvement(front_of(kept, outlook.reference), outlook.reference, point)
        kept.append(point)
    return total


def _best(beliefs: Beliefs, outlook: _Outlook, free: np.ndarray) -> tuple[Untried, ...]:
    volume = _volume(outlook)
    surrogates, listed, question = beliefs.surrogates, beliefs.listed, beliefs.question
    front, gains = list(outlook.front), outlook.gains
    found: list[Untried] = []
    known = set(beliefs.launched)
    counts = changes(listed.coder, listed.at, listed.coder.encode([beliefs.seen[0].config])[0], listed.lossy)
    while len(found) < BEST and free.any():
        # As a proposal is chosen: of those that promise the same, the one with the fewest changes.
        place = int(in_order(np.where(free, gains, -1.0), counts)[0])
        free[place] = False
        key = question.same(listed.configs[place])
        if key in known or question.refusal(listed.configs[place]) is not None:
            continue
        known.add(key)
        found.append(_told(beliefs, outlook, _plainest(beliefs, place, key), _share(float(gains[place]), volume)))
        if len(found) == BEST:
            break
        here = listed.at[place : place + 1]
        logs = beliefs.expected.logs
        throughput, ttft = (
            surrogates[one].with_fantasies(here, logs[one][place : place + 1], _FANTASY_SD) for one in OBJECTIVES
        )
        surrogates = (throughput, ttft)
        front = front_of(
            [*front, (float(outlook.means[THROUGHPUT][place]), -float(outlook.means[TTFT][place]))], outlook.reference
        )
        means, sds = zip(*(one.predict(listed.at, logs[k]) for k, one in enumerate(surrogates)), strict=True)
        gains = expected_improvement(front, outlook.reference, (means[0], -means[1]), (sds[0], sds[1]))
        gains = gains * outlook.feasible
    return tuple(found)


def _plainest(beliefs: Beliefs, place: int, key: str) -> int:
    """The same server without flags that change nothing of it."""
    home, question = beliefs.seen[0].config.as_dict(), beliefs.question
    config = beliefs.listed.configs[place]
    for name, _ in config:
        if name in home and key_of(((name, home[name]),)) != key_of(((name, config.get(name)),)):
            plainer = Config.of({**config.as_dict(), name: home[name]})
            there = beliefs.listed.place(plainer)
            if there is not None and question.same(plainer) == key:
                config, place = plainer, there
    return place


def _share(gain: float, volume: float) -> float:
    return gain / volume if volume > 0.0 else math.inf


def _told(beliefs: Beliefs, outlook: _Outlook, place: int, gain: float) -> Untried:
    config, home = beliefs.listed.configs[place], beliefs.seen[0].config
    changed = tuple((name, value) for name, value in config if value_key(value) != value_key(home.get(name)))
    figures, z = [], UNSEEN * quantile(beliefs.measured)
    for objective in OBJECTIVES:
        mean, sd = float(outlook.means[objective][place]), float(outlook.sds[objective][place])
        low, value, high = (math.exp(mean + side * z * sd) for side in (-1, 0, 1))
        figures.append(Estimate(value=value, low=low, high=high))
    return Untried(
        config=config,
        changed=changed,
        tok_s_per_gpu=figures[THROUGHPUT],
        ttft_p95_s=figures[TTFT],
        feasible=float(outlook.feasible[place]),
        gain=gain,
    )


def _regions(beliefs: Beliefs, outlook: _Outlook, free: np.ndarray) -> tuple[Region, ...]:
    found: list[tuple[float, Region]] = []
    volume = _volume(outlook)
    for knob in knobs(beliefs.question.space):
        evidence = Evidence.of(beliefs, knob)
        codes, value = np.unique(beliefs.codes[:, list(knob.columns)], axis=0, return_inverse=True)
        for number in range(len(codes)):
            rows = np.flatnonzero((value.reshape(-1) == number) & free)
            if not len(rows):
                continue
            words = value_of(knob, beliefs.listed.configs[rows[0]])
            if not words or evidence.has(words):
                continue
            place = int(rows[np.argmax(outlook.gains[rows])])
            region = Region(
                knob=knob.name,
                values=words,
                configs=len(rows),
                failed=_failed(beliefs, knob, words),
                best=_told(beliefs, outlook, place, _share(float(outlook.gains[place]), volume)),
            )
            found.append((float(outlook.gains[place]), region))
    return tuple(region for _, region in sorted(found, key=lambda one: -one[0])[:MOST_REGIONS])


def _failed(beliefs: Beliefs, knob: Knob, words: Values) -> tuple[int, ...]:
    """Launches with a value, none of which was measured."""
    question = beliefs.question
    keys = [question.same(one.config) for one in beliefs.seen if key_of(value_of(knob, one.config)) == key_of(words)]
    return tuple(sorted(number for key in keys for number in beliefs.launched.get(key, ())))
