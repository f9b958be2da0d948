"""Whether more launches may still decide what a look left open. Pure.

Going on costs minutes a launch, so it has to have a chance: for the most favourable gain that the launches so far do
not rule out, the last look would show it with `LEAST_CHANCE` or more, and it would be worth having. Stopping early for
this can only lose a promotion, never make a false one, so it costs nothing of the chances that `spending` hands out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

from autotune.promote.gate.evidence import Evidence
from autotune.promote.gate.performance import Axis, throughput_axis, ttft_axis
from autotune.promote.gate.verdict import Judgement
from autotune.records import CriterionState, GateVerdict
from autotune.search.noise import LEAST_MARGINS

LEAST_CHANCE = 0.1
FAVOURABLE = 0.95
"""One-sided: gains above what this leaves are ruled out."""

WANTED_POWER = 0.9
OPEN_TO_MORE = frozenset({"gain", "slo", "restart"})
"""Criteria that more launches can decide. Others lack something that is not there in any launch."""

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What may come of more launches.

    Attributes:
        goes_on: whether they are worth making.
        why: for people, one sentence; empty where the verdict stands anyway.
        wanted: launches that would show the gain with `WANTED_POWER`, the larger one of what is claimed and what was
            seen, at the noise that was seen; None where there is none to be shown.
    """

    goes_on: bool
    why: str = ""
    wanted: int | None = None


def outlook(e: Evidence, found: Judgement) -> Outlook:
    """What to do after a look."""
    undecided = [one for one in found.criteria if one.state is CriterionState.UNDECIDED]
    names = {one.name for one in undecided}
    if found.verdict is not GateVerdict.INCONCLUSIVE or not names <= OPEN_TO_MORE:
        return Outlook(goes_on=False)
    if any(launch.failure is not None for launch in e.launches):
        return Outlook(goes_on=False)
    axes = (throughput_axis(e), ttft_axis(e))
    if any(axis.shift is None for axis in axes):
        return Outlook(goes_on=False)
    pairs = tuple(zip(axes, LEAST_MARGINS, strict=True))
    wanted = min((count for axis, margin in pairs if (count := _wanted(e, axis, margin)) is not None), default=None)
    told = f" (about {wanted} launches would show it)" if wanted is not None else ""
    if e.look.number == len(e.look.at) - 1:
        return Outlook(goes_on=False, why=f"{e.look.most} launches were not enough{told}", wanted=wanted)
    if "gain" in names and not any(_promises(axis, margin) for axis, margin in pairs):
        why = f"what gain the launches leave possible, {e.look.most} would hardly show{told}"
        return Outlook(goes_on=False, why=why, wanted=wanted)
    if "slo" in names and not _slo_within_reach(e, found):
        return Outlook(goes_on=False, why="the figures themselves are beyond the SLO, not only their intervals")
    following = e.look.at[e.look.number + 1]
    why = f"undecided after {e.look.launches} launches{told}; going on to {following}"
    return Outlook(goes_on=True, why=why, wanted=wanted)


def _promises(axis: Axis, margin: float) -> bool:
    """Whether a gain worth having is still possible, and would be shown in the end."""
    shift = axis.shift
    if shift is None:
        return False
    most, made = axis.look.most, len(axis.launches)
    sd = max(shift.spread.pooled_sd, shift.spread.seen_sd)
    seen = axis.sign * shift.log
    possible = seen + _NORMAL.inv_cdf(FAVOURABLE) * sd * math.sqrt(shift.share)
    if possible < margin:
        return False
    left = most - made
    ahead = replace(shift.spread, pooled_df=shift.spread.pooled_df + left, seen_df=shift.spread.seen_df + left)
    needed = axis.needed(axis.look.last, ahead, share=4 / most)
    expected = (made * seen + left * possible) / most
    by_chance = left / most * sd * math.sqrt(4 / left)
    return 1 - _NORMAL.cdf((needed - expected) / by_chance) >= LEAST_CHANCE


def _wanted(e: Evidence, axis: Axis, margin: float) -> int | None:
    """Launches of both sides together that would show what is claimed or seen, as if they were looked at once.

    None for gains that nobody would promote a config for.
    """
    assert axis.shift is not None  # the caller has looked
    gain = axis.sign * axis.shift.log
    figure = "tok_s_per_gpu" if axis.sign > 0 else "ttft_p95_s"
    ours, theirs = getattr(e.candidate, figure), getattr(e.against, figure)
    if ours is not None and theirs is not None:
        gain = max(gain, axis.sign * (math.log(ours.value) - math.log(theirs.value)))
    if gain < margin:
        return None
    sd = max(axis.shift.spread.pooled_sd, axis.shift.spread.seen_sd)
    return launches_for(gain, sd, axis.gain_alpha)


def launches_for(gain: float, sd: float, alpha: float, power: float = WANTED_POWER) -> int:
    """Launches, both sides together, whose difference shows a gain; an even number, 2 at least.

    The textbook sample size for two means of known deviation, looked at once.

    Args:
        gain: of the logarithm, above 0.
        sd: of a launch's mean.
        alpha: one-sided.
    """
    each = 2 * ((_NORMAL.inv_cdf(1 - alpha) + _NORMAL.inv_cdf(power)) * sd / gain) ** 2
    return 2 * max(1, math.ceil(each))


def _slo_within_reach(e: Evidence, found: Judgement) -> bool:
    """Whether each limited figure itself is within its limit."""
    assert e.slo is not None  # it is undecided
    figures = next(one.figures for one in found.criteria if one.name == "slo")
    return len(figures) == len(e.slo.limits) and all(
        figure.estimate.value <= limit.bound for limit, figure in zip(e.slo.limits, figures, strict=True)
    )
