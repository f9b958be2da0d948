"""Which request of a level may be sent next, where some wait for the end of another. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from autotune.records import PlannedRequest


class Turns:
    """Keeps the requests of one level that may be sent; positions are those in `requests`.

    Raises:
        ValueError: `after` names no earlier request of the level: such a request could never be sent.
    """

    def __init__(self, requests: Sequence[PlannedRequest]) -> None:
        self._followers: dict[int, list[int]] = {}
        self._waiting: set[int] = set()
        known: dict[int, int] = {}
        for position, request in enumerate(requests):
            if request.after is not None:
                if request.after not in known:
                    raise ValueError(f"request {request.index} is to follow {request.after}, which does not precede it")
                self._followers.setdefault(known[request.after], []).append(position)
                self._waiting.add(position)
            known[request.index] = position
        # Ascending, hence a heap.
        self._ready = [position for position in range(len(requests)) if position not in self._waiting]

    def waits(self, position: int) -> bool:
        """Whether it must wait for another request's end."""
        return position in self._waiting

    def take(self) -> int | None:
        """The earliest request that may be sent and was not taken; None when there is none now."""
        return heapq.heappop(self._ready) if self._ready else None

    def end(self, position: int) -> tuple[int, ...]:
        """A request has ended: those that waited for it, which may be sent from now on."""
        freed = tuple(self._followers.pop(position, ()))
        for following in freed:
            self._waiting.discard(following)
            heapq.heappush(self._ready, following)
        return freed
