"""Which knobs matter in a space, by how much each of its values differ, and which of them are the same server. Pure.

A knob is a parameter of the space, or the layout flags together, since one of them can seldom be turned alone.

*Share*: of the variance of what is expected over all configs that may start, how much is lost on average when the knob
is held and everything else stays as it is (a total Sobol index, twice of which is permutation importance), so that
interactions count for every knob that takes part. Shares can add up to more than 1.

*Swing*: the best value against the worst one, on average beside the settings that were measured. It is a linear sum of
values of the surrogate's process, so its interval is exact; it is widened for having chosen two among many values
(Bonferroni).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from statistics import NormalDist

import numpy as np

from autotune.records import Config, Value
from autotune.search.explain_model import OBJECTIVES, Beliefs
from autotune.search.noise import RunNoise
from autotune.search.parameter import Parameter, value_key
from autotune.search.prior.expectation import TTFT, Floats
from autotune.search.space import SearchSpace

LAYOUT = "layout"
"""The knob of these flags, where a space has several of them."""
LAYOUT_FLAGS = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "enable-expert-parallel")

LEAST_MARGINS = (0.03, 0.10)
"""Differences in throughput and TTFT below which nobody would choose one config over another."""

UNSEEN = 1.5
"""Intervals of what was never launched are this much wider than the process says. It expects smooth differences; on six
invented nodes with cliffs and effects that no prior knows (tests/unit/search/prior_surfaces.py), its own 95 % intervals
of single changes held the truth in 74 to 91 % of the cases after 20 trials; these do in 90 to 97 %."""

CONTEXTS = 12
"""Settings of the other knobs beside which a swing is averaged."""

MOST_POINTS = 480
"""Configs whose joint beliefs are worked out for one knob: cubic in it."""

Values = tuple[tuple[str, Value], ...]


class Standing(StrEnum):
    """What may be said of a difference."""

    REAL = "real"
    NOISE = "within noise"
    """All of its interval is below what launches differ by, or below what anybody cares for."""
    UNKNOWN = "not known yet"
    """The interval holds both better and worse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A ratio of two configs' figures with its 95 % interval, launch-to-launch noise not included."""

    ratio: float
    low: float
    high: float
    standing: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """The better value of a knob over the worse one."""

    better: Values
    worse: Values
    effect: Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """Parameters that are turned together.

    Attributes:
        columns: their places in the space.
        dependent: places of parameters that come and go with them.
    """

    name: str
    parameters: tuple[Parameter, ...]
    columns: tuple[int, ...]
    dependent: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """How much a knob matters.

    Attributes:
        shares: of the variance of log throughput and log TTFT, 0..1.
        swings: None where no two values can be compared.
        flat: every two of its values are within noise of each other, in both objectives.
        values, measured: how many values configs that may start have, and how many were measured.
    """

    knob: Knob
    shares: tuple[float, float]
    swings: tuple[Swing | None, Swing | None]
    flat: bool
    values: int
    measured: int


def margins(noise: RunNoise) -> tuple[float, float]:
    """Differences of logarithms that count as none: two standard deviations between launches, at least."""
    return (
        max(LEAST_MARGINS[0], 2.0 * noise.throughput_sd),
        max(LEAST_MARGINS[1], 2.0 * noise.ttft_sd),
    )


def quantile(measured: int, pairs: int = 1) -> float:
    """Half the width of a 95 % interval in standard deviations, wider after few trials and for the widest of many
    pairs.

    The process's own widths come from as few trials as its values: Student's t, by the Cornish-Fisher expansion
    (Abramowitz and Stegun 26.7.5) with two degrees of freedom at least.
    """
    z, free = NormalDist().inv_cdf(1.0 - 0.025 / pairs), max(2, measured - 2)
    return z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)


def effect(mean: float, sd: float, margin: float, z: float) -> Effect:
    """Of a difference of logarithms; `z` standard deviations to each side."""
    low, high = mean - z * sd, mean + z * sd
    if -margin < low and high < margin:
        standing = Standing.NOISE
    else:
        standing = Standing.REAL if low > 0.0 or high < 0.0 else Standing.UNKNOWN
    ratio, least, most = (float(np.exp(np.clip(one, -50.0, 50.0))) for one in (mean, low, high))
    return Effect(ratio=ratio, low=least, high=most, standing=standing)


