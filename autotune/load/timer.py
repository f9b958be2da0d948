"""Wakes the driver when a request is due, closer than an event loop's own timers do.

epoll waits in whole milliseconds, and asyncio and libuv round up: `asyncio.sleep` comes back 0 to 1 ms late, half a
millisecond on average, and so is every request. A timer descriptor (timerfd_create(2), Linux) is to the loop a socket
that becomes readable, at the kernel's resolution; the way from there to a waiter takes another 0.1 ms. So it rings
LEAD_S early, and the rest is spent turning round in the loop: other events are looked after meanwhile.

Without such descriptors the loop's own timer is asked to end EARLY_S before, and more of the rest is spent in that way.
`python -m benchmarks.timer` measures all of them.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from types import TracebackType

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = getattr(os, "O_CLOEXEC", 0)

LEAD_S = 0.00015
"""How long before it is time the descriptor rings: about what a loop needs to wake up and to resume a task."""

EARLY_S = 0.0005
"""How long before it is time the loop's own timer is asked to end: its rounding eats half a millisecond on average, so
that most waits end by turning round in the loop, and few of them for long."""

_LEAST_S = 1e-9
"""A timer set to 0 is off."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class _TimerDescriptor:
    """timerfd_create(2) by the C library; `os.timerfd_create` came with Python 3.13 only.

    Raises:
        OSError: this system has none, or no descriptor is left.
    """

    def __init__(self) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError("timer descriptors are Linux's")
        library = ctypes.CDLL(None, use_errno=True)
        try:
            create, self._settime = library.timerfd_create, library.timerfd_settime
        except AttributeError:
            raise OSError("the C library has no timerfd_create") from None
        self._settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Itimerspec), ctypes.c_void_p)
        self._spec = _Itimerspec()
        self.number: int = create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self.number < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, seconds: float) -> None:
        """Readable once, so many seconds from now."""
        whole, rest = divmod(round(max(_LEAST_S, seconds) * 1e9), 1_000_000_000)
        self._spec.value.seconds, self._spec.value.nanoseconds = whole, rest
        if self._settime(self.number, 0, ctypes.byref(self._spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        os.close(self.number)


class Sleeper:
    """Waits until points in time of one clock; any number of waiters, on the running loop.

    Use as a context manager: it holds a descriptor.

    Args:
        now: seconds on a monotonic clock that advances with real time; `until` takes times of this clock.
        descriptor: False for the loop's own timers, also where the kernel has better ones.
        lead_s: 0 for a descriptor that rings when it is time, at less CPU time and 0.1 ms late.
    """

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, *, descriptor: bool = True, lead_s: float = LEAD_S
    ) -> None:
        self._now = now
        self._lead_s = lead_s
        self._waiting: list[tuple[float, int, asyncio.Future[None] | Callable[[], None]]] = []
        self._left = False
        self._order = 0
        self._timer: _TimerDescriptor | None = None
        self._wanted = descriptor

    def __enter__(self) -> Sleeper:
        if self._wanted:
            try:
                self._timer = _TimerDescriptor()
            except OSError:
                return self  # the loop's own timers, half a millisecond later
            asyncio.get_running_loop().add_reader(self._timer.number, self._ring)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Whoever still waits is cancelled; nothing is called any more."""
        self._left = True
        if self._timer is not None:
            asyncio.get_running_loop().remove_reader(self._timer.number)
            self._timer.close()
            self._timer = None
        for _, _, waiter in self._waiting:
            if isinstance(waiter, asyncio.Future):
                waiter.cancel()
        self._waiting.clear()

    @property
    def exact(self) -> bool:
        """Whether a timer descriptor is used."""
        return self._timer is not None

    async def until(self, at_s: float) -> None:
        """Return at `at_s` of the clock or right after, never before; at once where that has passed."""
        left_s = at_s - self._now()
        if left_s <= 0:
            return
        if self._timer is None:
            await self._by_the_loop(at_s)
            return
        if left_s > self._lead_s:
            await self._rung(self._timer, at_s - self._lead_s, left_s - self._lead_s)
        while self._now() < at_s:  # noqa: ASYNC110 - waits for a time, not for a state
            await asyncio.sleep(0)

    def call(self, at_s: float, what: Callable[[], None]) -> None:
        """Call `what` at `at_s` of the clock or right after, never before and never from within; no task is needed."""
        left_s = at_s - self._now()
        loop = asyncio.get_running_loop()
        if self._timer is None:
            loop.call_later(max(0.0, left_s - EARLY_S), self._turn, at_s, what)
        elif left_s <= self._lead_s:
            loop.call_soon(self._turn, at_s, what)
        else:
            self._wait(self._timer, at_s - self._lead_s, left_s - self._lead_s, lambda: self._turn(at_s, what))

    def _turn(self, at_s: float, what: Callable[[], None]) -> None:
        """Call it when it is time, else look again when the loop has looked after all others."""
        if self._left:
            return
        if self._now() >= at_s:
            what()
        else:
            asyncio.get_running_loop().call_soon(self._turn, at_s, what)

    async def _rung(self, timer: _TimerDescriptor, at_s: float, left_s: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wait(timer, at_s, left_s, waiter)
        await waiter

    def _wait(
        self, timer: _TimerDescriptor, at_s: float, left_s: float, waiter: asyncio.Future[None] | Callable[[], None]
    ) -> None:
        self._order += 1
        heappush(self._waiting, (at_s, self._order, waiter))
        if self._waiting[0][2] is waiter:
            timer.set(left_s)

    def _ring(self) -> None:
        """The descriptor is readable: let go whose time has come, and set it to the next."""
        timer = self._timer
        if timer is None:
            return
        with suppress(BlockingIOError):  # it was set anew after the loop had seen it ring
            os.read(timer.number, 8)
        now = self._now()
        waiting = self._waiting
        calls: list[Callable[[], None]] = []
        while waiting and (waiting[0][0] <= now or _gave_up(waiting[0][2])):
            waiter = heappop(waiting)[2]
            if not isinstance(waiter, asyncio.Future):
                calls.append(waiter)
            elif not waiter.done():
                waiter.set_result(None)
        if waiting:
            timer.set(waiting[0][0] - now)
        for call in calls:  # which may wait for something themselves, and so come after
            call()

    async def _by_the_loop(self, at_s: float) -> None:
        while (left_s := at_s - self._now()) > 0:  # noqa: ASYNC110 - waits for a time, not for a state
            await asyncio.sleep(max(0.0, left_s - EARLY_S))


def _gave_up(waiter: asyncio.Future[None] | Callable[[], None]) -> bool:
    return isinstance(waiter, asyncio.Future) and waiter.done()
