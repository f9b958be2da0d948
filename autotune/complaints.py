"""What pydantic says against an input, a complaint a key, as people name keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """One key that cannot be used.

    Attributes:
        place: of the key, from the top: names, and 0-based positions in lists; empty for the top itself.
        kind: pydantic's name of the first thing that is wrong with it.
        seen: its value; where it is missing, what it is missing from.
        allowed: what it may be; where that are several kinds, all of them.
    """

    place: tuple[str | int, ...]
    kind: str
    seen: Any
    allowed: str

    @property
    def key(self) -> str:
        """The place with dots."""
        return ".".join(str(part) for part in self.place)


def complaints(error: ValidationError, raw: object) -> tuple[Complaint, ...]:
    """In pydantic's order; `raw` is what was validated.

    Where a value may be of several kinds, pydantic has a complaint for each, and names the kind in the place.
    """
    found: dict[tuple[str | int, ...], Complaint] = {}
    for one in error.errors(include_url=False, include_context=False):
        kind, allowed = one["type"], one["msg"].removeprefix("Value error, ")
        place = _place(one["loc"], raw, missing=kind == "missing")
        known = found.get(place)
        if known is not None:
            allowed = f"{known.allowed}, or {allowed.removeprefix('Input should be ')}"
        first = known or Complaint(place=place, kind=kind, seen=one.get("input"), allowed=allowed)
        found[place] = Complaint(place=place, kind=first.kind, seen=first.seen, allowed=allowed)
    return tuple(found.values())


def _place(location: tuple[str | int, ...], raw: object, *, missing: bool) -> tuple[str | int, ...]:
    """As much of a location as is in the input: what follows names a kind, and its last part a key that is missing."""
    here: Any = raw
    for depth, part in enumerate(location):
        if not _holds(here, part):
            return (*location[:depth], location[-1]) if missing else location[:depth]
        here = here[part]
    return location


def _holds(value: object, part: str | int) -> bool:
    if isinstance(value, Mapping):
        return part in value
    return isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)
