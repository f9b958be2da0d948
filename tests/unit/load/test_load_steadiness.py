"""What is a trend and what is luck: false alarms on steady data, and drifts that must be found."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from load_records import open_level, record

from autotune.load.measure import summarise
from autotune.load.stats import Floats
from autotune.load.steadiness import MIN_S, kendall_s, queue_growth, rate_drift, wait_drift
from autotune.records import ClockKind, RequestRecord


def test_kendalls_s_by_hand() -> None:
    assert kendall_s([1, 2, 3, 4]) == 6
    assert kendall_s([4, 3, 2, 1]) == -6
    assert kendall_s([1, 3, 2]) == 1
    assert kendall_s([1, 1, 1]) == 0


def test_the_bound_is_one_in_a_hundred() -> None:
    # All orders of seven: |S| >= 17 has 2 x (1 + 6 + 20) of them, 1.07 %, as Kendall's table says (0.0054 each side).
    orders = [abs(kendall_s(order)) for order in permutations(range(7))]
    assert sum(s >= 17 for s in orders) == 54
    # Ten are too many for that; 20,000 orders know 0.9 % to within 0.07 %.
    rng = np.random.default_rng(0)
    share = np.mean([abs(kendall_s(rng.permutation(10))) >= MIN_S for _ in range(20_000)])
    assert share == pytest.approx(0.009, abs=0.0025)


def poisson(rng: np.random.Generator, count: int) -> Floats:
    return np.sort(rng.random(count)) * 20.0


def test_steady_arrivals_of_tokens_alarm_seldom() -> None:
    rng = np.random.default_rng(1)
    found = [rate_drift(poisson(rng, 200), np.ones(200), 0.0, 20.0) for _ in range(500)]
    assert sum(drift is not None for drift in found) <= 12  # 0.9 % of 500 are 4.5, and three deviations


def test_steady_waits_alarm_seldom() -> None:
    rng = np.random.default_rng(2)
    found = [wait_drift(np.exp(rng.standard_normal(300)).tolist()) for _ in range(500)]
    assert sum(drift is not None for drift in found) <= 12


@pytest.mark.parametrize(("end", "found"), [(0.5, True), (2.0, True), (0.97, False), (1.03, False)])
def test_a_rate_that_drifts(end: float, found: bool) -> None:
    """A straight line from 1 to `end`; without noise every trend is one, but not every one is large."""
    at = np.linspace(0.0, 20.0, 4001)
    drift = rate_drift(at, 1 + (end - 1) * at / 20, 0.0, 20.0)
    assert (drift is not None) is found
    if drift is not None:
        # Thirds of a line have the values at their middles.
        assert drift.change == pytest.approx((1 + (end - 1) * 5 / 6) / (1 + (end - 1) / 6) - 1, rel=0.02)


@pytest.mark.parametrize(("last", "found"), [(0.3, True), (3.0, True), (1.3, False), (0.8, False)])
def test_waits_that_drift(last: float, found: bool) -> None:
    drift = wait_drift(np.linspace(1.0, last, 300).tolist())
    assert (drift is not None) is found


def test_too_few_say_nothing() -> None:
    assert wait_drift(np.linspace(1, 5, 99).tolist()) is None
    assert rate_drift(np.linspace(0, 1, 99) ** 2, np.ones(99), 0.0, 1.0) is None
    assert rate_drift(np.linspace(0, 1, 200) ** 2, np.ones(200), 1.0, 1.0) is None
    assert queue_growth([(float(at), at + 1.0) for at in range(19)]) is None


def test_growth_of_a_queue() -> None:
    # 10/s offered, 8/s served: the n-th first token comes at n / 8.
    assert queue_growth([(n / 10, n / 8) for n in range(100)]) == pytest.approx(1.25)
    assert queue_growth([(n / 10, n / 10 + 3.0) for n in range(100)]) == pytest.approx(1.0)
    seen: list[tuple[float, float | None]] = [(n / 10, n / 8) for n in range(100)]
    assert queue_growth([*seen, (11.0, None)]) == pytest.approx(1.25)


def caveats(ttft_of: Floats) -> set[str]:
    records: list[RequestRecord] = []
    for at, ttft in enumerate(ttft_of.tolist()):
        due = at / 10
        end = due + ttft + 0.3
        times = tuple(np.linspace(due + ttft, end, 4).tolist())
        records.append(record(at, due, first_token_s=times[0], last_token_s=end, done_s=end, token_times_s=times))
    measured = summarise(open_level(10.0, requests=len(records)), records, len(records) / 10, ClockKind.WALL)
    return {caveat.code for caveat in measured.caveats}


def test_an_open_loop_is_said_to_be_unsteady_or_overloaded() -> None:
    rng = np.random.default_rng(3)
    noise = np.exp(0.3 * rng.standard_normal(300))
    over_time = np.arange(300) / 10
    assert not caveats(0.1 * noise) & {"unsteady", "saturated"}
    # From 100 to 250 ms over 30 s: no queue of any size, but not one figure either.
    assert "unsteady" in caveats((0.1 + 0.005 * over_time) * noise)
    # 5 % more requests than are served: a queue, of 1.5 s in the end.
    found = caveats(0.1 * noise + 0.05 * over_time)
    assert "saturated" in found
    assert "unsteady" not in found
    # A cache that warms up: TTFT falls.
    assert "unsteady" in caveats((0.3 - 0.008 * over_time) * noise)
