"""Tables on terminals that are too narrow for them."""

from __future__ import annotations

from autotune.report.grid import add, column, grid
from autotune.report.studies import StudyRow, studies_table
from autotune.report.tables import as_text


def test_a_table_that_does_not_fit_becomes_records() -> None:
    row = StudyRow(
        name="llama-3.1-8b-instruct-numbers-1xl4-24gb",
        model="meta-llama/Llama-3.1-8B-Instruct",
        workload="chat",
        engine="simulated",
        simulated=True,
        state="finished",
        done=8,
        wanted=8,
        measured=7,
        infeasible=1,
    )
    wide = as_text(studies_table([row]), width=140)
    heads = ["study", "model", "workload", "engine", "state", "trials", "measured", "infeasible"]
    assert wide.splitlines()[1].split() == heads
    lines = [line.rstrip() for line in as_text(studies_table([row]), width=80).splitlines()]
    assert "study       llama-3.1-8b-instruct-numbers-1xl4-24gb" in lines
    assert "model       meta-llama/Llama-3.1-8B-Instruct" in lines
    assert "state       finished" in lines
    assert "infeasible  1" in lines


def test_many_columns_of_figures_are_never_cut() -> None:
    table = grid()
    column(table, "figure")
    for load in range(8):
        column(table, f"concurrency-{load}", right=True)
    add(table, "output tok/s", *(f"{1000 + load} [900 .. 1,100]" for load in range(8)))
    text = as_text(table, width=100)
    assert all(f"{1000 + load} [900 .. 1,100]" in text for load in range(8))


def test_words_fold_before_a_table_becomes_records() -> None:
    table = grid()
    column(table, "n", right=True)
    column(table, "why")
    add(table, "1", "some words that take more than one line of so few characters")
    assert as_text(table, width=40).splitlines()[0].split() == ["n", "why"]
