"""What pydantic says against an input, a complaint a key, as people name keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError


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


def complaints(error: ValidationError, raw: object, model: type[BaseModel]) -> tuple[Complaint, ...]:
    """In pydantic's order.

    Where a value may be of several kinds, pydantic has a complaint for each, and names the kind in the place.

    Args:
        raw: what was validated.
        model: by which: of a key that is none, and of what should be a mapping, the keys that there may be are told.
    """
    found: dict[tuple[str | int, ...], Complaint] = {}
    for one in error.errors(include_url=False, include_context=False):
        kind, allowed = one["type"], one["msg"].removeprefix("Value error, ")
        place = _place(one["loc"], raw, missing=kind == "missing")
        if kind == "extra_forbidden":
            allowed = _keys(_model_at(model, place[:-1])) or allowed
        elif kind == "model_type" and (keys := _keys(_model_at(model, place))):
            allowed = f"a mapping with {keys}"
        known = found.get(place)
        if known is not None:
            allowed = f"{known.allowed}, or {allowed.removeprefix('Input should be ')}"
        first = known or Complaint(place=place, kind=kind, seen=one.get("input"), allowed=allowed)
        found[place] = Complaint(place=place, kind=first.kind, seen=first.seen, allowed=allowed)
    return tuple(found.values())


def _keys(model: type[BaseModel] | None) -> str:
    """Empty where it is not known."""
    if model is None:
        return ""
    return f"keys {', '.join(field.alias or name for name, field in model.model_fields.items())}"


def _model_at(model: type[BaseModel], place: tuple[str | int, ...]) -> type[BaseModel] | None:
    """By what the mapping at a place is validated; None where that is no model."""
    found: type[BaseModel] | None = model
    for part in place:
        if isinstance(part, int):
            continue  # each of a list is of one kind
        field = found.model_fields.get(part) if found is not None else None
        found = model_in(field.annotation) if field is not None else None
    return found


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model among what a key may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (model_in(option) for option in getattr(annotation, "__args__", ()))
    return next((model for model in found if model is not None), None)


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
