"""One load of our client at the server of known truth, in a process of its own: its errors as one JSON object.

`python -m benchmarks.load_once URL raw|aiohttp STREAMS SECONDS WORKERS`
"""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import pairwise

import numpy as np

from autotune.load.client import DriveOptions, TransportKind, drive
from autotune.load.loops import new_loop
from autotune.load.measure import ttft_s
from autotune.load.window import window_of
from autotune.load.workloads import Api
from autotune.records import Arrivals, LevelRole, LoadLevel, PlannedRequest, RequestRecord
from benchmarks.truth import ITL_S, MEAN_SERVICE_S, OUTPUT_TOKENS, TTFT_S

PROMPT = " ".join(["word"] * 64)


def main() -> None:
    """Drive, and print what `errors` says."""
    url, kind, streams, seconds, workers = sys.argv[1:]
    level, requests = plan(int(streams), float(seconds))
    options = DriveOptions(
        api=Api.COMPLETIONS,
        model="truth",
        render=lambda _request: PROMPT,
        transport=TransportKind(kind),
        stagger_s=MEAN_SERVICE_S,
        workers=int(workers),
    )
    with asyncio.Runner(loop_factory=new_loop) as runner:
        records, duration_s = runner.run(drive(url, level, requests, options=options))
    window = window_of(level, records, duration_s)
    failed = [record for record in records if record.error is not None]
    if failed:
        sys.exit(f"{len(failed)} of {len(records)} requests failed, the first with {failed[0].error}")
    print(json.dumps(errors([r for r in records if window.start_s <= r.scheduled_s <= window.end_s])))


def plan(streams: int, seconds: float) -> tuple[LoadLevel, list[PlannedRequest]]:
    """A closed loop that takes about so many seconds."""
    count = request_count(streams, seconds)
    lengths = np.random.default_rng(streams).integers(OUTPUT_TOKENS[0], OUTPUT_TOKENS[1] + 1, count)
    requests = [
        PlannedRequest(index=i, prompt_tokens=64, output_tokens=int(tokens), content_seed=i)
        for i, tokens in enumerate(lengths)
    ]
    level = LoadLevel(
        name="truth", role=LevelRole.EXTRA, arrivals=Arrivals.CLOSED, requests=count, seed=0, concurrency=streams
    )
    return level, requests


def request_count(streams: int, seconds: float) -> int:
    """Requests of a load of so many seconds; at least four per stream."""
    return streams * max(4, round(seconds / MEAN_SERVICE_S))


def errors(records: list[RequestRecord]) -> dict[str, float]:
    """How far figures are off; TTFT counts from the scheduled time."""
    gaps_s = [b - a for r in records for a, b in pairwise(r.token_times_s)]
    return errors_of([t for r in records if (t := ttft_s(r)) is not None], gaps_s)


def errors_of(ttfts_s: list[float], gaps_s: list[float]) -> dict[str, float]:
    """Percentiles and means beside the truth, in milliseconds and percent; never negative."""
    p95, p99 = np.percentile(ttfts_s, (95, 99)) - TTFT_S
    return {
        "ttft_p95_err_ms": abs(float(p95)) * 1e3,
        "ttft_p99_err_ms": abs(float(p99)) * 1e3,
        "itl_p99_err_ms": abs(float(np.percentile(gaps_s, 99)) - ITL_S) * 1e3,
        "mean_itl_err_pct": abs(float(np.mean(gaps_s)) / ITL_S - 1) * 100,
    }


if __name__ == "__main__":
    main()
