"""Whether another launch still fits into the time that a command was given. Pure: durations in, an answer out."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

RECENT = 5
"""Launches that the next one is judged by: what a cold cache or an empty queue cost at first does not come again."""


@dataclass(slots=True, kw_only=True)
class TimeLimit:
    """The time of one run of a study, and what launches took in it.

    Attributes:
        limit_s: None for no limit.
    """

    limit_s: float | None
    _took_s: list[float] = field(default_factory=list)

    def took(self, seconds: float) -> None:
        """A launch, from its beginning to its end, took `seconds`."""
        self._took_s.append(seconds)

    def fits(self, spent_s: float, launches: int) -> bool:
        """Whether `launches` further ones, each as long as recent ones, end in time; the first always may begin.

        Args:
            spent_s: since the command began.
        """
        if self.limit_s is None:
            return True
        if not self._took_s:
            return spent_s < self.limit_s
        # The first also finds the load, which no other does.
        later = self._took_s[1:] or self._took_s
        return spent_s + launches * statistics.median(later[-RECENT:]) <= self.limit_s
