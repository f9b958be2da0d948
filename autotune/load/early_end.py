"""When a level has shown enough against its trial: its p95 TTFT is beyond what a better config keeps to. Pure.

A level sends so many requests, known beforehand; its p95 is above a bar exactly when more than a twentieth of them wait
longer than that. As soon as so many have, whatever the rest does, the answer is there (curtailed sampling: Phatak and
Bhatt, 1967). A request without a first token counts once it has waited for longer than the bar, and not before; one
that failed without a token never does, as no p95 has it. So a look says nothing that the whole level would not say,
however many looks there are and however requests depend on each other: there is no error to be dealt out over them.
What is uncertain about a p95, and how much launches differ, is in the bar (search/early.py).

The level is looked at after each eighth of its requests, and wherever it may end anyway (growing.py); of one that has
grown, all requests sent so far are the level.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from autotune.load.growing import MOST_GROWTH, MOST_WAITING, Growth, Waits, growth_of
from autotune.load.steadiness import queue_growth
from autotune.records import Arrivals, EarlyReason, LoadLevel

PARTS = 8
"""The requests that a level has anyway are looked at so many times, the last time with all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What another config keeps to.

    Attributes:
        rival: number of the trial that stands for it.
        ttft_s: above this the p95 TTFT is worse than the rival's, with all that is uncertain about both.
    """

    rival: int
    ttft_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """What ends a level.

    Attributes:
        dominated: of a config with surely more throughput.
        saturated: of one whose throughput is higher by what was measured; enough where the queue grows, which the
            rival's does not.
    """

    dominated: Bar | None
    saturated: Bar | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Why a level ended before its time.

    Attributes:
        bar: what its p95 TTFT is beyond.
        requests: sent until then.
    """

    reason: EarlyReason
    bar: Bar
    requests: int


class LevelLooks:
    """Looks at one run of a level; made for it, asked by whoever drives it.

    Attributes:
        looks: counts of requests after which the level may end, ascending.
        found: why it ended early; None while, and where, it did not.
    """

    def __init__(self, level: LoadLevel, bars: Bars) -> None:
        self._growth: Growth | None = growth_of(level)
        own = {math.ceil(level.requests * part / PARTS) for part in range(1, PARTS)}
        grown = self._growth.looks if self._growth is not None else ()
        self.looks = tuple(sorted(own | set(grown)))
        self.found: Found | None = None
        self._planned, self._bars = level.requests, bars

    def enough(self, waits: Waits) -> bool:
        """As `Growth.enough`."""
        self.found = judge(waits, self._bars, self._planned)
        if self.found is not None:
            return True
        place = bisect_right(self.looks, len(waits)) - 1
        growth = self._growth
        return growth is not None and place >= 0 and self.looks[place] in growth.looks and growth.enough(waits)


def looks_of(level: LoadLevel, bars: Bars | None) -> LevelLooks | None:
    """The looks at an open loop; None where nothing can end it early."""
    if bars is None or level.arrivals is Arrivals.CLOSED or (bars.dominated is None and bars.saturated is None):
        return None
    return LevelLooks(level, bars)


def judge(waits: Waits, bars: Bars, planned: int) -> Found | None:
    """What one look shows; None where it shows nothing.

    Args:
        waits: as `Growth.enough` takes them.
        planned: requests that the level has at least.
    """
    dominated, saturated = bars.dominated, bars.saturated
    if dominated is not None and is_beyond(waits, dominated.ttft_s, planned):
        reason = EarlyReason.SATURATED if _grows(waits) or _is_behind(waits) else EarlyReason.DOMINATED
        return Found(reason=reason, bar=dominated, requests=len(waits))
    if saturated is not None and _grows(waits) and is_beyond(waits, saturated.ttft_s, planned):
        return Found(reason=EarlyReason.SATURATED, bar=saturated, requests=len(waits))
    return None


def is_beyond(waits: Waits, bar_s: float, planned: int) -> bool:
    """Whether the p95 TTFT is above the bar whatever requests that are still to come, or under way, will wait."""
    now = max((due for due, _ in waits), default=0.0)
    beyond = sum((now if first is None else first) - due > bar_s for due, first in waits)
    return beyond >= needed(max(planned, len(waits)))


def needed(requests: int) -> int:
    """How many of so many must be above a bar for their 95th percentile to be (by linear interpolation, stats.py)."""
    return requests - math.floor(0.95 * (requests - 1))


def _grows(waits: Waits) -> bool:
    """Whether requests come faster than they are served: the slope of first tokens, waits so far in place of missing
    ones, which makes it too small rather than too large."""
    now = max((due for due, _ in waits), default=0.0)
    growth = queue_growth([(due, now if first is None else first) for due, first in waits])
    return growth is not None and growth > MOST_GROWTH


def _is_behind(waits: Waits) -> bool:
    """Whether requests of the first half still wait for a first token: what is so slow is called a queue."""
    first_half = waits[: len(waits) // 2]
    return sum(first is None for _, first in first_half) > MOST_WAITING * len(first_half)
