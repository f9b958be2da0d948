"""What the launches say of the candidate's figures: SLO, claims, gain, and the load beyond the study's. Pure.

A *gain* has to be shown: without one there is no reason to touch production. It may be in throughput or in p95 TTFT,
and the chance to see one that is not there is shared between them (`THROUGHPUT_GAIN_ALPHA`, `TTFT_GAIN_ALPHA`). As the
noise itself is estimated, it becomes up to 5 % where half of it lies between launches (benchmarks/gate.py).
A *claim* holds unless the launches show less: beyond a one-sided 99 % interval that has the claim's own uncertainty in
it. A *limit* of the SLO holds when the upper end of the 95 % interval is within it.

All these chances are those of the whole verification: each look has its part (`spending`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean

from autotune.promote.gate.evidence import OVERLOAD, Evidence
from autotune.promote.gate.spending import Look
from autotune.promote.gate.spread import Z95_P, Known, Launch, Shift, Spread, shift_of, spread_of
from autotune.records import (
    CriterionState,
    Estimate,
    GateCriterion,
    GateFigure,
    GateSideName,
    Limit,
    SloMetric,
)
from autotune.search.noise import mean_variance

THROUGHPUT_GAIN_ALPHA, TTFT_GAIN_ALPHA = 0.015, 0.025
THROUGHPUT_SEEN_ALPHA = 0.06
"""Its assumption is at the upper end of what is known of launches, so that the pooled test alone is nearly enough."""

WORSE_ALPHA, WORSE_SEEN_ALPHA = 0.01, 0.02
_Z95 = 1.959964

_HELD, _BROKEN = CriterionState.HELD, CriterionState.BROKEN
_UNDECIDED, _NONE = CriterionState.UNDECIDED, CriterionState.NOT_APPLICABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One of the two figures, as far as the launches tell it.

    Attributes:
        sign: 1 where more is better, -1 where less is.
        gain_alpha, seen_alpha: to show a gain that is not there, at any look; the latter by what was seen alone.
        shift: None without launches of both sides that have the figure.
        look: of how many looks this is which.
    """

    name: str
    unit: str
    sign: int
    gain_alpha: float
    seen_alpha: float
    launches: tuple[Launch, ...]
    spread: Spread | None
    shift: Shift | None
    look: Look

    @property
    def gained(self) -> bool:
        """Whether a gain is shown."""
        return self.shift is not None and self.sign * self.shift.log > self.needed(self.look)

    def needed(self, look: Look, spread: Spread | None = None, share: float | None = None) -> float:
        """How large a gain has to be seen at a look.

        Args:
            spread, share: instead of those of the launches so far.
        """
        assert self.shift is not None  # who asks has launches of both sides
        return (spread or self.shift.spread).half_width(
            self.shift.share if share is None else share,
            look.level(self.gain_alpha),
            seen_alpha=look.level(self.seen_alpha),
        )

    def worse(self, shift: Shift, than: float = 0.0, extra: float = 0.0) -> bool:
        """Whether a shift is shown to be worse than `than` (a logarithm)."""
        return self.sign * (than - shift.log) > self.worse_half(shift, extra)

    def would_have_shown(self, shift: Shift, extra: float = 0.0) -> str:
        """By how much worse would have shown: a rate loses less than all of it, a time may be many times as long."""
        return f"{_percent(-self.sign * self.worse_half(shift, extra))} against that would have shown"

    def worse_half(self, shift: Shift, extra: float = 0.0) -> float:
        """The same as a logarithm's size."""
        level = self.look.level(WORSE_ALPHA)
        return shift.spread.half_width(shift.share, level, extra, seen_alpha=self.look.level(WORSE_SEEN_ALPHA))


def throughput_axis(e: Evidence) -> Axis:
    """Output tokens/s per GPU used."""
    spread, shift = _shifted(e.throughput, e.known_throughput)
    return Axis(
        name="output tokens/s per GPU",
        unit="tok/s",
        sign=1,
        gain_alpha=THROUGHPUT_GAIN_ALPHA,
        seen_alpha=THROUGHPUT_SEEN_ALPHA,
        launches=e.throughput,
        spread=spread,
        shift=shift,
        look=e.look,
    )


def ttft_axis(e: Evidence) -> Axis:
    """p95 TTFT at the study's rate."""
    return _ttft_axis(e, e.ttft, e.known_ttft)


def _ttft_axis(e: Evidence, launches: tuple[Launch, ...], known: Known) -> Axis:
    spread, shift = _shifted(launches, known)
    return Axis(
        name="p95 TTFT",
        unit="s",
        sign=-1,
        gain_alpha=TTFT_GAIN_ALPHA,
        seen_alpha=TTFT_GAIN_ALPHA,
        launches=launches,
        spread=spread,
        shift=shift,
        look=e.look,
    )


def _shifted(launches: tuple[Launch, ...], known: Known) -> tuple[Spread | None, Shift | None]:
    spread = spread_of(launches, known) if launches else None
    return spread, shift_of(launches, spread) if spread is not None else None


