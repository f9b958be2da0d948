"""A level's requests as arrays: what is the same for every server that they are sent to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.load.growing import Looks, growth_of
from autotune.records import Arrivals, LoadLevel, PlannedRequest
from autotune.simulator.compiled import layout
from autotune.simulator.compiled.contents import Contents, Ints, Spans, spans_of
from autotune.simulator.compiled.layout import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One level's requests.

    Attributes:
        rows: of `REQUEST`, with what no server changes.
        free: positions that may be sent at once, ascending.
        slots: clients of a closed loop; 0 of an open one.
        contents: what the numbers in `spans` stand for.
        least: requests of the level before it grows.
        looks: at what was sent so far, where the level may end before all are.
    """

    closed: bool
    slots: int
    prompts: Ints
    outputs: Ints
    rows: Array
    free: NDArray[np.int32]
    spans: Spans
    contents: Contents
    least: int
    looks: Looks | None

    @classmethod
    def of(
        cls,
        level: LoadLevel,
        requests: Sequence[PlannedRequest],
        contents: Contents,
        looks: Looks | None = None,
    ) -> Load:
        """The arrays of a level.

        Raises:
            ValueError: a closed loop without concurrency, an open loop without schedule, a request without tokens or
                after one that is not planned before it.
        """
        closed = level.arrivals is Arrivals.CLOSED
        if closed and not level.concurrency:
            raise ValueError(f"level {level.name} is a closed loop without concurrency")
        rows = _rows(requests)
        free = _order(requests, rows)
        if not closed:
            late = next((r for r in requests if r.scheduled_s is None), None)
            if late is not None:
                raise ValueError(f"request {late.index} of open-loop level {level.name} has no scheduled time")
            rows["due"] = [request.scheduled_s for request in requests]
        return cls(
            closed=closed,
            slots=min(level.concurrency or 0, len(requests)) if closed else 0,
            prompts=rows["prompt"].astype(np.int64),
            outputs=rows["output"].astype(np.int64),
            rows=rows,
            free=free,
            spans=spans_of(requests, contents),
            contents=contents,
            least=level.requests,
            looks=looks or growth_of(level),
        )

    def first_events(self, stagger_s: float) -> Array:
        """Slots that open, or requests that are due, as a heap: in order of time."""
        if self.closed:
            events = np.zeros(self.slots, dtype=layout.EVENT)
            events["at"] = stagger_s * np.arange(self.slots) / max(self.slots, 1)
            events["kind"], events["seq"] = layout.OPEN_SLOT, np.arange(1, self.slots + 1)
            return events
        events = np.zeros(len(self.free), dtype=layout.EVENT)
        events["at"] = np.maximum(self.rows["due"][self.free], 0.0)
        events["kind"], events["a"] = layout.SEND, self.free
        if self.looks is not None:
            looks = np.zeros(len(self.looks.looks), dtype=layout.EVENT)
            looks["kind"], looks["a"] = layout.LOOK, self.looks.looks
            looks["at"] = self.rows["due"][looks["a"] - 1]
            events = np.concatenate([events, looks])
        events["seq"] = np.arange(1, len(events) + 1)
        return events[np.argsort(events["at"], kind="stable")]


def _rows(requests: Sequence[PlannedRequest]) -> Array:
    rows = np.zeros(len(requests), dtype=layout.REQUEST)
    rows["prompt"] = rows["target"] = [r.prompt_tokens for r in requests]
    rows["output"] = [r.output_tokens for r in requests]
    if len(rows) and min(rows["prompt"].min(), rows["output"].min()) < 1:
        raise ValueError("a request needs at least 1 prompt and 1 output token")
    rows["stamps_from"] = np.cumsum(rows["output"], dtype=np.int64) - rows["output"]
    for name in ("first_child", "next_child", "next_waiting", "next_arrived", "next_in"):
        rows[name] = -1
    for name in ("sent", "done", "first", "last"):
        rows[name] = np.nan
    return rows


def _order(requests: Sequence[PlannedRequest], rows: Array) -> NDArray[np.int32]:
    """Positions that may be sent at once, and in `rows` who waits for whom; `SendingOrder` says the rules."""
    if all(r.after is None for r in requests):
        return np.arange(len(requests), dtype=np.int32)
    place = {request.index: at for at, request in enumerate(requests)}
    free = []
    for at, request in enumerate(requests):
        if request.after is None:
            free.append(at)
            continue
        before = place.get(request.after, at)
        if before >= at:
            raise ValueError(f"request {request.index} comes after {request.after}, which is not planned before it")
        rows["next_child"][at] = rows["first_child"][before]
        rows["first_child"][before] = at
    return np.array(free, dtype=np.int32)
