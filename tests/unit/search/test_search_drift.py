"""Drift of the baseline: arithmetic by hand, false alarms and power by simulation, and what a correction changes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_samples import measured

from autotune.records import Config, Origin, Trial
from autotune.search.drift import FLAG_Z, baseline_drift, undrifted
from autotune.search.objective import joined_figures, points

BASE = Config.of({})


def study(base: dict[int, tuple[float, float]], others: Iterable[int] = (5, 19)) -> list[Trial]:
    """Launches of the baseline by number, and other configs, all alike."""
    launches = [
        replace(measured(number, *figures, BASE), origin=Origin.BASELINE if number == 0 else Origin.REPEAT)
        for number, figures in base.items()
    ]
    return sorted(
        [*launches, *(measured(number, 1500.0, 0.3) for number in others if number not in base)],
        key=lambda trial: trial.number,
    )


def trial_19(trials: list[Trial]) -> Trial:
    return next(trial for trial in trials if trial.number == 19)


def test_one_launch_shows_no_drift_and_no_baseline_neither() -> None:
    assert baseline_drift(study({0: (1000.0, 0.4)})) is None
    assert baseline_drift([]) is None
    assert baseline_drift([measured(3, 1000.0, 0.4)]) is None


def test_two_launches_are_compared_but_never_corrected() -> None:
    found = baseline_drift(study({0: (1000.0, 0.4), 20: (900.0, 0.4)}))
    assert found is not None
    # One standard error is sqrt(2) x 1 %; a difference of 10 % is found, whatever its cause.
    assert found.launches == (0, 20)
    assert found.throughput.change == pytest.approx(0.9)
    assert found.throughput.low == pytest.approx(0.9 * math.exp(-FLAG_Z * math.sqrt(2) * 0.01))
    assert found.throughput.found
    assert found.found
    assert not found.corrected
    assert found.ttft.change == pytest.approx(1.0)
    assert not found.ttft.found
    # With 10 % between launches of TTFT, (2.24 + 0.84) x 14 % is what would have been seen.
    assert found.ttft.detectable == pytest.approx(math.exp((FLAG_Z + 0.8416) * math.sqrt(2) * 0.1), rel=1e-3)


def test_the_baselines_own_spread_does_not_hide_its_trend() -> None:
    # With these in the noise, 2 x 20 % between launches would be usual.
    found = baseline_drift(study({0: (1000.0, 0.4), 20: (650.0, 0.4)}))
    assert found is not None
    assert found.throughput.found


def test_a_clear_line_is_taken_off_every_figure() -> None:
    slower = {number: (1000.0 * math.exp(-0.005 * number), 0.4) for number in (0, 10, 20)}
    trials = study(slower)
    found = baseline_drift(trials)
    assert found is not None
    assert (found.throughput.clear, found.ttft.clear) == (True, False)
    assert found.throughput.change == pytest.approx(math.exp(-0.1))
    figures = undrifted(trials)
    for number in slower:
        assert figures[number][0].value == pytest.approx(1000.0)
    # Measured last at 1,500: at the beginning it would have been 1,500 x e^0.1 x e^-0.005.
    assert figures[19][0].value == pytest.approx(1500.0 * math.exp(0.095))
    assert figures[19][1].value == 0.3
    late = next(point for point in points(trials) if point.number == 19)
    assert late.tok_s_per_gpu.value == pytest.approx(1500.0 * math.exp(0.095))
    shown = joined_figures(trial_19(trials), trials)
    assert shown.output_tok_s is not None
    assert shown.output_tok_s.value == pytest.approx(late.tok_s_per_gpu.value)


def test_one_odd_launch_of_three_is_no_line() -> None:
    # Down 12 % in the middle and back at the end; or a jump that three launches show as no line.
    for figures in ((1000.0, 880.0, 1000.0), (1000.0, 1000.0, 880.0)):
        trials = study({number: (one, 0.4) for number, one in zip((0, 10, 20), figures, strict=True)})
        found = baseline_drift(trials)
        assert found is not None
        assert not found.corrected
        assert undrifted(trials)[19][0].value == 1500.0


def _share(change: float, numbers: tuple[int, ...], rounds: int) -> tuple[float, float]:
    """Studies in which a drift is found, and in which it is corrected."""
    rng = random.Random(9)
    seen = corrected = 0
    for _ in range(rounds):
        base = {
            n: (1000 * math.exp(change * n / 20 + rng.gauss(0, 0.01)), 0.4 * math.exp(rng.gauss(0, 0.1)))
            for n in numbers
        }
        found = baseline_drift(study(base))
        assert found is not None
        seen += found.found
        corrected += found.corrected
    return seen / rounds, corrected / rounds


def test_false_alarms_and_power_are_as_said() -> None:
    assert _share(0.0, (0, 20), 400)[0] == pytest.approx(0.05, abs=0.03)
    assert _share(0.0, (0, 10, 20), 200)[1] < 0.02
    # (2.24 + 0.84) standard errors of sqrt(2) %: found in four of five.
    assert _share((FLAG_Z + 0.8416) * math.sqrt(2) * 0.01, (0, 20), 400)[0] == pytest.approx(0.81, abs=0.06)
    assert _share(0.10, (0, 10, 20), 200)[1] > 0.85


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(1.0, 1e5), st.floats(1e-3, 1e2)), min_size=2, max_size=5), st.floats(0.1, 10.0))
def test_a_change_of_units_changes_no_verdict(figures: list[tuple[float, float]], factor: float) -> None:
    def trend(scale: float) -> tuple[bool, float]:
        trials = study({4 * k: (x * scale, y) for k, (x, y) in enumerate(figures)})
        found = baseline_drift(trials)
        assert found is not None
        return found.throughput.clear, found.throughput.change

    (clear, change), (other_clear, other_change) = trend(1.0), trend(factor)
    assert clear is other_clear
    assert math.log(change) == pytest.approx(math.log(other_change), abs=1e-6)
