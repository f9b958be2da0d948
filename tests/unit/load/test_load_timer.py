from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from autotune.load.loops import new_loop
from autotune.load.timer import Sleeper

OPEN_FILES = Path("/proc/self/fd")
LINUX = sys.platform.startswith("linux")
LOOPS = {"asyncio": asyncio.new_event_loop, "installed": new_loop}


def open_files() -> int:
    return len(list(OPEN_FILES.iterdir()))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("descriptor", [True, False])
def test_nobody_wakes_early_and_all_wake(loop: str, descriptor: bool) -> None:
    """Waits of all sizes at once, the earliest asked for last: each ends after its time, and soon after."""

    async def run() -> dict[float, float]:
        woke: dict[float, float] = {}
        start = time.perf_counter()

        def now() -> float:
            return time.perf_counter() - start

        with Sleeper(now, descriptor=descriptor) as sleeper:
            assert sleeper.exact is (descriptor and LINUX)

            async def wait(at_s: float) -> None:
                await sleeper.until(at_s)
                woke[at_s] = now()

            await asyncio.gather(*(wait(at_s) for at_s in (0.05, 0.02, 0.0201, 0.02, 0.003, 0.0001, 0.0, -5.0)))
        return woke

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        woke = runner.run(run())
    assert len(woke) == 7
    assert all(at >= due for due, at in woke.items())
    # A machine that is busy with other things wakes anybody late; nobody is forgotten.
    assert all(at < max(due, 0) + 60 for due, at in woke.items())
    assert woke[0.003] < woke[0.02] < woke[0.05]


@pytest.mark.skipif(not LINUX, reason="timer descriptors are Linux's")
def test_a_waiter_that_gives_up_holds_nobody_back() -> None:
    async def run() -> float:
        start = time.perf_counter()

        def now() -> float:
            return time.perf_counter() - start

        with Sleeper(now) as sleeper:
            first = asyncio.create_task(sleeper.until(0.01))
            second = asyncio.create_task(sleeper.until(0.03))
            await asyncio.sleep(0)
            first.cancel()
            await second
            assert first.cancelled()
            return now()

    assert 0.03 <= asyncio.run(run()) < 60


@pytest.mark.skipif(not LINUX, reason="timer descriptors are Linux's")
def test_leaving_cancels_who_waits_and_returns_the_descriptor() -> None:
    async def run() -> tuple[bool, int]:
        before = open_files()
        with Sleeper() as sleeper:
            waiting = asyncio.create_task(sleeper.until(time.perf_counter() + 60))
            await asyncio.sleep(0)
        await asyncio.wait({waiting}, timeout=60)
        assert not sleeper.exact
        return waiting.cancelled(), open_files() - before

    assert asyncio.run(run()) == (True, 0)


def test_a_clock_of_another_pace() -> None:
    """A clock that runs at half speed: the waiter goes on waiting until that one says so."""

    async def run() -> float:
        start = time.perf_counter()

        def now() -> float:
            return (time.perf_counter() - start) / 2

        with Sleeper(now) as sleeper:
            await sleeper.until(0.01)
            return now()

    assert 0.01 <= asyncio.run(run()) < 60


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("descriptor", [True, False])
def test_calls_come_in_time_in_their_order_and_not_after_the_end(loop: str, descriptor: bool) -> None:
    async def run() -> list[tuple[float, float]]:
        called: list[tuple[float, float]] = []
        start = time.perf_counter()

        def now() -> float:
            return time.perf_counter() - start

        with Sleeper(now, descriptor=descriptor) as sleeper:

            def again() -> None:
                called.append((0.03, now()))
                sleeper.call(0.04, lambda: called.append((0.04, now())))

            sleeper.call(0.03, again)
            for at_s in (0.02, -1.0, 0.01):
                sleeper.call(at_s, lambda at_s=at_s: called.append((at_s, now())))
            assert not called
            sleeper.call(0.2, lambda: called.append((0.2, now())))
            await sleeper.until(0.1)
        await asyncio.sleep(0.15)
        return called

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        called = runner.run(run())
    assert [due for due, _ in called] == [-1.0, 0.01, 0.02, 0.03, 0.04]
    assert all(at >= due for due, at in called)
