from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from autotune.load.stats import dependence, latency, percentile, percentile_in_order, rate, samples_for
from autotune.records import Estimate


def test_percentile_is_the_linear_one() -> None:
    # Type 7 by hand: h = (n - 1) p; p90 of 1..5 is 1 + 3.6.
    assert percentile([5, 1, 4, 2, 3], 90) == pytest.approx(4.6)
    assert percentile([1, 2], 50) == 1.5
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 50) is None


def test_samples_for() -> None:
    assert [samples_for(p) for p in (50, 90, 95, 99)] == [10, 50, 100, 500]


def test_latency_of_nothing() -> None:
    assert latency([]) is None


def test_bounds_only_where_the_sample_carries_them() -> None:
    few = latency([float(i) for i in range(99)])
    assert few is not None
    assert few.p95.low is None
    assert few.p95.high is None
    assert few.p90.low is not None
    assert few.p99.low is None
    enough = latency([float(i) for i in range(100)])
    assert enough is not None
    assert enough.p95.low is not None
    one = latency([3.0])
    assert one is not None
    assert (one.count, one.mean.value, one.mean.low, one.p99.value) == (1, 3.0, None, 3.0)


def test_intervals_are_those_of_a_plain_bootstrap() -> None:
    """The slow way: draw samples with replacement, take numpy's percentile of each."""
    samples = np.random.default_rng(1).lognormal(0, 0.7, 300)
    fast = latency(samples.tolist())
    assert fast is not None
    drawn = samples[np.random.default_rng(2).integers(0, 300, (20_000, 300))]
    for percent, estimate in ((50, fast.p50), (90, fast.p90), (95, fast.p95)):
        low, high = np.percentile(np.percentile(drawn, percent, axis=1), (2.5, 97.5))
        assert estimate.low is not None
        assert estimate.high is not None
        width = high - low
        assert estimate.low == pytest.approx(low, abs=0.12 * width)
        assert estimate.high == pytest.approx(high, abs=0.12 * width)
    low, high = np.percentile(drawn.mean(axis=1), (2.5, 97.5))
    assert fast.mean.low == pytest.approx(low, rel=0.02)
    assert fast.mean.high == pytest.approx(high, rel=0.02)


def test_coverage_of_the_p95_interval() -> None:
    """About 95 of 100 intervals hold the true p95 of an exponential, which is ln 20."""
    rng = np.random.default_rng(3)
    held = 0
    for seed in range(200):
        found = latency(rng.exponential(1.0, 300).tolist(), seed=seed)
        assert found is not None
        assert found.p95.low is not None
        assert found.p95.high is not None
        held += found.p95.low <= np.log(20) <= found.p95.high
    assert 178 <= held <= 199


def test_grouped_samples_get_the_interval_of_their_groups() -> None:
    samples = np.random.default_rng(4).exponential(1.0, 10_000).tolist()
    alone, grouped = latency(samples), latency(samples, independent=100)
    assert alone is not None
    assert grouped is not None
    assert alone.p50.value == grouped.p50.value
    assert alone.p50.high is not None
    assert grouped.p50.high is not None
    assert grouped.p50.high - grouped.p50.value > 5 * (alone.p50.high - alone.p50.value)
    assert grouped.p99.low is None


def test_same_seed_same_interval() -> None:
    samples = np.random.default_rng(5).exponential(1.0, 500).tolist()
    assert latency(samples, seed=1) == latency(samples, seed=1)
    assert latency(samples, seed=1) != latency(samples, seed=2)


def test_rate_counts_the_window_only() -> None:
    at = np.array([0.0, 1.0, 2.0, 3.0, 9.0])
    found = rate(at, np.array([100.0, 2.0, 3.0, 4.0, 100.0]), 1.0, 4.0)
    assert found is not None
    assert found.value == pytest.approx(9 / 3)
    assert found.low is None
    assert rate(at, at, 4.0, 8.0) is None
    assert rate(at, at, 4.0, 4.0) is None


def test_rate_interval_holds_the_true_rate_of_a_poisson_stream() -> None:
    rng = np.random.default_rng(6)
    held = 0
    for seed in range(100):
        at = np.sort(rng.random(rng.poisson(2000)) * 10)
        found = rate(at, np.ones(len(at)), 0.0, 10.0, seed=seed)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 200 <= found.high
    assert held >= 85


