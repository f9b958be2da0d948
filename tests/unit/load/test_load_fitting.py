"""Prompts for tokenizers that cut words: within 1 % of what was asked, by oracles that count differently."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import pytest

from autotune.load.fitting import FittedPrompts
from autotune.load.words import COMMON_WORDS
from autotune.records import PlannedRequest, SharedSpan


def by_letters(text: str) -> int:
    return len(text)


def by_threes(text: str) -> int:
    return math.ceil(len(text) / 3)


def by_words(text: str) -> int:
    """One to three tokens per word, by no rule that could be guessed."""
    return sum(1 + zlib.crc32(word.encode()) % 3 for word in text.split())


COUNTERS = [by_letters, by_threes, by_words]


def request(tokens: int, seed: int, shared: tuple[SharedSpan, ...] = ()) -> PlannedRequest:
    return PlannedRequest(index=0, prompt_tokens=tokens, output_tokens=1, content_seed=seed, shared=shared)


@pytest.mark.parametrize("count", COUNTERS)
def test_within_one_percent(count: Callable[[str], int]) -> None:
    prompts = FittedPrompts(count, COMMON_WORDS, opener="the", overhead_tokens=7)
    asked = [100 + 37 * seed for seed in range(40)]
    shared = (SharedSpan(content=2, tokens=60), SharedSpan(content=-5, tokens=15))
    got = [count(prompts(request(n, n, shared if n % 2 else ()))) + 7 for n in asked]
    assert [abs(g - a) <= a / 100 for g, a in zip(got, asked, strict=True)] == [True] * len(asked)
    assert abs(sum(got) / sum(asked) - 1) < 0.001


def test_the_first_word_is_the_one_that_the_overhead_was_found_with() -> None:
    """A template that merges with the first word makes the overhead hang on it."""
    prompts = FittedPrompts(by_words, COMMON_WORDS, opener="about", overhead_tokens=7)
    span = (SharedSpan(content=2, tokens=20),)
    assert {prompts(request(n, n, shared)).split()[0] for n in (60, 300) for shared in ((), span)} == {"about"}


@pytest.mark.parametrize("count", COUNTERS)
def test_short_prompts_are_never_empty(count: Callable[[str], int]) -> None:
    prompts = FittedPrompts(count, COMMON_WORDS, opener="the", overhead_tokens=7)
    assert all(prompts(request(n, n)) for n in range(1, 12))


def test_spans_are_equal_text_and_others_are_not() -> None:
    prompts = FittedPrompts(by_words, COMMON_WORDS, opener="the", study_salt=3)
    span = (SharedSpan(content=9, tokens=50),)
    one, two = prompts(request(120, 1, span)), prompts(request(140, 2, span))
    other = FittedPrompts(by_words, COMMON_WORDS, opener="the", study_salt=4)(request(120, 1, span))
    opening = next(at for at, pair in enumerate(zip(one, two, strict=False)) if len(set(pair)) > 1)
    assert by_words(one[:opening]) >= 49
    assert one[:60] != other[:60]
    assert prompts(request(120, 1, span)) == one
