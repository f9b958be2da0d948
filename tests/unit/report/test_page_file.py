"""The report's file: complete, closed, and no text in it can get out of its place."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib.resources import files
from typing import Any

import pytest
from page_cases import FACTS
from report_cases import study

from autotune.records import PickRule
from autotune.report.page import certainty_part, front_part
from autotune.report.page.file import assets, embedded, report_file
from autotune.report.page.linking import linked
from autotune.report.page.markdown import code, plain, report_markdown

HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> \u2028 ]]> ${x} `y`"
STATIC = files("autotune").joinpath("web", "static")

D3_SHA256 = "912111098ea99503a6f4967361d2bbdc9dbf58cf9c678c8e27e5b02d1a07f0c1"
"""Of d3 7.9.2's `dist/d3.min.js` as npm has it."""


def document(name: str) -> dict[str, Any]:
    view = study(name=name)
    parts = {"front": front_part(view, FACTS), "certainty": certainty_part(view, rule=PickRule.KNEE)}
    return {"study": name, "version": "1.0", "written_at": "now", "parts": parts, "trials": {}, "comparisons": {}}


def test_the_file_loads_nothing_and_allows_only_what_is_inside() -> None:
    page = report_file(document("s"), title="s", summary="pick")
    assert not re.search(r"<(?:link|img|iframe|object|script)[^>]+(?:src|href)=", page)
    policy = page.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    assert "unsafe" not in policy
    assert "default-src &#x27;none&#x27;" in policy
    for _, text in re.findall(r"<(script|style)>(.*?)</(?:script|style)>", page, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"sha256-{digest}" in policy


def test_hostile_names_stay_text() -> None:
    page = report_file(document(HOSTILE), title=HOSTILE, summary=HOSTILE)
    assert page.count("<script") == 3
    assert page.count("</script>") == 3
    assert "<img" not in page
    data = page.partition('id="autotune-data">')[2].partition("</script>")[0]
    assert json.loads(data)["study"] == HOSTILE


def test_what_is_no_number_is_an_error_and_not_broken_json() -> None:
    with pytest.raises(ValueError, match="JSON"):
        embedded({"a": float("nan")})


def test_the_charting_library_is_the_one_that_its_makers_published() -> None:
    text = STATIC.joinpath("vendor", "d3.min.js").read_bytes()
    assert hashlib.sha256(text).hexdigest() == D3_SHA256
    assert text.startswith(b"// https://d3js.org v7.9.2 Copyright")
    licence = STATIC.joinpath("vendor", "d3.LICENSE").read_text()
    assert "Permission to use, copy, modify, and/or distribute this software" in licence


def test_no_page_has_inline_script_style_or_handlers() -> None:
    for name in ("index.html",):
        text = STATIC.joinpath(name).read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", text)
        assert not re.search(r"(?:https?:)?//[a-z]", text.replace("<!doctype html>", ""))


def test_the_pages_own_scripts_never_make_markup_of_text() -> None:
    for one in STATIC.joinpath("js").iterdir():
        text = one.read_text()
        found = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
        assert (one.name, found) == (one.name, [])


def test_the_script_of_the_file_holds_every_module_once() -> None:
    script = assets()[2]
    for name in ("dom.js", "front.js", "study.js", "report.js"):
        assert script.count(f"modules['{name}'] = (() =>") == 1
    assert not re.search(r"^(?:import|export)\b", script, re.MULTILINE)


def test_modules_are_linked_after_what_they_import() -> None:
    modules = {
        "a.js": 'import { b, c } from "./b.js";\nb(c);\n',
        "b.js": "export function b() {}\nexport const c = 1;\nconst own = 2;\n",
        "unused.js": "export const x = 1;\n",
    }
    script = linked(modules, "a.js")
    assert script.index("modules['b.js']") < script.index("modules['a.js']")
    assert "return { b, c };" in script
    assert "const { b, c } = modules['b.js'];" in script
    assert "unused" not in script


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ({"a.js": 'import { b } from "./b.js";\n'}, "a.js imports b.js, which is not there"),
        (
            {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'},
            "circle: a.js -> b.js",
        ),
        ({"a.js": "export default 1;\n"}, "a.js: an import or export of a form"),
        ({"a.js": 'import * as b from "./b.js";\n', "b.js": ""}, "a.js: an import or export of a form"),
    ],
)
def test_what_cannot_be_linked_is_said(modules: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        linked(modules, "a.js")


def test_markdown_has_pick_front_and_failures_and_escapes_names() -> None:
    text = report_markdown(study(name="a|b <i>", simulated=True), serve_line="vllm serve m", picture="f.svg")
    assert text.startswith("# a\\|b \\<i\\>\n")
    assert "**SIMULATED**" in text
    assert "**Pick: trial 1 (simulated)" in text
    assert "```bash\nvllm serve m\n```" in text
    assert "](f.svg)" in text
    assert "| 1 | **pick**" in text
    assert "`--max-num-seqs 128`" in text
    assert "infeasible: kv\\_cache\\_too\\_small: trial 4" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({row.replace("\\|", "").count("|") for row in rows if "---" not in row}) == 1


def test_markdown_of_a_study_without_a_trial() -> None:
    text = report_markdown(study(trials=(), front=(), baseline=None, pick=None))
    assert "No trial was measured yet" in text
    assert "**No pick** meets `ttft_p95<=500ms`." in text


def test_a_code_span_holds_any_text() -> None:
    assert code("--a b") == "`--a b`"
    assert code("`x` | y") == "`` `x` \\| y ``"
    assert plain("a\n*b*") == "a\\\\n\\*b\\*"
