"""Tests of moments: a run in which the machine held everything up for a while shows nothing, and is done again."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any

TICK_S = 0.002
HELD_UP_S = 0.01
"""How late the event loop may be once in a run that counts. What it watches shares its process and its loop."""

TRIES = 10


async def _watch(late_s: list[float]) -> None:
    while True:
        due_s = time.perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        late_s.append(time.perf_counter() - due_s)


def again_when_held_up(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A test that fails while its loop was held up is run again; one that was not has failed."""

    @functools.wraps(test)
    async def wrapper(*fixtures: Any, **named: Any) -> None:
        for left in reversed(range(TRIES)):
            late_s: list[float] = []
            watching = asyncio.create_task(_watch(late_s))
            try:
                await test(*fixtures, **named)
            except Exception:  # raised again unless it was held up
                if not left or max(late_s, default=0.0) < HELD_UP_S:
                    raise
            else:
                return
            finally:
                watching.cancel()
                await asyncio.wait({watching})

    return wrapper
