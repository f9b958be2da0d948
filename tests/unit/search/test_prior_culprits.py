"""Failures told apart: pairs of flags by elimination, memory by neighbourhood."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.records import Config
from autotune.search.parameter import Parameter
from autotune.search.prior.bend import Bend
from autotune.search.prior.coding import MARK, Coder
from autotune.search.prior.culprits import ONE, SURE, suspicion
from autotune.search.prior.expectation import THROUGHPUT, TTFT, Observation
from autotune.search.prior.feasibility import probabilities
from autotune.search.prior.gp import Points
from autotune.search.space import SearchSpace

SPACE = SearchSpace(name="s", parameters=tuple(Parameter(name=name, choices=(0, 1, 2)) for name in ("a", "b", "c")))
CODER = Coder(SPACE)


def at(*rows):
    return CODER.encode([Config.of(dict(zip("abc", row, strict=True))) for row in rows])


def marks(*rows):
    return at(*rows)[:, CODER.groups == MARK]


def test_one_failure_is_spread_over_its_choices_and_pairs():
    found, explained = suspicion(marks((0, 0, 0)), np.zeros((0, 9)), marks((0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 1)))
    # Three choices of weight ONE and three pairs of weight 1: two choices and a pair are shared, one choice, nothing.
    all_of = 3 * ONE + 3
    assert explained.all()
    assert found == pytest.approx([SURE, SURE * (2 * ONE + 1) / all_of, SURE * ONE / all_of, 0.0])


def test_what_started_clears_its_pairs_until_one_is_left():
    started = marks((0, 1, 0), (1, 0, 0), (0, 0, 1), (0, 2, 0), (1, 1, 0))
    # Of (0, 0, 0)'s pairs a-b and a-c and b-c all were seen to start: it cannot be explained.
    found, explained = suspicion(marks((0, 0, 0)), started, marks((0, 0, 2)))
    assert not explained.any()
    assert found == pytest.approx([0.0])
    # Without (0, 0, 1) the pair a-b is all that is left, and everything that has it is suspected.
    found, explained = suspicion(marks((0, 0, 0)), started[[0, 1, 3, 4]], marks((0, 0, 2), (0, 1, 2)))
    assert explained.all()
    assert found == pytest.approx([SURE, 0.0])


def test_memory_failures_say_nothing_about_flags():
    observed = Points(at((0, 0, 0), (2, 2, 2)), np.zeros(2))
    far = Points(at((2, 0, 0)), np.zeros(1))
    believed = np.full(1, 0.95)
    outcomes, both = np.array([True, False]), np.full(2, 0.95)
    of_flag = probabilities(observed, outcomes, both, far, believed, CODER.groups)
    of_memory = probabilities(observed, outcomes, both, far, believed, CODER.groups, np.array([False, True]))
    # Only a = 2 is shared: an explanation of 2 in 9 for a flag; the believed probability is kept otherwise.
    assert of_flag == pytest.approx([0.95 * (1 - SURE * 2 / 9)], abs=1e-6)
    assert of_memory != pytest.approx(of_flag, abs=1e-3)


def test_figures_beyond_the_reference_are_pressed_and_released():
    bend = Bend.of([Observation(config=Config.of({}), feasible=True, logs=(np.log(1000.0), np.log(0.25)))])
    logs = np.log([2000.0, 500.0, 250.0])
    pressed = bend.pressed(THROUGHPUT, logs)
    assert pressed[:2] == pytest.approx(logs[:2])
    # Half the baseline is the reference; another half below it counts a fifth.
    assert pressed[2] == pytest.approx(np.log(500.0) - 0.2 * np.log(2.0))
    assert bend.released(THROUGHPUT, pressed) == pytest.approx(logs)
    waits = np.log([0.1, 1.0, 4.0])
    assert bend.pressed(TTFT, waits) == pytest.approx([np.log(0.1), 0.0, 0.2 * np.log(4.0)])
    assert bend.released(TTFT, bend.pressed(TTFT, waits)) == pytest.approx(waits)
    assert Bend.of([]).pressed(TTFT, waits) == pytest.approx(waits)
    assert Bend.of([]).released(THROUGHPUT, logs) == pytest.approx(logs)
