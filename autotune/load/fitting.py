"""Prompts for a tokenizer that cuts most words into several tokens: written, counted and corrected, one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.load.prompts import draw, span_seed
from autotune.records import PlannedRequest

_TRIES = 12
_ENDINGS = ("", "s", "e", "x", "ss", " a", "sx", " a a", "xxx", " a a a")
"""What is put behind the last word to make up for a token or a few."""

_KEPT_SPANS = 256


class FittedPrompts:
    """Renders prompts of the asked number of tokens by `count`, the model's own; a few encodings per prompt.

    Args:
        count: tokens of a text, nothing added.
        overhead_tokens: what the server adds to every prompt.
    """

    def __init__(
        self, count: Callable[[str], int], words: Sequence[str], *, overhead_tokens: int = 0, study_salt: int = 0
    ) -> None:
        self._count = count
        self._words = tuple(words)
        self._overhead = overhead_tokens
        self._salt = study_salt
        self._per_word = max(1.0, count(" ".join(self._words)) / len(self._words))
        self._spans: dict[tuple[int, int], str] = {}

    def __call__(self, request: PlannedRequest) -> str:
        """Its text; a shared span's depends on content, length and the study's salt alone."""
        whole = max(1, request.prompt_tokens - self._overhead)
        before: list[str] = []
        left = whole - 1
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
        start = self._count(before) if before else 0
        taken = max(1, min(len(words), round((tokens - start) / self._per_word)))
        best, miss = before + words[0], abs(self._count(before + words[0]) - tokens)
        fits = 1
        for _ in range(_TRIES):
            text = before + " ".join(words[:taken])
            off = tokens - self._count(text)
            if abs(off) < miss:
                best, miss = text, abs(off)
            if off >= 0:
                fits = max(fits, taken)
            if off == 0:
                return text
            step = int(off / self._per_word) or (1 if off > 0 else -1)
            following = max(1, min(len(words), taken + step))
            if following == taken or (off < 0 and following <= fits):
                break
            taken = following
        return self._ended(before + " ".join(words[:fits]), tokens, best, miss)

    def _ended(self, text: str, tokens: int, best: str, miss: int) -> str:
        for ending in _ENDINGS:
            off = abs(self._count(text + ending) - tokens)
            if off < miss:
                best, miss = text + ending, off
        return best
