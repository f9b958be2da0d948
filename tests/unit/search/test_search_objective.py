"""SLO texts, and the objectives of trials."""

from __future__ import annotations

import math

import pytest
import search_samples as samples
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import ExitCode, InvalidOption
from autotune.records import Config, Estimate, Outcome, Slo
from autotune.search.objective import limited, points, violations
from autotune.slo_text import SLO_METRICS, parse_slo

SAME = Config.of({"x": 7})


@pytest.mark.parametrize(
    ("text", "limit_s"),
    [
        ("ttft_p95<=500ms", 0.5),
        ("ttft_p95 <= 500 ms", 0.5),
        (" ttft_p95<1.5s ", 1.5),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        (".5s", 0.5),
        ("2.s", 2.0),
    ],
)
def test_slo_texts(text, limit_s):
    assert parse_slo(text) == Slo.of(ttft_p95=limit_s)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttft_p90<=500ms", "ttft_p95"),
        ("ttft_p95<=500ms,ttft_p95<=1s", "once"),
        ("ttft_p95<=500ms,", "DURATION"),
        ("error_rate<=1ms", "SHARE"),
        ("error_rate<=1", "below 1"),
        ("tpot_p95<=50", "DURATION"),
        ("tpot<=20ms", "ttft_p95"),
        ("ttft_p95<=500", "DURATION"),
        ("ttft_p95>=500ms", "DURATION"),
        ("ttft_p95", "DURATION"),
        ("ttft_p95<=-1s", "DURATION"),
        ("ttft_p95<=nan s", "DURATION"),
        ("ttft_p95<=0ms", "above 0"),
        ("0.0s", "above 0"),
        ("", "DURATION"),
        ("5 minutes", "DURATION"),
        ("ttft_p95<=1s or so", "DURATION"),
        ("ttft_p95<=1s\nttft_p95<=2s", "DURATION"),
    ],
)
def test_what_is_no_slo(text, words):
    with pytest.raises(InvalidOption, match="--slo") as caught:
        parse_slo(text)
    assert words in caught.value.allowed
    assert caught.value.exit_code is ExitCode.INVALID_OPTION


def test_several_limits_in_any_order():
    expected = Slo.of(ttft_p95=0.5, tpot_p95=0.05, error_rate=0.0)
    assert parse_slo("ttft_p95<=500ms,tpot_p95<=50ms,error_rate<=0") == expected
    assert parse_slo("error_rate<=0, tpot_p95 < 0.05s, 500ms") == expected
    assert str(expected) == "ttft_p95<=500ms,tpot_p95<=50ms,error_rate<=0"


@given(st.sampled_from([metric for metric in SLO_METRICS if metric != "error_rate"]), st.integers(1, 10_000_000))
def test_what_an_slo_prints_is_read_back(metric, limit_ms):
    slo = Slo.of(**{metric: limit_ms / 1000})
    if "e" not in str(slo).removeprefix(metric):
        assert math.isclose(parse_slo(str(slo)).limits[0].bound, slo.limits[0].bound, rel_tol=1e-5)


def test_objectives_are_per_gpu_and_from_the_right_levels():
    found = samples.measured(0, (3800.0, 4000.0, 4400.0), 0.25, gpus=4).objectives
    assert found == (Estimate(value=1000.0, low=950.0, high=1100.0), Estimate(value=0.25))


@pytest.mark.parametrize(
    "trial",
    [
        samples.trial(0, None),
        samples.failed(0, Outcome.INFEASIBLE),
        samples.failed(0, Outcome.MEASURED),
        samples.measured(0, 0.0, 0.1),
        samples.measured(0, 10.0, 0.0),
        samples.measured(0, math.inf, 0.1),
        samples.measured(0, 10.0, math.nan),
        samples.void(0, 10.0, 0.1),
    ],
)
def test_no_objectives_is_none(trial):
    assert trial.objectives is None
    assert points([trial]) == ()


def test_a_launch_that_the_client_limited_does_not_count_among_others():
    trials = [samples.measured(0, 100.0, 0.2, SAME), samples.void(1, 5000.0, 9.0, SAME)]
    (point,) = points(trials)
    assert (point.numbers, point.values) == ((0,), (100.0, 0.2))


def test_repeats_of_a_config_are_one_point():
    trials = [
        samples.measured(0, 500.0, 0.5),
        samples.measured(1, (95.0, 100.0, 108.0), (0.18, 0.2, 0.23), SAME),
        samples.failed(2, Outcome.FAULTED, SAME),
        samples.measured(3, (115.0, 120.0, 125.0), (0.09, 0.1, 0.11), SAME),
    ]
    _, point = points(trials)
    assert (point.number, point.numbers) == (1, (1, 3))
    # Means by hand; intervals from the lowest to the highest bound of either run.
    assert point.tok_s_per_gpu == Estimate(value=110.0, low=95.0, high=125.0)
    assert point.ttft_p95_s.value == pytest.approx(0.15)
    assert (point.ttft_p95_s.low, point.ttft_p95_s.high) == (0.09, 0.23)


def test_an_interval_of_repeats_holds_every_run():
    trials = [samples.measured(1, (95.0, 100.0, 105.0), 0.2, SAME), samples.measured(2, 200.0, 0.1, SAME)]
    (point,) = points(trials)
    assert point.tok_s_per_gpu == Estimate(value=150.0, low=95.0, high=200.0)
    assert point.ttft_p95_s.high is None


def test_violations_are_signed_shares_and_stay_below_what_cannot_start():
    trials = [samples.measured(0, 1000.0, 0.4)]
    point = points(trials)[0]
    # Ratio to the bound: 0.4 s of 0.5 s is a fifth within; 0.4 s of 0.1 s exceeds, 1 - 1/4.
    assert violations(point, trials, Slo.of(ttft_p95=0.5)) == {"ttft_p95": pytest.approx(-0.2)}
    assert violations(point, trials, Slo.of(ttft_p95=0.1)) == {"ttft_p95": pytest.approx(0.75)}
    both = violations(point, trials, Slo.of(ttft_p95=1e-9, tpot_p99=0.1))
    assert set(both) == {"ttft_p95", "tpot_p99"}  # a TPOT that was not measured is not taken for a good one
    assert 0.9 < sum(both.values()) < 1.0


def test_a_limit_of_no_errors_is_met_by_no_errors():
    trials = [samples.measured(0, 1000.0, 0.4)]
    limit = Slo.of(error_rate=0.0).limits[0]
    figure = limited(points(trials)[0], trials, limit)
    assert figure == Estimate(value=0.0)
    assert limit.is_surely_met(figure)
