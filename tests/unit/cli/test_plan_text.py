"""`autotune plan` as people read it: on a narrow terminal, and where the prediction is near its limit."""

from __future__ import annotations

from pathlib import Path

from autotune.cli.plan_text import plan_report
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.recipe import Recipe
from autotune.report.tables import as_text

QWEN = "Qwen/Qwen3-32B"


def plan_of(home: Path, node: str, model: str) -> StudyPlan:
    here = Surroundings(environ={}, home=home, probe=None, shm_bytes=None, has_kfd=False, cache_dir=home / "cache")
    return make_plan(Recipe(name="s", model=model, workload="code", node=node), here)


def layout_part(text: str) -> list[str]:
    return text.partition("Layouts in the order")[2].partition("Tried first")[0].splitlines()


def test_layouts_stand_in_80_columns_with_their_reasons_below(tmp_path: Path) -> None:
    lines = layout_part(as_text(plan_report(plan_of(tmp_path, "6xRTX3090-24GB-PCIe", QWEN), every=True), width=80))
    assert max(len(line.rstrip()) for line in lines) <= 80
    row = next(line for line in lines if line.startswith("0 "))
    # Every figure of a row stands in its one line.
    assert row.split()[1:10] == ["TP", "2", "x", "PP", "3", "x", "DP", "1", "6"]
    assert any(line.startswith("TP 2 x PP 3 x DP 1  the baseline's") for line in lines)


def test_what_is_admitted_within_the_error_of_the_prediction_is_said(tmp_path: Path) -> None:
    near = as_text(plan_report(plan_of(tmp_path, "6xRTX3090-24GB-PCIe", QWEN), every=True))
    (row,) = [line for line in layout_part(near) if "TP 1 x PP 3 x DP 1" in line]
    assert row.split()[-2:] == ["0", "0.0"]
    assert "Below one request a server is predicted not to start" in near
    roomy = as_text(plan_report(plan_of(tmp_path, "1xH200-141GB", QWEN), every=True))
    assert "Below one request" not in roomy


def test_no_arrow_points_at_nothing(tmp_path: Path) -> None:
    text = as_text(plan_report(plan_of(tmp_path, "1xH100-80GB", "openai/gpt-oss-120b"), every=True))
    assert "saves memory, not arithmetic" in text
    assert not any(line.rstrip().endswith("→") for line in text.splitlines())
