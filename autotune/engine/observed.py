"""What a running vLLM served over a while, from readings of its `/metrics`. Pure.

Only what was counted between the first reading and the last is told: a server's counters begin at its start, and what
it served last week says nothing of today. Arrivals are counted as those that ended and those that are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from autotune.engine.histograms import Histogram, histogram
from autotune.engine.metrics_text import Metrics, parse_metrics, restarted
from autotune.load.counts import dispersion_of, rate_of
from autotune.records import Estimate

PROMPT_TOKENS = ("request_prompt_tokens",)
OUTPUT_TOKENS = ("request_generation_tokens",)
TTFT = ("time_to_first_token_seconds",)
ITL = ("inter_token_latency_seconds", "time_per_output_token_seconds")
TPOT = ("request_time_per_output_token_seconds",)
E2E = ("e2e_request_latency_seconds",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One answer of `/metrics`; `at_s` is on any clock."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was served between the first and the last reading; None where the server does not count it.

    Attributes:
        seconds: between them; the age of the process where the first reading was its start.
        arrived: requests that came.
        ended: requests that ended.
        rate_rps: of arrivals; the interval is of a Poisson stream, widened by the dispersion that was seen.
        dispersion: variance of the counts a bin over their mean: 1 Poisson, above in bursts; None of too few.
        preemptions: of requests, which then begin anew.
        hit_share: of prompt tokens that the prefix cache served, 0..1.
        failed_share: of the ended requests those that ended in an error or were aborted, 0..1.
        running_mean, waiting_mean: over the readings.
    """

    seconds: float
    arrived: int | None = None
    ended: int | None = None
    rate_rps: Estimate | None = None
    dispersion: Estimate | None = None
    prompt: Histogram | None = None
    output: Histogram | None = None
    ttft: Histogram | None = None
    itl: Histogram | None = None
    tpot: Histogram | None = None
    e2e: Histogram | None = None
    preemptions: int | None = None
    hit_share: float | None = None
    failed_share: float | None = None
    running_mean: float | None = None
    waiting_mean: float | None = None


class ServerRestarted(ValueError):
    """Another process answered the last time: its counters began anew, so nothing can be told of the time between."""


def observe(readings: Sequence[Reading]) -> Observation:
    """What two or more readings show.

    Raises:
        ServerRestarted: a counter went back.
        ValueError: fewer than two readings, or no time between them.
    """
    if len(readings) < 2 or readings[-1].at_s <= readings[0].at_s:
        raise ValueError("two readings at different times are needed")
    parsed = [parse_metrics(reading.text) for reading in readings]
    if any(restarted(one, other) for one, other in pairwise(parsed)):
        raise ServerRestarted("the server was started again between the readings")
    seconds = readings[-1].at_s - readings[0].at_s
    counts = [_came(metrics) for metrics in parsed]
    known = [count for count in counts if count is not None]
    bins = [later - earlier for earlier, later in pairwise(known)] if len(known) == len(counts) else []
    arrived = max(0, round(known[-1] - known[0])) if bins else None
    dispersion = dispersion_of(bins, [b.at_s - a.at_s for a, b in pairwise(readings)])
    first, last = readings[0].text, readings[-1].text

    def between(names: tuple[str, ...]) -> Histogram | None:
        found = histogram(last, *names)
        return None if found is None else found.since(histogram(first, *names))

    queries = _grown(parsed, "prefix_cache_queries", "gpu_prefix_cache_queries")
    hits = _grown(parsed, "prefix_cache_hits", "gpu_prefix_cache_hits")
    ended = _grown(parsed, "request_success")
    return Observation(
        seconds=seconds,
        arrived=arrived,
        ended=None if ended is None else round(ended),
        rate_rps=None if arrived is None else rate_of(arrived, seconds, dispersion),
        dispersion=dispersion,
        prompt=between(PROMPT_TOKENS),
        output=between(OUTPUT_TOKENS),
        ttft=between(TTFT),
        itl=between(ITL),
        tpot=between(TPOT),
        e2e=between(E2E),
        preemptions=_whole(_grown(parsed, "num_preemptions")),
        hit_share=hits / queries if queries and hits is not None else None,
        failed_share=_failed(parsed, ended),
        running_mean=_mean([metrics.running for metrics in parsed]),
        waiting_mean=_mean([metrics.waiting for metrics in parsed]),
    )


def _came(metrics: Metrics) -> float | None:
    """Requests since the server's start: those that ended, run or wait. A counter appears with its first event."""
    running, waiting = metrics.running, metrics.waiting
    if running is None or waiting is None:
        return None
    return (metrics.counter("request_success") or 0.0) + running + waiting


def _grown(parsed: Sequence[Metrics], *names: str) -> float | None:
    old, new = parsed[0].counter(*names), parsed[-1].counter(*names)
    return None if new is None else new - (old or 0.0)


def _failed(parsed: Sequence[Metrics], ended: float | None) -> float | None:
    if not ended:
        return None

    def bad(metrics: Metrics) -> float:
        samples = (*metrics.series("request_success_total"), *metrics.series("request_success"))
        return sum(one.value for one in samples if one.label("finished_reason") in ("abort", "error"))

    return max(0.0, bad(parsed[-1]) - bad(parsed[0])) / ended


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
