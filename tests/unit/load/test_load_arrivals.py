from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.arrivals import (
    closed_offsets,
    constant_schedule,
    default_stagger_s,
    gamma_schedule,
    open_level,
    poisson_schedule,
    ramp_schedule,
    schedule,
)
from autotune.records import ArrivalProcess, Arrivals, LevelRole, LoadLevel


def level(arrivals: Arrivals, rate_rps: float | None = None, seed: int = 5) -> LoadLevel:
    return LoadLevel(name="l", role=LevelRole.TTFT, arrivals=arrivals, requests=10, seed=seed, rate_rps=rate_rps)


def test_closed() -> None:
    assert closed_offsets(4, 2.0) == (0.0, 0.5, 1.0, 1.5)
    assert closed_offsets(1, 2.0) == (0.0,)
    assert default_stagger_s(128) == pytest.approx(2.56)
    assert default_stagger_s(10_000) == 10.0


def test_constant() -> None:
    assert constant_schedule(4.0, 3) == (0.0, 0.25, 0.5)


def test_poisson_is_poisson() -> None:
    times = poisson_schedule(50.0, 20_000, 1)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    # Exponential gaps: mean 1/rate, coefficient of variation 1, P(gap > mean) = 1/e.
    assert statistics.mean(gaps) == pytest.approx(0.02, rel=0.01)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1, abs=0.03)
    assert sum(g > 0.02 for g in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.01)
    # Counts per second: variance over mean is 1 (dispersion).
    counts = [0] * 400
    for t in times:
        counts[min(int(t), 399)] += 1
    assert statistics.variance(counts) / statistics.mean(counts) == pytest.approx(1, abs=0.25)


@given(st.floats(0.1, 1000), st.integers(0, 200), st.integers(0, 2**32))
def test_poisson_keeps_its_rate(rate_rps: float, requests: int, seed: int) -> None:
    times = poisson_schedule(rate_rps, requests, seed)
    assert len(times) == requests
    assert list(times) == sorted(times)
    assert all(0 <= t <= requests / rate_rps for t in times)


def test_schedule_follows_the_level() -> None:
    assert schedule(level(Arrivals.CLOSED)) is None
    assert schedule(level(Arrivals.CONSTANT, 10.0)) == constant_schedule(10.0, 10)
    assert schedule(level(Arrivals.POISSON, 10.0)) == poisson_schedule(10.0, 10, 5)
    assert schedule(level(Arrivals.POISSON, 10.0, seed=6)) != poisson_schedule(10.0, 10, 5)


@pytest.mark.parametrize("rate_rps", [None, 0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_is_needed(rate_rps: float | None) -> None:
    with pytest.raises(ValueError, match="positive rate"):
        schedule(level(Arrivals.CONSTANT, rate_rps))


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.0])
def test_gamma_has_the_asked_burstiness(cv: float) -> None:
    times = gamma_schedule(50.0, 40_000, 1, cv)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(0.02, rel=1e-3)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.04)
    # A renewal process has var(counts)/mean(counts) -> cv^2 in long windows (Cox, Renewal Theory, 1962, 4.5).
    counts = [0] * 200
    for t in times:
        counts[min(int(t / 4), 199)] += 1
    assert statistics.variance(counts) / statistics.mean(counts) == pytest.approx(cv**2, rel=0.35)


def test_gamma_of_cv_1_is_poisson() -> None:
    gaps = sorted(b - a for a, b in itertools.pairwise(gamma_schedule(1.0, 20_000, 3, 1.0)))
    # Quantiles of the exponential: -ln(1 - q).
    assert gaps[10_000] == pytest.approx(0.6931, rel=0.03)
    assert gaps[19_000] == pytest.approx(2.9957, rel=0.03)


@given(st.floats(0.1, 1000), st.integers(0, 200), st.integers(0, 2**32), st.floats(0.01, 10))
def test_gamma_keeps_its_rate(rate_rps: float, requests: int, seed: int, cv: float) -> None:
    times = gamma_schedule(rate_rps, requests, seed, cv)
    assert len(times) == requests
    assert list(times) == sorted(times)
    assert all(0 <= t <= requests / rate_rps for t in times)


def test_a_ramp_rises_in_a_straight_line() -> None:
    times = ramp_schedule(100.0, 20_000, 1, ramp_from=1.0, ramp_to=3.0)
    quarters = [sum(1 for t in times if 50 * n <= t < 50 * (n + 1)) for n in range(4)]
    # 200 s at 50/s rising to 150/s: the quarters' mean rates are 62.5, 87.5, 112.5 and 137.5/s.
    assert quarters == pytest.approx([3125, 4375, 5625, 6875], rel=0.05)
    falling = ramp_schedule(100.0, 20_000, 1, ramp_from=3.0, ramp_to=0.0)
    # 200/s falling to 0: half of the time sees 3/4 of the requests.
    assert sum(1 for t in falling if t < 100) == pytest.approx(15_000, rel=0.02)


@given(st.floats(0.1, 1000), st.integers(0, 200), st.integers(0, 2**32), st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_ramp_keeps_its_rate(rate_rps: float, requests: int, seed: int, start: float, end: float) -> None:
    if start + end == 0:
        end = 1.0
    times = ramp_schedule(rate_rps, requests, seed, ramp_from=start, ramp_to=end)
    assert len(times) == requests
    assert list(times) == sorted(times)
    assert all(0 <= t <= requests / rate_rps for t in times)


def test_a_flat_ramp_is_poisson() -> None:
    assert ramp_schedule(5.0, 50, 9, ramp_from=2.0, ramp_to=2.0) == pytest.approx(poisson_schedule(5.0, 50, 9))


def test_levels_carry_what_their_arrivals_need() -> None:
    def made(process: ArrivalProcess) -> LoadLevel:
        return open_level("l", LevelRole.TTFT, process, rate_rps=10.0, requests=10, seed=5)

    gamma = made(ArrivalProcess(kind=Arrivals.GAMMA, cv=2.0))
    ramp = made(ArrivalProcess(kind=Arrivals.RAMP, ramp_from=1.0, ramp_to=2.0))
    assert schedule(gamma) == gamma_schedule(10.0, 10, 5, 2.0)
    assert schedule(ramp) == ramp_schedule(10.0, 10, 5, ramp_from=1.0, ramp_to=2.0)
    for bare in (Arrivals.GAMMA, Arrivals.RAMP):
        with pytest.raises(ValueError, match="without"):
            schedule(level(bare, 10.0))
    for cv in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="coefficient"):
            gamma_schedule(1.0, 3, 1, cv)
    for start, end in ((0.0, 0.0), (-1.0, 2.0), (float("nan"), 1.0)):
        with pytest.raises(ValueError, match="ramp"):
            ramp_schedule(1.0, 3, 1, ramp_from=start, ramp_to=end)
