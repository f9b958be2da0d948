"""What the machine itself takes from a core: a process that only looks at the clock writes down when it could not.

`python -m benchmarks.driver_stalls SECONDS` prints one JSON object. Run on the client's core before and after a load,
it tells how much of the client's tail is the machine's: other programs, the host of a virtual machine, interrupts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LEAST_S = 0.0001
"""Shorter gaps are this program's own: a look at the clock takes a tenth of a microsecond, an interrupt a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Of one look.

    Attributes:
        lost_pct: share of the time that was taken away.
        p99_ms: so long, at most, would a chunk have lain unread in 99 of 100 moments, were the client infinitely fast.
        longest_ms: gap.
    """

    lost_pct: float
    p99_ms: float
    longest_ms: float


def stalls_of(gaps_s: Sequence[float], seconds: float, share: float = 0.01) -> Stalls:
    """From the gaps of a look of so many seconds. A moment inside a gap waits for its end."""
    gaps = sorted(gaps_s, reverse=True)
    wait_s = 0.0
    for count, gap in enumerate(gaps, start=1):
        # With x between this gap and the next shorter one, sum(gap - x) of the longer ones is the time spent beyond x.
        at = (sum(gaps[:count]) - share * seconds) / count
        following = gaps[count] if count < len(gaps) else 0.0
        if following <= at <= gap:
            wait_s = at
            break
    return Stalls(
        lost_pct=100 * sum(gaps) / seconds, p99_ms=max(0.0, wait_s) * 1e3, longest_ms=max(gaps, default=0.0) * 1e3
    )


def look(seconds: float) -> Stalls:
    """Spin so long on whatever core this process is kept on."""
    clock = time.perf_counter
    gaps = []
    start = last = clock()
    while last - start < seconds:
        now = clock()
        if now - last > LEAST_S:
            gaps.append(now - last)
        last = now
    return stalls_of(gaps, last - start)


def look_at(core: int | None, seconds: float) -> Stalls:
    """The same in a process of its own on `core` (anywhere for None)."""
    command = [sys.executable, "-S", "-m", "benchmarks.driver_stalls", str(seconds), "" if core is None else str(core)]
    done = subprocess.run(command, capture_output=True, check=True, cwd=Path(__file__).parent.parent)
    return Stalls(**json.loads(done.stdout))


def main() -> None:
    """Print one look."""
    if sys.argv[2:] and sys.argv[2]:
        os.sched_setaffinity(0, {int(sys.argv[2])})
    found = look(float(sys.argv[1]))
    print(json.dumps({"lost_pct": found.lost_pct, "p99_ms": found.p99_ms, "longest_ms": found.longest_ms}))


if __name__ == "__main__":
    main()
