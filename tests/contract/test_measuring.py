"""Measuring a server that is no vLLM: no /metrics, no /version, no list of models, no extensions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from scripted_server import DONE, Hang, Pause, Script, delta, serving, usage

from autotune.errors import ServerUnusable
from autotune.load.workloads import load_workload
from autotune.measuring import Measuring, measure, result_of
from autotune.measuring_order import MeasureOrder, planned_levels
from autotune.records import Arrivals


def order(url: str, **changes: Any) -> MeasureOrder:
    given: dict[str, Any] = {"concurrencies": (2,), "rates": (), "requests": 12, "model": "m"}
    return MeasureOrder(url=url, workload=load_workload("tiny"), seed=3, **(given | changes))


def answer(_number: int, body: dict[str, Any]) -> Script:
    """Words are tokens; as many as were asked for come back, in one chunk."""
    prompt = len(body["messages"][0]["content"].split()) if "messages" in body else len(body["prompt"])
    steps = (delta(role="assistant", content=""), delta("length", content="a"), Pause(0.002))
    return Script(steps=(*steps, usage(prompt, body["max_tokens"]), DONE))


async def measured(wanted: MeasureOrder) -> tuple[Measuring, list[str]]:
    begun: list[Measuring] = []
    said: list[str] = []
    await measure(wanted, environ={}, tell=said.append, begun=begun.append)
    return begun[0], said


async def test_a_server_without_anything_of_vllms_is_measured() -> None:
    async with serving(answer) as (url, seen):
        found, said = await measured(order(url))
    shown = result_of(order(url), found)
    (level,) = shown.measurements
    assert (level.completed, level.failed, level.server) == (12, 0, None)
    assert shown.complete
    assert shown.facts.max_model_len is None
    assert not any("ignore_eos" in body for _, body, _ in seen.requests)
    assert "12 requests" in said[0]


async def test_a_level_without_a_single_answer_ends_it() -> None:
    def fail_later(number: int, body: dict[str, Any]) -> Script:
        return answer(number, body) if number < 60 else Script(status=500, content_type="application/json")

    begun: list[Measuring] = []
    async with serving(fail_later) as (url, _seen):
        wanted = order(url, concurrencies=(2, 3, 4), requests=40)
        with pytest.raises(ServerUnusable, match="http_5xx x40"):
            await measure(wanted, environ={}, tell=lambda _line: None, begun=begun.append)
    shown = result_of(wanted, begun[0])
    assert shown.measurements[0].completed == 40
    assert not shown.complete


async def test_cancelled_it_keeps_what_had_ended(tmp_path: Path) -> None:
    def hang_later(number: int, body: dict[str, Any]) -> Script:
        return answer(number, body) if number < 30 else Script(steps=(delta(content="a"), Hang()))

    begun: list[Measuring] = []
    async with serving(hang_later) as (url, seen):
        wanted = order(url, requests=50, out=tmp_path / "raw")
        driving = asyncio.create_task(measure(wanted, environ={}, tell=lambda _line: None, begun=begun.append))
        async with asyncio.timeout(120):
            while len(seen.requests) < 32:
                await asyncio.sleep(0.01)
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
    (cut,) = begun[0].measurements
    assert 0 < cut.completed < 50
    assert "aborted" in {caveat.code for caveat in cut.caveats}
    assert (tmp_path / "raw" / "level-concurrency-2.jsonl.gz").exists()


def test_levels_are_as_asked_and_bounded() -> None:
    levels = planned_levels(order("http://127.0.0.1:1", concurrencies=(8, 100), rates=(0.2, 50.0), requests=None))
    assert [(one.concurrency, one.rate_rps) for one in levels] == [(8, None), (100, None), (None, 0.2), (None, 50.0)]
    # A p95 needs 100 requests, beside two per slot that ramp and tail take; four per slot are tiny's own least.
    assert [one.requests for one in levels[:2]] == [116, 400]
    # At 0.2 requests/s only 30 arrive in half of the five minutes that a level may take.
    assert levels[2].requests == 30
    assert levels[3].requests == 100
    assert {one.arrivals for one in levels[2:]} == {Arrivals.POISSON}
    # Open loops go on while their p95 is not known, to the workload's most: 120 of `tiny`, for 50 requests/s in 40 s.
    assert [one.most_requests for one in levels] == [None, None, None, 120]
    fixed = planned_levels(order("http://127.0.0.1:1", concurrencies=(8,), rates=(50.0,), requests=30))
    assert [(one.requests, one.most_requests) for one in fixed] == [(30, None), (30, None)]
    assert len({one.seed for one in levels}) == 4
