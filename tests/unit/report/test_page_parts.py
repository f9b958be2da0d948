"""The parts of a study's page say what the tables and the JSON say."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from page_cases import FACTS
from report_cases import measured, repeated_study, running, study

from autotune.records import EarlyEnd, EarlyReason, Outcome, PickRule, Slo
from autotune.report.json_view import study_document
from autotune.report.page import (
    Control,
    certainty_part,
    evidence_part,
    front_part,
    shown_numbers,
    spread_of,
)
from autotune.search.pareto import front_of, pick

EMPTY = study(trials=(), front=(), baseline=None, pick=None)


@pytest.mark.parametrize("view", [study(), study(simulated=True), repeated_study(), EMPTY, study(slo=None, pick=None)])
def test_every_part_is_json_without_anything_that_is_not_a_number(view: object) -> None:
    parts = [
        front_part(view, FACTS),
        certainty_part(view, rule=PickRule.KNEE),
        evidence_part(view, shown=shown_numbers(view), spreads={}),
    ]
    for part in parts:
        assert json.loads(json.dumps(part, allow_nan=False)) == part


def test_front_baseline_and_pick_are_those_of_the_commands() -> None:
    view = repeated_study()
    said, page = study_document(view), front_part(view, FACTS)
    assert page["front"] == [one["number"] for one in said["front"]]
    assert page["pick"]["number"] == said["pick"]["number"]
    assert page["baseline"] == said["baseline"]["number"]
    configs = {one["number"]: one for one in page["configs"]}
    for one in said["front"]:
        shown = configs[one["number"]]
        for key in ("output_tok_s_per_gpu", "output_tok_s_per_gpu_interval", "ttft_p95_s", "ttft_p95_s_interval"):
            assert shown[key] == one[key]
    assert configs[1]["launches"] == [1, 4]
    assert configs[1]["changes"] == ["--max-num-seqs 128"]


def test_trials_keep_their_own_figures_and_reasons() -> None:
    trials = {one["number"]: one for one in front_part(study(), FACTS)["trials"]}
    assert trials[1]["output_tok_s_per_gpu"] == 2100.0
    assert (trials[4]["outcome"], trials[4]["reason"]) == ("infeasible", "kv_cache_too_small")
    assert trials[4]["ttft_p95_s"] is None
    assert trials[6]["outcome"] == "running"
    ended = front_part(replace(study(), interrupted=True), FACTS)["trials"]
    assert [one["outcome"] for one in ended if one["number"] == 6] == ["interrupted"]
    assert trials[0]["seconds"] == 92.0 + 140.0


def test_parameters_are_those_that_vary_unset_first_then_by_size() -> None:
    found = {one["name"]: one["values"] for one in front_part(study(), FACTS)["parameters"]}
    assert found["max-num-seqs"] == [None, 64, 128, 512, 1024]
    assert found["enable-prefix-caching"] == [None, True]


def test_the_pick_of_every_limit_comes_with_the_limit_from_which_it_holds() -> None:
    view = study()
    part = certainty_part(view, rule=PickRule.KNEE)
    for from_s, number, _, _ in part["slo_steps"]:
        chosen = pick(view.trials, slo=Slo.of(ttft_p95=from_s))
        assert chosen is not None
        assert chosen.number == number
    free = pick(view.trials, rule=PickRule.KNEE)
    assert free is not None
    assert part["free_pick"] == {"number": free.number, "reason": free.reason}


def test_places_tell_front_ties_and_dominated_apart() -> None:
    trials = (
        measured(0, 1000.0, 1.0, {}),
        measured(1, 2000.0, 0.4, {"a": 1}),
        measured(2, 1990.0, 0.41, {"a": 2}),
        measured(3, 1200.0, 0.9, {"a": 3}),
    )
    view = study(trials=trials, front=front_of(trials), pick=pick(trials), slo=None)
    places = {one["number"]: one["place"] for one in certainty_part(view, rule=PickRule.KNEE)["standings"]}
    assert places == {0: "dominated", 1: "front", 2: "tied", 3: "dominated"}


def test_growth_of_a_control_is_under_the_same_reference() -> None:
    view = study()
    control = Control(name="by-chance", trials=(measured(0, 3000.0, 0.9, {}),))
    found = front_part(view, FACTS, control=control)["growth"]
    assert found["reference"] == [750.0, 3.6]
    # Four times the reference's throughput, a quarter of its TTFT.
    assert found["control"]["steps"][0][1] == pytest.approx(math.log(4) * math.log(4) / (math.log(2) * math.log(4)))


def test_failures_are_told_by_kind_with_remedies_and_what_an_early_end_saved() -> None:
    early = EarlyEnd(
        reason=EarlyReason.DOMINATED, rival=1, ttft_s=0.9, confidence=0.99, requests=80, planned=400, saved_s=30.0
    )
    trials = list(study().trials)
    for number in (2, 3):
        result = trials[number].result
        assert result is not None
        trials[number] = replace(trials[number], result=replace(result, outcome=Outcome.ABANDONED, early=early))
    view = study(trials=tuple(trials), front=(1,))
    found = {one["kind"]: one for one in evidence_part(view, shown=(), spreads={})["failures"]}
    assert found["kv_cache_too_small"]["trials"] == [4]
    assert found["kv_cache_too_small"]["remedies"] == ["raise gpu-memory-utilization", "lower max-model-len"]
    assert (found["dominated"]["trials"], found["dominated"]["saved_s"]) == ([2, 3], 60.0)
    assert next(iter(found)) == "dominated"  # the most frequent first


def test_servers_have_what_the_log_and_the_metrics_said() -> None:
    found = {one["number"]: one for one in evidence_part(study(), shown=(), spreads={})["servers"]}
    assert set(found) == {0, 1, 2, 3}
    assert (found[1]["kv_cache_tokens"], found[1]["preemptions"], found[1]["startup_s"]) == (412_336, 17, 92.0)
    assert found[1]["prefix_hit_share"] == 0.731


def test_curves_are_of_the_trials_that_are_compared_first() -> None:
    view = study()
    assert shown_numbers(view)[:3] == (1, 2, 0)
    assert shown_numbers(view, steps=(3,))[:4] == (1, 2, 0, 3)
    curves = evidence_part(view, shown=(1,), spreads={})["curves"]
    assert [one["number"] for one in curves] == [1]
    assert {one["role"] for one in curves[0]["levels"]} == {"throughput", "ttft"}


def test_a_trial_that_runs_is_counted_as_such() -> None:
    view = study(trials=(running(0),), front=(), pick=None)
    page = front_part(view, FACTS)
    assert (page["study"]["running"], page["configs"], page["growth"]["steps"]) == (1, [], [])


def test_a_spread_has_exact_quantiles_and_bins_that_hold_every_request() -> None:
    found = spread_of([0.01 * step for step in range(1, 101)] + [0.0])
    assert found is not None
    assert found.count == 100
    assert dict(found.quantiles)[50.0] == pytest.approx(0.505)
    assert dict(found.quantiles)[95.0] == pytest.approx(0.9505)
    assert sum(count for _, count in found.bins) == 100
    # 1 s is 10^0, the lower edge of bin 0.
    assert found.bins[-1] == (0, 1)
    assert spread_of([]) is None
