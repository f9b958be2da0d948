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
from functools import cache

from autotune.quality.lossy import LOSSY
from autotune.records import Config, Estimate, Trial, Value
from autotune.search.baseline_values import starting_values
from autotune.search.noise import (
    LEAST_MARGINS,
    LogMean,
    RunNoise,
    interval,
    log_mean,
    run_noise,
    within_noise,
)
from autotune.search.objective import Point, points
from autotune.search.parameter import value_key
from autotune.search.remembered import remembered
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
    return _judge(baseline, lossy)(config)


def _judge(baseline: Trial, lossy: frozenset[str]) -> Callable[[Config], Plainness]:
    """`plainness` for many configs: a study has few values of each flag, and each is held against the baseline once."""
    there, given = starting_values(baseline), _set(baseline.config).keys()
    may_change = LOSSY | lossy

    @cache
    def differs(name: str, value: Value, _is_bool: bool) -> bool:  # 1 and true are one key to a dictionary
        return value_key(value) != value_key(there.get(name))

    def judge(config: Config) -> Plainness:
        own = _set(config)
        differing = [name for name, value in own.items() if differs(name, value, isinstance(value, bool))]
        differing += given - own.keys()
        changed = sorted(name for name in differing if name in may_change and not _exact(name, own.get(name)))
        return Plainness(
            lossy=tuple(f"{name}={own[name]}" if name in own else f"{name} unset" for name in changed),
            changes=len(differing),
        )

    return judge


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
    _known: dict[tuple[int, ...], _Means] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> Ties:
        """Of all measured trials."""
        return cls(comparable(trials), run_noise(trials))

    def tied(self, one: Point, other: Point) -> bool:
        """Whether both figures differ by less than launches of one config do: no `noise.difference` is real."""
        return all(within_noise(a, b) for a, b in zip(self.means(one), self.means(other), strict=True))

    def beats(self, one: Point, other: Point) -> bool:
        """Whether `other` is better than `one` in both figures, or as good within the noise."""
        (throughput, ttft), (there, its_ttft) = self.means(one), self.means(other)
        return interval(throughput, there)[1] >= 0.0 and interval(ttft, its_ttft)[0] <= 0.0

    def means(self, point: Point) -> _Means:
        """Of both logarithms, with their variances. Kept: a pick is held against every config of a study."""
        known = self._known.get(point.numbers)
        if known is None:
            throughput, ttft = zip(*(self.figures[number] for number in point.numbers), strict=True)
            known = log_mean(throughput, self.noise.throughput_sd), log_mean(ttft, self.noise.ttft_sd)
            self._known[point.numbers] = known
        return known


class Worth(dict[int, Plainness]):
    """How plain each measured config is, by the number of its point; worked out when it is first asked for.

    Of thousands of configs few are ever asked about.
    """

    def __init__(self, judge: Callable[[Config], Plainness], configs: Mapping[int, Config]) -> None:
        super().__init__()
        self._judge, self._configs = judge, configs

    def __missing__(self, number: int) -> Plainness:
        found = self[number] = self._judge(self._configs[number])
        return found


@dataclass(frozen=True, slots=True)
class Plainer:
    """Finds what to recommend instead of a config."""

    ties: Ties
    worth: Worth

    @classmethod
    def of(cls, trials: Sequence[Trial], lossy: frozenset[str]) -> Plainer | None:
        """For the measured configs of a study; None without a baseline to compare flags with."""
        return _plainer(trials, lossy)

    def instead_of(self, best: Point, others: Sequence[Point], rank: Callable[[Point], tuple[float, ...]]) -> Point:
        """What to recommend where the rule takes `best`; itself where nothing plainer is as good.

        Args:
            others: that qualify as well.
            rank: the lowest is the rule's choice.
        """
        own = len(self.worth[best.number].lossy)
        # What costs most is asked last.
        keeping = [one for one in others if own and self.ties.tied(best, one)]
        keeping = [one for one in keeping if len(self.worth[one.number].lossy) < own]
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
            if _as_good(one, best)
            and self.worth[one.number].changes < own.changes
            and len(self.worth[one.number].lossy) <= len(own.lossy)
            and self.ties.tied(best, one)
        ]
        return min(plainer, key=lambda one: (self.worth[one.number].changes, *rank(one)), default=best)


@remembered
def _plainer(trials: Sequence[Trial], lossy: frozenset[str]) -> Plainer | None:
    by_number = {trial.number: trial for trial in trials}
    if 0 not in by_number:
        return None
    configs = {point.number: by_number[point.number].config for point in points(trials)}
    return Plainer(Ties.of(trials), Worth(_judge(by_number[0], lossy), configs))


def _as_good(one: Point, best: Point) -> bool:
    throughput, ttft = (a - b for a, b in zip(one.logs, best.logs, strict=True))
    return throughput >= -LEAST_MARGINS[0] and ttft <= LEAST_MARGINS[1]
