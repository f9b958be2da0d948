"""Kaplan-Meier and log-rank against figures published for the 6-MP trial (Freireich et al. 1963)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.bench.survival import Watched, curve, log_rank, mean_ratio, median_ratio, quantile, restricted_mean

# Weeks of remission as printed in Klein & Moeschberger, "Survival Analysis", table 1.2, and in the R package survival's
# documentation; a plus is a patient still in remission when last seen.
TREATED = "6 6 6 7 10 13 16 22 23 6+ 9+ 10+ 11+ 17+ 19+ 20+ 25+ 32+ 32+ 34+ 35+"
PLACEBO = "1 1 2 2 3 4 4 5 5 8 8 8 8 11 11 12 12 15 17 22 23"


def patients(text: str, stratum: str | None = None) -> list[Watched]:
    return [
        Watched(time=float(one.rstrip("+")), reached=not one.endswith("+"), stratum=stratum) for one in text.split()
    ]


def test_the_curve_is_the_published_one() -> None:
    published = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}

    assert dict(curve(patients(TREATED))) == pytest.approx(published, abs=5e-4)


def test_quartiles_are_the_published_ones_and_missing_where_not_seen() -> None:
    assert quantile(patients(TREATED), 0.5) == 23
    assert quantile(patients(PLACEBO), 0.5) == 8
    assert quantile(patients(TREATED), 0.25) == 13
    # 45 % were still in remission after the last relapse.
    assert quantile(patients(TREATED), 0.75) is None


def test_log_rank_is_the_published_one() -> None:
    # Chi-squared 16.8 on one degree of freedom (R: survdiff), p = 4e-05.
    p = log_rank(patients(TREATED), patients(PLACEBO))

    assert p == pytest.approx(4.17e-5, rel=0.01)


def test_log_rank_compares_within_strata() -> None:
    # Alike in each stratum, and one sampler has far more studies where all are slow.
    a = [*patients("1 2 3", "quick"), *patients("101 102 103 104 105 106 107 108 109", "slow")]
    b = [*patients("1 2 3 1 2 3 1 2 3", "quick"), *patients("101 104 107", "slow")]
    unstratified = [Watched(time=one.time, reached=True) for one in a]

    within = log_rank(a, b)
    across = log_rank(unstratified, [Watched(time=one.time, reached=True) for one in b])

    assert within is not None
    assert across is not None
    assert within > 0.5
    assert across < 0.1


def test_log_rank_has_nothing_to_say_without_events() -> None:
    assert log_rank(patients("5+ 6+"), patients("5+")) is None


def test_restricted_mean_is_the_area_under_the_curve() -> None:
    # Half have the event at 10, a quarter at 20, one is still waiting: 10 + 10 x 0.5 + 20 x 0.25.
    assert restricted_mean(patients("10 10 20 40+"), 40) == pytest.approx(20.0)
    assert restricted_mean(patients("10 10 20 40+"), 15) == pytest.approx(12.5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 150), min_size=1, max_size=30), st.sampled_from([0.25, 0.5, 0.75]))
def test_without_censoring_it_is_the_empirical_quantile(times: list[int], share: float) -> None:
    found = quantile([Watched(time=float(one), reached=True) for one in times], share)

    rank = next(count for count in range(1, len(times) + 1) if count / len(times) >= share - 1e-9)
    assert found == sorted(times)[rank - 1]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=30))
def test_the_restricted_mean_is_the_mean_of_what_was_cut(times: list[int]) -> None:
    cut = [Watched(time=float(min(one, 150)), reached=one <= 150) for one in times]

    assert restricted_mean(cut, 150) == pytest.approx(sum(min(one, 150) for one in times) / len(times))


@pytest.mark.no_cover
def test_ratios_hold_the_truth_and_are_drawn_within_strata() -> None:
    rng = np.random.default_rng(0)
    a = [Watched(time=one, reached=True, stratum=n % 2) for n, one in enumerate(rng.exponential(10, 60) + 1)]
    b = [Watched(time=one, reached=True, stratum=n % 2) for n, one in enumerate(rng.exponential(40, 60) + 1)]

    found = mean_ratio(a, b, 1e6, rng)

    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high < 0.6
    # The same subject in every resample: nothing is drawn across strata.
    single = [Watched(time=7.0, reached=True, stratum=0), Watched(time=70.0, reached=True, stratum=1)]
    assert mean_ratio(single, single, 150, rng).low == 1.0


def test_a_median_that_was_not_seen_bounds_the_ratio_from_the_safe_side() -> None:
    rng = np.random.default_rng(0)
    quick, never = patients("10 10 10"), patients("150+ 150+ 150+")

    assert median_ratio(quick, never, 150, rng).value == pytest.approx(10 / 150)
    assert median_ratio(never, quick, 150, rng).value is None
    assert median_ratio(never, quick, 150, rng).low is None
    assert median_ratio([], quick, 150, rng).value is None
