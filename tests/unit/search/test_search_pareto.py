"""Front, hypervolume and pick, against slow oracles and figures worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import search_samples as samples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autotune.records import Config, Outcome, PickRule, Slo
from autotune.search.objective import points
from autotune.search.pareto import front, front_of, hypervolume, pick, reference_of

# Few distinct values, so that ties in one and in both objectives are common.
COARSE = st.tuples(st.sampled_from([1.0, 2.0, 3.0, 5.0]), st.sampled_from([0.1, 0.2, 0.4, 0.8]))
FINE = st.tuples(st.floats(0.01, 1e5), st.floats(1e-3, 1e3))
VALUES = st.lists(COARSE | FINE, max_size=12)


def slow_front(values):
    def beats(one, other):
        return one[0] >= other[0] and one[1] <= other[1] and one != other

    return tuple(i for i, value in enumerate(values) if not any(beats(other, value) for other in values))


def slow_hypervolume(values, reference):
    """Sum over the cells of the grid that the points draw; a cell counts when any point dominates it."""
    logs = [(math.log(x), math.log(y)) for x, y in values]
    rx, ry = math.log(reference[0]), math.log(reference[1])
    xs = sorted({rx, *(x for x, _ in logs if x > rx)})
    ys = sorted({ry, *(y for _, y in logs if y < ry)})
    area = 0.0
    for (x0, x1), (y0, y1) in itertools.product(itertools.pairwise(xs), itertools.pairwise(ys)):
        if any(x >= x1 and y <= y0 for x, y in logs):
            area += (x1 - x0) * (y1 - y0)
    return area


@pytest.mark.no_cover
@settings(max_examples=400)
@given(VALUES)
def test_front_equals_the_slow_one(values):
    assert front(values) == slow_front(values)


def test_the_oracle_is_reached_with_ties():
    values = [(2.0, 0.2), (2.0, 0.2), (2.0, 0.4), (1.0, 0.2), (3.0, 0.4), (1.0, 0.1), (0.5, 0.1)]
    assert front(values) == slow_front(values) == (0, 1, 4, 5)
    assert front([]) == ()


@settings(max_examples=300)
@given(VALUES.filter(bool), st.tuples(st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.2, 0.8, 5.0])))
def test_hypervolume_equals_the_slow_one(values, reference):
    assert hypervolume(values, reference) == pytest.approx(slow_hypervolume(values, reference), rel=1e-9, abs=1e-9)


def test_hypervolume_by_hand():
    # e times the reference's throughput at 1/e of its TTFT: a unit square in logs; then two overlapping rectangles.
    e = math.e
    assert hypervolume([(e, 1 / e)], (1.0, 1.0)) == pytest.approx(1.0)
    assert hypervolume([(e, e**-2), (e**3, e**-1)], (1.0, 1.0)) == pytest.approx(2 + 3 - 1)


def test_hypervolume_of_nothing_is_none_and_of_nothing_good_is_zero():
    assert hypervolume([], (1.0, 1.0)) is None
    assert hypervolume([(0.5, 0.1), (2.0, 1.0)], (1.0, 1.0)) == 0.0


@given(VALUES.filter(bool), COARSE | FINE)
def test_another_point_never_shrinks_the_hypervolume(values, more):
    reference = (1.0, 5.0)
    assert hypervolume([*values, more], reference) >= hypervolume(values, reference) - 1e-9


def test_reference_is_fixed_by_the_baseline():
    (baseline,) = points([samples.measured(0, 1000.0, 0.2)])
    assert reference_of(baseline) == (500.0, 0.8)
    # The baseline itself then measures log 2 times log 4.
    assert hypervolume([baseline.values], reference_of(baseline)) == pytest.approx(math.log(2) * math.log(4))


def test_front_of_trials_is_sorted_by_ttft_and_repeats_count_once():
    again = Config.of({"x": 3})
    trials = [
        samples.measured(0, 1000.0, 0.2),
        samples.failed(1, Outcome.INFEASIBLE),
        samples.measured(2, 900.0, 0.3),
        samples.measured(3, 1400.0, 0.5, again),
        samples.measured(4, 700.0, 0.1),
        samples.measured(5, 1600.0, 0.4, again),
    ]
    assert front_of(trials) == (4, 0, 3)


# Pick


def picked(trials, **options):
    found = pick(trials, **options)
    assert found is not None
    return found


SLO = Slo.of(ttft_p95=0.5)


def test_a_single_config_is_no_balance_of_several():
    found = picked([samples.measured(0, 1000.0, 0.2), samples.measured(1, 1500.0, 0.1)])
    assert found.reason.startswith(
        "the only config of the front no worse than the baseline (within its interval): 1,500"
    )


def test_slo_takes_the_highest_throughput_that_meets_it_by_its_upper_bound():
    trials = [
        samples.measured(0, 1000.0, (0.18, 0.2, 0.22)),
        samples.measured(1, 1500.0, (0.40, 0.45, 0.55)),  # the estimate meets it, the bound does not
        samples.measured(2, 1300.0, (0.38, 0.42, 0.47)),
        samples.measured(3, 1200.0, 0.3),
    ]
    found = picked(trials, slo=SLO)
    assert (found.number, found.rule) == (2, PickRule.THROUGHPUT)
    assert found.throughput_gain == pytest.approx(1.3)
    assert found.ttft_gain == pytest.approx(2.1)
    assert "3 configs that meet ttft_p95<=500ms" in found.reason
    assert "1,300 output tokens/s per GPU at 420 ms p95 TTFT" in found.reason
    assert "upper bound of its 95 % interval, 470 ms" in found.reason
    assert "+30% throughput and +110% p95 TTFT against the baseline" in found.reason


def test_slo_without_an_interval_says_so():
    found = picked([samples.measured(0, 1000.0, 0.5)], slo=SLO)
    assert found.number == 0
    assert "by the estimate" in found.reason
    assert "this is the baseline itself" in found.reason


def test_every_limit_of_an_slo_has_to_be_met():
    trials = [samples.measured(0, 1000.0, 0.2), samples.measured(1, 1500.0, 0.3)]
    assert picked(trials, slo=Slo.of(ttft_p95=0.5, error_rate=0.0)).number == 1
    assert (
        "error_rate judged by the requests that failed, 0.00%"
        in picked(trials, slo=Slo.of(ttft_p95=0.5, error_rate=0.0)).reason
    )
    assert pick(trials, slo=Slo.of(ttft_p95=0.5, e2e_p99=60.0)) is None  # no such figure was measured


def test_slo_that_nothing_meets_picks_nothing():
    assert pick([samples.measured(0, 1000.0, (0.4, 0.45, 0.51))], slo=SLO) is None


def test_slo_ties_go_to_lower_ttft_then_lower_number():
    trials = [
        samples.measured(1, 1000.0, 0.3),
        samples.measured(2, 1000.0, 0.2),
        samples.measured(3, 1000.0, 0.2, Config.of({"y": 1})),
    ]
    assert picked(trials, slo=SLO).number == 2


def test_nothing_measured_picks_nothing():
    assert pick([]) is None
    assert pick([samples.failed(0, Outcome.INFEASIBLE), samples.trial(1, None)]) is None


FRONT = [
    samples.measured(0, 1000.0, 0.4),
    samples.measured(1, 1200.0, 0.2),  # log gains 0.182, 0.693: product 0.126
    samples.measured(2, 1100.0, 0.1),  # 0.095, 1.386: 0.132, the largest
    samples.measured(3, 1500.0, 0.38),  # 0.405, 0.051: 0.021
    samples.measured(4, 2000.0, 0.9),  # slower than the baseline
]


@pytest.mark.parametrize(
    ("rule", "number", "words"),
    [
        (PickRule.THROUGHPUT, 4, "highest throughput: 2,000"),
        (PickRule.LATENCY, 2, "lowest p95 TTFT"),
        (PickRule.KNEE, 2, "best balance of 3 configs of the front"),
    ],
)
def test_rules(rule, number, words):
    found = picked(FRONT, rule=rule)
    assert (found.number, found.rule) == (number, rule)
    assert words in found.reason


def test_the_knee_may_be_within_the_baselines_interval():
    baseline = samples.measured(0, (980.0, 1000.0, 1020.0), (0.18, 0.2, 0.22))
    trials = [baseline, samples.measured(1, 1300.0, 0.21), samples.measured(2, 1500.0, 0.23)]
    assert picked(trials).number == 1
    # Without the interval nobody is as good in both, and the whole front is asked. From (500, 0.8):
    # ln(1500/500) ln(0.8/0.23) = 1.37, ln(1300/500) ln(0.8/0.21) = 1.28, the baseline ln 2 ln 4 = 0.96.
    trials[0] = samples.measured(0, 1000.0, 0.2)
    found = picked(trials)
    assert found.number == 2
    assert "none of which matches the baseline" in found.reason


def test_a_gain_near_nothing_does_not_decide():
    # One percent of throughput is not worth 60 % of TTFT: from (108, 14.8), ln(217/108) ln(14.8/1.5) = 1.60 and
    # ln(219/108) ln(14.8/2.4) = 1.29.
    trials = [samples.measured(0, 216.0, 3.7), samples.measured(1, 217.0, 1.5), samples.measured(2, 219.0, 2.4)]
    assert picked(trials).number == 1


def test_a_gain_within_the_noise_is_said():
    baseline = samples.measured(0, (980.0, 1000.0, 1020.0), (0.18, 0.2, 0.22))
    near = samples.measured(1, (990.0, 1010.0, 1030.0), (0.14, 0.16, 0.18))
    assert "within the noise" in picked([baseline, near]).reason
    far = samples.measured(1, (1190.0, 1210.0, 1230.0), (0.17, 0.19, 0.21))
    assert "within the noise" not in picked([baseline, far]).reason


def test_gains_below_zero_in_both_are_no_gain():
    baseline = samples.measured(0, (900.0, 1000.0, 1100.0), (0.1, 0.2, 0.3))
    # Both worse within the interval, product of logs above 0; the other one gains a little in one figure.
    worse = samples.measured(1, 910.0, 0.29)
    gains = samples.measured(2, 1040.0, 0.2)
    assert picked([baseline, worse, gains]).number == 2


def test_without_anything_better_the_knee_is_furthest_from_the_chord():
    # In logs: ends (0, 0) and (4, 4), chord y = x. (2, 1) and (3, 2.5) bulge by 1 and 0.5, (1, 1.5) hangs by -0.5.
    at = {1: (0.0, 0.0), 2: (2.0, 1.0), 3: (3.0, 2.5), 4: (4.0, 4.0), 5: (1.0, 0.9)}
    trials = [samples.measured(number, math.exp(x), math.exp(y)) for number, (x, y) in at.items()]
    found = picked(trials)
    assert (found.number, found.throughput_gain) == (2, None)
    assert "the baseline has no figures" in found.reason


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_units_do_not_move_the_knee(scale):
    at = [(1.0, 1.0), (3.0, 1.5), (4.0, 3.0), (5.0, 9.0)]
    trials = [samples.measured(number + 1, x, y * scale) for number, (x, y) in enumerate(at)]
    assert picked(trials).number == 2


def test_two_ends_tie_and_the_lower_ttft_wins():
    trials = [samples.measured(1, 2000.0, 0.8), samples.measured(2, 1000.0, 0.2)]
    assert picked(trials).number == 2


def test_the_baseline_alone_is_picked_as_itself():
    found = picked([samples.measured(0, 1000.0, 0.2)])
    assert (found.number, found.throughput_gain, found.ttft_gain) == (0, 1.0, 1.0)
    assert "this is the baseline itself" in found.reason


def test_repeats_are_told_and_averaged():
    again = Config.of({"x": 1})
    trials = [samples.measured(0, 1000.0, 0.2), samples.measured(1, 1500.0, 0.1, again)]
    trials.append(samples.measured(2, 1100.0, 0.3, again))
    found = picked(trials, slo=SLO)
    assert found.number == 1
    assert found.throughput_gain == pytest.approx(1.3)
    assert "means of 2 runs" in found.reason


@settings(max_examples=200)
@given(st.lists(COARSE | FINE, min_size=1, max_size=8), st.sampled_from(PickRule))
@example([(60840.0, 1.0), (60849.0, 1.0)], PickRule.KNEE)
def test_without_an_slo_the_pick_or_what_it_takes_the_place_of_is_on_the_front(values, rule):
    trials = [samples.measured(number, *value) for number, value in enumerate(values)]
    found = picked(trials, rule=rule)
    assert (found.number if found.instead_of is None else found.instead_of) in front_of(trials)