def test_rate_interval_of_an_even_stream_is_narrow_and_of_a_bursty_one_wide() -> None:
    even = np.arange(0, 10, 0.01)
    bursts = np.concatenate([np.arange(s, s + 0.5, 0.005) for s in range(10)])
    narrow, wide = rate(even, np.ones(1000), 0.0, 10.0), rate(bursts, np.ones(1000), 0.0, 10.0)
    assert narrow is not None
    assert wide is not None
    assert narrow.value == wide.value == 100
    assert narrow.low is not None
    assert wide.low is not None
    assert wide.value - wide.low > 3 * (narrow.value - narrow.low)


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=300), st.integers(0, 2**32))
def test_intervals_hold_their_value(samples: list[float], seed: int) -> None:
    found = latency(samples, seed=seed)
    assert found is not None
    for estimate in (found.mean, found.p50, found.p90, found.p95, found.p99):
        assert (estimate.low is None) == (estimate.high is None)
        if estimate.low is not None and estimate.high is not None:
            assert estimate.low <= estimate.value <= estimate.high
            assert min(samples) - 1e-6 <= estimate.low or estimate is found.mean
            assert estimate.high <= max(samples) + 1e-6 or estimate is found.mean


def correlated(rho: float, runs: int, count: int = 600) -> NDArray[np.float64]:
    """exp of AR(1) series, one a row: their p95 is exp(0.5 x 1.645), whatever the correlation of neighbours."""
    noise = np.random.default_rng(2).standard_normal((count, runs))
    series = np.empty_like(noise)
    series[0] = noise[0]
    for at in range(1, count):
        series[at] = rho * series[at - 1] + math.sqrt(1 - rho * rho) * noise[at]
    return np.ascontiguousarray(np.exp(0.5 * series).T)


def _holds(interval: Estimate | None) -> bool:
    assert interval is not None
    assert interval.low is not None
    assert interval.high is not None
    return interval.low <= math.exp(0.5 * 1.6448536) <= interval.high


class TestInOrder:
    def test_independent_samples_are_worth_what_they_are(self) -> None:
        rng = np.random.default_rng(0)
        found = [dependence(rng.standard_normal(500)) for _ in range(200)]
        # Student's t for ten batches takes a third off on average, and luck some more or less.
        assert 1.2 < float(np.mean(found)) < 1.6
        assert min(found) == 1.0

    def test_alike_neighbours_are_worth_less(self) -> None:
        # Each value ten times: the mean of 1,000 is one of 100; Student's t makes that 13.3, and
        # batches that are short a little less.
        rng = np.random.default_rng(1)
        found = [dependence(np.repeat(rng.standard_normal(100), 10)) for _ in range(200)]
        assert 10 < float(np.mean(found)) < 14.5

    def test_constant_or_few(self) -> None:
        assert dependence(np.ones(100)) == 1.0
        assert dependence(np.arange(10.0)) == 1.0

    @pytest.mark.parametrize(("rho", "held"), [(0.0, 0.93), (0.5, 0.9), (0.8, 0.83)])
    def test_coverage(self, rho: float, held: float) -> None:
        # 400 intervals are known to 1.2-1.7 %; measured over more: 0.965, 0.955, 0.92.
        found = [percentile_in_order(ttfts, 95, seed=run) for run, ttfts in enumerate(correlated(rho, 400))]
        assert np.mean([_holds(interval) for interval in found]) > held

    def test_taken_for_independent_they_would_be_too_narrow(self) -> None:
        found = [latency(ttfts.tolist(), seed=run) for run, ttfts in enumerate(correlated(0.8, 60))]
        assert np.mean([_holds(one.p95) for one in found if one is not None]) < 0.8

    def test_percentile_alone_is_that_of_the_whole(self) -> None:
        samples = np.random.default_rng(3).random(300).tolist()
        found, whole = percentile_in_order(samples, 95), latency(samples, in_order=True)
        assert found is not None
        assert whole is not None
        assert found.value == whole.p95.value
        assert found.low == pytest.approx(whole.p95.low, rel=0.02)
        assert percentile_in_order([], 95) is None
        few = percentile_in_order(samples[:99], 95)
        assert few is not None
        assert few.low is None
