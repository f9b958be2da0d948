"""How far answers are from a reference's, with intervals over prompts, and whether that is within bounds. Pure.

Three figures, each of which sees what the others miss:

* *perplexity ratio*: of the prompts' own text, config over reference: whether the model became worse at it;
* *log-probability gap*: mean absolute difference of a prompt token's log-probability: how much changed at all, where
  gains here and losses there cancel in a perplexity;
* *agreement*: share of the reference's greedy tokens until the first that differs. One near tie that falls the other
  way ends it, so it is the strictest, and of two launches of one config it need not be 1.

Intervals come from a bootstrap over prompts: tokens of one prompt are no independent witnesses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.quality.answers import Answer
from autotune.records import Estimate, Quality, QualityState, QualityThresholds

DRAWS = 1000
_SEED = 41
LEAST_PROMPTS = 5
"""Of fewer no interval is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """One prompt's part of every figure."""

    subject: str
    tokens: int
    lost: float
    gap: float
    agreed: float


def compare(
    found: Quality,
    reference: Sequence[Answer],
    answers: Sequence[Answer],
    thresholds: QualityThresholds,
    subjects: dict[str, str],
) -> Quality:
    """`found` with its figures and its state.

    Args:
        found: what is known beside the answers; its `why` is replaced.
        subjects: of the prompts, by name.
    """
    known = {one.name: one for one in reference}
    pairs = []
    for one in answers:
        other = known.get(one.name)
        if other is None or not other.greedy or not other.logprobs:
            continue
        if other.prompt_ids != one.prompt_ids:
            return replace(
                found, state=QualityState.NOT_MEASURABLE, why="the reference splits prompts into other tokens"
            )
        pairs.append(_pair(subjects.get(one.name, ""), other, one))
    if not pairs:
        return replace(found, state=QualityState.NOT_MEASURABLE, why="no prompt was answered by both")
    perplexity_ratio, logprob_gap, agreement = _figures(pairs)
    made = replace(
        found,
        prompts=len(pairs),
        perplexity_ratio=perplexity_ratio,
        logprob_gap=logprob_gap,
        agreement=agreement,
        by_subject=_by_subject(pairs),
    )
    state, why = _judged(made, thresholds)
    return replace(made, state=state if found.lossy else QualityState.REFERENCE, why=why)


def _pair(subject: str, reference: Answer, answer: Answer) -> _Pair:
    differences = [theirs - ours for theirs, ours in zip(reference.logprobs, answer.logprobs, strict=True)]
    same = 0
    for theirs, ours in zip(reference.greedy, answer.greedy, strict=False):
        if theirs != ours:
            break
        same += 1
    return _Pair(
        subject=subject,
        tokens=len(differences),
        lost=math.fsum(differences),
        gap=math.fsum(map(abs, differences)),
        agreed=same / len(reference.greedy),
    )


def _figures(pairs: Sequence[_Pair]) -> tuple[Estimate, Estimate, Estimate]:
    """Per-token figures from sums over prompts, the agreement as a mean over prompts."""
    columns = np.array([[one.tokens, one.lost, one.gap, one.agreed] for one in pairs])
    values = _of(columns[None])
    if len(pairs) < LEAST_PROMPTS:
        first, second, third = (Estimate(value=float(value.item())) for value in values)
        return first, second, third
    drawn = np.random.default_rng(_SEED).integers(0, len(pairs), (DRAWS, len(pairs)))
    bounds = [np.percentile(one, [2.5, 97.5]) for one in _of(columns[drawn])]
    first, second, third = (
        Estimate(value=float(value.item()), low=float(low), high=float(high))
        for value, (low, high) in zip(values, bounds, strict=True)
    )
    return first, second, third


def _of(drawn: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(draws, prompts, 4) to perplexity ratio, gap and agreement of each draw."""
    tokens, lost, gap, agreed = np.moveaxis(drawn.sum(axis=1), 1, 0)
    return np.exp(lost / tokens), gap / tokens, agreed / drawn.shape[1]


def _judged(made: Quality, thresholds: QualityThresholds) -> tuple[QualityState, str]:
    """By the end of each interval that is on the bad side; what is no number is on the bad side of every bound."""
    lost, unsure, said = [], [], []
    for name, sign in (("perplexity_ratio", 1), ("logprob_gap", 1), ("agreement", -1)):
        one: Estimate = getattr(made, name)
        bound: float = getattr(thresholds, name)
        worst = one.high if sign > 0 else one.low
        best = one.low if sign > 0 else one.high
        words = f"{name.replace('_', ' ')} {one.value:.4g} ({'at most' if sign > 0 else 'at least'} {bound:g})"
        said.append(words)
        if not sign * (one.value if best is None else best) <= sign * bound:
            lost.append(words)
        elif not sign * (one.value if worst is None else worst) <= sign * bound:
            unsure.append(words)
    if lost:
        return QualityState.LOST, ", ".join(lost)
    if unsure:
        return QualityState.UNDECIDED, f"the interval reaches beyond the threshold: {', '.join(unsure)}"
    return QualityState.HELD, ", ".join(said)


def _by_subject(pairs: Sequence[_Pair]) -> tuple[tuple[str, float], ...]:
    subjects = sorted({one.subject for one in pairs if one.subject})
    return tuple(
        (subject, math.fsum(one.agreed for one in pairs if one.subject == subject) / count)
        for subject in subjects
        if (count := sum(one.subject == subject for one in pairs))
    )
