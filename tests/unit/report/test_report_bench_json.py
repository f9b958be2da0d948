from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import StorageError
from autotune.load.records_file import LevelFile
from autotune.records import Arrivals, ClockKind, LevelRole, LoadLevel, RequestRecord
from autotune.report.bench_serve_json import bench_serve_document, bench_serve_path, write_bench_serve

AT = datetime(2026, 1, 31, 9, 5, 7, tzinfo=UTC)


def record(index: int, at_s: float, chunks: tuple[float, ...], **changes: Any) -> RequestRecord:
    fields: dict[str, Any] = {
        "index": index,
        "scheduled_s": at_s - 0.25,
        "sent_s": at_s,
        "first_byte_s": chunks[0] if chunks else None,
        "first_token_s": chunks[0] if chunks else None,
        "last_token_s": chunks[-1] if chunks else None,
        "done_s": (chunks[-1] if chunks else at_s) + 0.125,
        "token_times_s": chunks,
        "prompt_tokens": 100,
        "output_tokens": 5,
        "counted_tokens": len(chunks),
        "wanted_output_tokens": 5,
        "finish_reason": "length",
        "status": 200,
    }
    return RequestRecord(**(fields | changes))


def level(**changes: Any) -> LoadLevel:
    fields: dict[str, Any] = {
        "name": "ttft",
        "role": LevelRole.TTFT,
        "arrivals": Arrivals.POISSON,
        "requests": 3,
        "seed": 1,
        "rate_rps": 2.0,
    }
    return LoadLevel(**(fields | changes))


RECORDS = (
    record(0, 0.25, (1.25, 1.75, 2.25)),
    record(1, 1.0, (1.5, 2.0, 2.5, 3.0), output_tokens=4),
    record(2, 2.0, (), error="http_5xx", message="boom", prompt_tokens=None, output_tokens=None),
)


def document(records: tuple[RequestRecord, ...] = RECORDS, **changes: Any) -> dict[str, Any]:
    loaded = LevelFile(level=level(**changes), clock=ClockKind.WALL, records=records, duration_s=4.0)
    return bench_serve_document(loaded, model="m", api="chat", at=AT, metadata=(("level", "ttft"),))


def test_the_head_is_what_its_options_would_be() -> None:
    found = document()
    assert (found["date"], found["backend"], found["endpoint_type"]) == (
        "20260131-090507",
        "openai-chat",
        "openai-chat",
    )
    assert (found["model_id"], found["tokenizer_id"], found["num_prompts"], found["level"]) == ("m", "m", 3, "ttft")
    assert (found["request_rate"], found["burstiness"], found["max_concurrency"]) == (2.0, 1.0, None)
    closed = document(arrivals=Arrivals.CLOSED, rate_rps=None, concurrency=8)
    assert (closed["request_rate"], closed["max_concurrency"]) == ("inf", 8)
    # Burstiness is the shape of the gamma distribution: 1 / cv^2.
    assert document(arrivals=Arrivals.GAMMA, cv=2.0)["burstiness"] == 0.25
    ramp = document(arrivals=Arrivals.RAMP, ramp_from=1.0, ramp_to=3.0)
    assert (ramp["ramp_up_strategy"], ramp["ramp_up_start_rps"], ramp["ramp_up_end_rps"]) == ("linear", 1.0, 3.0)


def test_totals_by_hand() -> None:
    found = document()
    assert (found["completed"], found["failed"], found["duration"]) == (2, 1, 4.0)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (200, 9)
    assert (found["request_throughput"], found["output_throughput"]) == (0.5, 2.25)
    assert found["total_token_throughput"] == 52.25
    # Chunks in [1 s, 2 s) after the first send at 0.25 s: 1.25, 1.5, 1.75, 2.0 -> 4; both were open then.
    assert (found["max_output_tokens_per_s"], found["max_concurrent_requests"]) == (4.0, 2)


def test_latencies_count_from_the_send() -> None:
    found = document()
    assert found["ttfts"] == [1.0, 0.5, 0.0]
    assert found["itls"] == [[0.5, 0.5], [0.5, 0.5, 0.5], []]
    assert found["latencies"] == [2.0, 2.0, 0.0]
    assert found["start_times"] == [0.25, 1.0, 2.0]
    assert found["queue_times"] == [0.25, 0.25, 0.25]
    assert (found["output_lens"], found["input_lens"]) == ([5, 4, 0], [100, 100, 0])
    assert found["errors"] == ["", "", "http_5xx: boom"]
    assert (found["mean_ttft_ms"], found["median_ttft_ms"], found["std_ttft_ms"]) == (750.0, 750.0, 250.0)
    # (2.0 - 1.0) / 4 and (2.0 - 0.5) / 3 seconds a token.
    assert found["mean_tpot_ms"] == pytest.approx(375.0)
    assert (found["mean_itl_ms"], found["p99_itl_ms"]) == (500.0, 500.0)
    assert found["mean_e2el_ms"] == 2000.0
    assert found["p99_ttft_ms"] == pytest.approx(995.0)


def test_a_level_of_failures_has_zeros_as_the_client_has() -> None:
    found = document((RECORDS[2],))
    assert (found["completed"], found["mean_ttft_ms"], found["max_concurrent_requests"]) == (0, 0.0, 0)
    # What was never sent is no output of the client, but it failed.
    unsent = document((record(0, 1.0, (), sent_s=None, error="deadline"),))
    assert (unsent["failed"], unsent["ttfts"]) == (1, [])


def test_it_is_json_in_one_line(tmp_path: Path) -> None:
    found = document(arrivals=Arrivals.CONSTANT)
    path = bench_serve_path(tmp_path / "new", tmp_path / "level-rate-2.jsonl.gz")
    assert path == tmp_path / "new" / "bench-rate-2.json"
    write_bench_serve(path, found)
    text = path.read_text(encoding="utf-8")
    assert "\n" not in text
    assert json.loads(text, parse_constant=pytest.fail) == found
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        write_bench_serve(tmp_path / "file" / "b.json", found)
