"""Why a trial was launched, wherever trials are shown."""

from __future__ import annotations

from dataclasses import replace

import report_cases as cases

from autotune.report.csv_view import trials_csv
from autotune.report.html import front_page
from autotune.report.json_view import trial_document


def test_every_trial_says_why_in_json_csv_and_html() -> None:
    view = cases.study()
    first = replace(view.trials[0], why="baseline: everything else is measured against it")
    view = replace(view, trials=(first, *view.trials[1:]))
    document = trial_document(view, first)
    assert (document["launched_as"], document["why"]) == ("baseline", "everything else is measured against it")
    head, row = trials_csv(view, view.trials).splitlines()[:2]
    assert row.split(",")[head.split(",").index("origin")] == "baseline"
    assert first.why in row
    assert first.why in front_page(view)
