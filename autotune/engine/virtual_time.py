"""Virtual time that several trials share: it moves only when all of them wait, to the next moment one waits for.

So trials that run beside each other in a simulation overlap as they would on a node, however long the computing behind
each of them takes, and in the same order every time: of those due at the same moment, the one with the lower rank wakes
first, and the others only when it waits again.
"""

from __future__ import annotations

import asyncio
import heapq
from contextvars import ContextVar

RANK: ContextVar[int] = ContextVar("rank", default=0)
"""Of the trial that a task works for; set it in the task's own context."""


class VirtualTime:
    """Seconds since the simulation began. Of one event loop."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._sharers = 0
        self._asleep: list[tuple[float, int, int, asyncio.Future[None]]] = []
        self._sleeps = 0

    def now(self) -> float:
        """Now, in virtual seconds."""
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        """Wait for so many virtual seconds: no real ones where nobody shares the time."""
        if seconds <= 0:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeps += 1
        heapq.heappush(self._asleep, (self._now_s + seconds, RANK.get(), self._sleeps, future))
        self._advance()
        await future

    def join(self) -> None:
        """One more shares the time: it stands still whenever that one does not wait in `sleep`."""
        self._sharers += 1

    def leave(self) -> None:
        """One less does; the others go on."""
        self._sharers -= 1
        self._advance()

    def _advance(self) -> None:
        # Whoever was cancelled in its sleep waits no more.
        self._asleep = [entry for entry in self._asleep if not entry[3].done()]
        heapq.heapify(self._asleep)
        if self._asleep and len(self._asleep) >= max(1, self._sharers):
            until_s, _, _, future = heapq.heappop(self._asleep)
            self._now_s = max(self._now_s, until_s)
            future.set_result(None)


class PacedTime(VirtualTime):
    """The same at a real pace, so that a simulated trial lasts: for benchmarks and tests of what happens meanwhile.

    Args:
        pace: real seconds that a virtual one takes.
    """

    def __init__(self, pace: float) -> None:
        super().__init__()
        self._pace = pace

    async def sleep(self, seconds: float) -> None:
        """Wait for so many virtual seconds, in real ones."""
        await asyncio.sleep(max(0.0, seconds) * self._pace)
        await super().sleep(seconds)
