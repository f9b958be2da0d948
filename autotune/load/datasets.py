"""Requests of a level and the text of their prompts: pure functions of seeds.

Shape (lengths, prefixes, order) comes from the workload's own seed, so every trial and every level of one size offers
the same work. Content comes from the level's seed and the trial's salt, because a prompt that was sent before is served
from the prefix cache and flatters whatever is measured second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.load.arrivals import schedule
from autotune.load.lengths import sample_lengths
from autotune.load.workloads import Workload
from autotune.records import LoadLevel, PlannedRequest, SharedSpan

_PROMPTS, _OUTPUTS, _SHARERS, _PREFIX_IDS = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How the server's tokenizer counts our words: tokens = overhead_tokens + tokens_per_word x words.

    Attributes:
        overhead_tokens: what every prompt carries besides its words (beginning of sequence, chat template).
    """

    tokens_per_word: float = 1.0
    overhead_tokens: float = 0.0


def fit_calibration(*, words: int, pieces: int, tokens: int, tokens_halved: int) -> Calibration:
    """Calibration from one vocabulary counted twice: cut into `pieces` texts, and into twice as many.

    Cutting a text in two adds the overhead once more and no word, so (tokens_halved - tokens) / pieces is the overhead.

    Args:
        words: of the whole vocabulary.
        tokens, tokens_halved: sums over all texts of either cut.

    Raises:
        ValueError: nothing is left for the words, so these are not counts of such texts.
    """
    overhead = (tokens_halved - tokens) / pieces
    in_words = tokens - pieces * overhead
    if in_words <= 0:
        raise ValueError(f"{tokens} and {tokens_halved} tokens are no counts of the same {words} words")
    return Calibration(tokens_per_word=in_words / words, overhead_tokens=overhead)


def plan_requests(workload: Workload, level: LoadLevel, trial_salt: int) -> tuple[PlannedRequest, ...]:
    """The requests of one level in the order they are sent; `scheduled_s` only in an open loop.

    Raises:
        ValueError: an open-loop level without a positive rate.
    """
    count = level.requests
    prompts = sample_lengths(workload.prompt_tokens, count, (workload.seed, _PROMPTS))
    outputs = sample_lengths(workload.output_tokens, count, (workload.seed, _OUTPUTS))
    prefix_ids = _prefix_ids(workload, count)
    prefix_tokens = workload.prefixes.tokens if workload.prefixes else 0
    due = schedule(level)
    return tuple(
        PlannedRequest(
            index=i,
            prompt_tokens=prompts[i] + (0 if prefix_ids[i] is None else prefix_tokens),
            output_tokens=outputs[i],
            content_seed=_content_seed(level, trial_salt, i),
            scheduled_s=None if due is None else due[i],
            shared=_span(prefix_ids[i], prefix_tokens),
        )
        for i in range(count)
    )


def _span(prefix_id: int | None, tokens: int) -> tuple[SharedSpan, ...]:
    return () if prefix_id is None else (SharedSpan(content=prefix_id, tokens=tokens),)


def render_prompt(
    request: PlannedRequest,
    words: Sequence[str],
    *,
    calibration: Calibration | None = None,
    study_salt: int = 0,
) -> str:
    """Text of about `request.prompt_tokens` tokens: within 2 % once calibrated against the server's tokenizer.

    A shared span depends on its content and the study's salt alone; what follows on the content seed. The exact number
    of tokens is the server's to say (`usage.prompt_tokens`). Seeds and salt are not negative.
    """
    line = calibration or Calibration()
    whole = max(1, round((request.prompt_tokens - line.overhead_tokens) / line.tokens_per_word))
    pieces: list[str] = []
    left = whole - 1  # the last word is always the request's own
    for span in request.shared:
        words_here = min(left, round(span.tokens / line.tokens_per_word))
        if words_here > 0:
            seed = [study_salt, span.content] if span.content >= 0 else [-span.content]
            pieces.append(_draw(words, words_here, seed))
            left -= words_here
    return " ".join([*pieces, _draw(words, left + 1, [request.content_seed])])


def _draw(words: Sequence[str], count: int, seed: list[int]) -> str:
    picks = np.random.default_rng(seed).integers(0, len(words), count)
    return " ".join([words[i] for i in picks.tolist()])


def _prefix_ids(workload: Workload, count: int) -> list[int | None]:
    """Which prefix each request opens with: exactly the asked share of requests, dealt evenly, in random order."""
    ids: list[int | None] = [None] * count
    if workload.prefixes is None:
        return ids
    sharers = np.random.default_rng([workload.seed, _SHARERS]).permutation(count)
    sharers = sharers[: round(workload.prefixes.share * count)]
    dealt = np.random.default_rng([workload.seed, _PREFIX_IDS]).permutation(len(sharers)) % workload.prefixes.count
    for place, prefix_id in zip(sharers.tolist(), dealt.tolist(), strict=True):
        ids[place] = prefix_id
    return ids


def _content_seed(level: LoadLevel, trial_salt: int, index: int) -> int:
    # The name is in it so that two levels given one seed by mistake still do not repeat each other's prompts.
    text = f"{level.seed}/{trial_salt}/{level.name}/{index}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
