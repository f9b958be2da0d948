"""Outcomes classified: against quadrature, and what a shortage in bytes adds."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.search.prior.coding import MARK
from autotune.search.prior.normal import cumulative
from autotune.search.prior.outcomes import SHORTAGE_SD, Outcomes

GROUPS = np.array([0, 1, MARK, MARK])
"""Two parameters of one coordinate, and two marks of some choice."""


def at(*rows):
    return np.array([[*row, 1.0, 0.0] for row in rows])


def test_it_is_near_the_exact_posterior_of_one_outcome():
    home, there = at((0.0, 0.0)), at((0.0, 0.0), (0.6, 0.3))
    means = np.array([1.0])
    learnt = Outcomes.learn(home, means, np.array([False]), GROUPS)
    # By quadrature over f at home and at the other place, whose covariance is the kernel's.
    features = learnt._features
    points = features.split(there)
    covariance = features.kernel(points, points)
    draws = np.random.default_rng(0).multivariate_normal([1.0, 1.0], covariance, 200_000)
    weights = cumulative(-draws[:, 0])
    exact = (weights[:, None] * cumulative(draws)).sum(axis=0) / weights.sum()
    assert learnt.probability(there, np.ones(2)) == pytest.approx(exact, abs=0.02)


def test_one_started_server_makes_its_neighbours_surer_and_nothing_else_worse():
    there = at((0.1, 0.0), (1.0, 1.0))
    before = Outcomes.learn(at((0.0, 0.0)), np.ones(1), np.array([True]), GROUPS).probability(there, np.ones(2))
    after = Outcomes.learn(at((0.0, 0.0), (0.2, 0.0)), np.ones(2), np.array([True, True]), GROUPS)
    assert (after.probability(there, np.ones(2)) > before).all()


def test_a_line_is_learnt_from_few_failures_and_holds_far_away():
    """Whatever the second coordinate is, the first one decides; it was seen on one side only."""
    rows = [(0.0, 0.0), (0.3, 0.1), (0.8, 0.0), (1.0, 0.1), (0.9, 0.2)]
    good = np.array([first < 0.5 for first, _ in rows])
    learnt = Outcomes.learn(at(*rows), np.full(5, 1.0), good, GROUPS)
    runs, fails = learnt.probability(at((0.0, 1.0), (1.0, 1.0)), np.full(2, 1.0))
    assert runs > 0.5
    assert fails < 0.35


def test_how_much_was_missing_says_how_far_away_the_edge_is():
    rows, good = at((0.0, 0.0), (1.0, 0.0)), np.array([True, False])
    there = at((0.5, 0.0))

    def middle(shortage):
        learnt = Outcomes.learn(rows, np.full(2, 1.5), good, GROUPS, np.array([np.nan, shortage]))
        return learnt.probability(there, np.full(1, 1.5))[0]

    assert middle(5.0) < middle(1.0) - 0.1
    assert SHORTAGE_SD[0] > 0


@pytest.mark.parametrize("count", [1, 200])
def test_probabilities_stay_probabilities(count):
    rng = np.random.default_rng(count)
    rows = at(*rng.random((count, 2)))
    good = rng.random(count) < 0.6
    found = Outcomes.learn(rows, np.full(count, 1.6), good, GROUPS).probability(rows, np.full(count, 1.6))
    assert np.isfinite(found).all()
    assert ((found >= 0.0) & (found <= 1.0)).all()
