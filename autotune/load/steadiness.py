"""Whether a level's window was steady, or what was measured went one way all the time. Pure.

The window is cut into BLOCKS blocks, and Kendall's S of their values over time is taken (Mann, 1945): pairs that rise
less pairs that fall, -45..45 for ten. Were the blocks in random order, |S| of 29 and more would come in 0.9 % of all
cases, whatever their distribution. With many samples the smallest drift shows so, hence it must also be large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.load import stats

BLOCKS = 10
MIN_S = 29
MIN_PER_BLOCK = 10

MIN_RATE_DRIFT = 0.1
"""Of the throughput: last third of the window over its first."""

MIN_WAIT_DRIFT = 0.5
"""Of the median TTFT: at 0.85 of the capacity thirds of 300 requests differ by up to a third by themselves."""

MIN_FOR_GROWTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A trend that is neither luck nor small; `change` is the last third over the first, less 1."""

    change: float


def rate_drift(at_s: stats.Floats, amounts: stats.Floats, start_s: float, end_s: float) -> Drift | None:
    """Of an amount per second over a window; None where it is steady, or too little happened to say."""
    if end_s <= start_s or len(at_s) < BLOCKS * MIN_PER_BLOCK:
        return None
    edges = (start_s, end_s)
    blocks, _ = np.histogram(at_s, bins=BLOCKS, range=edges, weights=amounts)
    thirds, _ = np.histogram(at_s, bins=3, range=edges, weights=amounts)
    return _drift(blocks, thirds, MIN_RATE_DRIFT)


def wait_drift(ttfts_s: Sequence[float]) -> Drift | None:
    """Of the median TTFT over requests in the order in which they were due; None where it is steady or they are few."""
    if len(ttfts_s) < BLOCKS * MIN_PER_BLOCK:
        return None
    values = np.asarray(ttfts_s, dtype=float)
    blocks = np.array([np.median(part) for part in np.array_split(values, BLOCKS)])
    thirds = np.array([np.median(part) for part in np.array_split(values, 3)])
    return _drift(blocks, thirds, MIN_WAIT_DRIFT)


def queue_growth(waits: Sequence[tuple[float, float | None]]) -> float | None:
    """How much faster requests came than they were served: the slope of first-token time against due time.

    1 when the server keeps up, offered rate over capacity when it does not; independent of how long outputs take,
    which makes the completed rate of a short level useless for this. None with fewer than MIN_FOR_GROWTH requests.

    Args:
        waits: due time and time of the first token of each request, the latter None where there was none.
    """
    pairs = [(due, first) for due, first in waits if first is not None]
    if len(pairs) < MIN_FOR_GROWTH:
        return None
    due_s, first_s = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    spread = float(((due_s - due_s.mean()) ** 2).sum())
    return float(((due_s - due_s.mean()) * (first_s - first_s.mean())).sum()) / spread if spread > 0 else None


def kendall_s(values: Sequence[float] | stats.Floats) -> int:
    """Pairs that rise over time less pairs that fall."""
    series = np.asarray(values, dtype=float)
    return int(np.sign(series[None, :] - series[:, None])[np.triu_indices(len(series), 1)].sum())


def _drift(blocks: stats.Floats, thirds: stats.Floats, least: float) -> Drift | None:
    trend = kendall_s(blocks)
    if abs(trend) < MIN_S or not thirds[0] > 0:
        return None
    change = float(thirds[-1] / thirds[0]) - 1
    # A decay by half is as large a drift as a doubling; and the trend must be that of the thirds.
    large = max(change, 1 / (1 + change) - 1 if change > -1 else float("inf")) > least
    return Drift(change=change) if large and change * trend > 0 else None
