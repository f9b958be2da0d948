"""The storage benchmark ends with 1 where anything was lost."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.storage import is_whole, told

WHOLE: dict[str, Any] = {"lost": 0, "duplicated": 0, "errors": [], "integrity": "ok"}


@pytest.mark.parametrize(
    "wrong", [{"lost": 1}, {"duplicated": 1}, {"errors": ["StorageLocked: held"]}, {"integrity": "row 3 missing"}]
)
def test_anything_lost_is_seen(wrong: dict[str, Any]) -> None:
    assert is_whole(WHOLE)
    assert not is_whole({**WHOLE, **wrong})


def test_the_table_has_goals_where_there_are_some() -> None:
    times = {"list_s": 0.4, "status_s": 9.0, "pareto_s": 1.6, "pareto_slo_s": 9.0}
    found = {
        "trials": 10_000, "file_bytes": 105e6, **times, **{f"{name}_median": value for name, value in times.items()},
        "processes": 8, "written": 400, "writing_s": 3.0, "reads": 5, "lost": 0, "duplicated": 0, "errors": [],
        "verb_p50_ms": 2.0, "verb_p99_ms": 20.0, "integrity": "ok",
    }  # fmt: skip
    lines = told(found, 5)
    assert [line.split("goal ")[1] for line in lines if "goal" in line] == ["0.5: met", "1.5: missed"]
    assert sum("9.00" in line for line in lines) == 2
