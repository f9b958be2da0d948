"""Plans of conversations and recordings, and what is said about them before a launch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import MOONCAKE, SHAREGPT

from autotune.load.arrivals import trace_schedule
from autotune.load.lengths import Lengths
from autotune.load.model_len import guide_model_len
from autotune.load.requests import open_conversations, plan_caveats, plan_requests, reachable_share
from autotune.load.talks import interleave
from autotune.load.traces import RawRow, burstiness, make_trace
from autotune.load.workloads import (
    SharedPrefixes,
    Turns,
    Workload,
    check_lengths,
    load_workload,
    workload_fingerprint,
)
from autotune.records import ArrivalProcess, Arrivals, LevelRole, LoadLevel, PlannedRequest, SharedSpan

CLOSED = LoadLevel(name="t", role=LevelRole.THROUGHPUT, arrivals=Arrivals.CLOSED, requests=120, seed=3, concurrency=4)
OPEN = replace(CLOSED, arrivals=Arrivals.POISSON, concurrency=None, rate_rps=8.0)


def shape(requests: Sequence[PlannedRequest]) -> list[tuple[object, ...]]:
    """All but content: which spans are equal is shape, what they say is not."""
    names: dict[int, int] = {}
    return [
        (
            r.prompt_tokens,
            r.output_tokens,
            r.after,
            [(names.setdefault(s.content, len(names)), s.tokens) for s in r.shared],
        )
        for r in requests
    ]


def talking(turns: Lengths, asked: int = 20, answered: int = 30, prefix: int = 100, longest: int = 10_000) -> Workload:
    return replace(
        load_workload("chat"),
        prompt_tokens=Lengths.fixed(asked),
        output_tokens=Lengths.fixed(answered),
        prefixes=SharedPrefixes(count=1, tokens=prefix, share=1.0) if prefix else None,
        turns=Turns(count=turns, think_s=2.0, longest_tokens=longest),
    )


def recorded(rows: Sequence[RawRow], **changes: object) -> Workload:
    trace = make_trace(rows, source="rows")
    return replace(load_workload("chat"), trace=trace, **changes)


def test_a_turn_repeats_all_that_was_said() -> None:
    requests = plan_requests(talking(Lengths.fixed(3)), CLOSED, 1)
    seen = 0
    for request in requests:
        # 100 for the prefix, 20 asked and 30 answered for each earlier turn, 20 asked now.
        turn = (request.prompt_tokens - 120) // 50
        assert request.prompt_tokens == 120 + 50 * turn
        assert request.shared[0] == SharedSpan(content=0, tokens=100)
        assert all(span.content < 0 for span in request.shared[1:])
        assert request.shared_tokens == request.prompt_tokens - 1
        if request.after is not None:
            before = requests[request.after]
            assert before.prompt_tokens == request.prompt_tokens - 50
            assert request.shared[: len(before.shared)] == before.shared
            seen += 1
    assert seen > 60


def test_no_two_conversations_say_the_same() -> None:
    requests = plan_requests(talking(Lengths.fixed(1)), CLOSED, 1)
    own = [span.content for request in requests for span in request.shared[1:]]
    assert len(set(own)) == len(own) == 120


def test_a_conversation_ends_before_it_is_too_long() -> None:
    # 100 + 50 a turn: five turns are 350.
    requests = plan_requests(talking(Lengths.fixed(60), longest=350), replace(CLOSED, requests=600), 1)
    assert max(r.prompt_tokens + r.output_tokens for r in requests) == 350


def test_a_turn_stands_far_enough_behind_the_one_before() -> None:
    requests = plan_requests(talking(Lengths.uniform(2, 9)), CLOSED, 1)
    assert open_conversations(talking(Lengths.fixed(2)), CLOSED) == 8
    assert {r.index - r.after for r in requests if r.after is not None} == {8}


def test_an_open_loop_leaves_time_to_think() -> None:
    workload = talking(Lengths.fixed(6))
    level = replace(OPEN, requests=2000)
    assert open_conversations(workload, level) == 16  # 8 requests/s, every 2 s one of each conversation
    requests = plan_requests(workload, level, 1)
    gaps = [(r.scheduled_s or 0.0) - (requests[r.after].scheduled_s or 0.0) for r in requests if r.after is not None]
    assert sum(gaps) / len(gaps) == pytest.approx(2.0, rel=0.03)
    assert max(r.scheduled_s or 0.0 for r in requests) == pytest.approx(250, rel=0.01)


def test_a_level_neither_begins_nor_ends_with_short_prompts() -> None:
    requests = plan_requests(talking(Lengths.fixed(10)), replace(CLOSED, requests=800), 1)
    thirds = [[r.prompt_tokens for r in requests[at : at + 200]] for at in (0, 300, 600)]
    means = [sum(third) / 200 for third in thirds]
    assert max(means) / min(means) < 1.15


def test_reachable_share() -> None:
    def one(index: int, tokens: int, *spans: tuple[int, int]) -> PlannedRequest:
        shared = tuple(SharedSpan(content=content, tokens=size) for content, size in spans)
        return PlannedRequest(index=index, prompt_tokens=tokens, output_tokens=1, content_seed=0, shared=shared)

    requests = [
        one(0, 100, (1, 50)),
        one(1, 100, (1, 50), (2, 30)),  # 50 again
        one(2, 100, (1, 50), (2, 30)),  # 80 again
        one(3, 100, (2, 30)),  # not in this place
        one(4, 100, (9, 5), (2, 30)),  # nor behind another beginning
        one(5, 100),
    ]
    assert reachable_share(requests) == pytest.approx(130 / 600)
    assert reachable_share([]) == 0


def test_reachable_share_of_a_conversation() -> None:
    # One conversation at once from its first turn would hit everything but what is new; 4 in 5 turns here have a past.
    workload = talking(Lengths.fixed(5), prefix=0)
    share = reachable_share(plan_requests(workload, replace(CLOSED, requests=4000), 1))
    # A cycle of five prompts is 20, 70, 120, 170, 220: 600 tokens. What the prompt before asked is there again (its
    # own last token aside): 19, 69, 119, 169 of them; the answers were generated and not yet part of a prompt.
    assert share == pytest.approx((19 + 69 + 119 + 169) / 600, rel=0.02)


@pytest.mark.no_cover
@settings(deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 200),
    st.integers(1, 60),
    st.integers(0, 2**32),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_conversations_keep_their_promises(
    fewest: int, more: int, count: int, concurrency: int, seed: int, salt: int, closed: bool
) -> None:
    workload = talking(Lengths.uniform(fewest, fewest + more), longest=450)
    level = (
        replace(CLOSED, requests=count, concurrency=concurrency)
        if closed
        else replace(OPEN, requests=count, rate_rps=concurrency / 3)
    )
    planned = plan_requests(workload, level, salt)
    other = plan_requests(workload, replace(level, seed=seed), salt + 1)
    assert shape(planned) == shape(other)
    own = [{s.content for r in plan for s in r.shared if s.content < 0} for plan in (planned, other)]
    assert not own[0] & own[1]
    assert [r.index for r in planned] == list(range(count))
    for request in planned:
        assert request.after is None or request.after < request.index
        assert request.shared_tokens < request.prompt_tokens
        assert request.prompt_tokens + request.output_tokens <= 450
    if not closed:
        due = [r.scheduled_s or 0.0 for r in planned]
        assert due == sorted(due)
        assert due[-1] < count / (concurrency / 3)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=20), st.integers(1, 100), st.integers(1, 30), st.integers(0, 99)
)
def test_every_turn_comes_once_and_in_order(turns: list[int], count: int, at_once: int, seed: int) -> None:
    order = interleave(turns, count, at_once, seed)
    assert len(order) == count
    last: dict[int, int] = {}
    for place, turn in enumerate(order):
        assert turn.turn < turns[turn.serial % len(turns)]
        if turn.serial in last:
            assert turn.after == last[turn.serial]
            assert turn.turn == order[last[turn.serial]].turn + 1
        else:
            assert turn.after is None
        last[turn.serial] = place


def test_a_recording_is_sent_in_its_order_from_some_place() -> None:
    rows = [RawRow(prompt_tokens=10 + i, output_tokens=1 + i, at_s=float(i * i)) for i in range(50)]
    workload = recorded(rows)
    level = replace(OPEN, arrivals=Arrivals.TRACE, requests=20)
    requests = plan_requests(workload, level, 1)
    start = requests[0].prompt_tokens - 10
    assert [r.prompt_tokens - 10 for r in requests] == [(start + i) % 50 for i in range(20)]
    due = [r.scheduled_s or 0.0 for r in requests]
    assert due[0] == 0
    assert due == sorted(due)
    assert due[-1] < 20 / 8.0
    other = plan_requests(workload, replace(level, seed=77), 5)
    assert [(r.prompt_tokens, r.scheduled_s) for r in other] == [(r.prompt_tokens, r.scheduled_s) for r in requests]
    assert plan_requests(workload, replace(level, name="other"), 1)[0].prompt_tokens != requests[0].prompt_tokens


def test_recorded_arrivals_keep_their_bursts() -> None:
    # Gaps 1, 1, 8 at 2 requests/s: three requests in 1.5 s, so gaps of 0.15, 0.15 and 1.2.
    assert trace_schedule(2.0, [5, 6, 7, 15]) == pytest.approx((0, 0.15, 0.3))
    assert trace_schedule(2.0, [5, 5, 5]) == (0, 0.5)  # no time between them: evenly
    with pytest.raises(ValueError, match="positive rate"):
        trace_schedule(0, [1, 2])
    times = [0.0, 0.1, 0.2, 5.0, 5.1, 5.2, 10.0]
    assert burstiness([*trace_schedule(3.0, times), 2.0]) == pytest.approx(burstiness(times))


@pytest.mark.no_cover
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.floats(0, 100)), min_size=2, max_size=30),
    st.integers(1, 120),
    st.floats(0.1, 500),
    st.integers(0, 2**32),
)
def test_recordings_keep_their_promises(
    raw: list[tuple[int, int, float]], count: int, rate_rps: float, salt: int
) -> None:
    times = sorted(at for _, _, at in raw)
    rows = [RawRow(prompt_tokens=p, output_tokens=o, at_s=at) for (p, o, _), at in zip(raw, times, strict=True)]
    workload = recorded(rows)
    level = replace(OPEN, arrivals=workload.open_arrivals.kind, requests=count, rate_rps=rate_rps)
    planned = plan_requests(workload, level, salt)
    due = [r.scheduled_s or 0.0 for r in planned]
    assert due == sorted(due)
    assert due[0] >= 0
    # The mean rate is the asked one: the request after the last would come at count / rate.
    assert due[-1] <= count / rate_rps * (1 + 1e-9)
    assert len(planned) == count
    assert shape(planned) == shape(plan_requests(workload, replace(level, seed=1), salt + 1))


def test_spans_of_a_recording_are_the_levels_own(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(MOONCAKE)
    workload = load_workload(str(tmp_path / "m.jsonl"))
    level = replace(CLOSED, requests=8)
    requests = plan_requests(workload, level, 1)
    assert shape(requests) == shape(plan_requests(workload, level, 2))
    # The same row a lap later shares as many tokens, and none of them with the lap before.
    for first, again in zip(requests[:4], requests[4:], strict=True):
        assert [span.tokens for span in first.shared] == [span.tokens for span in again.shared]
        assert not {span.content for span in first.shared} & {span.content for span in again.shared}
    contents = {span.content for request in requests for span in request.shared}
    assert all(content < 0 for content in contents)
    assert not contents & {s.content for r in plan_requests(workload, level, 2) for s in r.shared}
    assert workload.shared_tokens_per_request is None


def test_real_prompts_are_sent_turn_by_turn(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(json.loads(SHAREGPT) * 20))
    workload = load_workload(str(tmp_path / "s.json"))
    requests = plan_requests(workload, CLOSED, 1)
    assert len({r.text_index for r in requests}) == 60
    for request in requests:
        assert request.shared_tokens <= request.prompt_tokens
        if request.after is not None:
            assert request.text_index == (requests[request.after].text_index or 0) + 1
    assert any(r.after is not None for r in requests)
    assert [c.code for c in plan_caveats(workload, CLOSED)] == ["repeated_prompts", "estimated_tokens"]
    assert [c.code for c in plan_caveats(workload, replace(CLOSED, requests=60))] == ["estimated_tokens"]
    assert plan_caveats(load_workload("chat"), CLOSED) == ()
    assert workload.open_arrivals == ArrivalProcess(kind=Arrivals.POISSON)
    assert "first question" not in repr(workload)


def test_a_level_of_recorded_arrivals_needs_some() -> None:
    with pytest.raises(ValueError, match="replays arrivals"):
        plan_requests(load_workload("chat"), replace(OPEN, arrivals=Arrivals.TRACE), 1)
    untimed = recorded([RawRow(prompt_tokens=1, output_tokens=1)] * 2)
    with pytest.raises(ValueError, match="replays arrivals"):
        plan_requests(untimed, replace(OPEN, arrivals=Arrivals.TRACE), 1)


def test_a_trace_refuses_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="needs a row"):
        make_trace([], source="x")
    with pytest.raises(ValueError, match="not before it"):
        make_trace([RawRow(prompt_tokens=1, output_tokens=1, after=0)], source="x")


def test_lengths_are_checked_before_a_launch(tmp_path: Path) -> None:
    # 768 x 1.02 -> 784, 64 for the template, 192: 1,040.
    problems = check_lengths(load_workload("chat"), [4096, 1040, 1039, 512])
    assert [p.max_model_len for p in problems] == [512, 1039]
    assert "768 prompt and 192 output tokens, 1,040" in problems[0].text
    mine = replace(load_workload("chat"), longest_request_tokens=9000)
    assert "longest_request_tokens asks for 9,000" in check_lengths(mine, [8192])[0].text
    (tmp_path / "m.jsonl").write_text(MOONCAKE)
    # The first row is the longest together: 1300 x 1.02 = 1326, 64, 52.
    assert load_workload(str(tmp_path / "m.jsonl")).max_model_len_needed == 1442
    assert load_workload("agent").max_model_len_needed <= 32_768
    assert [guide_model_len(n) for n in (1, 8192, 8193, 40_000, 500_000)] == [8192, 8192, 16_384, 65_536, 500_000]


def test_fingerprints(tmp_path: Path) -> None:
    # As stored by studies made before turns and traces existed.
    stored = {"chat": "8c68706a5673", "rag": "c195dedc8c10", "prefix": "ad7cd18464a1", "tiny": "8202524de935"}
    assert {name: workload_fingerprint(load_workload(name)) for name in stored} == stored
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "hello there", "max_tokens": 3}))
    (tmp_path / "b.jsonl").write_text(json.dumps({"prompt": "hello where", "max_tokens": 3}))
    a, b = (load_workload(str(tmp_path / name)) for name in ("a.jsonl", "b.jsonl"))
    assert workload_fingerprint(a) != workload_fingerprint(b)
    assert workload_fingerprint(replace(a, name="z")) == workload_fingerprint(a)
    turns = talking(Lengths.fixed(3))
    assert workload_fingerprint(turns) != workload_fingerprint(talking(Lengths.fixed(4)))
