"""Launch-to-launch spread and whether a difference is real: arithmetic by hand, and error rates by simulation."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from search_samples import measured

from autotune.records import Config, Estimate
from autotune.search.noise import (
    ASSUMED_THROUGHPUT_SD,
    ASSUMED_TTFT_SD,
    PRIOR_WEIGHT,
    difference,
    run_noise,
)


def sharp(*values: float) -> list[Estimate]:
    return [Estimate(value=value) for value in values]


def test_without_repeats_the_assumption_stands() -> None:
    noise = run_noise([measured(0, 100.0, 0.2)])
    assert noise.repeats == 0
    assert noise.throughput_sd == pytest.approx(ASSUMED_THROUGHPUT_SD)
    assert noise.ttft_sd == pytest.approx(ASSUMED_TTFT_SD)


def test_repeats_pull_the_spread_towards_what_was_seen() -> None:
    config = Config.of({"max-num-seqs": 64})
    trials = [
        measured(0, 100 * math.exp(0.04), 0.2, config),
        measured(1, 100 * math.exp(-0.04), 0.2, config),
    ]
    noise = run_noise(trials)
    # Sum of squares 2 x 0.04^2 with one degree of freedom, beside four of the assumption.
    wanted = math.sqrt((PRIOR_WEIGHT * ASSUMED_THROUGHPUT_SD**2 + 2 * 0.04**2) / (PRIOR_WEIGHT + 1))
    assert noise.repeats == 1
    assert noise.throughput_sd == pytest.approx(wanted)
    assert noise.ttft_sd == pytest.approx(math.sqrt(PRIOR_WEIGHT * ASSUMED_TTFT_SD**2 / (PRIOR_WEIGHT + 1)))


def test_a_difference_is_real_only_beyond_the_spread_of_launches() -> None:
    # One launch each, 1 % spread: the standard error is 1.41 %, so 2.77 % is where it becomes real.
    near = difference(sharp(100.0), sharp(102.5), 0.01)
    far = difference(sharp(100.0), sharp(103.0), 0.01)
    assert near is not None
    assert far is not None
    assert (near.is_real, far.is_real) == (False, True)
    assert far.ratio == pytest.approx(1.03)
    assert (far.low, far.high) == pytest.approx((1.03 / math.exp(0.0277), 1.03 * math.exp(0.0277)), rel=1e-3)
    # 1.96^2 x 2 x 0.01^2 / ln(1.025)^2 = 1.26: two launches each show it.
    assert near.more_launches == 2
    assert far.more_launches is None
    twice = difference(sharp(100.0, 100.0), sharp(102.5, 102.5), 0.01)
    assert twice is not None
    assert twice.is_real


def test_a_launchs_own_interval_counts_as_well() -> None:
    wide = [Estimate(value=100.0, low=95.0, high=105.0)]
    assert (found := difference(wide, sharp(103.0), 0.01)) is not None
    assert not found.is_real


def test_nothing_to_compare_is_none_and_equal_needs_no_launches() -> None:
    assert difference([], sharp(1.0), 0.01) is None
    assert difference(sharp(0.0), sharp(1.0), 0.01) is None
    same = difference(sharp(5.0), sharp(5.0), 0.01)
    assert same is not None
    assert (same.is_real, same.ratio, same.more_launches) == (False, 1.0, None)


def _alarms(true_ratio: float, launches: int, rounds: int) -> float:
    rng = random.Random(4)

    def side(middle: float) -> Sequence[Estimate]:
        return sharp(*(middle * math.exp(rng.gauss(0.0, 0.01)) for _ in range(launches)))

    found = [difference(side(100.0), side(100.0 * true_ratio), 0.01) for _ in range(rounds)]
    return sum(one is not None and one.is_real for one in found) / rounds


def test_error_rates_are_those_of_a_95_percent_interval() -> None:
    assert _alarms(1.0, 2, 4000) == pytest.approx(0.05, abs=0.015)
    # Power at 4 % with two launches each: standard error 1 %, so z is 3.92 and 97.5 % are found.
    assert _alarms(1.04, 2, 2000) == pytest.approx(0.975, abs=0.015)
