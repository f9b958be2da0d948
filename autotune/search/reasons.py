"""The one line that says why a trial was launched: the reason in one word, then the sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.records import Origin, Trial
from autotune.search.prior.expectation import Reason

_OF_ORIGIN: Mapping[Origin, Reason] = {
    Origin.BASELINE: Reason.BASELINE,
    Origin.ENQUEUED: Reason.RECIPE,
    Origin.REPEAT: Reason.REPEAT,
    Origin.PROBE: Reason.REPEAT,
    Origin.SAMPLER: Reason.SAMPLER,
}

_PLAIN: Mapping[Reason, str] = {
    Reason.BASELINE: "everything else is measured against it",
    Reason.RECIPE: "asked for by the study, or what the guide tries first on such a node",
    Reason.REPEAT: "a trial again, to see noise and drift",
}
"""Of trials of older versions, which stored no line."""


def why_line(reason: Reason, text: str) -> str:
    """As it is stored with a trial: `prior: expected 3,100 tok/s/GPU ...`."""
    return f"{reason}: {text}"


def launch_reason(trial: Trial) -> Reason:
    """Why a trial was launched; of one without such a word, as far as its origin tells."""
    word, colon, _ = trial.why.partition(": ")
    if colon and word in set(Reason):
        return Reason(word)
    return _OF_ORIGIN.get(trial.origin, Reason.REPEAT)


def plain_why(trial: Trial) -> str:
    """The sentence without the word; never empty."""
    word, colon, text = trial.why.partition(": ")
    if colon and word in set(Reason):
        return text
    return trial.why or _PLAIN.get(launch_reason(trial), "proposed by the sampler")