def gain(e: Evidence, axes: Sequence[Axis]) -> GateCriterion:
    """Better than what runs today in at least one of both figures."""
    asked = f"more throughput or a lower p95 TTFT than {e.against.label}, beyond the noise between launches"
    if e.same_config:
        return GateCriterion(name="gain", asked=asked, state=_NONE, found=f"{_is_this_config(e)}: nothing to gain")
    known = [(axis, axis.shift) for axis in axes if axis.shift is not None]
    figures = tuple(
        GateFigure(
            name=f"{axis.name}, {e.candidate.label} over {e.against.label}",
            unit="ratio",
            estimate=shift.ratio,
            bound=1.0,
        )
        for axis, shift in known
    )
    said = "; ".join(
        f"{axis.name} {_percent(shift.log)} ({_percent(shift.low(1 - Z95_P))} to {_percent(shift.high(1 - Z95_P))})"
        for axis, shift in known
    )
    if any(axis.gained for axis in axes):
        state = _HELD
    elif any(axis.worse(shift) for axis, shift in known):
        state = _BROKEN
    else:
        state = _UNDECIDED
    return GateCriterion(
        name="gain", asked=asked, state=state, found=said or "too few launches were measured", figures=figures
    )


def _is_this_config(e: Evidence) -> str:
    said = f"{e.against.label} is this config"
    written = [
        sorted(f"{name}={value}" for name, value in one if value is not None and other.get(name) != value)
        for one, other in ((e.against.config, e.candidate.config), (e.candidate.config, e.against.config))
    ]
    if not any(written):
        return said
    there, here = (" ".join(names) or "nothing" for names in written)
    return f"{said} once vLLM's defaults are filled in (it says {there}, and {e.candidate.label} says {here})"


def as_claimed(e: Evidence, axis: Axis, name: str) -> GateCriterion:
    """Not worse than the study claims, beyond the interval; where it claims nothing, not worse than what runs today."""
    figure = "tok_s_per_gpu" if axis.sign > 0 else "ttft_p95_s"
    ours: Estimate | None = getattr(e.candidate, figure)
    theirs: Estimate | None = getattr(e.against, figure)
    if ours is not None and theirs is None:
        return _absolute(axis, name, ours)
    claim, extra = 0.0, 0.0
    asked = f"{axis.name} not worse than that of {e.against.label}"
    if ours is not None and theirs is not None and not e.same_config:
        claim = math.log(ours.value) - math.log(theirs.value)
        extra = _variance(ours) + _variance(theirs)
        asked = f"{axis.name} not worse than claimed: {_percent(claim)} against {e.against.label}"
    if axis.shift is None:
        return GateCriterion(name=name, asked=asked, state=_UNDECIDED, found="too few launches were measured")
    shift = axis.shift
    return GateCriterion(
        name=name,
        asked=asked,
        state=_BROKEN if axis.worse(shift, claim, extra) else _HELD,
        found=f"{_percent(shift.log)}; {axis.would_have_shown(shift, extra)}",
        figures=(
            GateFigure(
                name=f"{axis.name}, {e.candidate.label} over {e.against.label}",
                unit="ratio",
                estimate=shift.ratio,
                bound=math.exp(claim),
            ),
        ),
    )


def _absolute(axis: Axis, name: str, claim: Estimate) -> GateCriterion:
    """Against the figure itself, where what runs today was not measured in the study."""
    asked = f"{axis.name} not worse than the {claim.value:,.4g} {axis.unit} of the study"
    own = [one for one in axis.launches if one.side is GateSideName.CANDIDATE]
    if not own or axis.spread is None:
        return GateCriterion(name=name, asked=asked, state=_UNDECIDED, found="no launch has this figure")
    mean = Shift(log=fmean(one.mean for one in own), share=1 / len(own), spread=axis.spread)
    extra = _variance(claim) + _arrivals(axis)
    return GateCriterion(
        name=name,
        asked=asked,
        state=_BROKEN if axis.worse(mean, math.log(claim.value), extra) else _HELD,
        found=f"{math.exp(mean.log):,.4g} {axis.unit}; {axis.would_have_shown(mean, extra)}",
        figures=(GateFigure(name=axis.name, unit=axis.unit, estimate=mean.ratio, bound=claim.value),),
    )


def slo(e: Evidence, ttft: Axis) -> GateCriterion:
    """The upper end of each limited figure's interval is within its limit, at the study's rate."""
    if e.slo is None:
        return GateCriterion(name="slo", asked="no SLO was asked for", state=_NONE, found="nothing to hold")
    figures, states = [], []
    for place, limit in enumerate(e.slo.limits):
        figure = _limited(e, ttft, place, limit)
        states.append(_limit_state(limit, figure))
        if figure is not None:
            unit = "s" if limit.metric.is_time else "share"
            figures.append(GateFigure(name=str(limit.metric), unit=unit, estimate=figure, bound=limit.bound))
    state = _BROKEN if _BROKEN in states else _HELD if all(one is _HELD for one in states) else _UNDECIDED
    return GateCriterion(
        name="slo",
        asked=f"the upper end of the interval within {e.slo}",
        state=state,
        found=", ".join(map(_spelled, figures)) or "no launch has the figures that are limited",
        figures=tuple(figures),
    )


