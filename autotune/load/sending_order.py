"""Which request may be sent: those whose earlier turn has ended. Pure; the driver asks and tells."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from autotune.records import PlannedRequest


class SendingOrder:
    """Places (0-based, in the order planned) that may be taken, the earliest first.

    A turn whose predecessor is open waits; it comes before everything behind it once that has ended, so that a
    conversation goes on before another is begun.
    """

    def __init__(self, requests: Sequence[PlannedRequest]) -> None:
        place = {request.index: at for at, request in enumerate(requests)}
        self._waiting: dict[int, list[int]] = {}
        self._free: list[tuple[int, float | None]] = []
        for at, request in enumerate(requests):
            if request.after is None:
                heappush(self._free, (at, None))
                continue
            if place.get(request.after, at) >= at:
                raise ValueError(f"request {request.index} comes after {request.after}, which is not planned before it")
            self._waiting.setdefault(request.after, []).append(at)

    def take(self) -> tuple[int, float | None] | None:
        """The next place and when its predecessor ended (None without one); None while there is none to take."""
        return heappop(self._free) if self._free else None

    @property
    def left(self) -> bool:
        """Whether something is still to be taken, now or when others have ended."""
        return bool(self._free or self._waiting)

    def ended(self, index: int, at_s: float) -> int:
        """Request `index` has ended, well or not; how many became free by that."""
        freed = self._waiting.pop(index, [])
        for at in freed:
            heappush(self._free, (at, at_s))
        return len(freed)
