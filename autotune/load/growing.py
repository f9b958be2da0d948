"""When an open loop that may grow has enough requests. Pure: what was seen in, verdict out.

A level is looked at after each of its steps (`arrivals.level_steps`), right when the step's last request was sent. It
ends there when the 95 % interval of the p95 TTFT is within TARGET of it, or when further requests would tell nothing
new; else the next step follows without a gap, so that the server does not drain. Whatever the verdict, all requests
sent until then are the sample, those without a first token yet included.

Looking several times and ending when an interval happens to be narrow makes the last one too narrow a little more often
than one look does. There are few looks, at counts known beforehand, and none before `requests` were sent: of the
intervals one or two in a hundred fewer hold the truth than at a fixed number of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from autotune.load import stats
from autotune.load.arrivals import level_steps
from autotune.load.steadiness import queue_growth
from autotune.records import Arrivals, LoadLevel

Waits = Sequence[tuple[float, float | None]]
"""Due time and time of the first token of each request sent, in the order in which they were due; None for no token
yet, the due time for one that ended without."""

TARGET = 0.1
"""Half the interval of the p95 TTFT, over it. Simulated Llama-3.1-8B on one H200, chat: 20 s give 0.08 at half the
capacity and 0.13 at 0.85 of it, 40 s 0.07 and 0.11; with shared prefixes 20 s give 0.08 and need no more."""

MOST_WAITING = 0.1
"""Share of the requests that still wait for a first token: with more the server is behind, and would be further."""

MOST_GROWTH = 1.1
"""Offered over served rate: the TTFT of a queue that grows depends on how long one looks."""


class Looks(Protocol):
    """Decides while an open loop is driven whether it has enough requests. Asked by whoever drives it, between two
    requests: an answer may take a millisecond."""

    @property
    def looks(self) -> tuple[int, ...]:
        """Counts of requests after which the level may end, ascending."""
        ...

    def enough(self, waits: Waits) -> bool:
        """Whether the level may end with the requests sent so far."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How a level grows.

    Attributes:
        looks: counts of requests after which it may end, ascending; the last step needs none.
    """

    looks: tuple[int, ...]
    seed: int = 0

    def enough(self, waits: Waits) -> bool:
        """Whether the level may end with the requests sent so far."""
        ttfts = [first - due for due, first in waits if first is not None]
        if len(waits) - len(ttfts) > MOST_WAITING * len(waits):
            return True
        growth = queue_growth(waits)
        if growth is not None and growth > MOST_GROWTH:
            return True
        p95 = stats.percentile_in_order(ttfts, 95, seed=self.seed)
        if p95 is None or p95.low is None or p95.high is None:
            return False
        return (p95.high - p95.low) / 2 <= TARGET * p95.value


def growth_of(level: LoadLevel) -> Growth | None:
    """How a level grows; None for one that does not."""
    steps = level_steps(level)
    if level.arrivals is Arrivals.CLOSED or len(steps) < 2:
        return None
    return Growth(looks=tuple(accumulate(steps))[:-1], seed=abs(level.seed))
