"""A against B in words and in JSON; the arithmetic of differences is in test_search_noise."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import report_cases as cases

from autotune.records import LevelRole, Outcome, Trial
from autotune.report.compare import Side, compare, comparison_document, comparison_text
from autotune.report.tables import as_text
from autotune.report.view import StudyView

IDENTITY = (("model", "m"), ("workload", "chat (1)"), ("node", "1xH200-141GB"))


def with_energy(trial: Trial, energy_j: float) -> Trial:
    assert trial.result is not None
    levels = tuple(
        replace(level, energy_j=energy_j, output_tokens=50_000) if level.level.role is LevelRole.THROUGHPUT else level
        for level in trial.result.measurements
    )
    return replace(trial, result=replace(trial.result, measurements=levels))


def sides(*trials: Trial) -> tuple[Side, Side]:
    view = StudyView(
        name="s", model="m", workload="chat", node="n", engine="process", simulated=False, trials=trials, baseline=0
    )
    return tuple(Side(view=view, trial=trials[number], identity=IDENTITY) for number in (0, 1))


BASE = cases.measured(0, 1000.0, 0.4, {})
FAST = cases.measured(1, 1500.0, 0.36, {"max-num-seqs": 512})


def test_a_real_gain_and_noise_are_told_apart() -> None:
    found = compare(*sides(BASE, FAST), gpu_hour_price=3.6)
    rows = {row.name: row for row in found.rows}
    assert rows["output tok/s per GPU"].verdict == "better"
    assert rows["TTFT p95"].verdict == "within noise"
    # 3.6 an hour is 0.001 a second; 1,000 tokens/s make a million tokens in 1,000 seconds.
    cost = rows["cost per 1M output tokens"]
    assert (cost.a, cost.b) == pytest.approx((1.0, 1000 / 1500))
    assert cost.verdict == "better"
    assert found.flags == (("max-num-seqs", None, 512),)
    text = as_text(comparison_text(found))
    assert "+50.0 %" in text
    assert "within noise; about" in text
    assert "(assumed, because nothing was" in text


def test_another_checkpoint_stands_beside_the_studys_own_model() -> None:
    found = compare(*sides(BASE, cases.measured(1, 1500.0, 0.36, {"model": "m-awq"})))
    assert found.flags == (("model", "m", "m-awq"),)
    assert compare(*sides(BASE, cases.measured(1, 1500.0, 0.36, {"model": "m"}))).flags == ()


def test_vllms_own_values_spelled_out_are_no_difference() -> None:
    spelled = {"enable-expert-parallel": False, "stream-interval": 1, "performance-mode": "balanced"}
    assert compare(*sides(BASE, cases.measured(1, 1500.0, 0.36, spelled))).flags == ()
    other = cases.measured(1, 1500.0, 0.36, {**spelled, "stream-interval": 4})
    assert compare(*sides(BASE, other)).flags == (("stream-interval", 1, 4),)


def test_energy_stands_only_where_it_was_read() -> None:
    without = compare(*sides(BASE, FAST))
    assert "energy per 1M output tokens" not in {row.name for row in without.rows}
    found = compare(*sides(with_energy(BASE, 10_000.0), with_energy(FAST, 5_000.0)))
    energy = next(row for row in found.rows if row.name.startswith("energy"))
    # 10 kJ for 50,000 tokens are 200 kJ for a million.
    assert (energy.a, energy.b) == pytest.approx((200_000.0, 100_000.0))


def test_studies_that_differ_in_more_than_flags_say_so_first() -> None:
    a, b = sides(BASE, FAST)
    other = replace(b, identity=(*IDENTITY[:2], ("node", "4xL4-24GB")))
    found = compare(a, other)
    assert found.differing_studies == (("node", "1xH200-141GB", "4xL4-24GB"),)
    text = as_text(comparison_text(found))
    assert text.index("do not compare flags alone") < text.index("Figures")


def test_json_has_what_the_text_has() -> None:
    document = json.loads(json.dumps(comparison_document(compare(*sides(BASE, FAST)))))
    assert document["schema"] == 1
    assert document["flags"] == [{"name": "max-num-seqs", "a": None, "b": 512}]
    throughput = document["figures"][0]
    assert (throughput["real"], throughput["verdict"]) == (True, "better")
    assert throughput["ratio"] == pytest.approx(1.5)
    assert document["noise"]["repeats"] == 0


def test_repeats_count_as_launches() -> None:
    again = replace(BASE, number=2, repeat_of=0)
    a, _ = sides(BASE, FAST, again)
    assert [launch.number for launch in a.launches] == [0, 2]
    assert BASE.result is not None
    assert BASE.result.outcome is Outcome.MEASURED
