"""Shrunken figures: the winner's luck is taken off where there is luck, and nothing where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.search import shrinkage
from autotune.search.shrinkage import shrunken


def test_one_config_keeps_its_figure() -> None:
    (only,) = shrunken([3.0], [0.04])
    assert only.mean == 3.0
    assert only.sd == pytest.approx(0.2)
    assert shrunken([], []) == ()


def test_far_apart_figures_stay_and_near_ones_meet() -> None:
    far = shrunken([0.0, 100.0, 200.0], [1.0] * 3)
    assert [one.mean for one in far] == pytest.approx([0.0, 100.0, 200.0], abs=0.3)
    near = shrunken([-0.5, 0.0, 0.5], [1.0] * 3)
    # A single cluster: half a standard deviation of its own spread is trusted by 0.25 / 1.25.
    assert [one.mean for one in near] == pytest.approx([-0.1, 0.0, 0.1], abs=0.02)


def test_a_figure_of_more_launches_moves_less() -> None:
    moved = shrunken([0.0, 0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 0.01])
    assert moved[3].mean < moved[4].mean
    assert moved[4].mean == pytest.approx(1.0, abs=0.1)
    assert moved[4].sd < moved[3].sd


def _optimism(truths: np.ndarray, rounds: int) -> tuple[float, float, float]:
    """Mean error of the best figure as measured and as shrunken, and how often the 95 % interval holds the truth."""
    rng = np.random.default_rng(5)
    raw, ours, held = [], [], 0
    for _ in range(rounds):
        seen = truths + rng.normal(size=len(truths))
        best = int(seen.argmax())
        found = shrunken(list(seen), [1.0] * len(truths))[best]
        raw.append(seen[best] - truths[best])
        ours.append(found.mean - truths[best])
        held += abs(found.mean - truths[best]) <= 1.96 * found.sd
    return float(np.mean(raw)), float(np.mean(ours)), held / rounds


@pytest.mark.parametrize(
    ("truths", "lucky"),
    [
        (np.zeros(24), 1.9),
        (np.concatenate([np.zeros(12), -np.linspace(10, 60, 12)]), 1.6),
        (-(np.linspace(0, 4, 24) ** 2), 1.35),
    ],
    ids=["all tied", "half tied, half far below", "one tail"],
)
def test_most_of_the_winners_luck_is_taken_off(truths: np.ndarray, lucky: float) -> None:
    raw, ours, held = _optimism(truths, 60)
    assert raw == pytest.approx(lucky, abs=0.35)
    assert abs(ours) < raw / 2.5
    assert held >= 0.8


def test_a_clear_winner_keeps_its_figure() -> None:
    raw, ours, held = _optimism(np.array([0.0, *(-np.linspace(8, 40, 11))]), 60)
    assert abs(raw) < 0.4
    assert abs(ours - raw) < 0.15
    assert held >= 0.88


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-50, 50), st.floats(0.01, 4.0)), min_size=2, max_size=12),
    st.floats(-100, 100),
)
def test_expectations_lie_within_what_was_seen_and_move_with_it(seen: list[tuple[float, float]], shift: float) -> None:
    values, variances = [one for one, _ in seen], [one for _, one in seen]
    found = shrunken(values, variances)
    assert all(min(values) - 1e-9 <= one.mean <= max(values) + 1e-9 for one in found)
    assert all(0 < one.sd <= max(values) - min(values) + 2 * max(variances) ** 0.5 for one in found)
    moved = shrunken([value + shift for value in values], variances)
    assert [one.mean - shift for one in moved] == pytest.approx([one.mean for one in found], abs=1e-3)


def test_many_values_are_fitted_in_cells_that_give_the_same() -> None:
    rng = np.random.default_rng(3)
    truth = np.where(rng.random(600) < 0.4, 0.0, -rng.exponential(0.5, 600))
    noise = rng.uniform(0.008, 0.015, 600)
    values = (truth + rng.normal(0, noise)).tolist()
    whole, cells = shrunken(values, (noise**2).tolist(), large=1000), shrunken(values, (noise**2).tolist(), large=100)
    for one, other, sd in zip(whole, cells, noise, strict=True):
        assert abs(one.mean - other.mean) < 0.5 * sd
        assert 0.6 < other.sd / one.sd < 1.6
    # What it is for: the best are no longer too good.
    best = np.argsort(values)[-20:]
    assert abs(np.mean([cells[k].mean for k in best]) - truth[best].mean()) < 0.5 * noise.mean()


def test_parts_that_are_far_from_a_value_have_no_say_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    truth = np.where(rng.random(900) < 0.002, -300.0, rng.normal(0.0, 0.2, 900))  # its cells are wider than the noise
    noise = rng.uniform(0.005, 0.05, 900)
    values, variances = (truth + rng.normal(0, noise)).tolist(), (noise**2).tolist()
    near = shrunken(values, variances)
    monkeypatch.setattr(shrinkage, "NEAR", np.inf)
    for one, other in zip(near, shrunken(values, variances), strict=True):
        assert (one.mean, one.sd) == pytest.approx((other.mean, other.sd), rel=1e-10)
