"""What a running trial is up against: configs that may show it to be dominated before all of it is measured. Pure.

A config is dominated when another has more throughput and a lower p95 TTFT. The first is known once the throughput
level was driven, the second while the TTFT level is (load/early_end.py). Only a rival that would stand in every answer
that the trial could give counts: one that was measured, and keeps to whatever limits the study has besides that of the
p95 TTFT.

With confidence `c`, the trial is abandoned though one of `k` rivals is not better in both with probability at most
`1 - c`, divided among the rivals (Bonferroni), because the lowest of their bars is the one that counts:

```
throughput   ln(rival / trial) > z sd     z: of 1 - (1 - c) / k; sd: both figures' own intervals, and the spread
                                          between launches of both
p95 TTFT     ln(trial / rival) > z sd     the same; the trial's own interval, which it will have only at its end, is
                                          taken for as wide as those of the measured trials are
```

Both must hold, so that neither may err more often than stated. The second makes a bar, which is there before the
trial's TTFT level begins: the rival is chosen by throughput and its own figures alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median
from typing import assert_never

from autotune.load.early_end import Bar, Bars, Found
from autotune.records import (
    Caveat,
    EarlyEnd,
    EarlyReason,
    Estimate,
    LevelRole,
    Measurement,
    Origin,
    QualityState,
    Slo,
    SloMetric,
    Trial,
)
from autotune.search.noise import RunNoise, mean_variance, run_noise
from autotune.search.objective import Point, limited, points
from autotune.search.screening import comparable

MAY_END = frozenset({Origin.SAMPLER, Origin.ENQUEUED})
"""Trials whose full figures nothing else rests on: not the baseline, and nothing that is launched to be sure."""

_DOUBTFUL = frozenset({QualityState.LOST, QualityState.UNDECIDED})
"""Answers for the sake of which a config may not be promoted."""

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A measured config: mean log figures over its launches, and variances of these means."""

    number: int
    log_tok_s: float
    log_ttft: float
    tok_s_variance: float
    ttft_variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """Everything that one trial is held against.

    Attributes:
        ttft_variance: of the log of the trial's own p95 TTFT, the spread between launches included.
        confidence: 0..1, see above.
        usual_s: what the levels after the throughput level last in a measured trial; None where none was measured.
    """

    rivals: tuple[Rival, ...]
    noise: RunNoise
    ttft_variance: float
    confidence: float
    usual_s: float | None

    def bars(self, tok_s_per_gpu: Estimate | None) -> Bars | None:
        """What the trial's TTFT level is up against.

        Args:
            tok_s_per_gpu: the trial's output tokens/s per GPU of the throughput level; in a study of the goodput it is
                more than any goodput that it can have.
        """
        if tok_s_per_gpu is None or not 0 < tok_s_per_gpu.value < math.inf:
            return None
        own, z = math.log(tok_s_per_gpu.value), self._z
        variance = mean_variance([tok_s_per_gpu], self.noise.throughput_sd)
        more = [rival for rival in self.rivals if rival.log_tok_s >= own]
        surely = [rival for rival in more if rival.log_tok_s - own > z * math.sqrt(rival.tok_s_variance + variance)]
        return Bars(dominated=self._bar(surely), saturated=self._bar(more))

    @property
    def _z(self) -> float:
        return _NORMAL.inv_cdf(1 - (1 - self.confidence) / max(1, len(self.rivals)))

    def _bar(self, rivals: Sequence[Rival]) -> Bar | None:
        found = [
            Bar(
                rival=rival.number,
                ttft_s=math.exp(rival.log_ttft + self._z * math.sqrt(rival.ttft_variance + self.ttft_variance)),
            )
            for rival in rivals
        ]
        return min(found, key=lambda bar: bar.ttft_s, default=None)

    def end(self, found: Found, level: Measurement) -> EarlyEnd:
        """What a level that ended early is kept as."""
        return EarlyEnd(
            reason=found.reason,
            rival=found.bar.rival,
            ttft_s=found.bar.ttft_s,
            confidence=self.confidence,
            requests=found.requests,
            planned=level.level.requests,
            saved_s=None if self.usual_s is None else max(0.0, self.usual_s - level.duration_s),
        )


def rivals_of(trial: Trial, trials: Sequence[Trial], confidence: float, slo: Slo | None = None) -> Rivals | None:
    """What `trial` is held against; None where it is to be measured whatever it shows.

    Args:
        trials: of the study so far.
        confidence: 0 for never.
        slo: what the pick must meet.
    """
    if not confidence or trial.origin not in MAY_END or trial.number == 0:
        return None
    noise, figures = run_noise(trials), comparable(trials)
    others = [point for point in points(trials) if point.config_hash != trial.config.hash]
    found = [point for point in others if _stands(point, trials, slo)]
    if not found:
        return None
    return Rivals(
        rivals=tuple(_rival(point, [figures[number] for number in point.numbers], noise) for point in found),
        noise=noise,
        ttft_variance=fmean(mean_variance([pair[1]], noise.ttft_sd) for pair in figures.values()),
        confidence=confidence,
        usual_s=_usual_s(trials),
    )


def early_caveat(end: EarlyEnd) -> Caveat:
    """Why a trial was abandoned, for people."""
    rest = (
        f"the p95 TTFT is above {end.ttft_s:.3g} s with {end.confidence:.4g} confidence; trial {end.rival} has more "
        "throughput and keeps to that"
    )
    remedy = "To measure every config to the end, use --abandon off."
    after = f"after {end.requests} of {end.planned} requests"
    match end.reason:
        case EarlyReason.DOMINATED:
            return Caveat(code="dominated", text=f"{after} {rest}", remedy=remedy)
        case EarlyReason.SATURATED:
            text = f"{after} they came faster than they were served, and {rest}"
            return Caveat(code="saturated", text=text, remedy=remedy)
        case _:
            assert_never(end.reason)


def _rival(point: Point, launches: Sequence[tuple[Estimate, Estimate]], noise: RunNoise) -> Rival:
    throughputs, ttfts = ([pair[axis] for pair in launches] for axis in (0, 1))
    return Rival(
        number=point.number,
        log_tok_s=math.log(point.tok_s_per_gpu.value),
        log_ttft=math.log(point.ttft_p95_s.value),
        tok_s_variance=mean_variance(throughputs, noise.throughput_sd),
        ttft_variance=mean_variance(ttfts, noise.ttft_sd),
    )


def _stands(point: Point, trials: Sequence[Trial], slo: Slo | None) -> bool:
    """Whether a config could be recommended in the trial's place."""
    launches = [trial.result for trial in trials if trial.number in point.numbers and trial.result is not None]
    if any(one.quality is not None and one.quality.state in _DOUBTFUL for one in launches):
        return False
    others = [limit for limit in slo.limits if limit.metric is not SloMetric.TTFT_P95] if slo is not None else []
    return all(limit.is_surely_met(limited(point, trials, limit)) for limit in others)


def _usual_s(trials: Sequence[Trial]) -> float | None:
    later = {LevelRole.TTFT, LevelRole.GOODPUT}
    lasted = [
        math.fsum(level.duration_s for level in trial.result.measurements if level.level.role in later)
        for trial in trials
        if trial.measured and trial.result is not None
    ]
    return median(lasted) if lasted else None
