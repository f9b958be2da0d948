"""The two objectives of a trial, and how it stands to service level objectives; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.records import Estimate, LevelRole, Limit, QualityState, Slo, Trial
from autotune.search.remembered import remembered
from autotune.search.screening import comparable, decisive

_MOST_EXCESS = 0.99
"""A config that misses every limit by a factor of 100 and more is still one that serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured config: its objectives, over all its repeats.

    Attributes:
        number: of its first measured trial, which stands for it everywhere.
        numbers: of the measured trials that its figures come from: all, or where some were measured alone and some
            beside others, those alone.
        tok_s_per_gpu: output tokens/s per GPU used, to maximise: of the closed loop, or at the rate of the goodput.
        ttft_p95_s: p95 time to first token, to minimise.
        goodput_rps_per_gpu: where the study's objective is the goodput: the rate, in requests/s per GPU used.
    """

    number: int
    numbers: tuple[int, ...]
    config_hash: str
    tok_s_per_gpu: Estimate
    ttft_p95_s: Estimate
    goodput_rps_per_gpu: Estimate | None = None

    @property
    def values(self) -> tuple[float, float]:
        """(tokens/s per GPU, seconds)."""
        return self.tok_s_per_gpu.value, self.ttft_p95_s.value

    def is_of(self, number: int | None) -> bool:
        """Whether the trial `number` is one of its launches that count, or stands for it."""
        return number == self.number or number in self.numbers

    @property
    def logs(self) -> tuple[float, float]:
        """Natural logarithms of both: a factor counts the same anywhere, which is what people compare."""
        return math.log(self.tok_s_per_gpu.value), math.log(self.ttft_p95_s.value)


@remembered
def points(trials: Sequence[Trial]) -> tuple[Point, ...]:
    """The measured configs, repeats of one config (same hash) joined, in order of their first trial.

    A clear drift of the node over the study is taken off (`drift.py`), and so is what neighbours cost; launches beside
    others count only where there is none alone (`screening.py`).
    """
    launches: dict[str, list[Trial]] = {}
    objectives = comparable(trials)
    for trial in sorted(trials, key=lambda trial: trial.number):
        if trial.number in objectives:
            launches.setdefault(trial.config.hash, []).append(trial)
    return tuple(_point(key, found, objectives) for key, found in launches.items())


def _point(key: str, launches: Sequence[Trial], objectives: Mapping[int, tuple[Estimate, Estimate]]) -> Point:
    if len(launches) == 1:  # as most configs have; the same, at half the price
        (trial,) = launches
        throughput, ttft = objectives[trial.number]
        return Point(
            number=trial.number,
            numbers=(trial.number,),
            config_hash=key,
            tok_s_per_gpu=throughput,
            ttft_p95_s=ttft,
            goodput_rps_per_gpu=trial.goodput_rps_per_gpu,
        )
    counting = decisive(launches)
    numbers = tuple(trial.number for trial in counting)
    rates = [rate for trial in counting if (rate := trial.goodput_rps_per_gpu) is not None]
    return Point(
        number=launches[0].number,
        numbers=numbers,
        config_hash=key,
        tok_s_per_gpu=_joined([objectives[number][0] for number in numbers]),
        ttft_p95_s=_joined([objectives[number][1] for number in numbers]),
        goodput_rps_per_gpu=_joined(rates) if rates else None,
    )


def is_goodput(trials: Iterable[Trial]) -> bool:
    """Whether the first objective of their study is the goodput."""
    return any(trial.result is not None and trial.result.goodput is not None for trial in trials)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is shown of a trial.

    Attributes:
        runs: launches that the figures are means of; 0 for a trial that was not measured.
        output_tok_s: all GPUs of the config together.
        goodput_rps_per_gpu: only where the study's objective is the goodput.
    """

    runs: int
    output_tok_s: Estimate | None
    output_tok_s_per_gpu: Estimate | None
    ttft_p95_s: Estimate | None
    goodput_rps_per_gpu: Estimate | None = None


def own_figures(trial: Trial) -> Figures:
    """Those of its own launch, for lists in which every launch stands by itself."""
    return Figures(
        runs=int(trial.measured),
        output_tok_s=trial.output_tok_s,
        output_tok_s_per_gpu=trial.output_tok_s_per_gpu,
        ttft_p95_s=trial.ttft_p95_s,
        goodput_rps_per_gpu=trial.goodput_rps_per_gpu,
    )


