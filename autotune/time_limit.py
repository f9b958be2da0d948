"""Whether another launch still fits into the time that a command was given. Pure: durations in, an answer out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from autotune.records import LevelRole, Outcome, Trial

RECENT = 5
"""Launches that the next one is judged by: what a cold cache or an empty queue cost at first does not come again."""

AGAIN_SHARE = 1 / 3
"""Of a limit, the most that is kept for launching baseline and pick again: what was never tried cannot win."""

FEWEST_AGAIN = 2
"""Baseline and pick once more each: without it nobody knows what launches differ by, nor whether the pick holds."""

LONGER = 0.15
"""By how much each launch but one may take longer than the last ones did: on an H200 configs with two API servers took
20 % longer than the median before them, and the validation of the pick no longer fitted into its 18 minutes."""


def launch_s(trials: Sequence[Trial]) -> float | None:
    """How long the next launch will probably take: the median of the last measured ones; None while none was measured.

    The ramp that found the load is taken off, because no other trial has one. Failed starts do not count: they end
    early.
    """
    took = []
    for trial in trials:
        result = trial.result
        if result is None or result.outcome is not Outcome.MEASURED or not result.phase_seconds:
            continue
        ramp_s = sum(one.duration_s for one in result.measurements if one.level.role is LevelRole.RAMP)
        took.append(max(0.0, sum(seconds for _, seconds in result.phase_seconds) - ramp_s))
    return statistics.median(took[-RECENT:]) if took else None


def fits(limit_s: float | None, spent_s: float, launches: int, each_s: float | None) -> bool:
    """Whether `launches` further ones of `each_s` end within the limit.

    Args:
        limit_s: None for no limit.
        spent_s: since the command began.
        each_s: None while nothing is known: then a launch may begin as long as there is time at all.
    """
    if limit_s is None:
        return True
    if each_s is None:
        return spent_s < limit_s
    return spent_s + (launches + LONGER * (launches - 1)) * each_s <= limit_s


def kept_again(limit_s: float | None, asked: int, each_s: float | None) -> int:
    """For how many launches again room is kept while configs are tried: those asked for, in a share of the limit.

    Args:
        limit_s: None for no limit.
        asked: launches again that baseline and pick will need.
        each_s: as of `fits`.
    """
    if limit_s is None or not each_s:
        return asked
    return min(asked, max(FEWEST_AGAIN, int(AGAIN_SHARE * limit_s / each_s)))
