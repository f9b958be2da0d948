"""When a start has taken too long: a deadline for the whole, and one for standing still.

Standing still is measured in known milestones and counted steps (shards, graphs), never in output: a server that waits
for a peer for ever prints a line about it every ten seconds (vllm#18260).
"""

from __future__ import annotations

from enum import StrEnum


class Overdue(StrEnum):
    """Which deadline passed."""

    DEADLINE = "not ready within the start deadline"
    STALLED = "no progress within the stall deadline"


class StartWatch:
    """Pure bookkeeping of one start; times are seconds on the caller's clock.

    Args:
        start_deadline_s: from `begun_s` to readiness; progress does not extend it.
        stall_deadline_s: from one step of progress to the next.
    """

    def __init__(self, *, begun_s: float, start_deadline_s: float, stall_deadline_s: float) -> None:
        self._begun_s = begun_s
        self._start_deadline_s = start_deadline_s
        self._stall_deadline_s = stall_deadline_s
        self._last_s = begun_s

    def advance(self, now_s: float) -> None:
        """A milestone or a counted step was reached."""
        self._last_s = now_s

    def still_for_s(self, now_s: float) -> float:
        """Seconds since the latest step, or since the beginning."""
        return now_s - self._last_s

    def overdue(self, now_s: float) -> Overdue | None:
        """Whether, and which, deadline has passed."""
        if now_s - self._begun_s > self._start_deadline_s:
            return Overdue.DEADLINE
        if self.still_for_s(now_s) > self._stall_deadline_s:
            return Overdue.STALLED
        return None
