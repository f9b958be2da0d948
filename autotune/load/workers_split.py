"""How a level is dealt to several processes so that together they do exactly what one would have done. Pure.

Each request goes to one of them, a conversation's turns to the same: nobody else knows when the turn before has ended.
Slots of a closed loop keep their place in the staggered start, due times of an open loop stay absolute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from autotune.records import Arrivals, LoadLevel, PlannedRequest

CARRIED_CHUNKS_S = 40_000.0
"""Chunks per second that are left to one process. `python -m benchmarks.driver` finds stamps right beyond 60,000 on one
core that does nothing else; here the same process looks after the server, its log and the metrics as well."""

STREAM_CHUNKS_S = 50.0
"""Of one stream where nobody knows better: one token per 20 ms is what a person hardly reads, and more than a server
gives each of the hundreds of streams at which it matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one process gets.

    Attributes:
        places: of its requests in the level's order, ascending.
        slots: of a closed loop, 0-based numbers; empty for an open one.
        in_flight: the most requests that it holds open.
    """

    places: tuple[int, ...]
    slots: tuple[int, ...]
    in_flight: int


def expected_chunks_s(
    level: LoadLevel, requests: Sequence[PlannedRequest], stream_chunks_s: float = STREAM_CHUNKS_S
) -> float:
    """Chunks per second that a level may bring: an open loop what it asks for, a closed one what its slots may."""
    if level.arrivals is Arrivals.CLOSED:
        return (level.concurrency or 1) * stream_chunks_s
    mean = sum(request.output_tokens for request in requests) / max(1, len(requests))
    return (level.rate_rps or 0.0) * mean


def workers_for(chunks_s: float, free_cores: int) -> int:
    """Processes that carry so many chunks per second, at most one for each core that is free."""
    return max(1, min(free_cores, ceil(chunks_s / CARRIED_CHUNKS_S)))


def deal(level: LoadLevel, requests: Sequence[PlannedRequest], in_flight: int, workers: int) -> tuple[Share, ...]:
    """At most `workers` shares, none of them empty.

    The first requests of a closed loop go to the slots that would have taken them; each later one to the process with
    the least to generate per slot, so that all of them run out at about the same time.

    Args:
        in_flight: slots of a closed loop, of an open one the most that are open.
    """
    closed = level.arrivals is Arrivals.CLOSED
    roots = _roots(requests)
    work: dict[int, int] = {}
    for place, root in enumerate(roots):
        work[root] = work.get(root, 0) + requests[place].output_tokens
    count = max(1, min(workers, in_flight, len(work)))
    slots = [tuple(range(one, in_flight, count)) for one in range(count)]
    loads = [0.0] * count
    owner: dict[int, int] = {}
    for nth, root in enumerate(work):
        in_turn = not closed or nth < in_flight
        one = nth % count if in_turn else min(range(count), key=lambda at: (loads[at], at))
        owner[root] = one
        loads[one] += work[root] / len(slots[one])
    return tuple(
        Share(
            places=tuple(place for place, root in enumerate(roots) if owner[root] == one),
            slots=slots[one] if closed else (),
            in_flight=len(slots[one]),
        )
        for one in range(count)
    )


def _roots(requests: Sequence[PlannedRequest]) -> list[int]:
    """The index of the first turn of each request's conversation, by place."""
    root: dict[int, int] = {}
    for request in requests:
        root[request.index] = request.index if request.after is None else root.get(request.after, request.after)
    return [root[request.index] for request in requests]
