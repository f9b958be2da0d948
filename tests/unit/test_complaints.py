"""What is wrong with an input names what there may be, and no class of ours."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from autotune.complaints import Complaint, complaints
from autotune.recipe import StudyFile
from autotune.web.wanted import NewStudy, Rollback

LOAD = "keys concurrency, rate_rps, requests"


def complained(model: Any, raw: dict[str, Any]) -> Complaint:
    with pytest.raises(ValidationError) as found:
        model.model_validate(raw)
    (one,) = complaints(found.value, raw, model)
    return one


@pytest.mark.parametrize("model", [StudyFile, NewStudy])
@pytest.mark.parametrize(
    ("load", "key", "allowed"),
    [({"rate": 4}, "load.rate", LOAD), ("rate=4", "load", f"a mapping with {LOAD}")],
)
def test_keys_of_a_mapping_inside_are_told(model: Any, load: object, key: str, allowed: str) -> None:
    one = complained(model, {"model": "m", "load": load})
    assert (one.key, one.allowed) == (key, allowed)


def test_keys_of_the_top_are_told() -> None:
    assert complained(Rollback, {"too": 1}).allowed == "keys to, reason, author"
