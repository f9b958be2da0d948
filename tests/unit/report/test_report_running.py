"""What runs today, on the front and beside a trial."""

import math

import pytest
from report_cases import measured, study

from autotune.records import Trial
from autotune.report.html import front_page
from autotune.report.json_view import study_document
from autotune.report.running import running_lines
from autotune.report.tables import as_text, front_table
from autotune.report.view import Running


def running(trial: Trial, *, launches: tuple[Trial, ...] | None = None, **changes: object) -> Running:
    fields: dict[str, object] = {
        "label": "prod-chat@3",
        "study": "llama-chat",
        "trial": trial.number,
        "config_hash": trial.config.hash,
        "launches": (trial,) if launches is None else launches,
    }
    return Running(**{**fields, **changes})


def test_the_gain_is_the_ratio_with_what_launches_differ_by() -> None:
    view = study()
    today, pick = view.trials[3], view.trials[1]
    found = study(running=running(today)).gain_over_running(pick)
    assert found is not None
    assert found.throughput.ratio == pytest.approx(2100 / 2000)
    # Own intervals of ±5 % (sd 2.55 % of the logarithm), 1 % between launches: 1.96 x sqrt(2 x (0.0255² + 0.01²))
    assert math.log(found.throughput.high / found.throughput.ratio) == pytest.approx(0.076, abs=0.002)
    assert found.ttft.ratio == pytest.approx(0.41 / 0.55)
    assert not found.throughput.is_real


def test_the_front_marks_what_runs_and_shows_it_beside() -> None:
    view = study(running=running(study().trials[3]))
    text = as_text(front_table(view), width=200)
    assert "runs today (prod-chat@3)" in text
    assert "against today" in text
    assert "tok/s +5 % [-3 % .. +13 %]" in text
    assert [trial.number for trial in view.compared_trials] == [1, 2, 0, 3]
    assert running_lines(view)[-1].startswith(
        "Promoting trial 1 would change throughput per GPU by +5 % [-3 % .. +13 %] and TTFT p95 by -25 % ["
    )


def test_the_page_of_the_front_says_it_too() -> None:
    page = front_page(study(running=running(study().trials[3])))
    assert '<span class="tag base">runs today (prod-chat@3)</span>' in page
    assert "Promoting trial 1 would change throughput per GPU by +5 %" in page
    assert "runs today" not in front_page(study())


def test_nothing_is_marked_where_nothing_was_promoted() -> None:
    assert running_lines(study()) == ()
    assert "against today" not in as_text(front_table(study()), width=200)
    assert study_document(study())["running"] is None


def test_what_runs_may_be_the_pick() -> None:
    view = study(running=running(study().trials[1]))
    assert "nothing to promote" in running_lines(view)[-1]
    document = study_document(view)
    (pick,) = [trial for trial in document["front"] if trial["number"] == 1]
    assert pick["runs_today"] is True
    assert pick["against_running"] is None


def test_another_question_gives_no_number() -> None:
    elsewhere = measured(5, 900.0, 0.4, {"max-num-seqs": 7})
    view = study(running=running(elsewhere, launches=(), study="old", differing=(("workload", "rag", "chat"),)))
    assert view.gain_over_running(view.trials[1]) is None
    assert "workload: rag there, chat here" in running_lines(view)[-1]
    assert "against today" not in as_text(front_table(view), width=200)
    same = study(running=running(elsewhere, study="old"))
    found = same.gain_over_running(same.trials[1])
    assert found is not None
    assert found.throughput.ratio == pytest.approx(2100 / 900)
    assert [trial.number for trial in same.compared_trials] == [1, 2, 0]


def test_a_config_that_is_only_written_otherwise_runs_too() -> None:
    first, other = study().trials[3], study().trials[1]
    assert not running(first).is_of(other)
    assert running(first, written_otherwise=frozenset({other.config.hash})).is_of(other)
