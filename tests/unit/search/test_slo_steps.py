"""The pick for every limit of the p95 TTFT is what `pareto.pick` answers for that limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_samples import failed, measured

from autotune.records import Config, Goodput, GoodputEnd, Outcome, Quality, QualityState, Slo
from autotune.search.pareto import pick
from autotune.search.slo_steps import SloStep, kept_from, slo_steps

FIGURES = st.tuples(st.integers(90, 110), st.integers(1, 9), st.integers(0, 3))
"""Few values, so that limits, throughputs and configs coincide and launches tie."""


def answered(steps: tuple[SloStep, ...], bound_s: float) -> int | None:
    found = [step.number for step in steps if step.from_s <= bound_s]
    return found[-1] if found else None


def study(figures: list[tuple[int, int, int]]):
    configs = [Config.of({"kv-cache-dtype": "fp8"} if one[2] == 1 else {"a": one[2]}) for one in figures]
    return tuple(
        measured(number, (tok_s * 9.9, tok_s * 10.0, tok_s * 10.1), (ttft / 11, ttft / 10, ttft / 9), config)
        for number, ((tok_s, ttft, _), config) in enumerate(zip(figures, configs, strict=True))
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(FIGURES, min_size=1, max_size=9))
def test_every_limit_has_the_products_own_pick(figures: list[tuple[int, int, int]]) -> None:
    trials = study(figures)
    steps = slo_steps(trials)
    for bound_s in {ttft / 9 + shift for ttft in range(11) for shift in (-1e-9, 0.0, 1e-9)}:
        if bound_s <= 0:
            continue
        expected = pick(trials, slo=Slo.of(ttft_p95=bound_s))
        assert answered(steps, bound_s) == (expected.number if expected else None)


def test_other_limits_stay_and_lost_answers_never_qualify() -> None:
    trials = [measured(0, 100.0, 0.9), measured(1, 300.0, 0.5), measured(2, 200.0, 0.4)]
    lost = Quality(state=QualityState.LOST, why="answers differ", reference=None)
    assert trials[1].result is not None
    trials[1] = replace(trials[1], result=replace(trials[1].result, quality=lost))
    assert kept_from(trials) == {0: 0.9, 2: 0.4}
    assert [(step.from_s, step.number, step.meeting) for step in slo_steps(trials)] == [(0.4, 2, 1), (0.9, 2, 2)]
    # None of the levels has a TPOT: a limit without a figure is never met.
    assert slo_steps(trials, others=Slo.of(tpot_p95=1.0).limits) == ()


def test_judged_by_the_upper_bound_of_the_interval() -> None:
    trials = (measured(0, 100.0, 0.5), measured(1, 200.0, (0.3, 0.4, 0.6)))
    assert [(step.from_s, step.number) for step in slo_steps(trials)] == [(0.5, 0), (0.6, 1)]


@pytest.mark.parametrize("trials", [(), (failed(0, Outcome.INFEASIBLE),)])
def test_nothing_measured_has_no_steps(trials: tuple) -> None:
    assert slo_steps(trials) == ()


def test_a_goodput_was_searched_under_its_own_limit() -> None:
    one = measured(0, 100.0, 0.5)
    assert one.result is not None
    found = Goodput(
        slo=Slo.of(ttft_p95=1.0), end=GoodputEnd.NARROW, rate_rps=None, output_tok_s=None, levels=3, seconds=9.0
    )
    assert slo_steps((replace(one, result=replace(one.result, goodput=found)),)) == ()
