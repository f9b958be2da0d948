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


def seen(row, feasible, short=None, missing=None):
    config = Config.of(dict(zip("abc", row, strict=True)))
    return Observation(config=config, feasible=feasible, short_of_memory=short, missing_bytes=missing)


def chances(observed, *rows, sd=None):
    coordinates = CODER.encode([one.config for one in observed])
    believed = np.full(len(rows), 0.95)
    return probabilities(CODER, observed, coordinates, np.full(len(observed), 0.95), at(*rows), believed, sd)


def test_memory_failures_say_nothing_about_flags():
    started = seen((0, 0, 0), feasible=True)
    of_flag = chances([started, seen((2, 2, 2), feasible=False, short=False)], (2, 0, 0), (0, 1, 0))
    of_memory = chances([started, seen((2, 2, 2), feasible=False, short=True)], (2, 0, 0), (0, 1, 0))
    nothing = chances([started], (2, 0, 0), (0, 1, 0))
    # Only a = 2 is shared: an explanation of 2 in 9 for a flag; what else is believed is kept.
    assert of_flag == pytest.approx(nothing * [1 - SURE * 2 / 9, 1.0], abs=1e-6)
    # Memory adds up: half the way to what failed is less sure as well.
    assert (of_memory < nothing - 0.01).all()


def test_what_takes_memory_is_doubted_before_anything_failed():
    space = SearchSpace(
        name="s",
        parameters=(
            Parameter(name="max-num-seqs", choices=(64, 128, 256)),
            Parameter(name="stream-interval", choices=(1, 2, 4)),
        ),
    )
    coder = Coder(space)
    rows = [Config.of({"max-num-seqs": a, "stream-interval": b}) for a, b in ((128, 1), (64, 1), (256, 1), (128, 4))]
    points, sure = coder.encode(rows), np.full(4, 0.9)
    found = probabilities(coder, [Observation(config=rows[0], feasible=True)], points[:1], sure[:1], points, sure)
    assert found[2] < found[1] - 0.05
    assert found[1] > found[0] - 0.05


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
