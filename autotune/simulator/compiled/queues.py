"""The heap of events and the heap of requests that may be sent. Ties of time go to the event pushed first."""

from __future__ import annotations

from autotune.simulator.compiled.compiling import compiled
from autotune.simulator.compiled.layout import State


@compiled
def push(s: State, at: float, kind: int, a: int, b: int) -> None:
    """Something will happen at `at`."""
    whole, events = s.whole[0], s.events
    whole.seq += 1
    place = whole.events
    whole.events += 1
    while place > 0:
        above = (place - 1) // 2
        if events[above].at <= at:  # pushed earlier, so it also comes first among equals
            break
        events[place] = events[above]
        place = above
    event = events[place]
    event.at, event.seq, event.kind, event.a, event.b = at, whole.seq, kind, a, b


@compiled
def pop(s: State) -> None:
    """Take the first event away; the caller has read it."""
    whole, events = s.whole[0], s.events
    whole.events -= 1
    count = whole.events
    moved = events[count]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= count:
            break
        if below + 1 < count and _earlier(s, below + 1, below):
            below += 1
        if not _earlier(s, below, count):
            break
        events[place] = events[below]
        place = below
    events[place] = moved


@compiled
def _earlier(s: State, one: int, other: int) -> bool:
    a, b = s.events[one], s.events[other]
    return a.at < b.at or (a.at == b.at and a.seq < b.seq)  # type: ignore[no-any-return]  # of a row


@compiled
def put_free(s: State, position: int) -> None:
    """A request may be sent."""
    whole, free = s.whole[0], s.free
    place = whole.free
    whole.free += 1
    while place > 0:
        above = (place - 1) // 2
        if free[above] < position:
            break
        free[place] = free[above]
        place = above
    free[place] = position


@compiled
def take_free(s: State) -> int:
    """The earliest request that may be sent; there is one."""
    whole, free = s.whole[0], s.free
    first = free[0]
    whole.free -= 1
    count = whole.free
    moved = free[count]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= count:
            break
        if below + 1 < count and free[below + 1] < free[below]:
            below += 1
        if moved < free[below]:
            break
        free[place] = free[below]
        place = below
    free[place] = moved
    return first  # type: ignore[no-any-return]  # of a row
