"""Prompts for a tokenizer that cuts most words into several tokens: written, counted and corrected, one by one."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from autotune.load.prompts import draw, span_seed
from autotune.records import PlannedRequest

_TRIES = 6
_ENDINGS = (
    *("", "s", "e", "q", "z"),
    *(" a" * count for count in range(1, 5)),
    *("x" * count for count in range(1, 10)),
    *(" q" * count for count in range(1, 3)),
)
"""What is put behind the last word to make up for a few tokens: letters that merge with it and letters that do not."""

_KEPT_SPANS = 256


class FittedPrompts:
    """Renders prompts of the asked number of tokens by `count`, the model's own; a few encodings per prompt.

    Args:
        count: tokens of a text, nothing added.
        opener: first word of every prompt. How many tokens it is hangs on the template before it, so the overhead must
            have been found with the same.
        overhead_tokens: what the server adds to every prompt.
    """

    def __init__(
        self,
        count: Callable[[str], int],
        words: Sequence[str],
        *,
        opener: str,
        overhead_tokens: int = 0,
        study_salt: int = 0,
    ) -> None:
        self._count = count
        self._words = tuple(words)
        self._opener = opener
        self._overhead = overhead_tokens
        self._salt = study_salt
        # Tokens of words add up, or nearly so: most prompts are right at the first count.
        self._costs = {word: max(1, count(f"a {word}") - count("a")) for word in self._words}
        self._dearest = max(self._costs.values())
        self._spans: dict[tuple[int, int], str] = {}

    def __call__(self, request: PlannedRequest) -> str:
        """Its text; a shared span's depends on content, length and the study's salt alone."""
        whole = max(1, request.prompt_tokens - self._overhead)
        before = [self._opener]
        left = whole - self._count(self._opener) - 1
        for span in request.shared:
            if (tokens := min(left, span.tokens)) > 0:
                before.append(self._span(span.content, tokens))
                left -= tokens
        return self._fit("".join(f"{text} " for text in before), whole, [request.content_seed])

    def _span(self, content: int, tokens: int) -> str:
        key = (content, tokens)
        if key not in self._spans:
            if len(self._spans) >= _KEPT_SPANS:
                self._spans.pop(next(iter(self._spans)))
            self._spans[key] = self._fit("", tokens, span_seed(content, self._salt))
        return self._spans[key]

    def _fit(self, before: str, tokens: int, seed: list[int]) -> str:
        """`before` and as many words as make `tokens` tokens of both, the nearest that is found."""
        words = [self._words[pick] for pick in draw(seed, len(self._words), tokens)]
        sums = list(accumulate(self._costs[word] for word in words))
        room = tokens - (self._count(before) if before else 0)
        kept = 1
        for _ in range(_TRIES):
            kept = max(1, bisect_right(sums, room))
            off = tokens - self._count(before + " ".join(words[:kept]))
            if 0 <= off <= self._dearest:
                break
            room += off
        texts = (before + " ".join(words[:few]) + end for few in (kept, max(1, kept - 1)) for end in _ENDINGS)
        return self._nearest(texts, tokens)

    def _nearest(self, texts: Iterable[str], tokens: int) -> str:
        best, miss = "", math.inf
        for text in texts:
            off = abs(self._count(text) - tokens)
            if off < miss:
                best, miss = text, off
            if off == 0:
                break
        return best