def overload(e: Evidence, ttft: Axis, claimed_ttft: float) -> GateCriterion:
    """Carries more than the study's rate, and waits there no longer than what runs today by more than was claimed.

    Args:
        ttft: at the study's rate; what its windows differ by is the least to be expected here, where there is one.
        claimed_ttft: logarithm of the TTFT that is claimed over that of what runs today.
    """
    asked = f"at {e.rate_factor - 1:+.0%} rate every request is answered, and p95 TTFT is not worse than today's"
    levels = [launch.level(OVERLOAD) for launch in e.of(GateSideName.CANDIDATE)]
    driven = [level for level in levels if level is not None]
    failed = sum(level.failed for level in driven)
    within = (ttft.spread.within_sd or 0.0) if ttft.spread is not None else 0.0
    known = e.known_ttft
    known = replace(known, assumed=max(known.assumed, within**2 + known.assumed_between))
    axis = _ttft_axis(e, e.overload, known)
    if not driven or (axis.shift is None and not failed):
        return GateCriterion(name="overload", asked=asked, state=_UNDECIDED, found="too few launches were measured")
    worse = axis.shift is not None and axis.worse(axis.shift, max(0.0, claimed_ttft))
    said = f"{failed} requests failed" if failed else "all requests answered"
    if axis.shift is not None:
        said += f", p95 TTFT {_percent(axis.shift.log)} against {e.against.label}"
    return GateCriterion(
        name="overload",
        asked=asked,
        state=_BROKEN if failed or worse else _HELD,
        found=said,
        figures=(
            ()
            if axis.shift is None
            else (
                GateFigure(
                    name=f"p95 TTFT at {e.rate_factor - 1:+.0%} rate, {e.candidate.label} over {e.against.label}",
                    unit="ratio",
                    estimate=axis.shift.ratio,
                    bound=max(1.0, math.exp(claimed_ttft)),
                ),
            )
        ),
    )


def claimed_ttft(e: Evidence) -> float:
    """Logarithm of the candidate's claimed p95 TTFT over that of what runs today; 0 where nothing is claimed."""
    ours, theirs = e.candidate.ttft_p95_s, e.against.ttft_p95_s
    return 0.0 if ours is None or theirs is None else math.log(ours.value) - math.log(theirs.value)


def _limited(e: Evidence, ttft: Axis, place: int, limit: Limit) -> Estimate | None:
    """What the candidate's launches showed of a limited figure."""
    own = [one for one in ttft.launches if one.side is GateSideName.CANDIDATE]
    if limit.metric is SloMetric.TTFT_P95 and own and ttft.spread is not None:
        mean = fmean(one.mean for one in own)
        half = ttft.spread.half_width(1 / len(own), e.look.level(1 - Z95_P), _arrivals(ttft))
        return Estimate(value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))
    launches = [one for one in e.of(GateSideName.CANDIDATE) if one.failure is None]
    level = e.look.level(1 - Z95_P)
    found = [one.within_slo[place] for one in launches if place < len(one.within_slo)]
    told = [one for one in found if one is not None]
    if not told or len(told) < len(launches):
        return None
    if not limit.metric.is_time:
        return Estimate(value=max(one.value for one in told))
    mean = fmean(math.log(one.value) for one in told)
    half = NormalDist().inv_cdf(1 - level) * math.sqrt(mean_variance(told, e.noise.ttft_sd))
    return Estimate(value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def _limit_state(limit: Limit, figure: Estimate | None) -> CriterionState:
    if figure is None:
        return _UNDECIDED
    if limit.is_surely_met(figure):
        return _HELD
    return _BROKEN if (figure.value if figure.low is None else figure.low) > limit.bound else _UNDECIDED


def _arrivals(axis: Axis) -> float:
    """Variance of the mean that comes from which arrivals there were: it cancels only between launches."""
    if axis.spread is None or axis.spread.window_sd is None:
        return 0.0
    return axis.spread.window_sd**2 / len(axis.launches[0].windows)


def _variance(claim: Estimate) -> float:
    if claim.low is None or claim.high is None or claim.low <= 0:
        return 0.0
    return ((math.log(claim.high) - math.log(claim.low)) / (2 * _Z95)) ** 2


def _percent(log: float) -> str:
    return f"{math.expm1(log):+.1%}"


def _spelled(figure: GateFigure) -> str:
    one = figure.estimate
    between = "" if one.low is None or one.high is None else f" ({one.low:.4g} to {one.high:.4g})"
    return f"{figure.name} {one.value:.4g} {figure.unit}{between}"
