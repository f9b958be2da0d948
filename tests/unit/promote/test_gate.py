"""The gate's decision, criterion by criterion."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from gate_cases import CANDIDATE, TODAY, abba, evidence, launch, level, side

from autotune.load.arrival_windows import WindowRule
from autotune.promote.gate import judge
from autotune.promote.gate.spread import Known, Launch, shift_of, spread_of
from autotune.promote.gate.student import t_quantile
from autotune.records import (
    Caveat,
    Config,
    CriterionState,
    Estimate,
    FailureClass,
    GateVerdict,
    Quality,
    QualityState,
    Slo,
)
from autotune.search.noise import RunNoise

HELD, BROKEN = CriterionState.HELD, CriterionState.BROKEN
UNDECIDED, NONE = CriterionState.UNDECIDED, CriterionState.NOT_APPLICABLE


def state(found, name):
    return next(one for one in found.criteria if one.name == name).state


# Printed tables, e.g. NIST/SEMATECH e-Handbook 1.3.6.7.2.
@pytest.mark.parametrize(
    ("p", "df", "t"),
    [(0.975, 1, 12.706), (0.975, 2, 4.303), (0.95, 3, 2.353), (0.99, 4, 3.747), (0.975, 10, 2.228), (0.9, 7, 1.415)],
)
def test_quantiles_of_t_are_those_of_printed_tables(p, df, t):
    assert t_quantile(p, df) == pytest.approx(t, abs=6e-4)


def test_what_a_window_does_to_all_launches_cancels():
    # Windows differ by far more than launches; each launch adds its own constant and nothing else.
    arrivals = (0.0, 1.0, -2.0)
    launches = [
        Launch(side=which, windows=tuple(constant + one for one in arrivals))
        for which, constant in ((TODAY, 0.1), (CANDIDATE, 0.3), (CANDIDATE, 0.4), (TODAY, 0.0))
    ]
    spread = spread_of(launches, Known(assumed=0.01, assumed_between=0.0, seen=0.0, repeats=0))
    shift = shift_of(launches, spread)
    assert spread.within_sd == pytest.approx(0.0)
    # Means of columns are 0.2, 1.2, -1.8: their variance is 2.333.
    assert spread.window_sd**2 == pytest.approx(7 / 3)
    assert shift.log == pytest.approx(0.3)
    assert shift.share == 1.0
    # Each side's two means are 0.1 apart: 0.005 each, one degree of freedom each.
    assert (spread.seen_sd**2, spread.seen_df) == (pytest.approx(0.005), 2)


def test_residuals_of_windows_are_the_part_within_launches():
    launches = [
        Launch(side=TODAY, windows=(0.0, 0.2)),
        Launch(side=CANDIDATE, windows=(0.2, 0.0)),
    ]
    spread = spread_of(launches, Known(assumed=1.0, assumed_between=0.0, seen=0.0, repeats=0))
    # Residuals are 0.1 each: 4 x 0.01 over (2-1)(2-1).
    assert spread.within_sd**2 == pytest.approx(0.04)
    assert spread.pooled_sd**2 == pytest.approx(0.02)
    assert (spread.seen_sd, spread.seen_df) == (0.0, 0)


def test_repeats_of_the_study_count_as_single_windows():
    launches = [Launch(side=which, windows=(0.0,)) for which in (TODAY, CANDIDATE)]
    spread = spread_of(launches, Known(assumed=0.01, assumed_between=0.0, seen=0.04, repeats=4))
    assert spread.pooled_sd**2 == pytest.approx((4 * 0.01 + 4 * 0.04) / 8)
    assert (spread.seen_sd, spread.seen_df) == (pytest.approx(0.2), 4)
    assert spread.half_width(1.0, 0.025) == pytest.approx(
        max(t_quantile(0.975, 8) * spread.pooled_sd, t_quantile(0.975, 4) * 0.2)
    )


@pytest.mark.parametrize(
    ("logs", "enough"),
    [([0.0] * 5, False), ([0.0] * 6, True), ([0.0, 0.5] * 4, False), ([0.0, 0.5] * 8, True)],
)
def test_windows_are_driven_until_their_mean_is_known(logs, enough):
    assert WindowRule(least=6, most=16, target_sd=0.04).enough(logs) is enough


def test_a_clear_gain_with_everything_else_held_passes():
    found = judge(evidence(abba(tok_s=1100.0)))
    assert found.verdict is GateVerdict.PASSED
    assert {one.name for one in found.criteria if one.state is NONE} == {"slo", "memory", "quality"}
    gain = found.criteria[0].figures[0].estimate
    assert gain.value == pytest.approx(1.1)
    assert gain.low < 1.1 < gain.high


def test_no_difference_is_inconclusive_and_a_loss_fails():
    assert judge(evidence(abba())).verdict is GateVerdict.INCONCLUSIVE
    found = judge(evidence(abba(tok_s=900.0)))
    assert found.verdict is GateVerdict.FAILED
    assert (state(found, "gain"), state(found, "throughput_as_claimed")) == (BROKEN, BROKEN)


def test_the_same_config_has_nothing_to_gain():
    same = side("trial 0")
    found = judge(evidence(abba(), candidate=same, against=replace(same, label="promotion prod")))
    assert state(found, "gain") is NONE
    assert found.verdict is GateVerdict.PASSED


def test_the_same_server_written_otherwise_has_nothing_to_gain_and_it_says_what_differs():
    written = side("prod@3", config=Config.of({"max-num-seqs": 1024}))
    bare = side("trial 0", config=Config.of({"max-num-seqs": None, "stream-interval": 2}))
    found = judge(evidence(abba(), candidate=bare, against=written, same_server=True))
    assert state(found, "gain") is NONE
    assert found.criteria[0].found == (
        "prod@3 is this config once vLLM's defaults are filled in (it says max-num-seqs=1024, and trial 0 says "
        "stream-interval=2): nothing to gain"
    )


def test_a_lower_ttft_that_costs_what_was_claimed_passes_and_costs_no_more():
    slower = {"windows": (0.1, 0.1, 0.1), "over_s": 0.2, "tok_s": 950.0}
    claim = {"tok_s_per_gpu": Estimate(value=950.0), "ttft_p95_s": Estimate(value=0.1)}
    today = {"tok_s_per_gpu": Estimate(value=1000.0), "ttft_p95_s": Estimate(value=0.2)}
    sides = {"candidate": side("trial 7", **claim), "against": side("the baseline", **today)}
    assert judge(evidence(abba(**slower), **sides)).verdict is GateVerdict.PASSED
    found = judge(evidence(abba(**{**slower, "tok_s": 850.0}), **sides))
    assert (found.verdict, state(found, "throughput_as_claimed")) == (GateVerdict.FAILED, BROKEN)
    assert state(found, "gain") is HELD


def test_however_little_can_be_told_no_throughput_would_have_shown_to_be_less_than_none():
    launches = [launch(1, TODAY, tok_s=100.0), launch(2, CANDIDATE, tok_s=5000.0)]
    launches += [launch(3, CANDIDATE, tok_s=100.0), launch(4, TODAY, tok_s=5000.0)]
    found = judge(evidence(launches, noise=RunNoise(throughput_sd=2.0, ttft_sd=2.0, repeats=4)))
    said = {one.name: re.search(r"([+-][0-9.]+)% against that would have shown", one.found) for one in found.criteria}
    assert -100.0 < float(said["throughput_as_claimed"][1]) < -90.0
    assert float(said["ttft_as_claimed"][1]) > 100.0


def test_a_claim_is_held_against_the_figure_itself_where_today_was_never_measured():
    claim = side("trial 7", tok_s_per_gpu=Estimate(value=1300.0), ttft_p95_s=Estimate(value=0.2))
    found = judge(evidence(abba(tok_s=1100.0), candidate=claim))
    assert state(found, "throughput_as_claimed") is BROKEN
    assert state(found, "ttft_as_claimed") is HELD


@pytest.mark.parametrize(("bound", "expected"), [(0.3, HELD), (0.21, UNDECIDED), (0.1, BROKEN)])
def test_an_slo_holds_by_its_upper_bound(bound, expected):
    found = judge(evidence(abba(tok_s=1100.0), slo=Slo.of(ttft_p95=bound)))
    assert state(found, "slo") is expected


def test_limits_beside_the_ttft_are_read_from_each_launch():
    told = abba(tok_s=1100.0, within_slo=(Estimate(value=0.02, low=0.019, high=0.021), Estimate(value=0.0)))
    slo = Slo.of(tpot_p95=0.05, error_rate=0.0)
    assert state(judge(evidence(told, slo=slo)), "slo") is HELD
    assert state(judge(evidence(abba(tok_s=1100.0), slo=slo)), "slo") is UNDECIDED


def test_one_failed_request_fails_it_at_any_level():
    bad = launch(2, CANDIDATE, tok_s=1100.0)
    bad = replace(bad, levels=(*bad.levels, level("longest", completed=0, failed=1, errors=(("http_5xx", 1),))))
    found = judge(evidence((launch(1, TODAY), bad, launch(3, CANDIDATE, tok_s=1100.0), launch(4, TODAY))))
    assert (found.verdict, state(found, "no_failed_request")) == (GateVerdict.FAILED, BROKEN)
    assert "http_5xx" in found.reason


def test_what_fails_today_is_no_fault_of_the_candidate():
    today = replace(launch(1, TODAY), levels=(*launch(1, TODAY).levels, level("longest", completed=0, failed=1)))
    found = judge(evidence((today, *abba(tok_s=1100.0)[1:])))
    assert found.verdict is GateVerdict.PASSED


@pytest.mark.parametrize(("preempted", "expected"), [(5, HELD), (6, BROKEN), (None, UNDECIDED)])
def test_more_than_one_preemption_in_twenty_requests_is_a_storm(preempted, expected):
    made = abba(tok_s=1100.0)
    stormy = replace(made[1], levels=(*made[1].levels, level("ttft-4", ttft_s=0.2, preemptions=preempted)))
    assert state(judge(evidence((made[0], stormy, *made[2:]))), "preemptions") is expected


@pytest.mark.parametrize(("used", "expected"), [(97, HELD), (99, BROKEN), (None, UNDECIDED)])
def test_memory_after_the_longest_request_stays_below_the_limit(used, expected):
    made = abba(tok_s=1100.0, memory_used_bytes=used, memory_total_bytes=100)
    assert state(judge(evidence(made)), "memory") is expected
    assert state(judge(evidence(made, simulated=True)), "memory") is NONE


@pytest.mark.parametrize(("answered", "expected"), [(True, HELD), (False, BROKEN), (None, UNDECIDED)])
def test_the_longest_request_has_to_be_answered(answered, expected):
    assert state(judge(evidence(abba(tok_s=1100.0, longest_answered=answered))), "longest_request") is expected


def test_a_candidate_that_does_not_start_again_fails_and_a_busy_gpu_decides_nothing():
    def second(kind):
        broken = launch(3, CANDIDATE, failure="no", failure_kind=kind, levels=(), stopped_cleanly=None)
        return judge(evidence((launch(1, TODAY), launch(2, CANDIDATE, tok_s=1100.0), broken)))

    assert second(FailureClass.OOM_AT_LOAD).verdict is GateVerdict.FAILED
    assert second(FailureClass.GPU_BUSY).verdict is GateVerdict.INCONCLUSIVE
    dirty = judge(evidence(abba(tok_s=1100.0, stopped_cleanly=False)))
    assert state(dirty, "restart") is BROKEN


def test_a_launch_that_came_to_nothing_is_the_reason_and_not_what_is_missing_for_it():
    made = (launch(1, TODAY, failure="out of memory", levels=(), stopped_cleanly=None),)
    found = judge(evidence(made))
    assert (found.verdict, found.reason) == (GateVerdict.INCONCLUSIVE, "launch 1 (the baseline) failed: out of memory")


def test_a_longer_wait_beyond_the_rate_fails_it():
    found = judge(evidence(abba(tok_s=1100.0, over_s=1.6)))
    assert (found.verdict, state(found, "overload")) == (GateVerdict.FAILED, BROKEN)


@pytest.mark.parametrize(
    ("quality", "expected"),
    [(QualityState.HELD, HELD), (QualityState.LOST, BROKEN), (QualityState.UNDECIDED, UNDECIDED), (None, UNDECIDED)],
)
def test_where_numerics_change_the_quality_guard_decides(quality, expected):
    one = None if quality is None else Quality(state=quality, why="so")
    made = evidence(abba(tok_s=1100.0, quality=one), lossy=("kv-cache-dtype=fp8",))
    assert state(judge(made), "quality") is expected
    assert state(judge(replace(made, simulated=True)), "quality") is NONE


def test_figures_that_are_the_clients_decide_nothing():
    void = (Caveat(code="client_late", text="", remedy="", void=True),)
    made = tuple(
        replace(one, levels=tuple(replace(each, caveats=void) for each in one.levels)) for one in abba(tok_s=1100.0)
    )
    found = judge(evidence(made))
    assert (found.verdict, state(found, "gain")) == (GateVerdict.INCONCLUSIVE, UNDECIDED)


def test_repeats_that_differ_widely_make_a_small_gain_undecided():
    noisy = RunNoise(throughput_sd=0.1, ttft_sd=0.3, repeats=10)
    assert state(judge(evidence(abba(tok_s=1050.0))), "gain") is HELD
    assert state(judge(evidence(abba(tok_s=1050.0), noise=noisy)), "gain") is UNDECIDED


def test_a_config_with_another_checkpoint_is_another_one():
    config = Config.of({"max-num-seqs": 64})
    made = evidence(candidate=side("a", config=config, model="m-awq"), against=side("b", config=config))
    assert not made.same_config
    assert math.isclose(judge(made).criteria[0].figures[0].estimate.value, 1.1)
