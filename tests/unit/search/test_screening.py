"""What launches beside neighbours are worth: their cost, who is compared with whom, who is measured alone. By hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from search_samples import failed, measured

from autotune.records import Config, Estimate, Origin, Outcome, Trial
from autotune.search.again import next_again, salt_of
from autotune.search.drift import baseline_drift
from autotune.search.finalists import MOST_FINALISTS, contenders, next_finalist
from autotune.search.noise import run_noise
from autotune.search.objective import joined_figures, points
from autotune.search.pareto import front_of, pick
from autotune.search.screening import comparable, decisive, interference

BASE = Config.of({})
FAST, SOON, POOR = (Config.of({"x": name}) for name in ("fast", "soon", "poor"))


def alone(number: int, tok_s: float, ttft_s: float, config: Config, *, of: int | None = None) -> Trial:
    """With the tight interval of a long level."""
    trial = measured(number, (tok_s * 0.999, tok_s, tok_s * 1.001), (ttft_s * 0.99, ttft_s, ttft_s * 1.01), config)
    origin = Origin.BASELINE if number == 0 else Origin.REPEAT if of is not None else Origin.SAMPLER
    return replace(trial, origin=origin, repeat_of=of)


def beside(number: int, tok_s: float, ttft_s: float, config: Config, *, of: int | None = None) -> Trial:
    trial = alone(number, tok_s, ttft_s, config, of=of)
    assert trial.result is not None
    origin = Origin.PROBE if of is not None else trial.origin
    return replace(trial, result=replace(trial.result, neighbours=7), origin=origin)


SEARCH = (
    alone(0, 1000.0, 0.200, BASE),
    beside(1, 1140.0, 0.250, FAST),
    beside(2, 950.0, 0.240, BASE, of=0),
    beside(3, 990.0, 0.120, SOON),
    beside(4, 900.0, 0.300, POOR),
)
"""Neighbours cost 5 % of the throughput and 20 % of the TTFT."""


def test_the_cost_of_neighbours_is_the_baseline_beside_over_alone() -> None:
    cost = interference(SEARCH)
    assert cost is not None
    assert cost.neighbours == 7
    assert cost.throughput.ratio == pytest.approx(0.95)
    assert cost.ttft.ratio == pytest.approx(1.2)
    assert cost.throughput.is_real
    assert not cost.ttft.is_real  # launches of one config differ by as much
    assert cost.found


@pytest.mark.parametrize("trials", [(), SEARCH[:2], SEARCH[1:], (failed(0, Outcome.INFEASIBLE, BASE), *SEARCH[1:])])
def test_without_both_kinds_of_launches_nothing_is_known_of_it(trials: tuple[Trial, ...]) -> None:
    assert interference(trials) is None


def test_what_is_clear_of_it_is_taken_off_what_was_measured_beside_others() -> None:
    found = comparable(SEARCH)
    assert found[0][0].value == 1000.0
    assert found[1][0].value == pytest.approx(1200.0)
    assert found[2][0].value == pytest.approx(1000.0)
    assert found[1][1].value == 0.250  # not clear, so not taken off


def test_a_corrected_figure_is_known_no_better_than_the_correction() -> None:
    # One launch alone and one beside, each 1 % between launches and 0.1 % within: the logarithm of their ratio is known
    # to 1.96 * sqrt(2 * (0.01^2 + 0.00051^2)) = 0.02775, the config's own figure to ln 1.001 = 0.001.
    width = 1.959964 * (2 * (0.01**2 + (0.001 / 1.959964) ** 2)) ** 0.5
    both = (width**2 + 0.001**2) ** 0.5
    found = comparable(SEARCH)[1][0]
    assert (found.low, found.high) == pytest.approx((1200 * math.exp(-both), 1200 * math.exp(both)), rel=1e-5)
    assert comparable(SEARCH)[1][1] == SEARCH[1].ttft_p95_s  # not corrected, not widened


@pytest.mark.parametrize(("low", "high"), [(None, None), (0.0, 1200.0), (1000.0, None)])
def test_figures_without_bounds_have_those_of_the_correction(low: float | None, high: float | None) -> None:
    bare = beside(1, 1140.0, 0.25, FAST)
    assert bare.result is not None
    levels = [
        replace(level, output_tok_s=Estimate(value=1140.0, low=low, high=high)) if level.output_tok_s else level
        for level in bare.result.measurements
    ]
    bare = replace(bare, result=replace(bare.result, measurements=tuple(levels)))
    found = comparable((SEARCH[0], bare, *SEARCH[2:]))[1][0]
    assert found.value == pytest.approx(1200.0)
    assert found.low is not None
    assert found.high is not None
    assert found.low == 0.0 if low == 0.0 else found.low == pytest.approx(1200 * math.exp(-0.0277), rel=0.2)
    assert found.high >= 1200 * math.exp(0.0277)


def test_who_was_measured_alone_is_judged_by_that_and_keeps_its_number() -> None:
    trials = (*SEARCH, alone(5, 1180.0, 0.220, FAST, of=1))
    assert [trial.number for trial in decisive(trials)] == [0, 3, 4, 5]
    fast = next(point for point in points(trials) if point.config_hash == FAST.hash)
    assert (fast.number, fast.numbers, fast.values) == (1, (5,), (1180.0, 0.220))
    assert fast.is_of(1)
    assert fast.is_of(5)
    assert not fast.is_of(2)
    shown = joined_figures(trials[1], trials)
    assert (shown.runs, shown.output_tok_s_per_gpu and shown.output_tok_s_per_gpu.value) == (1, 1180.0)
    assert [point.number for point in points(trials)] == [0, 1, 3, 4]


def test_noise_and_drift_are_of_launches_alone() -> None:
    assert run_noise(SEARCH).repeats == 0
    assert baseline_drift(SEARCH) is None
    assert baseline_drift((*SEARCH, alone(5, 1000.0, 0.2, BASE, of=0))) is not None


def test_finalists_are_the_pick_the_front_and_those_that_neighbours_may_have_kept_off() -> None:
    trials = list(SEARCH)
    asked = []
    for number in range(5, 9):
        finalist = next_finalist(trials, pick(trials))
        if finalist is None:
            break
        asked.append(finalist.config)
        trials.append(alone(number, *points([finalist])[0].values, finalist.config, of=finalist.number))
    assert set(asked) == {FAST, SOON}
    assert next_finalist(trials, pick(trials)) is None
    assert {trial.config for trial in trials if trial.number in front_of(trials)} == {BASE, FAST, SOON}


def test_a_config_that_neighbours_alone_may_have_beaten_is_a_contender() -> None:
    near = Config.of({"x": "near"})
    trials = (*SEARCH, beside(5, 1100.0, 0.260, near), beside(6, 1050.0, 0.330, POOR))
    # 1,100 / 0.95 is more than 1,140; 0.260 / 1.2 is less than 0.250. The poor one is beaten even so.
    assert contenders(trials) == (1, 3, 2, 5)


def test_who_was_launched_alone_in_vain_is_not_launched_for_that_again() -> None:
    in_vain = replace(failed(5, Outcome.INFEASIBLE, FAST), origin=Origin.REPEAT, repeat_of=1)
    asked = next_finalist((*SEARCH, in_vain), pick(SEARCH))
    assert asked is not None
    assert asked.config == SOON


def test_no_more_finalists_than_there_is_patience_for() -> None:
    rows = [beside(n, 1000.0 + n, 0.100 + 0.01 * n, Config.of({"x": n})) for n in range(2, 30)]
    trials = [alone(0, 500.0, 0.9, BASE), beside(1, 500.0, 0.9, BASE, of=0), *rows]
    launched = 0
    while (finalist := next_finalist(trials, pick(trials))) is not None:
        values = points([finalist])[0].values
        trials.append(alone(30 + launched, *values, finalist.config, of=finalist.number))
        launched += 1
    assert launched == MOST_FINALISTS


def test_the_first_launch_alone_is_no_repeat() -> None:
    trials = [*SEARCH, alone(5, 1200.0, 0.2, FAST, of=1), alone(6, 1000.0, 0.1, SOON, of=3)]
    chosen = pick(trials)
    assert chosen is not None
    wanted = [next_again(trials, chosen, 1)]
    for number in range(7, 12):
        again = wanted[-1]
        if again is None:
            break
        figures = points([again.original])[0].values
        trials.append(alone(number, *figures, again.original.config, of=again.original.number))
        wanted.append(next_again(trials, chosen, 1))
    launches = [again.original.config for again in wanted if again is not None]
    assert chosen.number in [again.original.number for again in wanted if again is not None]
    assert BASE in launches


def test_prompts_are_those_of_the_place_in_the_list_whether_or_not_it_was_probed() -> None:
    assert [salt_of(SEARCH, trial) for trial in SEARCH if trial.origin is not Origin.PROBE] == [0, 1, 2, 3]
    assert salt_of(SEARCH, SEARCH[2]) not in range(100_000)
