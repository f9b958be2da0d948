"""What the quality guard found, as a column, as lines of `show`, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.records import Estimate, Quality, QualityState, Trial
from autotune.search.remembered import remembered

COLUMN = "answers"

_WORST_FIRST = (
    QualityState.LOST,
    QualityState.UNDECIDED,
    QualityState.HELD,
    QualityState.NOT_MEASURABLE,
    QualityState.REFERENCE,
    QualityState.LOSSLESS,
)
_WORDS = {
    QualityState.LOST: "LOST",
    QualityState.UNDECIDED: "undecided",
    QualityState.HELD: "held",
    QualityState.NOT_MEASURABLE: "not measurable",
    QualityState.REFERENCE: "reference",
    QualityState.LOSSLESS: "unchanged",
}


def quality_of(trial: Trial, trials: Sequence[Trial]) -> Quality | None:
    """Of a trial's config: the worst of its launches; None where nobody asked."""
    return _by_config(trials).get(trial.config.hash)


@remembered
def _by_config(trials: Sequence[Trial]) -> Mapping[str, Quality]:
    """The worst of each config's launches, by the config's hash."""
    worst: dict[str, Quality] = {}
    for one in trials:
        found = one.result.quality if one.result is not None else None
        if found is None:
            continue
        known = worst.get(one.config.hash)
        if known is None or _WORST_FIRST.index(found.state) < _WORST_FIRST.index(known.state):
            worst[one.config.hash] = found
    return worst


def quality_cell(found: Quality | None) -> str:
    """Few words: the state, and how much of what the reference says is said alike."""
    if found is None:
        return ""
    alike = f", {found.agreement.value:.0%} alike" if found.lossy and found.agreement is not None else ""
    return _WORDS[found.state] + alike


def quality_lines(found: Quality) -> list[str]:
    """All of it, for `show`."""
    simulated = " (simulated)" if found.simulated else ""
    lines = [f"{_WORDS[found.state]}{simulated}: {found.why}"]
    if found.lossy:
        lines.append(f"changes numerics by {', '.join(found.lossy)}")
    figures = [
        f"{name} {_spelled(one)}"
        for name, one in (
            ("perplexity ratio", found.perplexity_ratio),
            ("log-probability gap", found.logprob_gap),
            ("greedy agreement", found.agreement),
        )
        if one is not None
    ]
    if figures:
        lines.append("; ".join(figures))
    if found.by_subject:
        lines.append("agreement by subject: " + ", ".join(f"{name} {share:.0%}" for name, share in found.by_subject))
    if found.prompts:
        against = f", against {found.reference}" if found.reference else ""
        took = f", in {found.seconds:.0f} s" if found.seconds is not None else ""
        lines.append(f"{found.prompts} prompts of {found.prompt_set}{against}{took}")
    return lines


def quality_document(found: Quality | None) -> dict[str, Any] | None:
    """The same as JSON; null where nobody asked."""
    if found is None:
        return None
    return {
        "state": str(found.state),
        "why": found.why,
        "reference": found.reference,
        "lossy": list(found.lossy),
        "prompt_set": found.prompt_set,
        "prompts": found.prompts,
        **{
            name: None
            if one is None
            else {"value": _number(one.value), "low": _number(one.low), "high": _number(one.high)}
            for name, one in (
                ("perplexity_ratio", found.perplexity_ratio),
                ("logprob_gap", found.logprob_gap),
                ("agreement", found.agreement),
            )
        },
        "agreement_by_subject": {name: _number(share) for name, share in found.by_subject},
        "seconds": _number(found.seconds),
        "simulated": found.simulated,
    }


def _number(value: float | None) -> float | None:
    """JSON has no NaN and no infinity, which a config that computes no numbers has."""
    return value if value is not None and math.isfinite(value) else None


def _spelled(one: Estimate) -> str:
    if one.low is None or one.high is None:
        return f"{one.value:.4g}"
    return f"{one.value:.4g} [{one.low:.4g} .. {one.high:.4g}]"
