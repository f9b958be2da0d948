"""Which part of a level counts: the steady window of a closed loop, all of an open loop. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.load.reading import RequestError
from autotune.records import Arrivals, LoadLevel, RequestRecord

MIN_COMPLETIONS = 10
"""A window with fewer ends of requests in it is not used."""

MIN_CHUNKS = 200
MIN_PAUSE_S = 0.5

_INSTANT = 1e-6
"""Stamps closer than this are one instant: what records keep of a time."""

_CUT = frozenset({str(RequestError.DEADLINE), str(RequestError.ABORTED)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Part of a level, seconds after its start.

    Attributes:
        steady: the window was cut by the rule; False when the whole level had to be taken instead.
    """

    start_s: float
    end_s: float
    steady: bool


def window_of(level: LoadLevel, records: Sequence[RequestRecord], duration_s: float) -> Window:
    """The window that figures are counted over.

    Closed loop: from the moment when `concurrency` requests were in flight and half of those that the slots began with
    had ended, to the first moment when a slot came free and no request was left to fill it (or the level was cut off).
    Before, the server ramps up; after, it runs with less than the asked concurrency. At both edges the requests in
    flight are then half done on average: from the moment when all slots are filled the prompts of all slots would be
    counted and only half of their last outputs. A level with too few requests for that does begin there.

    Open loop: from the first due request to the last end, because its figures are about these arrivals, the first and
    the last included.
    """
    begin = min((r.scheduled_s for r in records), default=0.0)
    whole = Window(start_s=begin, end_s=begin + duration_s, steady=level.arrivals is not Arrivals.CLOSED)
    if whole.steady:
        return whole
    start = _reached(records, level.concurrency or 1)
    if start is None:
        return whole
    last_sent = max(r.sent_s for r in records if r.sent_s is not None)
    # The end that made room for the last send bears the same instant; it is not the one looked for.
    ends = [r.done_s for r in records if r.done_s is not None and (r.done_s > last_sent + _INSTANT or r.error in _CUT)]
    end = min(ends, default=whole.end_s)
    good = [r.done_s for r in records if r.error is None and r.done_s is not None]
    for begin_s in (max(start, _half_ended(records, level.concurrency or 1)), start):
        if sum(begin_s <= done_s <= end for done_s in good) >= MIN_COMPLETIONS:
            return Window(start_s=begin_s, end_s=end, steady=True)
    return whole


def peak_in_flight(records: Sequence[RequestRecord]) -> int:
    """The most requests that were open at once."""
    peak = now = 0
    for _at_s, change in _changes(records):
        now += change
        peak = max(peak, now)
    return peak


def mean_in_flight(records: Sequence[RequestRecord], window: Window) -> float:
    """Requests that were open on average over a window of some length."""
    spans = [
        (max(r.sent_s, window.start_s), min(r.done_s, window.end_s))
        for r in records
        if r.sent_s is not None and r.done_s is not None
    ]
    return sum(max(0.0, end - start) for start, end in spans) / (window.end_s - window.start_s)


def pauses(records: Sequence[RequestRecord], window: Window, ttft_s: float) -> tuple[float, ...]:
    """Lengths of the times in a closed loop's window in which no request got anything, though all slots were taken.

    What is ordinary for the server is no pause: twice a usual wait for a first token, ten times what lies between
    chunks at most (their 99th percentile), and anything below half a second.

    Args:
        ttft_s: the usual time from send to first token.
    """
    times = [at for r in records for at in r.token_times_s if window.start_s <= at <= window.end_s]
    gaps = np.diff(np.sort(np.asarray([window.start_s, *times, window.end_s], dtype=float)))
    if len(times) < MIN_CHUNKS:
        return ()
    bound = max(MIN_PAUSE_S, 2 * ttft_s, 10 * float(np.percentile(gaps, 99)))
    return tuple(float(gap) for gap in gaps if gap > bound)


def _half_ended(records: Sequence[RequestRecord], concurrency: int) -> float:
    """When half of the first `concurrency` requests sent had ended; they are the slots' first ones."""
    sent = sorted((r.sent_s, r.done_s) for r in records if r.sent_s is not None and r.done_s is not None)
    ends = sorted(done_s for _, done_s in sent[:concurrency])
    return ends[(len(ends) - 1) // 2]


def _reached(records: Sequence[RequestRecord], concurrency: int) -> float | None:
    now = 0
    for at_s, change in _changes(records):
        now += change
        if now >= concurrency:
            return at_s
    return None


def _changes(records: Sequence[RequestRecord]) -> list[tuple[float, int]]:
    """Sends (+1) and ends (-1) in time order; at one instant the end comes first, for it made room for the send."""
    changes: list[tuple[float, int]] = []
    for record in records:
        if record.sent_s is not None and record.done_s is not None:
            # A response that ended in the microsecond of its sending must still count up before it counts down.
            sent_s, done_s = round(record.sent_s, 6), round(record.done_s, 6)
            changes += [(sent_s, 1), (max(done_s, sent_s + _INSTANT), -1)]
    return sorted(changes)
