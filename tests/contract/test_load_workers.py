"""A level carried by several processes is the level that one process would have driven."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from scripted_server import DONE, Hang, Script, Seen, Send, delta, serving, usage

from autotune.errors import InvalidOption, LoadWorkerLost
from autotune.load.client import DriveOptions, TransportKind, drive
from autotune.load.window import peak_in_flight
from autotune.load.workloads import Api
from autotune.records import Arrivals, LevelRole, LoadLevel, PlannedRequest, RequestRecord


def answered(
    _number: int, body: dict[str, Any], wait_s: float = 0.0, waits_for: Callable[[], bool] | None = None
) -> Script:
    """As many chunks as asked for."""
    count = body["max_tokens"]
    steps = (*(delta(content="a") for _ in range(count)), delta("length"), usage(4, count), DONE)
    return Script(before_head_s=wait_s, steps=steps, waits_for=waits_for)


def options(**changes: Any) -> DriveOptions:
    base: dict[str, Any] = {
        "api": Api.CHAT,
        "model": "m",
        "render": lambda request: f"prompt {request.index}",
        "deadline_s": 600.0,
        "stagger_s": 0.1,
        "workers": 2,
    }
    return DriveOptions(**base | changes)


def closed(count: int, concurrency: int) -> LoadLevel:
    return LoadLevel(
        name="l", role=LevelRole.EXTRA, arrivals=Arrivals.CLOSED, requests=count, seed=0, concurrency=concurrency
    )


def planned(count: int, *, due: Callable[[int], float] | None = None, talks: int = 0) -> list[PlannedRequest]:
    """With `talks`, so many conversations in turn."""
    return [
        PlannedRequest(
            index=i,
            prompt_tokens=4,
            output_tokens=2 + i % 3,
            content_seed=i,
            scheduled_s=None if due is None else due(i),
            after=i - talks if talks and i >= talks else None,
        )
        for i in range(count)
    ]


def workers_of_this_process() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if child.is_running() and "autotune.load.workers_child" in child.cmdline()
    ]


def told(records: tuple[RequestRecord, ...]) -> list[tuple[Any, ...]]:
    return [
        (
            r.index,
            r.error,
            r.status,
            r.finish_reason,
            r.prompt_tokens,
            r.output_tokens,
            r.counted_tokens,
            r.wanted_output_tokens,
            len(r.token_times_s),
        )
        for r in records
    ]


def prompts(seen: Seen) -> Counter[str]:
    return Counter(json.dumps(body["messages"]) for _, body, _ in seen.requests)


@pytest.mark.parametrize("kind", TransportKind)
async def test_a_closed_loop_is_the_same_by_one_process_and_by_three(kind: TransportKind) -> None:
    found = []
    for workers in (1, 3):
        async with serving(answered) as (url, seen):
            records, duration_s = await drive(
                url, closed(20, 5), planned(20), options=options(workers=workers, transport=kind)
            )
            found.append((told(records), prompts(seen)))
        assert peak_in_flight(records) <= 5
        first = sorted(r.scheduled_s for r in records)[0]
        assert first == pytest.approx(0.0, abs=1e-6)
        assert duration_s == pytest.approx(max(r.done_s or 0.0 for r in records), abs=1e-6)
    assert found[0] == found[1]
    assert not workers_of_this_process()


async def test_slots_keep_their_place_in_the_staggered_start() -> None:
    async with serving(lambda n, body: answered(n, body, waits_for=lambda: seen.most_open >= 4)) as (url, seen):
        records, _ = await drive(url, closed(4, 4), planned(4), options=options(stagger_s=0.4))
        assert seen.most_open == 4
    assert [r.scheduled_s for r in records] == pytest.approx([0.0, 0.1, 0.2, 0.3], abs=1e-6)
    assert all((r.sent_s or 0.0) >= r.scheduled_s for r in records)


async def test_an_open_loop_keeps_its_schedule() -> None:
    level = LoadLevel(name="l", role=LevelRole.EXTRA, arrivals=Arrivals.CONSTANT, requests=20, seed=0, rate_rps=50.0)
    heard: list[RequestRecord] = []
    begun: list[float] = []

    async def begin() -> None:
        begun.append(time.perf_counter())

    async with serving(answered) as (url, seen):
        records, _ = await drive(
            url,
            level,
            planned(20, due=lambda i: i * 0.02),
            options=options(on_record=heard.append, before_start=begin),
        )
        assert len(seen.requests) == 20
    assert [r.scheduled_s for r in records] == pytest.approx([i * 0.02 for i in range(20)], abs=1e-6)
    assert all(r.sent_s is not None and r.sent_s >= r.scheduled_s for r in records)
    assert len(begun) == 1
    assert sorted(heard, key=lambda r: r.index) == list(records)


async def test_turns_wait_for_the_turn_before() -> None:
    async with serving(lambda n, body: answered(n, body, 0.02)) as (url, _seen):
        records, _ = await drive(url, closed(12, 3), planned(12, talks=4), options=options())
    assert [r.error for r in records] == [None] * 12
    for record in records[4:]:
        assert (record.sent_s or 0.0) >= (records[record.index - 4].done_s or 9.9)


async def test_deadline_and_abort_reach_every_worker() -> None:
    gone = asyncio.Event()
    async with serving(lambda _n, _b: Script(steps=(delta(content="a"), Hang()))) as (url, _seen):
        records, _ = await drive(url, closed(9, 4), planned(9), options=options(deadline_s=0.5))
        assert [r.error for r in records] == ["deadline"] * 4
    async with serving(lambda _n, _b: Script(steps=(delta(content="a"), Hang()))) as (url, seen):
        driving = asyncio.create_task(drive(url, closed(9, 4), planned(9), options=options(abort=gone)))
        while len(seen.requests) < 4:
            await asyncio.sleep(0.01)
        gone.set()
        records, _ = await driving
    assert [r.error for r in records] == ["aborted"] * 4
    assert not workers_of_this_process()


async def test_the_secret_is_sent_and_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOAD_TEST_KEY", "s3cret-value")
    lines: list[list[str]] = []

    async def look() -> None:
        while len(found := workers_of_this_process()) < 2:  # one that has only just been started has no words yet
            await asyncio.sleep(0.01)
        lines.extend(child.cmdline() for child in found)

    refuse = Script(
        status=401, content_type="application/json", steps=(Send(b'{"error": {"message": "s3cret-value is bad"}}'),)
    )
    async with serving(lambda _n, _b: refuse) as (url, seen):
        records, _ = await drive(
            url, closed(4, 2), planned(4), options=options(api_key_env="LOAD_TEST_KEY", before_start=look)
        )
        assert {headers["Authorization"] for _, _, headers in seen.requests} == {"Bearer s3cret-value"}
    assert len(lines) == 2
    assert "s3cret" not in repr(lines) + repr(records)
    assert {r.error for r in records} == {"http_auth"}


async def test_a_worker_that_is_killed_fails_the_level_and_leaves_nobody() -> None:
    async with serving(lambda _n, _b: Script(steps=(Hang(),))) as (url, seen):
        driving = asyncio.create_task(drive(url, closed(4, 4), planned(4), options=options()))
        while len(seen.requests) < 4:
            await asyncio.sleep(0.01)
        workers_of_this_process()[0].kill()
        with pytest.raises(LoadWorkerLost, match=r"load worker \d of 2 ended .*signal 9"):
            await asyncio.wait_for(driving, 120)
    assert not workers_of_this_process()


async def test_cancelling_leaves_nobody() -> None:
    async with serving(lambda _n, _b: Script(steps=(Hang(),))) as (url, seen):
        driving = asyncio.create_task(drive(url, closed(4, 4), planned(4), options=options()))
        while len(seen.requests) < 4:
            await asyncio.sleep(0.01)
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
    assert not workers_of_this_process()


async def test_bad_headers_and_bad_turns_are_refused_before_anything_is_started() -> None:
    with pytest.raises(InvalidOption, match="line breaks"):
        await drive("http://127.0.0.1:1", closed(4, 4), planned(4), options=options(headers=(("X", "a\nb"),)))
    backwards = list(reversed(planned(4, talks=2)))
    with pytest.raises(ValueError, match="not planned before"):
        await drive("http://127.0.0.1:1", closed(4, 4), backwards, options=options())


OWNER = """
import asyncio, sys
from autotune.load.client import DriveOptions, drive
from autotune.load.workloads import Api
from autotune.records import Arrivals, LevelRole, LoadLevel, PlannedRequest
requests = [PlannedRequest(index=i, prompt_tokens=4, output_tokens=4, content_seed=i) for i in range(4)]
level = LoadLevel(name="l", role=LevelRole.EXTRA, arrivals=Arrivals.CLOSED, requests=4, seed=0, concurrency=4)
options = DriveOptions(api=Api.CHAT, model="m", render=lambda r: "x", workers=2, stagger_s=0.0)
asyncio.run(drive(sys.argv[1], level, requests, options=options))
"""


def start_owner(url: str) -> subprocess.Popen[bytes]:
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen([sys.executable, "-c", OWNER, url], env=environ, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
async def test_workers_end_with_their_owner(number: signal.Signals) -> None:
    async with serving(lambda _n, _b: Script(steps=(Hang(),))) as (url, seen):
        owner = await asyncio.to_thread(start_owner, url)
        with owner:
            while len(seen.requests) < 4:
                await asyncio.sleep(0.01)
            workers = psutil.Process(owner.pid).children()
            assert len(workers) == 2
            owner.send_signal(number)
            while owner.poll() is None:
                await asyncio.sleep(0.01)
        _, alive = await asyncio.to_thread(psutil.wait_procs, workers, timeout=120)
        assert not alive


async def test_every_worker_tells_the_cpu_time_of_its_level_when_it_ends() -> None:
    for workers, told_by in ((3, 3), (1, 0)):
        used: list[float] = []
        async with serving(answered) as (url, _seen):
            await drive(url, closed(20, 5), planned(20), options=options(workers=workers, on_worker=used.append))
        assert len(used) == told_by
        assert all(seconds > 0.0 for seconds in used)
