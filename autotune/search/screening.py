"""What launches beside neighbours are worth: they choose who is measured alone, and decide nothing else. Pure.

Trials that share a node (host memory, PCIe, CPU, power) are measured a little worse than alone. How much, one launch
shows: the baseline's beside others against its launches alone. A clear difference is taken off all figures that were
measured so, because otherwise a config that was measured beside others would be compared with a baseline that was not;
what is not known of the difference widens their intervals.
As soon as a config was measured alone, its launches beside others have no say any more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.records import Estimate, Trial
from autotune.search.drift import undrifted
from autotune.search.noise import Difference, difference, run_noise
from autotune.search.remembered import remembered

Pair = tuple[Estimate, Estimate]
"""Throughput per GPU and p95 TTFT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """What neighbours cost, by the baseline.

    Attributes:
        neighbours: most other trials that ran at the same time.
        throughput, ttft: beside others over alone.
    """

    neighbours: int
    throughput: Difference
    ttft: Difference

    @property
    def found(self) -> bool:
        """Whether one of both figures differs by more than launches do."""
        return self.throughput.is_real or self.ttft.is_real


def decisive(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Those whose figures count: without launches beside others of configs that were measured alone."""
    alone = {trial.config.hash for trial in trials if trial.alone and trial.objectives is not None}
    return tuple(trial for trial in trials if trial.alone or trial.config.hash not in alone)


@remembered
def comparable(trials: Sequence[Trial]) -> Mapping[int, Pair]:
    """Both figures of each measured trial by its number, as if it had been measured alone at the study's beginning."""
    found = undrifted(trials)
    beside = {trial.number for trial in trials if not trial.alone}
    cost = interference(trials) if beside else None
    if cost is None or not cost.found:
        return found
    return {number: _as_alone(pair, cost) if number in beside else pair for number, pair in found.items()}


def interference(trials: Sequence[Trial]) -> Interference | None:
    """What the baseline's launches show; None where it was not measured both alone and beside others."""
    base = next((trial for trial in trials if trial.number == 0), None)
    if base is None:
        return None
    figures = undrifted(trials)
    launches = [one for one in trials if one.config.hash == base.config.hash and one.number in figures]
    alone = [figures[one.number] for one in launches if one.alone]
    beside = [figures[one.number] for one in launches if not one.alone]
    noise = run_noise(trials)
    throughput = difference([pair[0] for pair in alone], [pair[0] for pair in beside], noise.throughput_sd)
    ttft = difference([pair[1] for pair in alone], [pair[1] for pair in beside], noise.ttft_sd)
    if throughput is None or ttft is None:
        return None
    return Interference(
        neighbours=max(one.result.neighbours for one in launches if one.result is not None),
        throughput=throughput,
        ttft=ttft,
    )


def _as_alone(pair: Pair, cost: Interference) -> Pair:
    throughput, ttft = (
        _corrected(figure, shown) if shown.is_real else figure
        for figure, shown in zip(pair, (cost.throughput, cost.ttft), strict=True)
    )
    return throughput, ttft


def _corrected(figure: Estimate, shown: Difference) -> Estimate:
    """The figure over the ratio, known no better than the ratio: its interval is that of both, in logarithms.

    All that was measured beside others is corrected by one ratio, so two such figures are told apart a little less
    easily than they could be; a figure that was measured alone is not held against one that is surer than it is.
    """
    value = figure.value / shown.ratio
    down = math.hypot(_below(figure), math.log(shown.high / shown.ratio))
    up = math.hypot(_above(figure), math.log(shown.ratio / shown.low))
    return Estimate(value=value, low=value * math.exp(-down), high=value * math.exp(up))


def _below(figure: Estimate) -> float:
    """Logarithm of the value over its lower bound; 0 without one, as all that is known is the correction's."""
    if figure.low is None:
        return 0.0
    return math.log(figure.value / figure.low) if figure.low > 0 else math.inf


def _above(figure: Estimate) -> float:
    return 0.0 if figure.high is None else math.log(figure.high / figure.value)
