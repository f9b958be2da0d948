"""The report's file in a browser: every part of it, by mouse, keyboard and screen reader."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import axe
import made_studies
import pytest
from playwright.sync_api import expect
from shown import expect_pick, ready
from sizes import PHONE, WIDE

from autotune.records import PickRule, Slo
from autotune.report.view import StudyView
from autotune.review.report import report_document, report_html
from autotune.review.views import view_of
from autotune.search.pareto import pick
from autotune.store.places import Places
from autotune.store.repository import Store

Looking = Callable[..., Any]
ROOT = Path(__file__).parents[2]


def kinds(page: Any) -> dict[str, int]:
    return page.evaluate(
        "() => Object.fromEntries(d3.rollup([...document.querySelectorAll('figure .mark[data-number]')],"
        " (all) => all.length, (one) => one.getAttribute('class').match(/k-(\\w+)/)[1]))"
    )


def test_front_shows_every_kind_of_trial_and_marks_pick_and_baseline(looking: Looking, report: Any) -> None:
    page = ready(looking(report("usual")))
    expect_pick(page, 4)
    assert kinds(page) == {
        "pick": 1, "baseline": 1, "front": 2, "tied": 1, "dominated": 1, "abandoned": 1, "infeasible": 1, "faulted": 1,
    }  # fmt: skip
    words = "Trial 4, pick: 2,890 tokens/s per GPU, p95 TTFT 333 ms"
    expect(page.locator(".mark.k-pick[data-number]")).to_have_attribute("aria-label", words)
    expect(page.locator("text=SIMULATED")).to_have_count(0)
    page.locator("summary", has_text="configs with figures").click()
    table = page.locator("details", has_text="configs with figures").first
    expect(table.locator("tbody tr")).to_have_count(6)
    expect(table).to_contain_text("2,890")


def test_pointing_at_a_trial_shows_its_flags_and_a_click_opens_it(looking: Looking, report: Any) -> None:
    page = ready(looking(report("usual")))
    page.locator(".mark[data-number='2']").hover()
    tip = page.locator("figure .tip:visible").first
    expect(tip).to_contain_text("--max-num-seqs 512")
    expect(tip).to_contain_text("3,332 to 3,468")
    page.locator(".mark[data-number='2']").click()
    dialog = page.locator("dialog[open]")
    dialog.locator("text=Figures with 95 % intervals").wait_for()
    expect(dialog).to_contain_text("vllm serve meta-llama/Llama-3.1-8B-Instruct")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)


def test_the_front_by_keyboard_alone(looking: Looking, report: Any) -> None:
    page = ready(looking(report("usual")))
    page.locator("figure .mark[tabindex='0']").first.focus()
    seen = []
    for _ in range(9):
        seen.append(page.evaluate("document.activeElement.dataset.number"))
        page.keyboard.press("ArrowRight")
    assert len(set(seen)) == 9  # every mark, whatever became of its trial
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.locator("dialog[open]").wait_for()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)


def test_dragging_the_limit_moves_the_pick(looking: Looking, report: Any) -> None:
    page = ready(looking(report("with-slo")))
    expect_pick(page, 4)
    grip = page.locator(".slo-grip")
    expect(grip).to_have_attribute("aria-valuetext", "400 ms, pick is trial 4")
    box = grip.locator("rect").nth(1).bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    edge = page.locator("figure svg").first.bounding_box()
    page.mouse.move(edge["x"] + edge["width"] - 24, y, steps=8)
    page.mouse.up()
    expect_pick(page, 2)
    expect(page.locator("#live")).to_have_text(re.compile(r"the pick is trial 2$"))
    page.locator(".slo-grip").focus()
    page.keyboard.press("Home")
    page.locator("h2", has_text="No config meets it").wait_for()
    expect(page.locator(".verdict")).to_contain_text("of trial 1")
    page.locator("#limit-own").click()
    expect_pick(page, 4)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyView, str]:
    """The study that an H200 measured, and the address of its report."""
    folder = tmp_path_factory.mktemp("recorded")
    shutil.copy(ROOT / "studies" / "h200-llama-8b-chat" / "autotune.db", folder)
    places = Places(root=folder)
    with Store.open(places.database, create=False) as store:
        (study,) = store.studies()
        view = view_of(store, study, places)
        path = folder / "report.html"
        path.write_text(report_html(report_document(store, study, places, view), view), encoding="utf-8")
    return view, path.as_uri()


def every_pick(page: Any, view: StudyView) -> None:
    """What the page recommends just below, at and above each figure that a limit is held against."""
    figures = [trial.ttft_p95_s for trial in view.trials if trial.ttft_p95_s is not None]
    judged = [one.value if one.high is None else one.high for one in figures]
    for bound_s in sorted({value * factor for value in judged for factor in (0.97, 1.0, 1.03)}):
        limit_s = float(f"{bound_s:.3g}")  # as the page rounds what is typed
        page.locator("#limit").fill(f"{limit_s * 1000:.6g}")
        page.locator("#limit").press("Enter")
        expected = pick(view.trials, slo=Slo.of(ttft_p95=limit_s), lossy=view.lossy)
        expect_pick(page, expected.number if expected else None, f"at a limit of {limit_s:g} s")
    page.locator("#limit").fill("")
    page.locator("#limit").press("Enter")
    expected = pick(view.trials, rule=PickRule.KNEE, lossy=view.lossy)
    assert expected is not None
    expect_pick(page, expected.number)


def test_every_limit_has_the_pick_of_the_command(looking: Looking, report: Any, places: Places) -> None:
    with Store.open(places.database, create=False) as store:
        view = view_of(store, store.study("usual"), places)
    every_pick(ready(looking(report("usual"))), view)


def test_every_limit_has_the_pick_of_the_command_on_a_recorded_study(looking: Looking, recorded: Any) -> None:
    view, address = recorded
    every_pick(ready(looking(address)), view)


def test_kinds_can_be_hidden_and_values_of_a_flag_chosen(looking: Looking, report: Any) -> None:
    page = ready(looking(report("usual")))
    page.locator(".legend button[data-kind='front']").click()
    expect(page.locator(".mark.k-front.off[data-number]")).to_have_count(1)
    expect(page.locator(".legend button[data-kind='front']")).to_have_attribute("aria-pressed", "false")
    page.locator(".pc-value[data-value='max-num-seqs=512']").click()
    said = "3 configs with max-num-seqs 512: 3 with figures, best 3,400 tokens/s per GPU"
    expect(page.locator("#main [role=status]").first).to_have_text(re.compile(f"^{re.escape(said)}"))
    expect(page.locator(".pc:not(.dim)")).to_have_count(3)


def test_growth_load_servers_and_failures_are_there(looking: Looking, report: Any) -> None:
    page = ready(looking(report("usual")))
    expect(page.locator("figure .line-own")).to_have_count(2)
    expect(page.locator("figure .series")).to_have_count(1)  # the baseline's ramp
    for part in (
        "412,336",
        "KV cache too small",
        "Lower --max-model-len",
        "hang",
        "NVIDIA H100 80GB HBM3",
        "saved about 1 min 00 s",
    ):
        expect(page.locator("#main")).to_contain_text(part)
    page.locator("button", has_text="Compare with baseline").click()
    dialog = page.locator("dialog[open]")
    dialog.locator("text=B against A").wait_for()
    expect(dialog).to_contain_text("better")


def test_a_simulated_study_is_marked_on_every_picture(looking: Looking, report: Any) -> None:
    page = ready(looking(report("simulated")))
    figures = page.locator("figure svg:visible")
    figures.nth(4).wait_for()
    for place in range(figures.count()):
        expect(figures.nth(place).locator(".watermark")).to_have_count(1)
    page.locator(".mark.k-pick[data-number]").click()
    page.locator("dialog[open] .tag.sim").wait_for()


STATES = {
    "empty": "No trial was launched yet",
    "one": "this is the baseline itself",
    "infeasible": "No trial could be measured",
    made_studies.LONG: "Pick: trial 1",
    "hostile": made_studies.HOSTILE,
}
"""What each state has to say, whatever else it shows."""

AXES = """[...document.querySelectorAll("figure.chart svg > g[aria-hidden]")]
    .map((axis) => [...axis.querySelectorAll(":scope > text:not(.axis)")].map((label) => label.textContent))
    .filter((labels) => labels.length)"""
"""The labels of every axis: two alike would say that a number stands in two places."""


@pytest.mark.parametrize("name", list(STATES))
@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
def test_no_state_breaks_the_page_or_its_width(looking: Looking, report: Any, name: str, viewport: Any) -> None:
    page = ready(looking(report(name), viewport=viewport))
    expect(page.locator("#main")).to_contain_text(STATES[name])
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    axes = page.evaluate(AXES)
    assert [labels for labels in axes if len(labels) != len(set(labels))] == []
    assert axes or name in ("empty", "infeasible")  # the others have pictures to look at


def test_hostile_words_stay_words_everywhere(looking: Looking, report: Any) -> None:
    page = ready(looking(report("hostile")))
    for number in ("1", "2"):
        page.locator(f".mark[data-number='{number}']").hover()
        page.locator(f".mark[data-number='{number}']").click()
        page.locator("dialog[open] >> text=Settings").first.wait_for()
        page.keyboard.press("Escape")
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("[window.hacked, document.querySelectorAll('img, script:not([src])').length]") == [None, 3]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(looking: Looking, report: Any, scheme: str) -> None:
    page = ready(looking(report("usual"), scheme=scheme))
    assert axe.violations(page) == []
    page.locator(".mark.k-pick[data-number]").click()
    page.locator("dialog[open] >> text=Figures with").wait_for()
    assert axe.violations(page) == []


def test_light_and_dark_can_be_switched(looking: Looking, report: Any) -> None:
    page = ready(looking(report("one"), scheme="dark"))
    expect(page.locator("body")).to_have_css("background-color", "rgb(17, 19, 21)")
    page.locator("button[aria-label='Switch between light and dark']").click()
    expect(page.locator("body")).to_have_css("background-color", "rgb(252, 252, 251)")


def test_axe_is_the_one_that_its_makers_published() -> None:
    assert hashlib.sha256(axe.AXE.read_bytes()).hexdigest() == axe.SHA256
