"""Open loops that grow, at the wire: the client goes on without a gap, or never sends what it has no need of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from held_up import again_when_held_up
from scripted_server import DONE, Pause, Script, delta, serving, usage

from autotune.load.arrivals import open_level, schedule
from autotune.load.client import DriveOptions, TransportKind, drive
from autotune.load.early_end import Bar, Bars, LevelLooks
from autotune.load.measure import summarise
from autotune.load.workloads import Api
from autotune.records import (
    ArrivalProcess,
    Arrivals,
    ClockKind,
    LevelRole,
    LoadLevel,
    PlannedRequest,
    RequestRecord,
)

LEVEL = open_level(
    "ttft",
    LevelRole.TTFT,
    ArrivalProcess(kind=Arrivals.CONSTANT),
    rate_rps=200.0,
    requests=100,
    seed=0,
    most_requests=200,
)


def answer(first_s: float) -> Script:
    return Script(steps=(Pause(first_s), delta(content="a"), delta("length", content="b"), usage(10, 2), DONE))


async def driven(
    kind: TransportKind, load: LoadLevel, first_s: Any, **changes: Any
) -> tuple[tuple[RequestRecord, ...], int]:
    """Records, and how many requests the server saw. `first_s` is the wait for the first token of the n-th request."""
    planned = [
        PlannedRequest(index=at, prompt_tokens=10, output_tokens=2, content_seed=at, scheduled_s=due)
        for at, due in enumerate(schedule(load) or ())
    ]
    options = DriveOptions(api=Api.CHAT, model="m", render=lambda _: "hello", transport=kind, **changes)
    async with serving(lambda n, _body: answer(first_s(n))) as (url, seen):
        records, _ = await drive(url, load, planned, options=options)
    return records, len(seen.requests)


@pytest.mark.parametrize("kind", TransportKind)
@again_when_held_up
async def test_it_goes_on_while_the_p95_is_not_known(kind: TransportKind) -> None:
    # One in 15 waits 0.3 s, 6.7 %: the p95 may be either, and 200 requests do not tell. At 100 per second two of those
    # are under way at a time; a machine that is busy must hold eight more back, 80 ms, to look like a server behind.
    records, seen = await driven(kind, replace(LEVEL, rate_rps=100.0), lambda n: 0.3 if n % 15 == 7 else 0.005)
    assert len(records) == seen == 200
    assert {record.error for record in records} == {None}
    # Due every 10 ms; a gap for the first 100 to end would be 0.3 s.
    sent = sorted(record.sent_s or 0.0 for record in records)
    assert sent[100] - sent[99] < 0.15


@pytest.mark.parametrize("kind", TransportKind)
@again_when_held_up
async def test_what_is_not_needed_is_never_sent(kind: TransportKind) -> None:
    # After half a second none of 100 has its first token: more would tell the same.
    records, seen = await driven(kind, LEVEL, lambda _n: 1.5)
    assert len(records) == seen == 100
    assert {record.error for record in records} == {None}
    figures = summarise(LEVEL, records, 2.0, ClockKind.WALL)
    assert (figures.planned, figures.completed) == (100, 100)
    assert not {caveat.code for caveat in figures.caveats} & {"aborted", "errors"}


@pytest.mark.parametrize("kind", TransportKind)
@again_when_held_up
async def test_a_level_ends_where_another_config_is_shown_to_be_better(kind: TransportKind) -> None:
    looks = LevelLooks(LEVEL, Bars(dominated=Bar(rival=1, ttft_s=0.01), saturated=None))
    records, seen = await driven(kind, LEVEL, lambda _n: 0.1, looks=looks)
    assert len(records) == seen == 13
    assert {record.error for record in records} == {None}
    assert looks.found is not None
    assert (looks.found.bar.rival, looks.found.requests) == (1, 13)


@again_when_held_up
async def test_a_request_that_failed_at_once_waits_for_nothing() -> None:
    looks = LevelLooks(LEVEL, Bars(dominated=Bar(rival=1, ttft_s=0.3), saturated=None))
    # One in four is refused at once, and would be beyond the bar 0.3 s later, ten of the first 40; no other one waits.
    planned = [
        PlannedRequest(index=at, prompt_tokens=10, output_tokens=2, content_seed=at, scheduled_s=due)
        for at, due in enumerate(schedule(LEVEL) or ())
    ]
    options = DriveOptions(api=Api.CHAT, model="m", render=lambda _: "hello", looks=looks)
    async with serving(lambda n, _body: Script(status=500) if n % 4 == 1 else answer(0.001)) as (url, _seen):
        records, _ = await drive(url, LEVEL, planned, options=options)
    assert looks.found is None
    assert sum(record.error is not None for record in records) >= 25


@again_when_held_up
async def test_a_deadline_after_it_has_ended_blames_nothing_that_was_not_sent() -> None:
    records, seen = await driven(TransportKind.RAW, LEVEL, lambda _n: 5.0, deadline_s=1.2)
    # All 200 would have been due by 1 s; the level had ended with 100.
    assert len(records) == seen == 100
    assert {record.error for record in records} == {"deadline"}
