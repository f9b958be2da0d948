"""How many windows of arrivals a launch of a verification is driven with. Pure.

One window's p95 TTFT differs from the next one's by 10-30 % near the knee: so much hangs on which requests meet. A
launch costs minutes and a window half a minute, so windows are the cheap way to a surer mean. The first launch says
how many there are: until their mean is known to `target_sd`, or `most` are reached. The others have as many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

LEAST_WINDOWS, MOST_WINDOWS = 6, 8
TARGET_SD = 0.04
"""Minutes are best spent on sqrt(within / between * launch / window) windows a launch (variances; minutes): 3 to 12
where windows differ by 10 to 30 %, launches by 5.7 %, and a launch takes as long as five windows. Sixteen took a fifth
more minutes to find as much, and found less of what launches themselves hide (benchmarks/gate.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRule:
    """How many windows there are.

    Attributes:
        least, most: both 1 and above; equal for a fixed number.
        target_sd: of the mean of the windows' logarithms.
    """

    least: int = LEAST_WINDOWS
    most: int = MOST_WINDOWS
    target_sd: float = TARGET_SD

    @classmethod
    def fixed(cls, count: int) -> WindowRule:
        """So many, whatever they show."""
        return cls(least=count, most=count)

    def enough(self, logs: Sequence[float]) -> bool:
        """Whether the windows so far suffice, by the logarithms of their p95 TTFT.

        What the arrivals of a window do is in it, though it cancels between launches: rather a window too many.
        """
        if len(logs) < self.least:
            return False
        return len(logs) >= self.most or stdev(logs) / math.sqrt(len(logs)) <= self.target_sd
