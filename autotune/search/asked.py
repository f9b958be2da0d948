"""What decides a study's pick: what this command asks for, else what the study was made with; pure.

Repeats, the report of a run and the reviewing commands all ask here, so that they speak of the same pick.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.errors import InvalidOption
from autotune.records import Objective, PickRule, Slo
from autotune.slo_text import parse_slo


def asked_slo(spec: Mapping[str, Any], given: str | None) -> Slo | None:
    """The limit that the pick must meet.

    Args:
        spec: the stored study's.
        given: by this command, as text.

    Raises:
        InvalidOption: it cannot be read, or the study's goodput was searched under another.
    """
    stored = spec.get("slo")
    text = given or stored
    slo = parse_slo(text) if text else None
    if given and asked_objective(spec) is Objective.GOODPUT and stored and slo != parse_slo(stored):
        raise InvalidOption("--slo", given, f"{stored}, under which this study searched each config's goodput")
    return slo


def asked_objective(spec: Mapping[str, Any]) -> Objective:
    """What the study maximises; older ones do not say it and had no choice."""
    return Objective(spec.get("objective", Objective.THROUGHPUT))


def asked_limits(spec: Mapping[str, Any], given: str | None) -> Slo | None:
    """The limits that a sampler is to keep to. A goodput has its SLO inside, so that there are none beside it.

    Raises:
        InvalidOption: as `asked_slo`.
    """
    slo = asked_slo(spec, given)
    return None if asked_objective(spec) is Objective.GOODPUT else slo


def asked_lossy(spec: Mapping[str, Any]) -> frozenset[str]:
    """Parameters that the study's space says may change answers; none of a study that did not store its space."""
    space = spec.get("space")
    parameters = space.get("parameters", ()) if isinstance(space, Mapping) else ()
    return frozenset(str(one["name"]) for one in parameters if one.get("lossy"))


def asked_rule(spec: Mapping[str, Any], given: PickRule | None) -> PickRule:
    """How the pick is chosen where there is no limit."""
    return given or PickRule(spec.get("pick_rule", PickRule.KNEE))