def knobs(space: SearchSpace) -> tuple[Knob, ...]:
    """Everything that can be turned: what has one choice only, and is always there, is left out."""
    places = {one.name: place for place, one in enumerate(space.parameters)}
    loose = [one for one in space.parameters if len(one.choices) > 1 or one.conditional]
    layout = [one for one in loose if one.name in LAYOUT_FLAGS]
    groups = [(LAYOUT, layout)] if len(layout) > 1 else []
    groups += [(one.name, [one]) for one in loose if len(layout) < 2 or one not in layout]
    return tuple(
        Knob(
            name=name,
            parameters=tuple(own),
            columns=tuple(places[one.name] for one in own),
            dependent=frozenset(places[name] for name in _descendants(space, {one.name for one in own})),
        )
        for name, own in groups
    )


def weights(beliefs: Beliefs, noise: RunNoise) -> tuple[Weight, ...]:
    """All knobs, those that matter most first."""
    means = tuple(one[0] for one in beliefs.predicted())
    found = [_weight(beliefs, knob, means, margins(noise)) for knob in knobs(beliefs.question.space)]
    return tuple(sorted(found, key=lambda one: -sum(one.shares)))


def same_servers(beliefs: Beliefs, knob: Knob) -> tuple[tuple[Values, ...], ...]:
    """Values of a knob that end up as the same server wherever that was looked, each set in one tuple."""
    rest = [column for column in range(beliefs.codes.shape[1]) if column not in knob.columns]
    table = _Table.of(beliefs, knob, rest)
    differ: set[tuple[int, int]] = set()
    alike: set[tuple[int, int]] = set()
    for group in _spread(table.mixed, 2 * CONTEXTS):
        rows = table.rows(int(group))
        keys = {int(table.value[row]): beliefs.question.same(beliefs.listed.configs[row]) for row in rows}
        for a, b in combinations(sorted(keys), 2):
            (alike if keys[a] == keys[b] else differ).add((a, b))
    sets: list[set[int]] = []
    for a, b in sorted(alike - differ):
        home = next((one for one in sets if a in one or b in one), None)
        if home is None:
            sets.append({a, b})
        else:
            home |= {a, b}
    return tuple(tuple(table.words[one] for one in sorted(found)) for found in sets)


