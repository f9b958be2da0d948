"""How much a config's answers differ from those of a reference config."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotune.records.figures import Estimate


class QualityState(StrEnum):
    """What the guard says of a config.

    REFERENCE: others are compared with it. LOSSLESS: nothing in it changes numerics, so nothing was asked. HELD, LOST:
    within the thresholds, or not. UNDECIDED: the interval of a figure spans its threshold. NOT_MEASURABLE: a simulated
    server computes nothing, or the server does not give log-probabilities.
    """

    REFERENCE = "reference"
    LOSSLESS = "lossless"
    HELD = "held"
    LOST = "lost"
    UNDECIDED = "undecided"
    NOT_MEASURABLE = "not_measurable"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityThresholds:
    """Bounds of the guard; a study file may replace each (`quality:`).

    The defaults are a convention, not a measurement: what a task bears is for whoever runs it to say.

    Attributes:
        perplexity_ratio: of the reference texts' perplexity, config over reference, at most.
        logprob_gap: mean absolute difference of a prompt token's log-probability, nats, at most.
        agreement: share of the reference's greedy tokens until the first that differs, 0..1, at least.
    """

    perplexity_ratio: float = 1.02
    logprob_gap: float = 0.06
    agreement: float = 0.60


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What the guard found of one launch.

    Attributes:
        why: in one sentence.
        reference: whose answers these were compared with, e.g. `trial 0`; None where there were none.
        prompts: how many were asked; `prompt_set` names the file and its fingerprint.
        lossy: the parameters that change numerics, as `name=value`.
        perplexity_ratio, logprob_gap, agreement: as in the thresholds, with 95 % intervals over prompts.
        by_subject: agreement of the prompts of each subject, as `mathematics`, `code`, `reasoning`.
        seconds: that asking took.
        simulated: by a model of vLLM, which computes no tokens.
    """

    state: QualityState
    why: str
    prompt_set: str = ""
    prompts: int = 0
    reference: str | None = None
    lossy: tuple[str, ...] = ()
    perplexity_ratio: Estimate | None = None
    logprob_gap: Estimate | None = None
    agreement: Estimate | None = None
    by_subject: tuple[tuple[str, float], ...] = ()
    seconds: float | None = None
    simulated: bool = False
