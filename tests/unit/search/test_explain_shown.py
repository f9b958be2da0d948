"""How an explanation is shown: the whole of it as text and as JSON, and in short."""

from __future__ import annotations

import json
from dataclasses import replace

import explained_studies as studies
from rich.console import Group

from autotune.report.explained import brief_lines, explanation_document, explanation_text, words_of
from autotune.report.tables import as_text
from autotune.search.explain import explain
from autotune.search.explain_effect import Basis, effect
from autotune.search.explain_knobs import Swing

FOUND = explain(studies.study(0, 48), studies.question())


def test_the_text_names_what_matters_what_does_nothing_and_what_nobody_tried() -> None:
    text = as_text(explanation_text(FOUND, study="s", simulated=True, doubts=("something moved",)), width=200)
    rows = text[text.index("What matters") :].splitlines()
    assert rows[3].lstrip().startswith("max-num-seqs")
    assert "Note: something moved" in text
    assert "(simulated)" in text
    assert "vLLM's default, on: the same server" in text
    assert "fcfs, priority: launched, and no two of them differ by more than noise" in text
    assert "Never tried" in text


def test_a_name_with_control_characters_moves_no_cursor() -> None:
    text = as_text(explanation_text(FOUND, study="s\x1b[2J", simulated=False))
    assert "\x1b" not in text


def test_the_document_is_json_and_agrees_with_the_explanation() -> None:
    document = json.loads(json.dumps(explanation_document(FOUND, study="s", simulated=False), allow_nan=False))
    assert [one["parameter"] for one in document["parameters"]] == [one.knob.name for one in FOUND.weights]
    assert {one["how"] for one in document["no_effect"]} == {"same server", "within noise"}
    assert document["untried"]["configs"] == FOUND.left
    assert document["prior"] == "none"


def test_the_short_version_is_there_only_where_something_is_known() -> None:
    told = as_text(Group(*brief_lines(FOUND, "s")), width=200)
    assert "What mattered, best value against worst: max-num-seqs" in told
    assert "Made no difference beyond noise: scheduling-policy" in told
    assert "`autotune explain s`" in told
    assert " against " in told.split("max-num-seqs (throughput ")[1].split(")")[0]  # the worse value is named as well
    assert brief_lines(explain(studies.study(0, 1), studies.question()), "s") == []


def test_what_is_only_expected_is_kept_apart_from_what_was_launched() -> None:
    found = explain(studies.study(3, 20, without={"kv-cache-dtype": "fp8"}), studies.question())
    swing = Swing(
        better=(("kv-cache-dtype", "fp8"),),
        worse=(("kv-cache-dtype", "auto"),),
        effect=effect(0.3, 0.01, 0.03, 2.0, Basis.EXPECTED),
    )
    weights = tuple(
        replace(one, swings=(swing, None)) if one.knob.name == "kv-cache-dtype" else one for one in found.weights
    )
    found = replace(found, weights=weights)
    told = as_text(Group(*brief_lines(found, "s")), width=300).splitlines()
    mattered = next(line for line in told if line.startswith("What mattered"))
    hoped = next(line for line in told if line.startswith("Expected to matter, but never launched"))
    assert "fp8" not in mattered
    assert "kv-cache-dtype (throughput +35 % with fp8 against auto)" in hoped
    text = as_text(explanation_text(found, study="s", simulated=False), width=250)
    assert "+35 % [+32 % .. +38 %], expected: fp8 against auto" in text
    assert "expected: nobody launched it" in text
    document = explanation_document(found, study="s", simulated=False)
    row = next(one for one in document["parameters"] if one["parameter"] == "kv-cache-dtype")
    assert (row["throughput"]["swing"]["standing"], row["throughput"]["swing"]["basis"]) == ("expected", "expected")


def test_a_goodput_is_called_so_everywhere() -> None:
    found = replace(FOUND, goodput=True)
    text = as_text(Group(explanation_text(found, study="s", simulated=False), *brief_lines(found, "s")), width=200)
    assert "throughput" not in text
    assert "tok/s per GPU of goodput" in text
    assert explanation_document(found, study="s", simulated=False)["objective"] == "goodput"
    assert explanation_document(FOUND, study="s", simulated=False)["objective"] == "throughput"


def test_names_of_parameters_stay_in_one_piece_in_narrow_terminals() -> None:
    names = {one.knob.name for one in FOUND.weights} | {one.knob for one in FOUND.changes}
    for width in (80, 100, 120):
        text = as_text(explanation_text(FOUND, study="s", simulated=True), width=width)
        assert [name for name in names if name not in text[text.index("What matters") :]] == []


def test_values_are_told_as_people_say_them() -> None:
    layout = (("tensor-parallel-size", 2), ("data-parallel-size", 2), ("enable-expert-parallel", True))
    assert words_of(layout) == "TP 2 x DP 2 x EP"
    assert words_of((("tensor-parallel-size", 1), ("data-parallel-size", 1))) == "one GPU"
    assert words_of((("max-num-seqs", 256),)) == "256"
    assert words_of((("enable-prefix-caching", False),)) == "off"
    assert words_of((("enable-chunked-prefill", None),)) == "vLLM's default"
    assert words_of(()) == "vLLM's default"
