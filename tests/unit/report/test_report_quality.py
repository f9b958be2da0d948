"""What the quality guard found, wherever a study is shown."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import pytest
from page_cases import FACTS
from report_cases import measured, study

from autotune.records import Config, Estimate, Quality, QualityState, Trial
from autotune.report.csv_view import trials_csv
from autotune.report.detail import trial_detail
from autotune.report.json_view import show_document, study_document
from autotune.report.page import front_part
from autotune.report.page.markdown import report_markdown
from autotune.report.quality_text import quality_cell, quality_document, quality_of
from autotune.report.tables import as_text, study_report
from autotune.report.view import StudyView

HELD = Quality(
    state=QualityState.HELD,
    why="all within",
    prompt_set="shipped (1234)",
    prompts=36,
    reference="trial 0",
    lossy=("kv-cache-dtype=fp8",),
    perplexity_ratio=Estimate(value=1.001, low=0.999, high=1.003),
    logprob_gap=Estimate(value=0.02, low=0.015, high=0.025),
    agreement=Estimate(value=0.875, low=0.8, high=0.95),
    by_subject=(("code", 0.9), ("mathematics", 0.85)),
    seconds=12.0,
)
LOST = replace(HELD, state=QualityState.LOST, why="agreement 0.2 (at least 0.6)")
REFERENCE = Quality(state=QualityState.REFERENCE, why="others are compared with it", prompts=36)


def asked(trial: Trial, quality: Quality) -> Trial:
    assert trial.result is not None
    return replace(trial, result=replace(trial.result, quality=quality))


def guarded(quality: Quality) -> StudyView:
    """The study of `report_cases`; its pick stores its KV cache as fp8, and trial 0 is the reference."""
    view = study()
    trials = [asked(trial, REFERENCE) if trial.number == 0 else trial for trial in view.trials]
    fp8 = replace(trials[1], config=Config.of({**trials[1].config.as_dict(), "kv-cache-dtype": "fp8"}))
    trials[1] = asked(fp8, quality)
    return replace(view, trials=tuple(trials))


def test_the_front_has_a_column_where_anything_was_asked() -> None:
    text = as_text(study_report(guarded(HELD)), width=200)
    assert "answers" in text
    assert "held, 88% alike" in text
    assert "reference" in text
    assert "alike" not in as_text(study_report(study()), width=200)


def test_the_page_and_the_pull_request_have_the_column_as_well() -> None:
    page = front_part(guarded(LOST), FACTS)
    assert [one["answers"] and one["answers"]["text"] for one in page["trials"][:3]] == [
        "reference",
        "LOST, 88% alike",
        None,
    ]
    config = next(one for one in page["configs"] if one["number"] == 1)
    assert config["answers"] == {"state": "lost", "text": "LOST, 88% alike", "why": LOST.why}
    rows = report_markdown(guarded(LOST)).splitlines()
    assert "| trial | place | tok/s per GPU | TTFT p95 | answers | changes |" in rows
    assert [row.split(" | ")[4] for row in rows if row.startswith("| 1 |")] == ["LOST, 88% alike"]
    assert "answers" not in report_markdown(study())


def test_what_was_held_is_no_doubt_and_what_was_lost_is_said() -> None:
    assert "answers_not_compared" not in as_text(study_report(guarded(HELD)), width=200)
    text = as_text(study_report(guarded(LOST)), width=200)
    assert "Never the pick, its answers differ: trial 1 (agreement 0.2 (at least 0.6))" in text


def test_show_and_json_have_every_figure() -> None:
    view = guarded(HELD)
    text = as_text(trial_detail(view, view.trials[1]), width=160)
    assert "changes numerics by kv-cache-dtype=fp8" in text
    assert "log-probability gap 0.02 [0.015 .. 0.025]" in text
    assert "agreement by subject: code 90%, mathematics 85%" in text
    found = show_document(view, view.trials[1])["quality"]
    assert (found["state"], found["agreement"]["low"], found["reference"]) == ("held", 0.8, "trial 0")
    document = study_document(view)
    assert document["pick"]["quality"]["state"] == "held"
    assert document["trials"][2]["quality"] is None


def test_json_has_no_figures_that_are_no_numbers() -> None:
    nothing = Estimate(value=math.nan, low=math.nan, high=math.inf)
    shares = (("code", math.nan), ("mathematics", 0.5))
    found = quality_document(
        replace(LOST, perplexity_ratio=nothing, logprob_gap=nothing, by_subject=shares, seconds=math.inf)
    )
    assert found is not None
    assert found["perplexity_ratio"] == {"value": None, "low": None, "high": None}
    assert (found["agreement_by_subject"], found["seconds"]) == ({"code": None, "mathematics": 0.5}, None)
    json.dumps(found, allow_nan=False)


def test_csv_has_the_figures() -> None:
    view = guarded(HELD)
    rows = list(csv.DictReader(io.StringIO(trials_csv(view, view.trials), newline="")))
    assert (rows[1]["quality"], rows[1]["greedy_agreement"], rows[2]["quality"]) == ("held", "0.875", "")


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        ([QualityState.HELD, QualityState.LOST], QualityState.LOST),
        ([QualityState.UNDECIDED, QualityState.HELD], QualityState.UNDECIDED),
        ([QualityState.NOT_MEASURABLE, QualityState.HELD], QualityState.HELD),
    ],
)
def test_a_config_is_as_good_as_its_worst_launch(states: list[QualityState], shown: QualityState) -> None:
    trials = [
        asked(measured(place, 100.0, 0.1, {"dtype": "float32"}), replace(HELD, state=state))
        for place, state in enumerate(states)
    ]
    found = quality_of(trials[0], trials)
    assert found is not None
    assert found.state is shown
    assert quality_cell(None) == ""
