"""Round trips: a known workload, served or logged, is captured again."""

from __future__ import annotations

import gzip
import heapq
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from autotune.cli.workload_capture import Captured, _document, _fit, _lines, captured_log
from autotune.engine.observed import Observation, Reading, ServerRestarted, observe
from autotune.errors import InvalidFile
from autotune.load.access_log import is_access_log, read_access_log
from autotune.load.counts import dispersion_of
from autotune.load.workload_fit import workload_yaml
from autotune.load.workload_summary import WorkloadSummary, shown_level, sum_up
from autotune.load.workloads import load_workload, parse_workload
from autotune.records import PlannedRequest
from autotune.simulator.server_metrics import EngineMetrics, render

RATE = 8.0
KNOWN = """\
prompt_tokens: {{mean: 600, p95: 1500, max: 6000}}
output_tokens: {{min: 64, max: 192}}
arrivals: {arrivals}
requests: {{ttft: 2000}}
"""


def planned(arrivals: str = "{process: poisson}") -> WorkloadSummary:
    workload = parse_workload(KNOWN.format(arrivals=arrivals), file="known.yaml", name="known")
    return sum_up(workload, shown_level(workload, concurrency=None, rate_rps=RATE))


def readings(requests: Sequence[PlannedRequest], *, gap_s: float = 4.0, hits: float = 0.25) -> list[Reading]:
    """A server that answers each request 1.5 s after it came, and a look at its counters every `gap_s`."""
    engine = EngineMetrics.of_length(8192)
    ending: list[tuple[float, int, int]] = []
    found: list[Reading] = []

    def look(at_s: float) -> None:
        while ending and ending[0][0] <= at_s:
            _, prompt, output = heapq.heappop(ending)
            engine.finish(prompt, output, 1.5)
            engine.prefix_queries += prompt
            engine.prefix_hits += round(prompt * hits)
        engine.running = len(ending)
        found.append(Reading(at_s=at_s, text=render([engine], model="m", cache_config={})))

    due = 0.0
    for request in requests:
        assert request.scheduled_s is not None
        while due <= request.scheduled_s:
            look(due)
            due += gap_s
        heapq.heappush(ending, (request.scheduled_s + 1.5, request.prompt_tokens, request.output_tokens))
    return found


def captured(seen: Observation) -> Captured:
    assert seen.prompt is not None
    assert seen.output is not None
    return _fit("http://prod", seen, seen.prompt, seen.output)


def p95(values: Sequence[int]) -> float:
    return sorted(values)[int(0.95 * len(values))]


def test_what_a_server_served_is_captured_from_its_metrics() -> None:
    truth = planned()
    found = captured(observe(readings(truth.planned)))
    assert found.prompt_mean == pytest.approx(truth.prompt.mean, rel=0.05)
    assert found.output_mean == pytest.approx(truth.output.mean, rel=0.05)
    assert found.rate_rps is not None
    assert found.rate_rps.value == pytest.approx(RATE, rel=0.05)
    assert found.hit_share == pytest.approx(0.25, abs=0.01)
    for (low, high), known in ((found.prompt_p95, truth.prompt.p95), (found.output_p95, truth.output.p95)):
        assert low < known <= high
        assert high < float("inf")
    again = parse_workload(workload_yaml(found.fitted), file="again.yaml", name="again")
    offered = sum_up(again, shown_level(again, concurrency=None, rate_rps=RATE))
    assert offered.prompt.mean == pytest.approx(truth.prompt.mean, rel=0.08)  # one more sample of a log-normal
    assert offered.output.mean == pytest.approx(truth.output.mean, rel=0.05)
    assert found.fitted.arrivals_cv is None  # Poisson, as it was


@pytest.mark.parametrize(
    ("arrivals", "cv", "within"), [("{process: gamma, cv: 3}", 3.0, 0.25), ("{process: constant}", 0.0, 0.2)]
)
def test_bursts_and_their_absence_are_seen(arrivals: str, cv: float, within: float) -> None:
    found = captured(observe(readings(planned(arrivals).planned)))
    assert found.fitted.arrivals_cv is not None
    assert found.fitted.arrivals_cv == pytest.approx(cv, rel=within, abs=within)
    assert "arrivals: {process: gamma" in workload_yaml(found.fitted)


