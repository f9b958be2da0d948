import csv
import io
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st
from report_cases import measured, study

from autotune.report.csv_view import trials_csv


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_one_row_a_trial_one_column_a_parameter() -> None:
    view = study()
    read = rows(trials_csv(view, view.trials))
    assert [row["trial"] for row in read] == ["0", "1", "2", "3", "4", "5", "6"]
    assert read[1]["max-num-seqs"] == "128"
    assert read[1]["enable-prefix-caching"] == "true"
    assert read[0]["max-num-seqs"] == ""
    assert (read[1]["output_tok_s"], read[1]["output_tok_s_low"]) == ("2100.0", "1995.0")
    assert (read[1]["is_pick"], read[1]["on_front"], read[2]["is_pick"]) == ("true", "true", "false")
    assert read[1]["caveats"] == "client_late"


def test_what_is_missing_is_empty_and_never_zero() -> None:
    view = study()
    failed = rows(trials_csv(view, view.trials))[4]
    assert failed["outcome"] == "infeasible"
    assert failed["output_tok_s"] == failed["ttft_p95_s"] == failed["ttft_p95_s_high"] == ""


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))))
@example('=cmd|" /C calc"!A0')
@example("@SUM(A1)")
@example("-1+1")
@example("\t=1")
@example('a"b,c\nd')
def test_no_cell_is_a_formula_and_every_text_survives(text: str) -> None:
    view = replace(study(), name=text, trials=(measured(0, 1.0, 1.0, {"chat-template": text}),))
    (row,) = rows(trials_csv(view, view.trials))
    for cell in (row["study"], row["chat-template"]):
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
        assert cell in (text, f"'{text}")


def test_simulated_is_a_column() -> None:
    view = study(simulated=True)
    assert {row["simulated"] for row in rows(trials_csv(view, view.front_trials))} == {"true"}
