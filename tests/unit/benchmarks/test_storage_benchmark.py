"""The storage benchmark ends with 1 where anything was lost."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.storage import is_whole

WHOLE: dict[str, Any] = {"lost": 0, "duplicated": 0, "errors": [], "integrity": "ok"}


@pytest.mark.parametrize(
    "wrong", [{"lost": 1}, {"duplicated": 1}, {"errors": ["StorageLocked: held"]}, {"integrity": "row 3 missing"}]
)
def test_anything_lost_is_seen(wrong: dict[str, Any]) -> None:
    assert is_whole(WHOLE)
    assert not is_whole({**WHOLE, **wrong})