def joined_figures(trial: Trial, trials: Sequence[Trial]) -> Figures:
    """Those that front and pick are decided by: over all measured launches of its config among `trials`.

    A trial without objectives has only its own.
    """
    point = _by_config(trials).get(trial.config.hash)
    if point is None or trial.objectives is None:
        return own_figures(trial)
    launches = _launches(point, trials)
    totals = [one.output_tok_s for one in launches if one.output_tok_s is not None]
    shares = [one.output_tok_s_per_gpu for one in launches if one.output_tok_s_per_gpu is not None]
    share = _joined(shares)
    # Of a drift that was taken off; the goodput is another figure.
    factor = point.tok_s_per_gpu.value / share.value if point.goodput_rps_per_gpu is None else 1.0
    return Figures(
        runs=len(point.numbers),
        output_tok_s=_joined(totals).times(factor),
        output_tok_s_per_gpu=share.times(factor),
        ttft_p95_s=point.ttft_p95_s,
        goodput_rps_per_gpu=point.goodput_rps_per_gpu,
    )


@remembered
def _by_config(trials: Sequence[Trial]) -> Mapping[str, Point]:
    """`points` by the hash of their config."""
    return {point.config_hash: point for point in points(trials)}


def _joined(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of repeats. Its interval spans all of theirs: runs differ by more than each one's own noise shows."""
    if len(estimates) == 1:
        return estimates[0]
    lows = [one.low for one in estimates if one.low is not None]
    highs = [one.high for one in estimates if one.high is not None]
    values = [one.value for one in estimates]
    return Estimate(
        value=math.fsum(values) / len(values),
        low=min(*lows, *values) if lows else None,
        high=max(*highs, *values) if highs else None,
    )


def answers_lost(point: Point, trials: Sequence[Trial]) -> bool:
    """Whether the quality guard found in any launch that the config does not answer as its reference does."""
    return not _lost(trials).isdisjoint(point.numbers)


def answers_kept(found: Sequence[Point], trials: Sequence[Trial]) -> Sequence[bool]:
    """Of each config that it is not one of `answers_lost`."""
    lost = _lost(trials)
    return [lost.isdisjoint(point.numbers) for point in found]


@remembered
def _lost(trials: Sequence[Trial]) -> frozenset[int]:
    """Numbers of the launches whose answers were lost."""
    return frozenset(
        trial.number
        for trial in trials
        if trial.result is not None
        and trial.result.quality is not None
        and trial.result.quality.state is QualityState.LOST
    )


def limited(point: Point, trials: Sequence[Trial], limit: Limit) -> Estimate | None:
    """What the TTFT level showed of a limited metric, over all launches of the config; None where one lacks it."""
    known = _limited(trials, limit)
    if point.numbers not in known:
        known[point.numbers] = _figure(point, trials, limit)
    return known[point.numbers]


@remembered
def _limited(_trials: Sequence[Trial], _limit: Limit) -> dict[tuple[int, ...], Estimate | None]:
    """What `limited` has found so far of a study's configs: front, pick and certainty ask for the same."""
    return {}


def _figure(point: Point, trials: Sequence[Trial], limit: Limit) -> Estimate | None:
    figures: list[Estimate] = []
    for trial in _launches(point, trials):
        if trial.result is None:
            continue
        level = trial.result.of_role(LevelRole.TTFT)
        figure = limit.figure(level) if level is not None else None
        if figure is None:
            return None
        figures.append(figure)
    return _joined(figures) if figures else None


def _launches(point: Point, trials: Sequence[Trial]) -> list[Trial]:
    """A config's launches. Trials stand in order of their numbers as a rule, and then there is no need to look."""
    found = [trials[number] for number in point.numbers if number < len(trials)]
    if tuple([trial.number for trial in found]) == point.numbers:
        return found
    return [trial for trial in trials if trial.number in point.numbers]


def violations(point: Point, trials: Sequence[Trial], slo: Slo) -> dict[str, float]:
    """How far a measured config is from each limit: above 0 where it misses it, at most 0 where it is met.

    By its mean, not by an upper bound: what a sampler learns should be unbiased, only what is recommended needs to be
    sure. All misses together are below 1, so that a config that serves, however late, is nearer to a good one than
    one that cannot (1).
    """
    share = 1.0 / len(slo.limits)
    return {limit.metric.value: share * _excess(limited(point, trials, limit), limit.bound) for limit in slo.limits}


def _excess(figure: Estimate | None, bound: float) -> float:
    """-1 (far within) to 1 (far beyond), by the ratio of figure and bound."""
    if figure is None:
        return _MOST_EXCESS
    if figure.value <= bound:
        return 0.0 if bound <= 0 else figure.value / bound - 1.0
    return min(_MOST_EXCESS, 1.0 - bound / figure.value)
