"""A level's records as the JSON of `vllm bench serve --save-result --save-detailed`, for tools that read that.

Keys, units and definitions are those of vLLM 0.32 (vllm/benchmarks/serve.py, lib/endpoint_request_func.py), not ours:

```
TTFT           first token - sent, not scheduled; what a request waited in the client is in queue_times
itls           gaps between chunks, whatever a chunk carries
latency        last token - sent; E2E there
throughput     of everything, ramp and tail included: tokens of requests that succeeded / duration
duration       from the clock's zero to the last end; here from the first due request
request_rate   "inf" for a closed loop
```

Differences that no key can carry: a frame without a token (vLLM's own counts the role's) is never one here, texts are
not kept (`generated_texts` are empty), and a request that failed has a TTFT of 0 there, so here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from autotune.errors import StorageError
from autotune.load.records_file import LevelFile
from autotune.load.throughput import tokens_of
from autotune.records import Arrivals, LoadLevel, RequestRecord

PERCENTILES = (50, 90, 95, 99)
"""More than the client's default, 99; it takes any (--metric-percentiles)."""

BACKENDS = {"chat": "openai-chat", "completions": "openai"}
"""Its --backend by the endpoint that requests went to (load.workload.Api)."""


def bench_serve_path(directory: Path, records: Path) -> Path:
    """Where the JSON of a level whose records lie in `records` (`level-NAME.jsonl.gz`) goes: `bench-NAME.json`."""
    name = records.name.removeprefix("level-").removesuffix(".jsonl.gz")
    return directory / f"bench-{name}.json"


def write_bench_serve(path: Path, document: dict[str, Any]) -> None:
    """Write one line of JSON, as the client does.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document), encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageError(f"{path}: {reason}", hint="Choose a place that can be written.") from None


def bench_serve_document(
    level: LevelFile,
    *,
    model: str,
    api: str,
    at: datetime,
    tokenizer: str | None = None,
    metadata: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    """The client's result object of one level, detailed fields included.

    Args:
        api: `chat` or `completions`.
        at: when the level was driven, or the export made where that is not known; local time, as the client's.
        metadata: what the client's --metadata takes: any further keys, text values.
    """
    records = [record for record in level.records if record.sent_s is not None]
    good = [record for record in records if record.error is None]
    duration_s = level.duration_s
    head = {
        "date": at.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": BACKENDS[api],
        "backend": BACKENDS[api],
        "label": None,
        "model_id": model,
        "tokenizer_id": tokenizer if tokenizer is not None else model,
        "num_prompts": max(level.level.requests, len(level.records)),  # more where the level grew
        **dict(metadata),
        **_traffic(level.level),
    }
    return {
        **head,
        "duration": duration_s,
        "completed": len(good),
        "failed": len(level.records) - len(good),
        "total_input_tokens": sum(record.prompt_tokens or 0 for record in good),
        "total_output_tokens": sum(tokens_of(record) for record in good),
        "request_throughput": _per_s(len(good), duration_s),
        "request_goodput": None,
        "output_throughput": _per_s(sum(tokens_of(record) for record in good), duration_s),
        "total_token_throughput": _per_s(
            sum(tokens_of(record) + (record.prompt_tokens or 0) for record in good), duration_s
        ),
        **_detailed(records),
        **_peaks(good),
        "rtfx": 0.0,
        **_statistics("ttft", [_ttft(record) for record in good]),
        **_statistics("tpot", [pace for record in good if (pace := _tpot(record)) is not None]),
        **_statistics("itl", [gap for record in good for gap in _itls(record)]),
        **_statistics("e2el", [_latency(record) for record in good]),
        **_statistics("client_queue_time", [_waited(record) for record in good]),
    }


def _traffic(level: LoadLevel) -> dict[str, Any]:
    """Rate and burstiness, as the client's options; burstiness is the shape of the gamma distribution, 1 / cv^2."""
    found: dict[str, Any] = {
        "request_rate": level.rate_rps if level.rate_rps is not None else "inf",
        "burstiness": 1.0,
        "max_concurrency": level.concurrency,
    }
    if level.arrivals is Arrivals.GAMMA and level.cv:
        found["burstiness"] = 1 / level.cv**2
    if level.arrivals is Arrivals.CONSTANT:
        found["burstiness"] = "inf"  # as for the rate: JSON has no infinity
    if level.arrivals is Arrivals.RAMP and level.rate_rps is not None:
        start, end = level.ramp_from or 0.0, level.ramp_to or 0.0
        found["ramp_up_strategy"] = "linear"
        found["ramp_up_start_rps"] = 2 * level.rate_rps * start / (start + end)
        found["ramp_up_end_rps"] = 2 * level.rate_rps * end / (start + end)
    return found


