"""When what happened to each request of a level, as arrays; and the records and figures made of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.load.reading import RequestError
from autotune.records import PlannedRequest, RequestRecord, ServerDelta

_REFUSED, _DEADLINE = str(RequestError.HTTP_4XX), str(RequestError.DEADLINE)
Times = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelTimes:
    """One entry per request that was part of the level, in the order planned. Seconds from its start, NaN for never.

    Attributes:
        due_s: when it should have been sent.
        first_s, last_s: its first and last chunk.
        chunks: how many it got.
        stamps: chunk times of all requests, one request after the other; None where nobody asked for them.
        stamps_from: where each request's begin in `stamps`.
        refused: longer than the server takes.
    """

    due_s: Times
    sent_s: Times
    first_s: Times
    last_s: Times
    done_s: Times
    chunks: Counts
    stamps: Times | None
    stamps_from: Counts
    refused: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelFigures:
    """What fitting and searching ask of a level: arrays with one entry per request, and the server's counters.

    Attributes:
        ttft_s: from sending to the first chunk; NaN where there was none.
        tpot_s: mean time of a token after the first; NaN for a single token, and without one.
        e2e_s: from sending to the end; NaN for a request that did not end.
        completed: ended with every token.
        output_tokens: of completed requests, 0 of others.
    """

    ttft_s: Times
    tpot_s: Times
    e2e_s: Times
    completed: NDArray[np.bool_]
    output_tokens: Counts
    server: ServerDelta
    duration_s: float

    @property
    def output_tok_s(self) -> float | None:
        """Output tokens of completed requests per second of the level; None for a level without length."""
        return float(self.output_tokens.sum()) / self.duration_s if self.duration_s > 0.0 else None


def build_figures(times: LevelTimes, outputs: Counts, server: ServerDelta, duration_s: float) -> LevelFigures:
    """Figures of a level whose requests want so many tokens each."""
    completed = ~np.isnan(times.done_s) & ~times.refused
    gaps = np.where(completed & (outputs > 1), outputs - 1.0, np.nan)
    return LevelFigures(
        ttft_s=times.first_s - times.sent_s,
        tpot_s=(times.last_s - times.first_s) / gaps,
        e2e_s=np.where(completed, times.done_s - times.sent_s, np.nan),
        completed=completed,
        output_tokens=np.where(completed, outputs, 0),
        server=server,
        duration_s=duration_s,
    )


def times_of(records: Sequence[RequestRecord]) -> LevelTimes:
    """The times of records, without those of single chunks."""

    def times(values: Iterable[float | None]) -> Times:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    chunks = np.array([record.counted_tokens for record in records], dtype=np.int64)
    return LevelTimes(
        due_s=times(record.scheduled_s for record in records),
        sent_s=times(record.sent_s for record in records),
        first_s=times(record.first_token_s for record in records),
        last_s=times(record.last_token_s for record in records),
        done_s=times(record.done_s for record in records),
        chunks=chunks,
        stamps=None,
        stamps_from=np.cumsum(chunks) - chunks,
        refused=np.array([record.error == _REFUSED for record in records], dtype=np.bool_),
    )


def build_records(
    requests: Sequence[PlannedRequest], times: LevelTimes, max_model_len: int
) -> tuple[RequestRecord, ...]:
    """One record per request, in order.

    Raises:
        ValueError: the level was run without stamps.
    """
    if times.stamps is None:
        raise ValueError("records need the times of all chunks, and this level was run for its figures only")
    stamps = times.stamps.tolist()
    rows = zip(
        requests,
        times.due_s.tolist(),
        _or_none(times.sent_s),
        _or_none(times.done_s),
        times.stamps_from.tolist(),
        times.chunks.tolist(),
        times.refused.tolist(),
        strict=True,
    )
    return tuple(
        _record(request, due, sent, done, tuple(stamps[start : start + chunks]), max_model_len if refused else None)
        for request, due, sent, done, start, chunks, refused in rows
    )


def _or_none(times: Times) -> list[float | None]:
    return [None if at != at else at for at in times.tolist()]  # NaN alone differs from itself


def _record(
    request: PlannedRequest,
    due: float,
    sent: float | None,
    done: float | None,
    stamps: tuple[float, ...],
    limit: int | None,
) -> RequestRecord:
    finished = done is not None and limit is None
    refused = done is not None and limit is not None
    first = stamps[0] if stamps else None
    return RequestRecord(
        index=request.index,
        scheduled_s=due,
        sent_s=sent,
        first_byte_s=done if first is None else first,
        first_token_s=first,
        last_token_s=stamps[-1] if stamps else None,
        done_s=done,
        token_times_s=stamps,
        prompt_tokens=request.prompt_tokens if finished else None,
        output_tokens=request.output_tokens if finished else None,
        counted_tokens=len(stamps),
        wanted_output_tokens=request.output_tokens,
        finish_reason="length" if finished else None,
        status=400 if refused else 200 if stamps else None,
        error=_REFUSED if refused else None if finished else _DEADLINE,
        message=f"longer than max_model_len ({limit})" if refused else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelOutcome:
    """What a level did; counters are of this level alone."""

    times: LevelTimes
    end_s: float
    prompt_tokens: int
    generation_tokens: int
    queue_time_mean_s: float | None
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    kv_usage_max: float
    running_max: int
    waiting_max: int
