"""Which knobs matter in a space, by how much each of its values differ, and which of them are the same server. Pure.

*Share*: of the variance of what is expected over all configs that may start, how much is lost on average when the knob
is held and everything else stays as it is (a total Sobol index, twice of which is permutation importance), so that
interactions count for every knob that takes part. Shares can add up to more than 1.

*Swing*: the best value against the worst one, on average beside the settings that were measured. It is a linear sum of
values of the surrogate's process, so its interval is exact; it is widened for having chosen two among many values
(Bonferroni). Where measured trials have two values or more, it is of these; else it is only expected, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from autotune.search.explain_effect import UNSEEN, Basis, Effect, effect, margins, quantile
from autotune.search.explain_evidence import Evidence
from autotune.search.explain_model import OBJECTIVES, Beliefs
from autotune.search.knob import Knob, Values, knobs
from autotune.search.noise import RunNoise
from autotune.search.prior.expectation import TTFT, Floats

CONTEXTS = 12
"""Settings of the other knobs beside which a swing is averaged."""

MOST_POINTS = 480
"""Configs whose joint beliefs are worked out for one knob: cubic in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """The better value of a knob over the worse one."""

    better: Values
    worse: Values
    effect: Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """How much a knob matters.

    Attributes:
        shares: of the variance of log throughput and log TTFT, 0..1.
        swings: None where no two values can be compared.
        flat: measured trials have two of its values or more, and every two of these are within noise of each other, in
            both objectives.
        values: how many values configs that may start have.
        measured: those of them that measured trials have.
    """

    knob: Knob
    shares: tuple[float, float]
    swings: tuple[Swing | None, Swing | None]
    flat: bool
    values: int
    measured: tuple[Values, ...]


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
    evidence = Evidence.of(beliefs, knob)
    swings, flat = _swings(beliefs, table, evidence, margin)
    return Weight(
        knob=knob,
        shares=(throughput, ttft),
        swings=swings,
        flat=flat,
        values=len(table.words),
        measured=tuple(words for words in table.words if evidence.has(words)),
    )


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
    beliefs: Beliefs, table: _Table, evidence: Evidence, margin: tuple[float, float]
) -> tuple[tuple[Swing | None, Swing | None], bool]:
    chosen = _contexts(beliefs, table)
    rows = np.concatenate([table.rows(int(group)) for group in chosen]) if len(chosen) else np.zeros(0, np.intp)
    pairs, sums = _contrasts(table, rows)
    bases = [evidence.basis(table.words[a], table.words[b]) for a, b in pairs]
    known = [place for place, basis in enumerate(bases) if basis is not Basis.EXPECTED]
    asked = known or list(range(len(pairs)))
    if not asked:
        return (None, None), False
    joint = beliefs.joint([beliefs.listed.configs[row] for row in rows])
    z = quantile(beliefs.measured, len(asked)) * (1.0 if known else UNSEEN)
    found: list[Swing] = []
    flat = bool(known)
    for objective in OBJECTIVES:
        means, covariance = joint[objective]
        shifts = sums[asked] @ means
        sds = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", sums[asked], covariance, sums[asked]), 0.0))
        flat &= bool(np.all(np.abs(shifts) + z * sds < margin[objective]))
        widest = int(np.argmax(np.abs(shifts)))
        a, b = pairs[asked[widest]]
        # Better over worse: a throughput above 1, a TTFT below 1.
        swap = (shifts[widest] < 0.0) != (objective == TTFT)
        shift = -float(shifts[widest]) if swap else float(shifts[widest])
        found.append(
            Swing(
                better=table.words[b if swap else a],
                worse=table.words[a if swap else b],
                effect=effect(shift, float(sds[widest]), margin[objective], z, bases[asked[widest]]),
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