def _detailed(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """One entry a request that was sent, in the order planned."""
    return {
        "input_lens": [record.prompt_tokens or 0 for record in records],
        "output_lens": [tokens_of(record) if record.error is None else 0 for record in records],
        "ttfts": [_ttft(record) for record in records],
        "itls": [_itls(record) for record in records],
        "latencies": [_latency(record) for record in records],
        "start_times": [record.sent_s for record in records],
        "queue_times": [_waited(record) for record in records],
        "generated_texts": [""] * len(records),
        "errors": [_error(record) for record in records],
    }


def _peaks(good: Sequence[RequestRecord]) -> dict[str, Any]:
    """Busiest second, as the client counts: chunks and open requests in each whole second after the first send."""
    if not good:
        return {"max_output_tokens_per_s": 0.0, "max_concurrent_requests": 0}
    start = min(_sent(record) for record in good)
    chunks = np.array([int(at - start) for record in good for at in _times(record)], dtype=int)
    seconds = int(max(_sent(record) + _latency(record) for record in good) - start) + 2
    changes = np.zeros(seconds + 1, dtype=int)
    for record in good:
        changes[int(_sent(record) - start)] += 1
        changes[int(_sent(record) + _latency(record) - start) + 1] -= 1
    busiest = int(np.bincount(chunks).max()) if len(chunks) else 0
    return {"max_output_tokens_per_s": float(busiest), "max_concurrent_requests": int(np.cumsum(changes).max())}


def _statistics(name: str, values_s: Sequence[float]) -> dict[str, float]:
    """Mean, median, deviation and percentiles in ms; 0 of nothing, as the client has it."""
    values = np.array(values_s if len(values_s) else [0.0]) * 1000
    found = {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
    }
    return found | {f"p{percent}_{name}_ms": float(np.percentile(values, percent)) for percent in PERCENTILES}


def _sent(record: RequestRecord) -> float:
    return record.scheduled_s if record.sent_s is None else record.sent_s


def _times(record: RequestRecord) -> Sequence[float]:
    """Of chunks with tokens; first and last where single ones were not kept."""
    ends = (record.first_token_s, record.last_token_s)
    return record.token_times_s or tuple(at for at in ends if at is not None)


def _ttft(record: RequestRecord) -> float:
    return 0.0 if record.first_token_s is None or record.error is not None else record.first_token_s - _sent(record)


def _itls(record: RequestRecord) -> list[float]:
    return [later - earlier for earlier, later in pairwise(_times(record))]


def _latency(record: RequestRecord) -> float:
    end = record.last_token_s if record.last_token_s is not None else record.done_s
    return 0.0 if end is None or record.error is not None else end - _sent(record)


def _tpot(record: RequestRecord) -> float | None:
    tokens = tokens_of(record)
    return (_latency(record) - _ttft(record)) / (tokens - 1) if tokens > 1 else None


def _waited(record: RequestRecord) -> float:
    return _sent(record) - record.scheduled_s


def _error(record: RequestRecord) -> str:
    return "" if record.error is None else f"{record.error}: {record.message}" if record.message else record.error


def _per_s(count: float, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0
