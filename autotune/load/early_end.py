"""When a level has shown enough against its trial: its p95 TTFT is beyond what a better config keeps to. Pure.

The level is looked at after a quarter, a half and three quarters of its requests, and wherever it may end anyway
(growing.py). At each look the requests sent so far are asked one question: are more than 5 % of them beyond the bar?
A request without its first token counts as beyond once it has waited for longer than that, else as within. If the
95th percentile were at the bar, a share of `s` among `n` independent requests would have a probability of at most
`exp(-n KL(s || 5 %))` (Chernoff; Hoeffding, 1963). Neighbours in a queue wait for the same reason, so `n` is divided by
their dependence (stats.py), of the waits or of what is beyond, whichever is larger.

Looking several times would find something sooner or later, so the level's whole error probability is dealt out over
its looks, in proportion to the requests that come between them; by the union bound all looks together err no more
often than stated, however they depend on each other. A level begins on an empty server, whose first requests wait less
than later ones: a look is early only in what it takes to be convinced, never in what it says.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.load.growing import MOST_GROWTH, Growth, Waits, growth_of
from autotune.load.stats import dependence
from autotune.load.steadiness import queue_growth
from autotune.records import Arrivals, EarlyReason, LoadLevel

BEYOND = 0.05
"""Share of requests above a 95th percentile."""

PARTS = 4
"""The requests that a level has anyway are looked at so many times, the last time with all of them."""

LEAST = 40
"""Requests before which nothing is decided: fewer are one queue."""


BEHIND = 1.5
"""Requests over first tokens in the later half of those sent."""

SLOW = 1.25
"""Dependence that a sample is too short to see. Of simulated queues at 0.6 to 0.92 of their capacity, 300 requests from
an empty one, 1.2 % ended at a stated 1 % without it, and 0.8 % with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What another config keeps to.

    Attributes:
        rival: number of the trial that stands for it.
        ttft_s: above this the p95 TTFT is worse than the rival's, the spread between launches allowed for.
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
        alpha: error probability of all looks together.
    """

    dominated: Bar | None
    saturated: Bar | None
    alpha: float


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
        self.looks = tuple(sorted({count for count in own if count >= LEAST} | set(grown)))
        self.found: Found | None = None
        self._bars = bars

    def enough(self, waits: Waits) -> bool:
        """As `Growth.enough`."""
        place = bisect_right(self.looks, len(waits)) - 1
        if place < 0:
            return False
        before = self.looks[place - 1] if place else 0
        alpha = self._bars.alpha * (self.looks[place] - before) / self.looks[-1]
        self.found = judge(waits, self._bars, alpha)
        if self.found is not None:
            return True
        growth = self._growth
        return growth is not None and self.looks[place] in growth.looks and growth.enough(waits)


def looks_of(level: LoadLevel, bars: Bars | None) -> LevelLooks | None:
    """The looks at an open loop; None where nothing can end it early."""
    if bars is None or level.arrivals is Arrivals.CLOSED or (bars.dominated is None and bars.saturated is None):
        return None
    found = LevelLooks(level, bars)
    return found if found.looks else None


def judge(waits: Waits, bars: Bars, alpha: float) -> Found | None:
    """What one look shows; None where it shows nothing.

    Args:
        waits: as `Growth.enough` takes them.
        alpha: error probability of this look.
    """
    so_far = _so_far(waits)
    dominated, saturated = bars.dominated, bars.saturated
    if dominated is not None and error_probability(so_far, dominated.ttft_s) <= alpha:
        reason = EarlyReason.SATURATED if _grows(waits) or _is_behind(waits) else EarlyReason.DOMINATED
        return Found(reason=reason, bar=dominated, requests=len(waits))
    if saturated is not None and _grows(waits) and error_probability(so_far, saturated.ttft_s) <= alpha:
        return Found(reason=EarlyReason.SATURATED, bar=saturated, requests=len(waits))
    return None


def error_probability(waits_s: Sequence[float], bar_s: float) -> float:
    """A bound for how probable such waits are where the 95th percentile is at the bar; 1 where they show nothing.

    Args:
        waits_s: TTFT of each request, or how long it has waited so far, in the order in which they were due.
    """
    values = np.asarray(waits_s, dtype=float)
    beyond = values > bar_s
    share = float(beyond.mean()) if len(values) else 0.0
    if share <= BEYOND:
        return 1.0
    draws = len(values) / (SLOW * max(dependence(beyond.astype(float)), dependence(values)))
    within = (1 - share) * math.log((1 - share) / (1 - BEYOND)) if share < 1 else 0.0
    return math.exp(-draws * (share * math.log(share / BEYOND) + within))


def _so_far(waits: Waits) -> list[float]:
    """How long each request waited, or has waited until now."""
    now = max((due for due, _ in waits), default=0.0)
    return [max(0.0, now - due) if first is None else first - due for due, first in waits]


def _grows(waits: Waits) -> bool:
    """Whether requests come faster than they are served: the slope of first tokens, waits so far in place of missing
    ones, which makes it too small rather than too large."""
    now = max((due for due, _ in waits), default=0.0)
    growth = queue_growth([(due, now if first is None else first) for due, first in waits])
    return growth is not None and growth > MOST_GROWTH


def _is_behind(waits: Waits) -> bool:
    """Whether of the requests of the later half far more came than first tokens: what is so slow is called a queue."""
    now = max((due for due, _ in waits), default=0.0)
    later = waits[len(waits) // 2 :]
    begin = later[0][0] if later else 0.0
    served = sum(first is not None and begin <= first <= now for _, first in waits)
    return len(later) > BEHIND * served
