from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.lengths import Lengths, sample_lengths


def test_fixed() -> None:
    assert sample_lengths(Lengths.fixed(7), 3, (0,)) == (7, 7, 7)


def test_uniform_takes_every_value_equally_often() -> None:
    values = sample_lengths(Lengths.uniform(3, 6), 400, (1,))
    assert [values.count(n) for n in (2, 3, 4, 5, 6, 7)] == [0, 100, 100, 100, 100, 0]


def test_lognormal_goes_through_its_mean_and_p95() -> None:
    # Independent of the sampler: a log-normal's moments by its formulas.
    lengths = Lengths.lognormal(1000, 2000)
    mu = math.log(1000) - lengths.sigma**2 / 2
    assert math.exp(mu + 1.6448536 * lengths.sigma) == pytest.approx(2000, rel=1e-6)
    values = sorted(sample_lengths(lengths, 20_000, (2,)))
    assert sum(values) / len(values) == pytest.approx(1000, rel=0.01)
    assert values[19_000] == pytest.approx(2000, rel=0.01)


def test_impossible_lognormal() -> None:
    with pytest.raises(ValueError, match=r"3\.87"):
        Lengths.lognormal(100, 400)


def test_the_mean_does_not_depend_on_luck() -> None:
    uniform = Lengths.uniform(64, 192)
    for seed in range(20):
        values = sample_lengths(uniform, 300, (seed,))
        assert sum(values) / 300 == pytest.approx(128, abs=0.5)


def test_order_is_random_and_seeded() -> None:
    uniform = Lengths.uniform(1, 1000)
    assert sample_lengths(uniform, 100, (1, 2)) == sample_lengths(uniform, 100, (1, 2))
    assert sample_lengths(uniform, 100, (1, 2)) != sample_lengths(uniform, 100, (1, 3))
    values = sample_lengths(uniform, 100, (1, 2))
    assert list(values) != sorted(values)


@given(st.integers(1, 500), st.integers(0, 500), st.integers(0, 60), st.integers(0, 2**32))
def test_samples_stay_inside(low: int, width: int, count: int, seed: int) -> None:
    values = sample_lengths(Lengths.uniform(low, low + width), count, (seed,))
    assert len(values) == count
    assert all(low <= v <= low + width for v in values)


@given(st.floats(2, 5000), st.floats(1.0, 3.8), st.integers(0, 2**32))
def test_lognormal_samples_stay_inside(mean: float, ratio: float, seed: int) -> None:
    lengths = Lengths.lognormal(mean, mean * ratio)
    assert all(1 <= v <= lengths.high for v in sample_lengths(lengths, 50, (seed,)))
