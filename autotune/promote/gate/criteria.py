"""What a candidate has to show beside its figures: that it serves everything, starts again, and stays within memory."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.promote.gate.evidence import Evidence
from autotune.records import (
    ENVIRONMENT_CLASSES,
    CriterionState,
    Estimate,
    GateCriterion,
    GateFigure,
    GateLaunch,
    GateSideName,
    QualityState,
)
from autotune.units import format_bytes

STORM_SHARE = 0.05
"""Preemptions per completed request from which they are a storm; a few are fine."""

MEMORY_SHARE = 0.98
"""Of a card's memory that may be in use after the longest request: what is left is for the driver and for fragments."""

_HELD, _BROKEN = CriterionState.HELD, CriterionState.BROKEN
_UNDECIDED, _NONE = CriterionState.UNDECIDED, CriterionState.NOT_APPLICABLE


def served(e: Evidence) -> GateCriterion:
    """No request failed, at any level."""
    levels = [level for launch in e.of(GateSideName.CANDIDATE) for level in launch.levels]
    failed = sum(level.failed for level in levels)
    ended = failed + sum(level.completed for level in levels)
    kinds = sorted({kind for level in levels for kind, _ in level.errors})
    state = _BROKEN if failed else _HELD if ended else _UNDECIDED
    said = f"{failed} of {ended:,} requests failed" + (f" ({', '.join(kinds)})" if kinds else "")
    return GateCriterion(
        name="no_failed_request",
        asked="no request of the candidate fails at any level",
        state=state,
        found=said if ended else "no level of the candidate was driven to its end",
        figures=(GateFigure(name="failed requests", unit="", estimate=Estimate(value=float(failed)), bound=0.0),),
    )


def preemptions(e: Evidence) -> GateCriterion:
    """No level with more preemptions than one in twenty requests."""
    asked = f"at every level fewer preemptions than {STORM_SHARE:.0%} of the requests"
    levels = [level for launch in e.of(GateSideName.CANDIDATE) for level in launch.levels if level.completed]
    told = [(level.preemptions / level.completed, level) for level in levels if level.preemptions is not None]
    if not told:
        return GateCriterion(
            name="preemptions", asked=asked, state=_UNDECIDED, found="the server's counters could not be read"
        )
    share, worst = max(told, key=lambda pair: pair[0])
    return GateCriterion(
        name="preemptions",
        asked=asked,
        state=_BROKEN if share > STORM_SHARE else _HELD if len(told) == len(levels) else _UNDECIDED,
        found=f"at most {worst.preemptions} in {worst.completed:,} requests (level {worst.level.name})",
        figures=(
            GateFigure(name="preemptions per request", unit="share", estimate=Estimate(value=share), bound=STORM_SHARE),
        ),
    )


def longest_request(e: Evidence) -> GateCriterion:
    """A request that fills max-model-len is answered, after everything else."""
    launches = _measured(e)
    answers = [launch.longest_answered for launch in launches]
    tokens = [launch.longest_prompt_tokens for launch in launches if launch.longest_prompt_tokens is not None]
    state = _BROKEN if False in answers else _HELD if answers and all(answers) else _UNDECIDED
    words = {
        _HELD: f"answered in each of {len(answers)} launches",
        _BROKEN: "not answered",
        _UNDECIDED: "the server does not say its max-model-len, or was not asked",
    }
    return GateCriterion(
        name="longest_request",
        asked="the longest request that the candidate admits is answered, after the load",
        state=state,
        found=words[state] + (f" (a prompt of {max(tokens):,} tokens)" if tokens else ""),
    )


