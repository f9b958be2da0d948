"""Of configs that launches cannot tell apart, the one to recommend: what keeps answers first, then the plainest. Pure.

The best figure of many is in part luck, and what comes with it stays: an fp8 KV cache can change answers, which no
objective shows, and each flag is one more that somebody has to justify. So the config that the rule of the pick takes
is replaced

1. by the best config *tied* with it that has fewer flags which may change answers;
2. by the one with the fewest changes against the baseline that is tied with it and *as good*: worse by no more than
   `LEAST_MARGINS`, differences for which nobody would choose one config over another.

Tied alone is not enough for the second step: few launches leave wide intervals, and a config that probably halves the
TTFT is not given up for having one flag more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.quality.lossy import LOSSY
from autotune.records import Config, Estimate, Trial, Value
from autotune.search.baseline_values import starting_values
from autotune.search.noise import (
    LEAST_MARGINS,
    Difference,
    LogMean,
    RunNoise,
    difference,
    log_mean,
    run_noise,
    within_noise,
)
from autotune.search.objective import Point
from autotune.search.parameter import value_key
from autotune.search.screening import comparable

EXACT_KV_DTYPES = frozenset({"auto", "bfloat16", "float16"})
"""KV cache types that keep what the model computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plainness:
    """How far a config is from the baseline's.

    Attributes:
        lossy: flags of it that may change answers, as `name=value`.
        changes: flags that differ.
    """

    lossy: tuple[str, ...]
    changes: int


def plainness(config: Config, baseline: Trial, lossy: frozenset[str]) -> Plainness:
    """Of a config against the baseline's server.

    Args:
        lossy: parameters that the space calls so, beside `quality.lossy.LOSSY`.
    """
    own, there = _set(config), starting_values(baseline)
    dropped = [name for name in _set(baseline.config) if name not in own]
    differing = [name for name in own if value_key(own[name]) != value_key(there.get(name))]
    differing = sorted({*differing, *dropped})
    changed = [name for name in differing if name in LOSSY | lossy and not _exact(name, own.get(name))]
    return Plainness(
        lossy=tuple(f"{name}={own[name]}" if name in own else f"{name} unset" for name in changed),
        changes=len(differing),
    )


def _set(config: Config) -> dict[str, Value]:
    """What it says: a flag left to vLLM says nothing."""
    return {name: value for name, value in config if value is not None}


def _exact(name: str, value: Value) -> bool:
    return name == "kv-cache-dtype" and str(value or "auto") in EXACT_KV_DTYPES


_Means = tuple[LogMean, LogMean]


@dataclass(frozen=True, slots=True)
class Ties:
    """What a study's launches tell of its configs beside each other."""

    figures: Mapping[int, tuple[Estimate, Estimate]]
    noise: RunNoise
    _known: dict[tuple[int, ...], _Means | None] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> Ties:
        """Of all measured trials."""
        return cls(comparable(trials), run_noise(trials))

    def differences(self, one: Point, other: Point) -> tuple[Difference | None, Difference | None]:
        """`other` against `one` in throughput and p95 TTFT."""
        throughput, ttft = (
            difference([self.figures[k][axis] for k in one.numbers], [self.figures[k][axis] for k in other.numbers], sd)
            for axis, sd in ((0, self.noise.throughput_sd), (1, self.noise.ttft_sd))
        )
        return throughput, ttft

    def tied(self, one: Point, other: Point) -> bool:
        """Whether both figures differ by less than launches of one config do: no `differences` are real.

        From means that are kept: a pick is held against every config of a study.
        """
        mine, theirs = self._means(one), self._means(other)
        if mine is None or theirs is None:
            return not any(figure is not None and figure.is_real for figure in self.differences(one, other))
        return all(within_noise(a, b) for a, b in zip(mine, theirs, strict=True))

    def _means(self, point: Point) -> _Means | None:
        """Of both logarithms, with their variances; None where a figure has none."""
        if point.numbers not in self._known:
            launches = [self.figures[number] for number in point.numbers]
            usable = bool(launches) and all(figure.value > 0 for pair in launches for figure in pair)
            self._known[point.numbers] = (
                (
                    log_mean([pair[0] for pair in launches], self.noise.throughput_sd),
                    log_mean([pair[1] for pair in launches], self.noise.ttft_sd),
                )
                if usable
                else None
            )
        return self._known[point.numbers]


@dataclass(frozen=True, slots=True)
class Plainer:
    """Finds what to recommend instead of a config.

    Attributes:
        worth: by the number of a point, how plain it is.
    """

    ties: Ties
    worth: Mapping[int, Plainness]

    @classmethod
    def of(cls, found: Sequence[Point], trials: Sequence[Trial], lossy: frozenset[str]) -> Plainer | None:
        """For the measured configs of a study; None without a baseline to compare flags with."""
        by_number = {trial.number: trial for trial in trials}
        if 0 not in by_number:
            return None
        worth = {point.number: plainness(by_number[point.number].config, by_number[0], lossy) for point in found}
        return cls(Ties.of(trials), worth)

    def instead_of(self, best: Point, others: Sequence[Point], rank: Callable[[Point], tuple[float, ...]]) -> Point:
        """What to recommend where the rule takes `best`; itself where nothing plainer is as good.

        Args:
            others: that qualify as well.
            rank: the lowest is the rule's choice.
        """
        own = len(self.worth[best.number].lossy)
        keeping = [one for one in others if len(self.worth[one.number].lossy) < own and self.ties.tied(best, one)]
        if keeping:
            best = min(keeping, key=lambda one: (len(self.worth[one.number].lossy), *rank(one)))
        return self._fewest_changes(best, others, rank)

    def _fewest_changes(
        self, best: Point, others: Sequence[Point], rank: Callable[[Point], tuple[float, ...]]
    ) -> Point:
        own = self.worth[best.number]
        plainer = [
            one
            for one in others
            if self.worth[one.number].changes < own.changes
            and len(self.worth[one.number].lossy) <= len(own.lossy)
            and _as_good(one, best)
            and self.ties.tied(best, one)
        ]
        return min(plainer, key=lambda one: (self.worth[one.number].changes, *rank(one)), default=best)


def _as_good(one: Point, best: Point) -> bool:
    throughput, ttft = (a - b for a, b in zip(one.logs, best.logs, strict=True))
    return throughput >= -LEAST_MARGINS[0] and ttft <= LEAST_MARGINS[1]
