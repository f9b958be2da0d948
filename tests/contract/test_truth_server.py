"""The server that the benchmark of the load client believes in, and the arithmetic of that benchmark."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from autotune.load.client import DriveOptions, drive
from autotune.load.workloads import Api
from autotune.records import Arrivals, LevelRole, LoadLevel, PlannedRequest
from benchmarks.driver import Row, middle, verdict
from benchmarks.driver_stalls import look, stalls_of
from benchmarks.load_once import errors_of
from benchmarks.truth import ITL_S, TTFT_S, BenchmarkError, Sample, Watch, compile_server, serving_truth


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler")
@pytest.mark.parametrize("api", Api)
async def test_the_server_is_never_early_and_counts(tmp_path: Path, api: Api) -> None:
    lengths = [1, 2, 7, 12]
    requests = [
        PlannedRequest(index=i, prompt_tokens=1, output_tokens=tokens, content_seed=i)
        for i, tokens in enumerate(lengths)
    ]
    level = LoadLevel(name="l", role=LevelRole.EXTRA, arrivals=Arrivals.CLOSED, requests=4, seed=0, concurrency=2)
    with serving_truth(compile_server(tmp_path), None) as server:
        options = DriveOptions(api=api, model="truth", render=lambda _request: "word", stagger_s=0.0)
        records, _ = await drive(server.url, level, requests, options=options)
        while (counts := server.counts()).open:
            pass  # the server knows of an end a moment after the client
        with Watch(server) as watch:
            assert watch.counts() == watch.counts() == counts
    assert [(r.error, r.counted_tokens, r.output_tokens) for r in records] == [(None, n, n) for n in lengths]
    for record in records:
        assert record.sent_s is not None
        assert record.first_token_s is not None
        assert record.first_token_s - record.sent_s >= TTFT_S
        # A chunk may be late and the next one in time; from the first on none is early.
        times = [record.sent_s + TTFT_S, *record.token_times_s]
        assert all(at - times[0] >= ITL_S * n - 1e-6 for n, at in enumerate(times[1:]))
        assert all(a <= b for a, b in pairwise(times))
    assert (counts.requests, counts.open, counts.chunks) == (4, 0, sum(lengths))


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(BenchmarkError, match="no C compiler"):
        compile_server(tmp_path)


def row(client: str, streams: int, chunks_s: float, cpu: float, p95: float) -> Row:
    return Row(
        client=client,
        streams=streams,
        chunks_s=chunks_s,
        cpu_ms_per_1k=cpu,
        ttft_p95_err_ms=p95,
        ttft_p99_err_ms=p95,
        itl_p99_err_ms=0.1,
        mean_itl_err_pct=0.1,
        server_late_p99_ms=0.1,
        core_lost_pct=0.0,
        core_stall_p99_ms=0.0,
    )


def test_verdict() -> None:
    """5 ms is a tenth of the true TTFT; the ratio is taken at 256 streams: 12 over 40."""
    rows = [
        row("raw", 64, 6_000, 16, 0.5),
        row("raw", 256, 24_000, 12, 5.0),
        row("raw", 512, 48_000, 9, 5.1),
        row("aiohttp", 512, 99_000, 9, 0.1),
        row("vllm bench serve", 64, 6_000, 50, 1.0),
        row("vllm bench serve", 256, 23_000, 40, 9.0),
    ]
    assert verdict(rows) == {
        "ours_honest_chunks_s": 24_000,
        "peer_honest_chunks_s": 6_000,
        "cpu_ratio": pytest.approx(0.3),
    }
    assert verdict(rows[:3])["cpu_ratio"] is None
    assert verdict([rows[0], rows[4]])["cpu_ratio"] == pytest.approx(0.32)


def test_errors_are_distances_from_the_truth() -> None:
    found = errors_of([0.05] * 90 + [0.054] * 10, [0.010] * 99 + [0.020])
    assert found["ttft_p95_err_ms"] == pytest.approx(4)
    assert found["mean_itl_err_pct"] == pytest.approx(1)  # (99 x 10 + 20) / 100 = 10.1 ms
    assert errors_of([0.049] * 10, [0.01] * 10)["ttft_p99_err_ms"] == pytest.approx(1)


def test_start_and_end_are_left_out() -> None:
    samples = [Sample(at_s=t, chunks=100 * t, cpu_s=t / 2) for t in range(11)]
    first, last = middle(samples, 1000)
    assert (first.at_s, last.at_s) == (3, 8)
    with pytest.raises(BenchmarkError, match="too short"):
        middle(samples[:3], 1000)


def test_a_moment_in_a_gap_waits_for_its_end() -> None:
    """Gaps of 30 and 10 ms in a second: beyond 25 ms lie 5 ms of it, beyond 15 ms 15 ms; so 1 % lie beyond 20 ms."""
    found = stalls_of([0.010, 0.030], 1.0)
    assert (found.lost_pct, found.p99_ms, found.longest_ms) == pytest.approx((4.0, 20.0, 30.0))
    # Of gaps that are 2 % of the time one in two moments is beyond half a gap on average: (0.02 - 20 x) = 0.01.
    assert stalls_of([0.001] * 20, 1.0).p99_ms == pytest.approx(0.5)
    assert stalls_of([0.005], 1.0).p99_ms == 0.0
    assert stalls_of([], 1.0) == stalls_of((), 2.0)
    assert 0 <= look(0.01).lost_pct <= 100