def memory(e: Evidence) -> GateCriterion:
    """GPU memory in use, after that request."""
    asked = f"no more than {MEMORY_SHARE:.0%} of a GPU's memory in use, the longest request included"
    launches = [launch for launch in _measured(e) if launch.memory_total_bytes]
    if e.simulated or not launches:
        found = "a simulated server uses no GPU" if e.simulated else "there is no GPU"
        return GateCriterion(name="memory", asked=asked, state=_NONE, found=found)
    told = [
        (launch.memory_used_bytes / total, launch.memory_used_bytes, total)
        for launch in launches
        if launch.memory_used_bytes is not None and (total := launch.memory_total_bytes)
    ]
    if not told:
        return GateCriterion(
            name="memory", asked=asked, state=_UNDECIDED, found="the driver did not say how much was in use"
        )
    share, used, total = max(told)
    return GateCriterion(
        name="memory",
        asked=asked,
        state=_HELD if share <= MEMORY_SHARE else _BROKEN,
        found=f"at most {format_bytes(used)} of {format_bytes(total)} ({share:.1%})",
        figures=(GateFigure(name="memory in use", unit="share", estimate=Estimate(value=share), bound=MEMORY_SHARE),),
    )


def restarts(e: Evidence) -> GateCriterion:
    """Every launch of the candidate starts and stops cleanly, and there are at least two."""
    asked = "the candidate starts, stops with its GPU memory given back, and starts again"
    launches = e.of(GateSideName.CANDIDATE)
    failed = next((launch for launch in launches if launch.failure is not None), None)
    if failed is not None:
        state = _UNDECIDED if failed.failure_kind in ENVIRONMENT_CLASSES else _BROKEN
        return GateCriterion(name="restart", asked=asked, state=state, found=f"launch {failed.place}: {failed.failure}")
    dirty = [launch for launch in launches if launch.stopped_cleanly is False]
    if dirty:
        return GateCriterion(
            name="restart", asked=asked, state=_BROKEN, found=f"launch {dirty[0].place} did not give its memory back"
        )
    starts = [launch.startup_s for launch in launches if launch.startup_s is not None]
    took = f", in {min(starts):.0f} to {max(starts):.0f} s" if starts else ""
    return GateCriterion(
        name="restart",
        asked=asked,
        state=_HELD if len(launches) > 1 else _UNDECIDED,
        found=f"{len(launches)} clean starts and stops{took}",
    )


def quality(e: Evidence) -> GateCriterion:
    """The answers stay what they were, where the config changes how they are computed."""
    asked = "answers within the study's quality thresholds, where the config changes numerics"
    if not e.lossy:
        return GateCriterion(
            name="quality",
            asked=asked,
            state=_NONE,
            found="nothing in the candidate changes what is computed",
        )
    changed = ", ".join(e.lossy)
    if e.simulated:
        return GateCriterion(
            name="quality",
            asked=asked,
            state=_NONE,
            found=f"{changed}: not measurable, a simulated server computes no tokens",
        )
    found = [launch.quality for launch in _measured(e)]
    seen = [one for one in found if one is not None]
    states = {one.state for one in seen}
    judged = seen if e.studied is None else [*seen, e.studied]
    lost = next((one for one in judged if one.state is QualityState.LOST), None)
    if lost is not None:
        state, why = _BROKEN, lost.why
    elif seen and len(seen) == len(found) and states <= {QualityState.HELD, QualityState.REFERENCE}:
        state, why = _HELD, seen[-1].why
    else:
        state, why = _UNDECIDED, seen[-1].why if seen else "nothing was asked"
    return GateCriterion(
        name="quality", asked=asked, state=state, found=f"{changed}: {why}", figures=_quality_figures(e)
    )


def _quality_figures(e: Evidence) -> tuple[GateFigure, ...]:
    found = next((launch.quality for launch in reversed(_measured(e)) if launch.quality is not None), None)
    if found is None:
        return ()
    named = (
        ("perplexity, over the reference's", "ratio", found.perplexity_ratio),
        ("log-probability gap of a prompt token", "nats", found.logprob_gap),
        ("greedy agreement", "share", found.agreement),
    )
    return tuple(GateFigure(name=name, unit=unit, estimate=one) for name, unit, one in named if one is not None)


def _measured(e: Evidence) -> Sequence[GateLaunch]:
    """The candidate's launches that came to their end."""
    return [launch for launch in e.of(GateSideName.CANDIDATE) if launch.failure is None]
