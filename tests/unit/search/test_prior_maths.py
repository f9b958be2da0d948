"""The sampler's mathematics against slow or independent ways to the same number."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.records import Config
from autotune.search.parameter import Parameter
from autotune.search.pareto import hypervolume
from autotune.search.prior.coding import MARK, Coder
from autotune.search.prior.gp import Belief, Gp, Points, _Search
from autotune.search.prior.improvement import expected_improvement, front_of, improvement
from autotune.search.prior.normal import cumulative, density, mean_above
from autotune.search.space import SearchSpace


@given(st.floats(-12, 8))
def test_the_normal_distribution_is_that_of_the_mathematics_library(z):
    assert cumulative(np.array([z]))[0] == pytest.approx(0.5 * math.erfc(-z / math.sqrt(2)), rel=1e-6)
    assert density(np.array([z]))[0] == pytest.approx(math.exp(-z * z / 2) / math.sqrt(2 * math.pi))


def test_the_mean_above_a_level_by_hand():
    # E[max(Z, 0)] = 1 / sqrt(2 pi); far above the level it is the distance to it, above infinity it is nothing.
    one = np.ones(1)
    assert mean_above(0.0, 0 * one, one)[0] == pytest.approx(1 / math.sqrt(2 * math.pi))
    assert mean_above(2.0, 10 * one, 0.1 * one)[0] == pytest.approx(8.0)
    assert mean_above(math.inf, one, one)[0] == 0.0


values = st.floats(-2, 2, allow_nan=False).map(lambda value: round(value, 3))


@given(st.lists(st.tuples(values, values), max_size=6), st.tuples(values, values))
def test_improvement_is_the_difference_of_hypervolumes(points, new):
    def volume(chosen):
        # The product's own hypervolume maximises throughput and minimises TTFT, on positive figures.
        found = hypervolume([(math.exp(x), math.exp(-y)) for x, y in chosen], (math.exp(-1.0), math.exp(1.0)))
        return found or 0.0

    front = front_of(points, (-1.0, -1.0))
    assert volume(front) == pytest.approx(volume(points), abs=1e-9)
    gained = improvement(front, (-1.0, -1.0), new)
    assert gained == pytest.approx(volume([*points, new]) - volume(points), abs=1e-9)


@settings(max_examples=15)
@given(
    st.lists(st.tuples(values, values), max_size=4),
    st.tuples(values, values),
    st.tuples(st.floats(0.05, 1.0), st.floats(0.05, 1.0)),
)
def test_expected_improvement_is_the_mean_of_improvements(points, middle, sds):
    reference = (-1.5, -1.5)
    front = front_of(points, reference)
    draws = np.random.default_rng(1).standard_normal((2, 4000)) * np.array(sds)[:, None] + np.array(middle)[:, None]
    sampled = [improvement(front, reference, (float(x), float(y))) for x, y in draws.T]
    exact = expected_improvement(
        front,
        reference,
        (np.array(middle[:1]), np.array(middle[1:])),
        (np.array(sds[:1]), np.array(sds[1:])),
    )[0]
    assert exact == pytest.approx(np.mean(sampled), abs=5 * np.std(sampled) / math.sqrt(4000) + 1e-4)


def points(at):
    return Points(np.asarray(at, dtype=float), np.linspace(-1, 1, len(at)))


def test_the_gradient_is_that_of_the_posterior():
    rng = np.random.default_rng(3)
    belief = Belief(amplitude=0.5, level_sd=0.4, slope_sd=0.3)
    groups = np.array([0, 1, 1])
    search = _Search(points(rng.random((9, 3))), rng.standard_normal(9), np.full(9, 0.1), groups, 2, belief)
    theta = np.array([0.1, -0.4, 0.3, -1.5])
    _, gradient = search._posterior(theta)
    for axis in range(len(theta)):
        step = np.zeros(len(theta))
        step[axis] = 1e-5
        slope = (search._posterior(theta + step)[0] - search._posterior(theta - step)[0]) / 2e-5
        assert gradient[axis] == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_a_process_passes_through_exact_values_and_doubts_what_is_far():
    at = np.array([[0.0], [0.2], [0.5]])
    belief = Belief(amplitude=1.0, level_sd=1.0, extra_noise=1e-4, extra_noise_sd=0.01)
    known = np.array([0.3, -0.2, 0.7])
    gp = Gp.fit(Points(at, np.zeros(3)), known, np.zeros(3), np.array([0]), belief)
    means, sds = gp.predict(Points(np.array([[0.0], [0.2], [0.5], [5.0]]), np.zeros(4)))
    assert means[:3] == pytest.approx(known, abs=0.01)
    assert sds[3] > 20 * sds[:3].max()


def test_noisy_values_are_smoothed():
    at = np.linspace(0, 1, 40)[:, None]
    rng = np.random.default_rng(0)
    noisy = np.sin(3 * at[:, 0]) + 0.3 * rng.standard_normal(40)
    gp = Gp.fit(Points(at, np.zeros(40)), noisy, np.full(40, 0.3), np.array([0]), Belief(amplitude=0.7, level_sd=1.0))
    means, _ = gp.predict(Points(at, np.zeros(40)))
    assert np.abs(means - np.sin(3 * at[:, 0])).mean() < 0.5 * np.abs(noisy - np.sin(3 * at[:, 0])).mean()


def test_fantasies_take_the_doubt_away_and_leave_the_mean():
    at = np.array([[0.0], [1.0]])
    gp = Gp.fit(
        Points(at, np.zeros(2)), np.array([0.0, 1.0]), np.zeros(2), np.array([0]), Belief(amplitude=1, level_sd=1)
    )
    there = Points(np.array([[0.5]]), np.zeros(1))
    before, after = gp.predict(there), gp.with_fantasies(there, 0.01).predict(there)
    assert after[0] == pytest.approx(before[0], abs=1e-3)
    assert after[1][0] < 0.2 * before[1][0]


def test_coordinates_keep_sizes_in_order_and_categories_apart():
    space = SearchSpace(
        name="s",
        parameters=(
            Parameter(name="seqs", choices=(16, 64, 256)),
            Parameter(name="mode", choices=("a", "b", None)),
            Parameter(name="only", choices=(7,)),
        ),
    )
    coder = Coder(space)
    both = coder.encode([Config.of({"seqs": s, "mode": m}) for s, m in [(16, "a"), (64, "a"), (256, "a"), (16, "b")]])
    at = both[:, coder.groups != MARK]
    apart = np.linalg.norm(at[:, None] - at[None, :], axis=2)
    # Each size is four times the one before: equally far apart. Two categories are one apart.
    assert apart[0, 1] == pytest.approx(apart[1, 2]) == pytest.approx(0.5)
    assert apart[0, 2] == pytest.approx(1.0)
    assert apart[0, 3] == pytest.approx(1.0)
    # vLLM's default is no choice of the space, and lies between two of them all the same.
    (row,) = coder.encode([Config.of({"seqs": 128, "mode": None})])
    assert at[1, 0] < row[0] < at[2, 0]
    assert list(coder.groups) == [0, 0, 1, 1, 1, *[MARK] * 6]
    # Each choice has a mark; 128 is none, vLLM's own default is one.
    assert both[0, 5:].tolist() == [1, 0, 0, 1, 0, 0]
    assert row[5:].tolist() == [0, 0, 0, 0, 0, 1]
    assert coder.owners.tolist() == [0, 0, 0, 1, 1, 1]


def test_an_effect_of_a_choice_is_carried_to_far_places():
    """Two marks, coordinates far apart: what one choice does here it is expected to do there."""
    at = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [90.0, 1.0, 0.0], [90.0, 0.0, 1.0]])
    belief = Belief(
        amplitude=1e-6, level_sd=1e-6, mark_sd=1.0, extra_noise=1e-6, amplitude_sd=1e-3, extra_noise_sd=1e-3
    )
    groups = np.array([0, MARK, MARK])
    gp = Gp.fit(Points(at[:2], np.zeros(2)), np.array([1.0, -1.0]), np.full(2, 1e-3), groups, belief)
    means, sds = gp.predict(Points(at[2:], np.zeros(2)))
    assert means == pytest.approx([1.0, -1.0], abs=0.01)
    assert (sds < 0.05).all()