@dataclass(frozen=True, slots=True)
class _Table:
    """Candidates by a knob's value and by everything else.

    Attributes:
        value, group: of each candidate.
        words: each value's flags.
        mixed: groups with several values.
    """

    value: np.ndarray
    group: np.ndarray
    words: tuple[Values, ...]
    mixed: np.ndarray

    @classmethod
    def of(cls, beliefs: Beliefs, knob: Knob, rest: Sequence[int]) -> _Table:
        codes = beliefs.codes
        values, value = np.unique(codes[:, list(knob.columns)], axis=0, return_inverse=True)
        group = np.zeros(len(codes), dtype=np.intp)
        if rest:
            group = np.unique(codes[:, list(rest)], axis=0, return_inverse=True)[1].reshape(-1)
        value = value.reshape(-1)
        cells = np.unique(group * max(len(values), 1) + value)
        counts = np.bincount(cells // max(len(values), 1), minlength=int(group.max(initial=-1)) + 1)
        return cls(value, group, tuple(_words(knob, row) for row in values), np.flatnonzero(counts > 1))

    def rows(self, group: int) -> np.ndarray:
        """Candidates of a group."""
        return np.flatnonzero(self.group == group)


def _words(knob: Knob, codes: np.ndarray) -> Values:
    pairs = zip(knob.parameters, codes, strict=True)
    return tuple((one.name, one.choices[int(code)]) for one, code in pairs if code >= 0)


def _weight(beliefs: Beliefs, knob: Knob, means: Sequence[Floats], margin: tuple[float, float]) -> Weight:
    rest = [
        column
        for column in range(beliefs.codes.shape[1])
        if column not in knob.columns and column not in knob.dependent
    ]
    table = _Table.of(beliefs, knob, rest)
    throughput, ttft = (_share(table, mean) for mean in means)
    swings, flat = _swings(beliefs, table, margin)
    measured = {key_of(value_of(knob, one.config)) for one in beliefs.seen if one.logs is not None}
    return Weight(
        knob=knob,
        shares=(throughput, ttft),
        swings=swings,
        flat=flat,
        values=len(table.words),
        measured=sum(key_of(words) in measured for words in table.words),
    )


def value_of(knob: Knob, config: Config) -> Values:
    """What a config has for a knob."""
    values = config.as_dict()
    return tuple((one.name, values[one.name]) for one in knob.parameters if one.name in values)


def key_of(values: Values) -> tuple[tuple[str, tuple[bool, Value]], ...]:
    """Equal for the same values: 1 and true are not, a flag left to vLLM and one that is not named are."""
    return tuple((name, value_key(value)) for name, value in values if value is not None)


def _share(table: _Table, mean: Floats) -> float:
    """Of the variance of `mean`, what the knob's own values make, everything else held."""
    if not len(mean) or float(np.var(mean)) < 1e-18:
        return 0.0
    wide = len(table.words)
    cells, cell = np.unique(table.group * wide + table.value, return_inverse=True)
    middles = np.bincount(cell.reshape(-1), weights=mean) / np.bincount(cell.reshape(-1))
    of = cells // wide
    count = np.bincount(of)
    centre = np.bincount(of, weights=middles) / np.maximum(count, 1)
    within = np.bincount(of, weights=(middles - centre[of]) ** 2) / np.maximum(count, 1)
    size = np.bincount(table.group, minlength=len(within))
    return float(min(1.0, (size * within).sum() / len(mean) / np.var(mean)))


def _swings(
    beliefs: Beliefs, table: _Table, margin: tuple[float, float]
) -> tuple[tuple[Swing | None, Swing | None], bool]:
    chosen = _contexts(beliefs, table)
    rows = np.concatenate([table.rows(int(group)) for group in chosen]) if len(chosen) else np.zeros(0, np.intp)
    pairs, sums = _contrasts(table, rows)
    if not pairs:
        return (None, None), False
    joint = beliefs.joint([beliefs.listed.configs[row] for row in rows])
    z = quantile(beliefs.measured, len(pairs))
    found: list[Swing] = []
    flat = True
    for objective in OBJECTIVES:
        means, covariance = joint[objective]
        shifts = sums @ means
        sds = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", sums, covariance, sums), 0.0))
        flat &= bool(np.all(np.abs(shifts) + z * sds < margin[objective]))
        widest = int(np.argmax(np.abs(shifts)))
        a, b = pairs[widest]
        # Better over worse: a throughput above 1, a TTFT below 1.
        swap = (shifts[widest] < 0.0) != (objective == TTFT)
        sign = -1.0 if swap else 1.0
        found.append(
            Swing(
                better=table.words[b if swap else a],
                worse=table.words[a if swap else b],
                effect=effect(sign * float(shifts[widest]), float(sds[widest]), margin[objective], z),
            )
        )
    return (found[0], found[1]), flat


def _contexts(beliefs: Beliefs, table: _Table) -> np.ndarray:
    """Groups beside which values are compared: those of measured configs, or where these have none, any."""
    places = [beliefs.listed.place(one.config) for one in beliefs.seen if one.logs is not None]
    own = np.unique([table.group[place] for place in places if place is not None]).astype(np.intp)
    mixed = np.intersect1d(own, table.mixed)
    chosen: list[int] = []
    points = 0
    for group in _spread(mixed if len(mixed) else table.mixed, CONTEXTS):
        points += len(table.rows(int(group)))
        if chosen and points > MOST_POINTS:
            break
        chosen.append(group)
    return np.array(chosen, dtype=np.intp)


def _spread(groups: np.ndarray, most: int) -> Iterator[int]:
    """At most so many of them, evenly spaced."""
    if len(groups):
        yield from dict.fromkeys(int(groups[place]) for place in np.linspace(0, len(groups) - 1, most).astype(int))


def _contrasts(table: _Table, rows: np.ndarray) -> tuple[list[tuple[int, int]], Floats]:
    """Pairs of values that occur side by side, and for each the sum over `rows` that is their mean difference."""
    group, value = table.group[rows], table.value[rows]
    pairs, sums = [], []
    for a, b in combinations(range(len(table.words)), 2):
        total, contexts = np.zeros(len(rows)), 0
        for one in np.unique(group):
            left, right = (group == one) & (value == a), (group == one) & (value == b)
            if left.any() and right.any():
                total += left / left.sum() - right / right.sum()
                contexts += 1
        if contexts:
            pairs.append((a, b))
            sums.append(total / contexts)
    return pairs, np.array(sums).reshape(len(pairs), len(rows))


def _descendants(space: SearchSpace, names: set[str]) -> set[str]:
    found: set[str] = set()
    while True:
        more = {one.name for one in space.parameters if one.parents & (names | found)} - found - names
        if not more:
            return found
        found |= more
