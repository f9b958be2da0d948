"""What reports show of a study whose objective is the goodput, and that others show nothing of it."""

from __future__ import annotations

from dataclasses import replace

from report_cases import study

from autotune.records import Estimate, Goodput, GoodputEnd, Slo, Trial
from autotune.report.csv_view import trials_csv
from autotune.report.detail import trial_detail
from autotune.report.html import front_page
from autotune.report.json_view import show_document, study_document
from autotune.report.progress import figures
from autotune.report.tables import as_text, front_table, pick_lines, trials_table
from autotune.report.view import StudyView
from autotune.search.pareto import front_of, pick

SLO = Slo.of(ttft_p95=0.5, error_rate=0.0)


def searched(trial: Trial) -> Trial:
    """With a goodput of 6 requests/s and 600 output tokens/s more for each number."""
    if trial.result is None or not trial.measured:
        return trial
    rate = 6.0 * (trial.number + 1)
    found = Goodput(
        slo=SLO,
        end=GoodputEnd.NARROW,
        rate_rps=Estimate(value=rate, low=0.97 * rate, high=1.03 * rate),
        output_tok_s=Estimate(value=100 * rate),
        levels=4,
        seconds=88.0,
    )
    return replace(trial, result=replace(trial.result, goodput=found))


def goodput_study() -> StudyView:
    plain = study()
    trials = tuple(map(searched, plain.trials))
    return replace(plain, trials=trials, front=front_of(trials), pick=pick(trials, slo=SLO), slo=SLO)


def test_the_front_and_the_pick_are_by_goodput() -> None:
    view = goodput_study()
    assert view.pick is not None
    rates = {trial.number: trial.goodput_rps_per_gpu for trial in view.trials}
    best = max((rate.value, number) for number, rate in rates.items() if rate is not None)
    assert rates[view.pick.number] == rates[best[1]]
    assert "the highest goodput within ttft_p95<=500ms,error_rate<=0" in view.pick.reason
    assert "goodput per GPU" in as_text(pick_lines(view)[0], width=200)


def test_tables_page_and_lists_have_a_column_for_it() -> None:
    view, plain = goodput_study(), study()
    for table in (front_table, trials_table):
        assert "goodput/s per GPU" in as_text(table(view), width=250)
        assert "goodput" not in as_text(table(plain), width=250)
    assert "requests/s per GPU within the SLO" in front_page(view)
    assert "goodput/s per GPU" not in front_page(plain)
    assert "goodput" in figures(view.front_trials[0])
    assert "tok/s per GPU of goodput, TTFT p95" in as_text(trial_detail(view, view.front_trials[0]), width=250)
    assert "goodput_rps_per_gpu" in trials_csv(view, view.trials).splitlines()[0]


def test_json_has_the_search() -> None:
    view = goodput_study()
    trial = view.front_trials[0]
    document = show_document(view, trial)
    assert document["goodput"]["rate_rps"] == 6.0 * (trial.number + 1)
    assert document["goodput"]["end"] == "narrow"
    assert document["goodput_rps_per_gpu"] == document["goodput"]["rate_rps"] / trial.gpus
    plain = study_document(study())
    assert all(found["goodput_rps_per_gpu"] is None for found in plain["trials"])
