"""Dealing a level to workers: nothing is lost, doubled, or taken from its conversation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.workers_split import CARRIED_CHUNKS_S, deal, expected_chunks_s, workers_for
from autotune.records import Arrivals, LevelRole, LoadLevel, PlannedRequest


def level(arrivals: Arrivals, **changes: object) -> LoadLevel:
    return LoadLevel(name="l", role=LevelRole.EXTRA, arrivals=arrivals, requests=0, seed=0, **changes)


def request(index: int, tokens: int = 4, after: int | None = None) -> PlannedRequest:
    return PlannedRequest(index=index, prompt_tokens=1, output_tokens=tokens, content_seed=0, after=after)


@st.composite
def plans(draw: st.DrawFn) -> list[PlannedRequest]:
    """Some requests, each perhaps a turn after an earlier one that nobody follows yet."""
    count = draw(st.integers(1, 30))
    ends: list[int] = []
    made = []
    for index in range(count):
        after = draw(st.sampled_from([None, *ends]))
        if after is not None:
            ends.remove(after)
        ends.append(index)
        made.append(request(index, draw(st.integers(1, 200)), after))
    return made


@pytest.mark.no_cover
@given(plans(), st.integers(1, 40), st.integers(1, 6), st.sampled_from([Arrivals.CLOSED, Arrivals.POISSON]))
def test_every_request_and_slot_goes_to_one_worker(
    requests: list[PlannedRequest], in_flight: int, workers: int, arrivals: Arrivals
) -> None:
    shares = deal(level(arrivals), requests, in_flight, workers)
    assert 1 <= len(shares) <= workers
    assert sorted(place for share in shares for place in share.places) == list(range(len(requests)))
    assert sum(share.in_flight for share in shares) == in_flight
    slots = sorted(slot for share in shares for slot in share.slots)
    assert slots == (list(range(in_flight)) if arrivals is Arrivals.CLOSED else [])
    for share in shares:
        assert share.places
        assert share.in_flight
        assert list(share.places) == sorted(share.places)
        indexes = {requests[place].index for place in share.places}
        assert all(requests[place].after in {None, *indexes} for place in share.places)


def test_the_first_requests_go_to_the_slots_that_would_have_taken_them() -> None:
    shares = deal(level(Arrivals.CLOSED), [request(i) for i in range(12)], 5, 2)
    assert [share.slots for share in shares] == [(0, 2, 4), (1, 3)]
    assert [share.places[:2] for share in shares] == [(0, 2), (1, 3)]


def test_workers_run_out_at_the_same_time() -> None:
    """Per slot no worker has more left than one request above another, whatever the lengths."""
    requests = [request(i, 1 + (i * 37) % 200) for i in range(500)]
    shares = deal(level(Arrivals.CLOSED), requests, 9, 2)
    loads = [sum(requests[place].output_tokens for place in share.places) / share.in_flight for share in shares]
    assert max(loads) - min(loads) <= 200 / 4


def test_how_many() -> None:
    assert expected_chunks_s(level(Arrivals.CLOSED, concurrency=100), [], 30.0) == 3000
    asked = [request(0, 100), request(1, 300)]
    assert expected_chunks_s(level(Arrivals.POISSON, rate_rps=50.0), asked) == pytest.approx(10_000)
    assert expected_chunks_s(level(Arrivals.POISSON, rate_rps=50.0), []) == 0
    assert workers_for(0.0, 8) == workers_for(CARRIED_CHUNKS_S, 8) == 1
    assert workers_for(CARRIED_CHUNKS_S + 1, 8) == 2
    assert workers_for(1e6, 3) == 3
