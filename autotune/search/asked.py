"""What decides a study's pick: what this command asks for, else what the study was made with; pure.

Repeats, the report of a run and the reviewing commands all ask here, so that they speak of the same pick.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.records import PickRule, Slo
from autotune.search.objective import parse_slo


def asked_slo(spec: Mapping[str, Any], given: str | None) -> Slo | None:
    """The limit that the pick must meet.

    Args:
        spec: the stored study's.
        given: by this command, as text.

    Raises:
        InvalidOption: it cannot be read.
    """
    text = given or spec.get("slo")
    return parse_slo(text) if text else None


def asked_rule(spec: Mapping[str, Any], given: PickRule | None) -> PickRule:
    """How the pick is chosen where there is no limit."""
    return given or PickRule(spec.get("pick_rule", PickRule.KNEE))
