"""From raw request records to the figures of one load level. Pure; records_file.py keeps what it needs.

Definitions (seconds; tokens are the server's `usage`, and its client-side count only where usage is missing):

```
TTFT      first token - scheduled; ttft_from_send_s: first token - sent
TPOT      (last token - first token) / (tokens - 1), per request
ITL       gap between successive token-carrying chunks; where a chunk carries m tokens on average, gap / m
E2E       last token - scheduled: the usage frame and [DONE] come later and are nobody's wait
```

Throughput, requests/s and goodput: throughput.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from autotune.load import stats
from autotune.load.arrival_check import arrival_check
from autotune.load.arrivals import IN_FLIGHT_CAP
from autotune.load.caveats import MAX_ERROR_SHARE, Evidence, caveats_of
from autotune.load.throughput import throughput_of, tokens_of
from autotune.load.window import Window, window_of
from autotune.records import (
    Arrivals,
    ClockKind,
    LevelUse,
    LoadLevel,
    Measurement,
    RequestRecord,
    ServerDelta,
)


def summarise(
    level: LoadLevel,
    records: Sequence[RequestRecord],
    duration_s: float,
    clock: ClockKind,
    slo_ttft_s: float | None = None,
    server: ServerDelta | None = None,
    *,
    shared_tokens_per_request: float | None = None,
    in_flight_cap: int = IN_FLIGHT_CAP,
    use: LevelUse | None = None,
) -> Measurement:
    """The figures of a level, with intervals and doubts. The same arguments give the same figures.

    Args:
        duration_s: first due request to last end.
        slo_ttft_s: bound for goodput; None leaves goodput None.
        shared_tokens_per_request: prompt tokens that the prefix cache may rightly serve
            (Workload.shared_tokens_per_request); None where hits prove nothing.
        use: what was seen beside the level.
    """
    good = [r for r in records if r.error is None]
    window = window_of(level, records, duration_s)
    # In order of time: the intervals of TTFT look at who waited beside whom.
    chosen = sorted([r for r in good if _counts(level, window, r)] or good, key=lambda r: r.scheduled_s)
    seed = abs(level.seed)
    done = throughput_of(good, window, seed=seed, slo_ttft_s=slo_ttft_s)
    tpot = [t for r in chosen if (t := tpot_s(r)) is not None]
    ttft = stats.latency([t for r in chosen if (t := ttft_s(r)) is not None], seed=seed, in_order=True)
    measurement = Measurement(
        level=level,
        clock=clock,
        duration_s=duration_s,
        steady_s=max(0.0, window.end_s - window.start_s),
        planned=max(level.requests, len(records)),
        completed=len(good),
        failed=len(records) - len(good),
        errors=tuple(sorted(Counter(r.error for r in records if r.error is not None).items())),
        prompt_tokens=_sum([r.prompt_tokens for r in good]),
        output_tokens=_sum([r.output_tokens for r in good]),
        output_tok_s=done.output_tok_s,
        total_tok_s=done.total_tok_s,
        request_rps=done.request_rps,
        goodput_rps=done.goodput_rps,
        ttft_s=ttft,
        ttft_from_send_s=stats.latency(
            [t for r in chosen if (t := _from_send_s(r)) is not None], seed=seed, in_order=True
        ),
        tpot_s=stats.latency(tpot, seed=seed),
        itl_s=stats.latency([gap for r in chosen for gap in itl_s(r)], seed=seed, independent=len(chosen)),
        e2e_s=stats.latency([r.last_token_s - r.scheduled_s for r in chosen if r.last_token_s is not None], seed=seed),
        server=server,
        arrivals=arrival_check(level, records),
        use=use,
    )
    evidence = Evidence(
        measurement=measurement,
        records=tuple(records),
        window=window,
        shared_tokens_per_request=shared_tokens_per_request,
        in_flight_cap=in_flight_cap,
    )
    return replace(measurement, caveats=caveats_of(evidence))


def error_share(measurement: Measurement) -> float:
    """Share of the ended requests that failed, 0..1; 1 when none ended."""
    ended = measurement.completed + measurement.failed
    return measurement.failed / ended if ended else 1.0


def is_valid(measurement: Measurement) -> bool:
    """Whether the level was carried: something succeeded and at most 1 % failed.

    Figures of a valid level may still be the client's (`Measurement.void`); then they are kept and are no objective.
    """
    return measurement.completed > 0 and error_share(measurement) <= MAX_ERROR_SHARE


def token_pace_s(records: Sequence[RequestRecord]) -> float | None:
    """Median time from send to last token, per token, of the requests that succeeded; independent of their lengths."""
    paces = [
        (r.last_token_s - r.sent_s) / tokens
        for r in records
        if r.error is None and r.last_token_s is not None and r.sent_s is not None and (tokens := tokens_of(r))
    ]
    return stats.percentile(paces, 50)


def ttft_s(record: RequestRecord) -> float | None:
    """From the scheduled time; None when no token was seen."""
    return None if record.first_token_s is None else record.first_token_s - record.scheduled_s


def tpot_s(record: RequestRecord) -> float | None:
    """Time per output token after the first.

    None with fewer than two tokens, and when all of them came in one chunk or at one instant: their pace was not seen,
    and 0 would be taken for a very fast one.
    """
    tokens = tokens_of(record)
    if record.first_token_s is None or record.last_token_s is None or tokens < 2:
        return None
    if record.counted_tokens < 2 or record.last_token_s <= record.first_token_s:
        return None
    return (record.last_token_s - record.first_token_s) / (tokens - 1)


def itl_s(record: RequestRecord) -> list[float]:
    """Inter-token latencies, one per gap between token-carrying chunks.

    Speculative decoding and `--stream-interval` put m tokens in a chunk; the pause before it is then shared evenly by
    them, so that the mean is that of tokens and does not depend on how they were packed.
    """
    times = record.token_times_s
    if len(times) < 2:
        return []
    per_chunk = max(1.0, (tokens_of(record) - 1) / (len(times) - 1))
    return [(b - a) / per_chunk for a, b in pairwise(times)]


def _from_send_s(record: RequestRecord) -> float | None:
    if record.first_token_s is None or record.sent_s is None:
        return None
    return record.first_token_s - record.sent_s


def _counts(level: LoadLevel, window: Window, record: RequestRecord) -> bool:
    """Whether a request's latencies belong to the window: it was due inside."""
    return level.arrivals is not Arrivals.CLOSED or window.start_s <= record.scheduled_s <= window.end_s


def _sum(values: Sequence[int | None]) -> int | None:
    """The sum of what is known of every request; None as soon as one is missing, and of nothing."""
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None
