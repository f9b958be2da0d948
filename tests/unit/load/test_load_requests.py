from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.load.prompts import Calibration, fit_calibration, render_prompt
from autotune.load.requests import plan_requests
from autotune.load.words import COMMON_WORDS
from autotune.load.workloads import SharedPrefixes, load_workload
from autotune.records import Arrivals, LevelRole, LoadLevel, PlannedRequest, SharedSpan

LEVEL = LoadLevel(
    name="throughput", role=LevelRole.THROUGHPUT, arrivals=Arrivals.CLOSED, requests=200, seed=3, concurrency=8
)


def shape(requests: tuple[PlannedRequest, ...]) -> list[tuple[int, int, tuple[SharedSpan, ...]]]:
    return [(r.prompt_tokens, r.output_tokens, r.shared) for r in requests]


def content(requests: tuple[PlannedRequest, ...]) -> set[int]:
    return {r.content_seed for r in requests}


def test_shape_is_the_same_and_content_never() -> None:
    chat = load_workload("chat")
    first = plan_requests(chat, LEVEL, 1)
    assert plan_requests(chat, LEVEL, 1) == first
    variants = [
        plan_requests(chat, LEVEL, 2),
        plan_requests(chat, replace(LEVEL, seed=4), 1),
        plan_requests(chat, replace(LEVEL, name="other"), 1),
    ]
    for other in variants:
        assert shape(other) == shape(first)
        assert not content(other) & content(first)
    assert len(content(first)) == 200


def test_lengths_are_the_workloads() -> None:
    requests = plan_requests(load_workload("chat"), LEVEL, 1)
    assert sum(r.prompt_tokens for r in requests) / 200 == pytest.approx(512, rel=0.01)
    assert sum(r.output_tokens for r in requests) / 200 == pytest.approx(128, rel=0.01)
    assert {r.shared for r in requests} == {()}


def test_prompt_and_output_lengths_are_independent() -> None:
    requests = plan_requests(load_workload("chat"), replace(LEVEL, requests=2000), 1)
    products = [(r.prompt_tokens - 512) * (r.output_tokens - 128) for r in requests]
    # Standard deviations are 148 and 37; an uncorrelated mean product is within 5 sigma of 0.
    assert abs(sum(products) / 2000) < 5 * 148 * 37 / 2000**0.5


def test_open_loop_has_due_times_and_a_closed_one_has_none() -> None:
    chat = load_workload("chat")
    assert {r.scheduled_s for r in plan_requests(chat, LEVEL, 1)} == {None}
    poisson = replace(LEVEL, arrivals=Arrivals.POISSON, rate_rps=10.0, concurrency=None)
    due = [r.scheduled_s for r in plan_requests(chat, poisson, 1)]
    assert due == [r.scheduled_s for r in plan_requests(chat, poisson, 99)]
    assert None not in due


def test_prefixes_are_dealt_as_asked() -> None:
    workload = replace(load_workload("chat"), prefixes=SharedPrefixes(count=4, tokens=100, share=0.5))
    requests = plan_requests(workload, LEVEL, 1)
    ids = [r.shared[0].content if r.shared else None for r in requests]
    assert ids.count(None) == 100
    assert [ids.count(i) for i in range(4)] == [25] * 4
    plain = plan_requests(load_workload("chat"), LEVEL, 1)
    for with_prefix, without in zip(requests, plain, strict=True):
        assert with_prefix.prompt_tokens - without.prompt_tokens == with_prefix.shared_tokens
        assert with_prefix.shared_tokens == (100 if with_prefix.shared else 0)


def request(**changes: object) -> PlannedRequest:
    base = PlannedRequest(index=0, prompt_tokens=50, output_tokens=5, content_seed=11)
    return replace(base, **changes)


def test_render_is_deterministic_and_of_the_right_length() -> None:
    text = render_prompt(request(), COMMON_WORDS)
    assert text == render_prompt(request(), COMMON_WORDS)
    assert len(text.split()) == 50
    assert set(text.split()) <= set(COMMON_WORDS)
    assert render_prompt(request(content_seed=12), COMMON_WORDS) != text


def test_render_calibrated() -> None:
    # (50 - 8) tokens at 1.4 tokens per word are 30 words.
    line = Calibration(tokens_per_word=1.4, overhead_tokens=8)
    assert len(render_prompt(request(), COMMON_WORDS, calibration=line).split()) == 30
    assert len(render_prompt(request(prompt_tokens=1), COMMON_WORDS, calibration=line).split()) == 1


def test_prefix_text_is_shared_and_the_rest_is_not() -> None:
    a = render_prompt(request(shared=(SharedSpan(content=0, tokens=30),)), COMMON_WORDS).split()
    b = render_prompt(request(shared=(SharedSpan(content=0, tokens=30),), content_seed=12), COMMON_WORDS).split()
    c = render_prompt(request(shared=(SharedSpan(content=1, tokens=30),)), COMMON_WORDS).split()
    d = render_prompt(request(shared=(SharedSpan(content=0, tokens=30),)), COMMON_WORDS, study_salt=5).split()
    assert len(a) == len(b) == 50
    assert a[:30] == b[:30]
    assert a[30:] != b[30:]
    assert c[:30] != a[:30] != d[:30]


def test_prompts_differ_from_their_first_words() -> None:
    # A cache block is 16 tokens: two prompts that open alike would share it.
    openings = {
        tuple(render_prompt(r, COMMON_WORDS).split()[:8]) for r in plan_requests(load_workload("chat"), LEVEL, 1)
    }
    assert len(openings) == 200


def test_words_are_distinct() -> None:
    assert len(set(COMMON_WORDS)) == len(COMMON_WORDS) > 700


def test_fit() -> None:
    # 100 words of 1.5 tokens in 2 texts with 10 tokens of overhead each: 170; in 4 texts: 190.
    line = fit_calibration(words=100, pieces=2, tokens=170, tokens_halved=190)
    assert (line.tokens_per_word, line.overhead_tokens) == (1.5, 10.0)
    with pytest.raises(ValueError, match="no counts"):
        fit_calibration(words=100, pieces=2, tokens=10, tokens_halved=30)