@pytest.mark.parametrize("arrivals", ["{process: poisson}", "{process: gamma, cv: 2.5}"])
def test_a_log_is_captured(tmp_path: Path, arrivals: str) -> None:
    truth = planned(arrivals)
    log = tmp_path / "requests.jsonl"
    rows = [
        {"timestamp": one.scheduled_s, "prompt_tokens": one.prompt_tokens, "completion_tokens": one.output_tokens}
        for one in truth.planned
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = captured_log(load_workload(str(log)))
    assert found.prompt_mean == pytest.approx(truth.prompt.mean)
    assert found.rate_rps is not None
    assert found.rate_rps.value == pytest.approx(RATE, rel=0.05)
    assert found.prompt_p95[0] == pytest.approx(truth.prompt.p95, rel=0.05)
    assert found.output_p95[0] == pytest.approx(truth.output.p95, rel=0.05)
    again = parse_workload(workload_yaml(found.fitted), file="again.yaml", name="again")
    offered = sum_up(again, shown_level(again, concurrency=None, rate_rps=RATE))
    assert offered.prompt.p95 == pytest.approx(truth.prompt.p95, rel=0.1)  # again one more sample
    assert (found.fitted.arrivals_cv is None) is ("poisson" in arrivals)


def test_what_a_capture_leaves_out_of_a_log_is_told(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    rows = [json.dumps({"timestamp": at, "prompt_tokens": 9, "completion_tokens": at % 5}) for at in range(50)]
    log.write_text("\n".join([*rows, '{"timestamp": 50, "prom']))
    found = captured_log(load_workload(str(log)))
    told = {"no output (a failed request)": 10, "a last line that was still being written": 1}
    assert (found.requests, dict(found.left_out), found.cut) == (40, told, False)
    assert _document(found, log)["left_out"] == told
    assert "left out: 10: no output (a failed request)" in _lines(found)


def test_a_server_that_was_started_again_tells_nothing() -> None:
    seen = readings(planned().planned[:200])
    with pytest.raises(ServerRestarted):
        observe([seen[-1], Reading(at_s=seen[-1].at_s + 1, text=seen[1].text)])
    with pytest.raises(ValueError, match="two readings"):
        observe(seen[:1])


def test_a_server_without_metrics_shows_nothing() -> None:
    seen = observe([Reading(at_s=0.0, text=""), Reading(at_s=60.0, text="")])
    assert (seen.arrived, seen.rate_rps, seen.prompt, seen.hit_share, seen.preemptions) == (None,) * 5


def test_counts_of_even_bins() -> None:
    even = dispersion_of([10] * 20, [1.0] * 20)
    assert even is not None
    assert even.value == 0.0
    assert dispersion_of([10] * 5, [1.0] * 5) is None
    bursty = dispersion_of([0, 20] * 10, [1.0] * 20)
    assert bursty is not None
    # Every count is 10 off a mean of 10: 20 x 100 / 10 over 19.
    assert bursty.value == pytest.approx(200 / 19)
    # Chi-squared with 19 degrees of freedom, from any table: 8.907 and 32.852.
    assert (bursty.low, bursty.high) == (pytest.approx(200 / 32.852, rel=0.002), pytest.approx(200 / 8.907, rel=0.002))


def test_few_bins_of_a_poisson_stream_are_rarely_taken_for_another() -> None:
    rng = np.random.default_rng(3)
    found = [dispersion_of(list(rng.poisson(20.0, 12)), [1.0] * 12) for _ in range(2000)]
    even, bursty = (
        sum(one is not None and is_off(one) for one in found) / len(found)
        for is_off in (lambda one: one.high < 1, lambda one: one.low > 1)
    )
    assert 0.01 < even < 0.04
    assert 0.01 < bursty < 0.04


def access_line(at: datetime, request: str = "POST /v1/chat/completions", status: int = 200) -> str:
    return f'10.0.0.1 - - [{at:%d/%b/%Y:%H:%M:%S +0000}] "{request} HTTP/1.1" {status} 512 "-" "curl"\n'


def test_an_access_log_tells_how_requests_came(tmp_path: Path) -> None:
    start = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    times = [start + timedelta(seconds=one.scheduled_s or 0) for one in planned().planned]
    other = access_line(start, "GET /health") + access_line(start, status=503) + "no line of a log\n"
    path = tmp_path / "access.log"
    path.write_text(other + "".join(map(access_line, times)))
    assert is_access_log(path)
    found = read_access_log(path)
    assert found.requests == len(times)
    assert found.rate_rps.value == pytest.approx(RATE, rel=0.05)
    assert found.dispersion is not None
    assert found.dispersion.low is not None
    assert found.dispersion.high is not None
    assert found.dispersion.low < 1 < found.dispersion.high


def test_what_is_no_access_log(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt_tokens": 1}\n')
    assert not is_access_log(path)
    assert not is_access_log(tmp_path / "nosuch")
    damaged = tmp_path / "access.log.gz"
    packed = bytearray(
        gzip.compress(b"".join(access_line(datetime(2026, 1, 2, tzinfo=UTC)).encode() for _ in range(9)))
    )
    packed[12:20] = b"\xff" * 8
    damaged.write_bytes(packed)
    assert not is_access_log(damaged)
    with pytest.raises(InvalidFile):
        read_access_log(damaged)
    path.write_text(access_line(datetime(2026, 1, 2, tzinfo=UTC)))
    with pytest.raises(InvalidFile, match="1 answered requests"):
        read_access_log(path)


def test_a_log_that_is_too_long_is_refused_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.load.access_log.MOST_LINES", 20)
    path = tmp_path / "access.log"
    start = datetime(2026, 1, 2, tzinfo=UTC)
    path.write_text("".join(access_line(start + timedelta(seconds=k)) for k in range(20)))
    assert read_access_log(path)
    path.write_text("".join(access_line(start + timedelta(seconds=k)) for k in range(21)))
    with pytest.raises(InvalidFile, match="line 21"):
        read_access_log(path)
