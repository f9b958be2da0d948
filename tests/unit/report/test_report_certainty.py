"""Ties, drift, what to expect and whether the pick was validated: in every form of the report."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import Any

from report_cases import measured, repeated_study, study

from autotune.records import Origin, Trial
from autotune.report.certainty import certainty_lines, chance, drift_lines
from autotune.report.csv_view import trials_csv
from autotune.report.detail import trial_detail
from autotune.report.figures import svg_text
from autotune.report.html import front_page
from autotune.report.json_view import study_document
from autotune.report.tables import as_text, front_table, study_report, trials_table
from autotune.report.view import StudyView
from autotune.search.pareto import front_of, pick
from autotune.search.stability import assess

FAST, SAME, WIDE = {"max-num-seqs": 128}, {"max-num-seqs": 160}, {"max-num-seqs": 512}


def again(number: int, original: int, tok_s: float, ttft_s: float, values: dict[str, Any], *, fresh: bool) -> Trial:
    origin = Origin.VALIDATION if fresh else Origin.REPEAT
    return replace(measured(number, tok_s, ttft_s, values), origin=origin, repeat_of=original)


def view_of(*more: Trial) -> StudyView:
    """Trials 1 and 2 differ by less than launches of one config do; both far ahead of the baseline."""
    trials = (measured(0, 1000.0, 0.9, {}), measured(1, 2000.0, 0.40, FAST), measured(2, 2010.0, 0.41, SAME), *more)
    return study(trials=trials, front=front_of(trials), pick=pick(trials), slo=None)


def text_of(view: StudyView) -> str:
    return " ".join(as_text(study_report(view), width=100).split())


def test_what_is_tied_and_not_validated_is_said_everywhere() -> None:
    view = view_of()
    assert view.pick is not None
    assert view.pick.number == 1
    text = text_of(view)
    assert "Pick: trial 1 (knee, not yet validated)" in text
    assert "Not validated: the pick was not launched under fresh prompts and arrivals" in text
    assert "Statistically tied with the pick: trial 2" in text
    assert "Not stable: the same pick in" in text
    assert "tied with 2" in as_text(front_table(view))
    assert "on the front with " in as_text(front_table(view), width=200)
    page = front_page(view)
    assert "Pick: trial 1, not yet validated" in page
    assert "tied with 2" in page
    assert "pick not yet validated" in svg_text(view)
    document = study_document(view)
    assert (document["pick"]["validated"], document["pick"]["tied_with"]) == (False, [2])
    assert document["stable"] is False
    assert document["noise"]["repeats"] == 0
    assert document["drift"] is None
    front = {entry["number"]: entry for entry in document["front"]}
    assert 0.1 < front[2]["front_probability"] < 1.0
    assert "tied with 2" in as_text(trial_detail(view, view.trials[1]))


def test_a_validated_pick_is_called_one() -> None:
    view = view_of(again(3, 1, 1990.0, 0.41, FAST, fresh=True))
    text = text_of(view)
    assert "Pick: trial 1 (knee):" in text
    assert "Validated (trial 3, fresh prompts and arrivals): throughput -0 %" in text
    assert "To expect of it: throughput per GPU +100 % [+88 % .. +112 %], TTFT p95 -55 %" in text
    document = study_document(view)
    assert document["pick"]["validated"] is True
    assert document["pick"]["validation"]["trials"] == [3]
    low, high = document["pick"]["expected_throughput_gain_interval"]
    assert low < document["pick"]["expected_throughput_gain"] < high
    assert "repeat of 1 on fresh seeds" in as_text(trials_table(view), width=160)
    assert "(repeat of 1 on fresh seeds)" in front_page(view)
    assert "not yet validated" not in front_page(view) + svg_text(view)


def test_a_pick_that_fails_on_fresh_seeds_is_not_praised() -> None:
    view = view_of(*(again(number, 1, 1760.0, 0.40, FAST, fresh=True) for number in (3, 4)))
    chosen = replace(view, pick=replace(view.pick, number=1)) if view.pick else view
    text = text_of(chosen)
    assert "worse when validated" in text
    assert "Validation failed (trial 3, 4, fresh prompts and arrivals): throughput -12 %" in text
    assert study_document(chosen)["pick"]["validation"]["state"] == "worse"


def test_drift_of_the_baseline_is_flagged_with_what_two_launches_can_show() -> None:
    steady = repeated_study().assessment().drift
    assert steady is not None
    flagged = view_of(again(3, 0, 700.0, 0.9, {}, fresh=False))
    assert "Drift: the baseline's throughput changed by -30 %" in text_of(flagged)
    assert "nothing is corrected" in text_of(flagged)
    document = study_document(flagged)["drift"]
    assert (document["launches"], document["throughput"]["found"], document["throughput"]["corrected"]) == (
        *([0, 3], True, False),
    )
    quiet = view_of(again(3, 0, 1001.0, 0.9, {}, fresh=False))
    assert "No drift seen in 2 launches of the baseline; so few would show throughput +" in text_of(quiet)
    assert drift_lines(None) == ()


def test_the_baseline_as_pick_has_nothing_to_prove() -> None:
    trials = (measured(0, 2000.0, 0.4, {}), measured(1, 1000.0, 0.9, FAST))
    view = study(trials=trials, front=front_of(trials), pick=pick(trials), slo=None)
    text = text_of(view)
    assert "Pick: trial 0 (knee):" in text
    assert "alidated" not in text
    assert "Front and pick are stable" in text
    assert study_document(view)["pick"]["validated"] is None


def test_what_is_no_better_than_another_is_not_said_to_be_on_the_front_or_off_it() -> None:
    trials = (measured(0, 2000.0, 0.4, {}), measured(1, 1000.0, 0.9, FAST))
    found = assess(trials, pick(trials))
    assert found.is_stable
    first, second = found.standings
    lucky = replace(found, standings=(first, replace(second, beaten_by=(0,), front_probability=0.52)))
    for one, aside in ((found, False), (lucky, True)):
        (line,) = (line for line in certainty_lines(one) if line.startswith("Front and pick are stable"))
        assert line.endswith("Those that are no better than another are left out of that.") is aside


def test_the_csv_has_every_configs_standing_and_nothing_of_failures() -> None:
    view = study()
    rows = list(csv.DictReader(io.StringIO(trials_csv(view, view.trials), newline="")))
    assert float(rows[1]["front_probability"]) > 0.9
    assert rows[4]["front_probability"] == rows[4]["tied_with"] == ""
    tied = view_of()
    assert [row["tied_with"] for row in csv.DictReader(io.StringIO(trials_csv(tied, tied.trials), newline=""))] == [
        *("", "2", "1"),
    ]


def test_no_chance_is_called_certain() -> None:
    assert [chance(one) for one in (0.0, 0.004, 0.62, 0.994, 0.999, 1.0)] == [
        "<1 %",
        "<1 %",
        "62 %",
        "99 %",
        ">99 %",
        ">99 %",
    ]
