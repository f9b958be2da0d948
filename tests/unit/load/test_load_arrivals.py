from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.arrivals import closed_offsets, constant_schedule, default_stagger_s, poisson_schedule, schedule
from autotune.records import Arrivals, LevelRole, LoadLevel


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
