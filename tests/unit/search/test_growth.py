"""How the front grew: expected values by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from search_samples import failed, measured

from autotune.records import Config, Outcome, Phase
from autotune.search.growth import growth
from autotune.search.objective import points
from autotune.search.pareto import hypervolume, reference_of


def lasting(trial, seconds: float):
    assert trial.result is not None
    spent = ((Phase.LAUNCHING, seconds / 4), (Phase.MEASURING, seconds * 3 / 4))
    return replace(trial, result=replace(trial.result, phase_seconds=spent))


def test_the_baseline_alone_is_one_and_a_better_config_adds_its_strip() -> None:
    # Against half the throughput and four times the TTFT: ln 2 x ln 4 for the baseline; twice the throughput at the
    # same TTFT is ln 4 x ln 4, which is twice as much.
    trials = (lasting(measured(0, 100.0, 1.0), 60.0), lasting(measured(1, 200.0, 1.0), 30.0))
    found = growth(trials)
    assert [(one.number, one.elapsed_s) for one in found] == [(0, 60.0), (1, 90.0)]
    assert [one.volume for one in found] == pytest.approx([1.0, 2.0])


def test_failures_are_launches_that_take_their_time_and_add_nothing() -> None:
    trials = (
        lasting(measured(0, 100.0, 1.0), 10.0),
        lasting(failed(1, Outcome.INFEASIBLE), 20.0),
        failed(2, Outcome.FAULTED),
        lasting(measured(3, 100.0, 0.5), 5.0),
    )
    found = growth(trials)
    assert [one.elapsed_s for one in found] == [10.0, 30.0, 30.0, 35.0]
    assert [one.volume for one in found] == pytest.approx([1.0, 1.0, 1.0, 1.5])  # ln 2 x ln 8


def test_the_last_value_is_that_of_the_front_repeats_joined() -> None:
    same = Config.of({"a": 1})
    trials = (
        measured(0, 100.0, 1.0, Config.of({})),
        measured(1, 180.0, 0.8, same),
        measured(2, 150.0, 0.4),
        measured(3, 140.0, 0.9, same),
    )
    values, base = [one.values for one in points(trials)], points(trials)[0]
    volume = hypervolume(values, reference_of(base))
    assert volume is not None
    assert growth(trials)[-1].volume == pytest.approx(volume / (math.log(2) * math.log(4)))


def test_a_reference_of_another_study_makes_two_curves_comparable() -> None:
    trials = (measured(0, 100.0, 1.0),)
    assert growth(trials, (25.0, 4.0))[0].volume == pytest.approx(2.0)


def test_before_the_baseline_there_is_no_curve() -> None:
    assert growth((failed(0, Outcome.FAULTED), measured(1, 10.0, 1.0))) == ()
    assert growth(()) == ()
