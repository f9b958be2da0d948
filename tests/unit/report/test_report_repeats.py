"""Front, pick and baseline are shown with the figures they were decided by: means over the launches of a config."""

from report_cases import repeated_study, study

from autotune.report.figures import description, svg_text
from autotune.report.html import front_page
from autotune.report.json_view import study_document
from autotune.report.tables import as_text, front_table, trials_table
from autotune.search.objective import joined_figures


def test_every_view_shows_the_number_that_the_pick_was_decided_by() -> None:
    view = repeated_study()
    assert view.pick is not None
    assert "2,200 output tokens/s per GPU at 400 ms p95 TTFT" in view.pick.reason
    assert view.pick.reason.endswith("means of 2 runs")
    picked, base = (
        next(line.split() for line in as_text(front_table(view)).splitlines() if line.split()[:1] == [number])
        for number in ("1", "0")
    )
    assert picked[:4] == ["1", "1", "2", "2,200"]
    assert "400" in picked
    assert base[:4] == ["0", "1", "2", "1,500"]
    assert "850" in base
    assert "trial 1 with 2,200 tokens/s per GPU at a p95 TTFT of 400 ms" in description(view)
    page = front_page(view)
    assert "<b>2,200 " in page
    assert ">runs</th>" in page
    assert "repeated configs: means" in svg_text(view)


def test_json_has_the_means_of_configs_and_the_figures_of_launches() -> None:
    document = study_document(repeated_study())
    for entry in (document["front"][0], document["pick"]):
        assert (entry["number"], entry["runs"], entry["output_tok_s"], entry["output_tok_s_per_gpu"]) == (
            *(1, 2, 2200.0, 2200.0),
        )
        assert entry["ttft_p95_s"] == 0.4
        # From the lowest bound of either launch (2,100 - 5 %) to the highest (2,300 + 5 %).
        assert entry["output_tok_s_interval"] == [1995.0, 2415.0]
    assert (document["baseline"]["runs"], document["baseline"]["output_tok_s"]) == (2, 1500.0)
    assert [trial["output_tok_s"] for trial in document["trials"]] == [1600.0, 2100.0, 1900.0, 1400.0, 2300.0]


def test_a_list_of_launches_keeps_each_ones_figures() -> None:
    text = as_text(trials_table(repeated_study()))
    for figure in ("1,600", "2,100", "1,400", "2,300"):
        assert figure in text
    assert "2,200" not in text


def test_without_repeats_nothing_speaks_of_runs() -> None:
    view = study()
    assert "runs" not in as_text(front_table(view))
    assert ">runs</th>" not in front_page(view)
    assert "repeated" not in svg_text(view)
    assert study_document(view)["front"][0]["runs"] == 1


def test_what_was_not_measured_has_no_runs() -> None:
    view = study()
    shown = joined_figures(view.trials[4], view.trials)
    assert (shown.runs, shown.output_tok_s, shown.ttft_p95_s) == (0, None, None)
