"""Prompts of exactly the tokens asked for; the counting oracles are written here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.prompts import (
    GROUP,
    MIN_POOL,
    WordPool,
    choose_pool,
    id_range,
    pool_groups,
    pool_texts,
    render_ids,
    render_pooled,
)
from autotune.load.words import COMMON_WORDS
from autotune.records import PlannedRequest, SharedSpan

OVERHEAD = 9
CUT = frozenset({"about", "question", "small", "ice"})
"""Words that the oracle cuts in two wherever they stand."""
CUT_FIRST = frozenset({"a", "as"})
"""Words that it cuts in two at the beginning of a text only, as tokenizers do that know them with a space in front."""


def tokens(text: str) -> int:
    """A server that adds a template of 9 tokens."""
    words = text.split()
    return OVERHEAD + sum(2 if word in CUT else 1 for word in words) + (words[0] in CUT_FIRST)


def chosen() -> WordPool:
    groups = pool_groups(COMMON_WORDS)
    pool = choose_pool(groups, [(tokens(once), tokens(twice)) for once, twice in pool_texts(groups)])
    assert pool is not None
    return pool


def request(tokens: int, **changes: object) -> PlannedRequest:
    return PlannedRequest(**{"index": 0, "prompt_tokens": tokens, "output_tokens": 1, "content_seed": 11} | changes)


def test_groups_begin_with_the_short_words() -> None:
    groups = pool_groups(["ccc", "a", "bb", "a", *(f"long{n:02}" for n in range(20))])
    assert groups[0][:3] == ("a", "bb", "ccc")
    assert {len(group) for group in groups} == {GROUP}
    assert len(groups) == 23 // GROUP


def test_the_pool_leaves_out_what_is_cut_and_knows_the_overhead() -> None:
    pool = chosen()
    assert not CUT & set(pool.words)
    assert not CUT_FIRST & set(pool.openers)
    assert set(pool.openers) <= set(pool.words)
    assert pool.overhead_tokens == OVERHEAD
    # Four cut words cost their groups, at most; the rest is there.
    assert len(pool.words) >= len(pool_groups(COMMON_WORDS)) * GROUP - len(CUT) * GROUP


@given(length=st.integers(OVERHEAD + 1, 400), span=st.integers(0, 300), seed=st.integers(0, 2**63))
def test_pooled_prompts_are_exact(length: int, span: int, seed: int) -> None:
    shared = (SharedSpan(content=3, tokens=span), SharedSpan(content=-8, tokens=span // 2))
    text = render_pooled(request(length, content_seed=seed, shared=shared), chosen(), study_salt=5)
    assert tokens(text) == length


def test_too_few_words_are_no_pool() -> None:
    groups = pool_groups(COMMON_WORDS)
    fair = MIN_POOL // GROUP
    assert choose_pool(groups, [(GROUP, 2 * GROUP)] * fair + [(GROUP + 1, 20)] * (len(groups) - fair)) is not None
    assert choose_pool(groups, [(GROUP, 2 * GROUP)] * (fair - 1) + [(GROUP, 20)] * (len(groups) - fair + 1)) is None


def test_shared_spans_of_a_pool_are_equal_text_in_the_same_place() -> None:
    pool = chosen()
    shared = (SharedSpan(content=0, tokens=30),)
    first = render_pooled(request(100, shared=shared), pool).split()
    other = render_pooled(request(80, shared=shared, content_seed=12), pool).split()
    salted = render_pooled(request(100, shared=shared), pool, study_salt=1).split()
    assert first[:30] == other[:30]
    assert first[30:60] != other[30:60]
    assert first[:30] != salted[:30]


@pytest.mark.parametrize(
    ("vocab", "low", "high"),
    [(128_256, 1000, 121_843), (32_000, 1000, 30_400), (1024, 128, 972)],
)
def test_ids_leave_out_both_ends_of_the_vocabulary(vocab: int, low: int, high: int) -> None:
    ids = id_range(vocab)
    assert ids is not None
    assert (ids.low, ids.high) == (low, high)


def test_a_tiny_vocabulary_gives_no_ids() -> None:
    assert id_range(64) is None
    assert id_range(0) is None


@given(length=st.integers(1, 500), seed=st.integers(0, 2**63), vocab=st.integers(200, 300_000))
def test_as_many_ids_as_asked_none_outside(length: int, seed: int, vocab: int) -> None:
    ids = id_range(vocab)
    assert ids is not None
    found = render_ids(request(length, content_seed=seed), ids).ids
    assert len(found) == length
    assert ids.low <= min(found) <= max(found) < ids.high


def test_shared_spans_are_equal_ids() -> None:
    ids = id_range(32_000)
    assert ids is not None
    shared = (SharedSpan(content=4, tokens=20), SharedSpan(content=-6, tokens=10))
    first = render_ids(request(64, shared=shared), ids, study_salt=2).ids
    other = render_ids(request(50, shared=shared, content_seed=99), ids, study_salt=2).ids
    assert first[:30] == other[:30]
    assert first[30:50] != other[30:]
