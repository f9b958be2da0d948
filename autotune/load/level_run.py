"""One load level while it runs: what is sent when, without a task per request.

The timer and the transport call; each call sends what may be sent then, at once. A request that follows another one
leaves in the same turn of the event loop in which the other's end was read.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from autotune.load.exchange import Transport
from autotune.load.growing import Looks
from autotune.load.reading import Reading, RequestError
from autotune.load.sending_order import SendingOrder
from autotune.load.timer import Sleeper
from autotune.records import Arrivals, LoadLevel, PlannedRequest


class Bodies(Protocol):
    """The bytes of requests by their place."""

    def __getitem__(self, place: int) -> bytes: ...


class LevelRun:
    """One level. Made before everything else of it, run once.

    Args:
        requests: in the order planned; `after` names one that stands before.
        clock: monotonic seconds; must advance with real time.
        keep: called with what became of each request, as it ends.
        looks: of an open loop that may end before all are sent.

    Raises:
        ValueError: a turn follows a request that is not planned before it.
    """

    def __init__(
        self,
        requests: Sequence[PlannedRequest],
        bodies: Bodies,
        *,
        clock: Callable[[], float],
        keep: Callable[[Reading], None],
        looks: Looks | None = None,
    ) -> None:
        self._requests = requests
        self._bodies = bodies
        self._clock = clock
        self._start = clock()
        self._keep = keep
        self._looks = looks
        self._order = SendingOrder(requests)
        self._followed = {request.after for request in requests if request.after is not None}
        self._ended_s: dict[int, float] = {}
        self._sleeper = Sleeper(self.now)
        self._open: dict[int, Reading] = {}
        self._sent: dict[int, Reading] = {}
        self._over = False
        # Closed loop: when each free slot came free.
        self._slots: deque[float] = deque()
        # Open loop: the next to arrive, how many will, turns that wait for an answer, and what waits for its turn.
        self._next, self._planned, self._most = 0, len(requests), 1
        self._early: dict[int, list[int]] = {}
        self._able: deque[int] = deque()

    def now(self) -> float:
        """Seconds after the level's start."""
        return self._clock() - self._start

    async def run(
        self,
        transport: Transport,
        level: LoadLevel,
        in_flight: int,
        *,
        deadline_s: float,
        abort: asyncio.Event | None = None,
        offsets_s: Sequence[float] = (),
        start: float | None = None,
    ) -> None:
        """Until everything sent has ended, the deadline passes or the caller aborts.

        Args:
            in_flight: the most that an open loop holds open.
            offsets_s: when each slot of a closed loop opens.
            start: the level's zero on `clock`; None for now.
        """
        self._start = self._clock() if start is None else start
        self._transport = transport
        self._finished = asyncio.get_running_loop().create_future()
        aborting = asyncio.create_task(abort.wait()) if abort is not None else None
        waited: set[asyncio.Future[None] | asyncio.Task[bool]] = {self._finished}
        if aborting is not None:
            waited.add(aborting)
        with self._sleeper:
            try:
                if level.arrivals is Arrivals.CLOSED:
                    self._open_slots(offsets_s)
                else:
                    self._most = max(1, in_flight)
                    self._await_next()
                left_s = deadline_s - self.now()
                await asyncio.wait(waited, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)
                if not self._finished.done():
                    aborted = aborting is not None and aborting.done()
                    self._cut(RequestError.ABORTED if aborted else RequestError.DEADLINE, level)
            finally:
                # Also when the caller cancels: no request outlives the level.
                self._over = True
                transport.abandon()
                if aborting is not None:
                    aborting.cancel()
                    await asyncio.wait({aborting})
        if self._finished.done():
            self._finished.result()

    def _guarded(self, what: Callable[[], None]) -> None:
        """A callback has no caller whom an exception would reach: whoever waits for the level gets it."""
        if self._over:
            return
        try:
            what()
        except Exception as error:  # noqa: BLE001 - passed on, whatever it is
            self._stop(error)

    def _stop(self, error: BaseException | None = None) -> None:
        self._over = True
        if self._finished.done():
            return
        if error is None:
            self._finished.set_result(None)
        else:
            self._finished.set_exception(error)

    def _send(self, place: int, due_s: float) -> None:
        reading = Reading(self._requests[place], due_s)
        self._open[reading.request.index] = reading
        if self._looks is not None:
            self._sent[place] = reading
        self._transport.send(self._bodies[place], reading, self._ended)

    def _ended(self, reading: Reading, error: BaseException | None) -> None:
        """Of the transport."""
        if self._over:
            return
        if error is not None:
            self._stop(error)
            return
        self._guarded(lambda: self._go_on(reading))

    def _go_on(self, reading: Reading) -> None:
        index = reading.request.index
        del self._open[index]
        done_s = self.now() if reading.done_s is None else reading.done_s
        if index in self._followed:
            self._ended_s[index] = done_s
            self._order.ended(index, done_s)
            self._able.extend(self._early.pop(index, ()))
        if self._closed:
            self._slots.append(done_s)
            self._fill_slots()
        else:
            self._send_able()
        self._keep(reading)

    # Closed loop

    @property
    def _closed(self) -> bool:
        return self._most == 0

    def _open_slots(self, offsets_s: Sequence[float]) -> None:
        self._most = 0
        for offset_s in offsets_s:
            self._sleeper.call(offset_s, partial(self._guarded, partial(self._slot_opens, offset_s)))
        self._end_if_done()

    def _slot_opens(self, free_s: float) -> None:
        self._slots.append(free_s)
        self._fill_slots()

    def _fill_slots(self) -> None:
        while self._slots and (taken := self._order.take()) is not None:
            place, earlier_s = taken
            free_s = self._slots.popleft()
            self._send(place, free_s if earlier_s is None else max(free_s, earlier_s))
        self._end_if_done()

    # Open loop

    def _await_next(self) -> None:
        if self._next < self._planned:
            self._sleeper.call(_due(self._requests[self._next]), lambda: self._guarded(self._arrive))
        else:
            self._end_if_done()

    def _arrive(self) -> None:
        """Everything that is due by now; a turn whose answer is open arrives, and is sent when that has ended."""
        while self._next < self._planned and _due(self._requests[self._next]) <= self.now():
            place, self._next = self._next, self._next + 1
            after = self._requests[place].after
            if after is not None and after not in self._ended_s:
                self._early.setdefault(after, []).append(place)
            else:
                self._able.append(place)
                self._send_able()
            looks = self._looks
            if looks is not None and self._next in looks.looks and looks.enough(self._waits()):
                self._planned = self._next
        self._await_next()

    def _send_able(self) -> None:
        while self._able and len(self._open) < self._most:
            place = self._able.popleft()
            self._send(place, self._able_s(place) or 0.0)
        self._end_if_done()

    def _able_s(self, place: int) -> float | None:
        """When a request of an open loop is due and its earlier turn has ended; None while that is open."""
        request = self._requests[place]
        if request.after is None:
            return _due(request)
        ended_s = self._ended_s.get(request.after)
        return None if ended_s is None else max(_due(request), ended_s)

    def _waits(self) -> list[tuple[float, float | None]]:
        """What is shown so far. A request that ended without a token waits for none: no figure of the level has it."""
        return [
            (one.scheduled_s, one.scheduled_s if one.over and one.first_token_s is None else one.first_token_s)
            for _, one in sorted(self._sent.items())
        ]

    # The end

    def _end_if_done(self) -> None:
        if self._open or self._able or self._early:
            return
        if (not self._order.left) if self._closed else self._next >= self._planned:
            self._stop()

    def _cut(self, kind: RequestError, level: LoadLevel) -> None:
        """The level's time is over: what is open failed by that, and so did what could have been sent and was not."""
        self._over = True
        at_s = self.now()
        for reading in self._open.values():
            reading.fail(kind, "open when the level ended", at_s)
            self._keep(reading)
        if level.arrivals is Arrivals.CLOSED:
            return
        early = [place for places in self._early.values() for place in places]
        for place in (*self._able, *early, *range(self._next, self._planned)):
            able_s = self._able_s(place)
            if able_s is not None and able_s <= at_s:
                reading = Reading(self._requests[place], able_s)
                reading.fail(kind, "due, but never sent", at_s)
                self._keep(reading)


def _due(request: PlannedRequest) -> float:
    if request.scheduled_s is None:
        raise ValueError(f"request {request.index} of an open loop has no due time")
    return request.scheduled_s


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Nobody looks for garbage in circles while a level runs: that takes a millisecond, and tens where much is there.

    What circles a level leaves is collected after it.
    """
    was_on = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()
