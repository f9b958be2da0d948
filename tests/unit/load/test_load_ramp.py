from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_records import closed_loop, level

from autotune.load.measure import summarise
from autotune.load.ramp import RampPoint, load_plan, next_concurrency, plan_levels, ramp_level, ramp_point
from autotune.load.workloads import load_workload
from autotune.records import Arrivals, ClockKind, Estimate, LevelRole


def point(concurrency: int, tok_s: float, noise: float = 0.01) -> RampPoint:
    return RampPoint(
        concurrency=concurrency,
        output_tok_s=Estimate(value=tok_s, low=tok_s * (1 - noise), high=tok_s * (1 + noise)),
        request_rps=tok_s / 128,
    )


def run_ramp(tok_s: Callable[[int], float], limit: int, gpus: int = 1, noise: float = 0.01) -> list[RampPoint]:
    points: list[RampPoint] = []
    while (concurrency := next_concurrency(points, limit, gpus=gpus)) is not None:
        points.append(point(concurrency, tok_s(concurrency), noise))
        assert len(points) < 40
    return points


def test_doubles_until_flat() -> None:
    # Saturates at 100 in flight: 64 -> 128 still gains, 128 -> 256 does not.
    points = run_ramp(lambda c: 50.0 * min(c, 100), 2048)
    assert [p.concurrency for p in points] == [8, 16, 32, 64, 128, 256]


def test_starts_with_eight_per_gpu_and_respects_the_limit() -> None:
    assert next_concurrency([], 512, gpus=4) == 32
    assert next_concurrency([], 4) == 4
    points = run_ramp(lambda c: 50.0 * c, 100)
    assert [p.concurrency for p in points] == [8, 16, 32, 64, 100]


def test_noise_must_hide_a_gain_twice() -> None:
    flat = [point(8, 100), point(16, 101)]
    assert next_concurrency(flat, 512) is None
    noisy = [point(8, 100, 0.1), point(16, 101, 0.1)]
    assert next_concurrency(noisy, 512) == 32
    assert next_concurrency([*noisy, point(32, 102, 0.1)], 512) is None
    assert next_concurrency([*noisy, point(32, 150, 0.1)], 512) == 64


def test_without_intervals_as_with_noise() -> None:
    bare = [replace(p, output_tok_s=Estimate(value=p.output_tok_s.value)) for p in (point(8, 100), point(16, 101))]
    assert next_concurrency(bare, 512) == 32


def test_a_falling_ramp_ends() -> None:
    assert next_concurrency([point(8, 100), point(16, 90)], 512) is None


@given(st.lists(st.floats(1, 1e5), min_size=20, max_size=20), st.integers(1, 4096), st.integers(1, 8))
def test_every_ramp_ends(rates: list[float], limit: int, gpus: int) -> None:
    values = iter(rates)
    points = run_ramp(lambda _c: next(values), limit, gpus)
    assert all(p.concurrency <= limit for p in points)
    assert [p.concurrency for p in points] == sorted({p.concurrency for p in points})


def test_plan_by_hand() -> None:
    # Best 6,400 tok/s at 256; 128 is within 5 % of it: knee 128, twice that is 256. 6,400 / 128 tokens = 50 requests/s.
    points = [point(64, 4000), point(128, 6200), point(256, 6400), point(512, 6300)]
    plan = load_plan(points, load_workload("chat"), 1)
    assert plan.concurrency_per_gpu == 256
    assert plan.capacity_rps_per_gpu == pytest.approx(50)
    assert plan.rate_rps_per_gpu == pytest.approx(42.5)
    assert plan.throughput_requests_per_gpu == 1024  # 4 x 256 > 20 s x 50/s
    assert plan.ttft_requests_per_gpu == 850  # 20 s x 42.5/s > 300
    assert plan.warmup_requests_per_gpu == 256


def test_plan_per_gpu() -> None:
    points = [point(256, 12_800), point(512, 25_600), point(1024, 25_600)]
    plan = load_plan(points, load_workload("chat"), 4)
    assert plan.concurrency_per_gpu == 256
    assert plan.capacity_rps_per_gpu == pytest.approx(50)


def test_plan_is_bounded() -> None:
    plan = load_plan([point(512, 1e6), point(1024, 1e6)], load_workload("chat"), 1)
    assert plan.concurrency_per_gpu == 512
    assert plan.throughput_requests_per_gpu == 4096
    assert plan.ttft_requests_per_gpu == 4096


def test_a_slow_node_gets_levels_that_end() -> None:
    # 10 tok/s of 128-token answers is 0.078 requests/s: 23 requests in 300 s, and five at once stay 64 s each.
    slow = load_plan([point(8, 10)], load_workload("chat"), 1)
    assert slow.concurrency_per_gpu == 5
    assert slow.throughput_requests_per_gpu == 20
    assert slow.ttft_requests_per_gpu == 40
    # Four GPUs share the forty.
    assert load_plan([point(8, 10)], load_workload("chat"), 4).ttft_requests_per_gpu == 10


def test_the_ramp_ends_before_a_step_that_takes_too_long() -> None:
    # One request a second: 256 at once need 512 s for two each.
    points = [point(64, 100.0), point(128, 128.0)]
    assert next_concurrency(points, 2048, longest_s=600) == 256
    assert next_concurrency(points, 2048, longest_s=300) is None
    assert ramp_level(128, points, seed=1, longest_s=300).requests == 300
    assert ramp_level(128, points, seed=1, longest_s=100).requests == 256
    assert ramp_level(128, points, seed=1, longest_s=9000).requests == 512


def test_plan_of_tiny_is_tiny() -> None:
    plan = load_plan([point(8, 100)], load_workload("tiny"), 1)
    assert plan.concurrency_per_gpu == 8
    assert plan.throughput_requests_per_gpu <= 40
    assert plan.ttft_requests_per_gpu <= 60


@pytest.mark.parametrize("points", [[], [point(8, 0.0)]])
def test_no_capacity(points: list[RampPoint]) -> None:
    with pytest.raises(ValueError, match="no throughput"):
        load_plan(points, load_workload("chat"), 1)


def test_point_of_a_measurement() -> None:
    # Two slots that give a token every 0.1 s, four per request: 20 tok/s, 5 requests/s.
    measured = summarise(level(), closed_loop(2, 20), 8.05, ClockKind.WALL)
    found = ramp_point(measured)
    assert found is not None
    assert found.concurrency == 2
    assert found.output_tok_s.value == pytest.approx(20, rel=0.03)
    assert found.request_rps == pytest.approx(found.output_tok_s.value / 4)
    assert ramp_point(summarise(level(), [], 0.0, ClockKind.WALL)) is None
    unsaid = replace(measured, output_tokens=None)
    assert ramp_point(unsaid) is not None


def test_levels() -> None:
    plan = load_plan([point(128, 6400), point(256, 6400)], load_workload("chat"), 1)
    warmup, throughput, ttft = plan_levels(plan, 2, seed=7)
    assert (warmup.role, throughput.role, ttft.role) == (LevelRole.WARMUP, LevelRole.THROUGHPUT, LevelRole.TTFT)
    assert warmup.concurrency == throughput.concurrency == 512
    assert warmup.requests >= 512
    assert ttft.arrivals is Arrivals.POISSON
    assert ttft.rate_rps == pytest.approx(85)
    assert len({warmup.seed, throughput.seed, ttft.seed}) == 3
    assert ramp_level(4, seed=1).requests == 24
    assert ramp_level(64, seed=1).requests == 256
