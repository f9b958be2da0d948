"""Frozen records to JSON and back, driven by their type hints; pure.

Every dataclass of `autotune.records` makes the round trip exactly: tuples come back as tuples, enums as enums, None as
None, and 1, 1.0 and True stay three different values. A key that this version does not know is ignored, so that an
older program can still show what a newer one stored beside it; a missing key takes the field's default.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""What `json.dumps` takes; non-finite floats never occur in it."""

_NON_FINITE = "$float"
"""JSON has no NaN and no infinity, and PostgreSQL refuses Python's spelling: they travel as {"$float": "inf"}."""


class UndecodableRecord(ValueError):
    """Stored JSON that does not fit its record; `path` leads to the value, e.g. `measurements[0].level`."""

    def __init__(self, path: str, value: object, wanted: str) -> None:
        super().__init__(f"{path or 'record'}: {value!r:.80} is not {wanted}")
        self.path, self.value, self.wanted = path, value, wanted


def encode(value: object) -> Json:
    """JSON of a record, or of anything a record may hold.

    Raises:
        TypeError: for a type that no record holds.
    """
    match value:
        case Enum():
            return encode(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {_NON_FINITE: repr(value)}
        case datetime():
            if value.tzinfo is None:
                raise TypeError(f"{value!r} has no time zone; records hold UTC")
            return value.astimezone(UTC).isoformat()
        case list() | tuple():
            return [encode(item) for item in value]
        case Mapping():
            return {str(key): encode(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is not something that records hold")


def decode(record: type[Record], data: object) -> Record:
    """The record that `encode` made `data` from.

    Raises:
        UndecodableRecord: when `data` does not fit; names the value and where it stands.
    """
    return cast(Record, _value(record, data, ""))


def decode_value(data: object) -> Any:
    """Free JSON (a `spec`, a `details` mapping) with non-finite floats restored."""
    if isinstance(data, dict):
        if _is_non_finite(data):
            return float(data[_NON_FINITE])
        return {key: decode_value(item) for key, item in data.items()}
    if isinstance(data, list):
        return [decode_value(item) for item in data]
    return data


def _is_non_finite(data: dict[str, Any]) -> bool:
    return data.keys() == {_NON_FINITE} and data[_NON_FINITE] in ("nan", "inf", "-inf")


@cache
def _fields(record: type) -> tuple[tuple[str, Any, bool], ...]:
    """Name and type of each field of a dataclass, and whether it has no default."""
    hints = get_type_hints(record)
    missing = dataclasses.MISSING
    return tuple(
        (field.name, hints[field.name], field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(record)
    )


def _value(hint: Any, data: object, path: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _union(get_args(hint), data, path)
    if origin is tuple:
        return _tuple(get_args(hint), data, path)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(get_args(hint), data, path)
    if hint is Any or hint is object:
        return decode_value(data)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _record(hint, data, path)
    return _scalar(hint, data, path)


def _record(record: type, data: object, path: str) -> Any:
    if not isinstance(data, dict):
        raise UndecodableRecord(path, data, f"a {record.__name__}")
    values = {}
    for name, hint, required in _fields(record):
        at = f"{path}.{name}" if path else name
        if name in data:
            values[name] = _value(hint, data[name], at)
        elif required:
            raise UndecodableRecord(at, None, "there, and it has no default")
    return record(**values)


def _union(options: tuple[Any, ...], data: object, path: str) -> Any:
    if data is None and type(None) in options:
        return None
    concrete = [option for option in options if option is not type(None)]
    # Exact types first: in `bool | int | float | str` the value True must not become the int 1.
    for option in concrete:
        if option is type(data):
            return data
    failure: UndecodableRecord | None = None
    for option in concrete:
        try:
            return _value(option, data, path)
        except UndecodableRecord as error:
            # The option that got furthest explains best what is wrong.
            if failure is None or len(error.path) > len(failure.path):
                failure = error
    raise failure or UndecodableRecord(path, data, "None")


def _tuple(items: tuple[Any, ...], data: object, path: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise UndecodableRecord(path, data, "a list")
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(_value(items[0], item, f"{path}[{index}]") for index, item in enumerate(data))
    if len(items) != len(data):
        raise UndecodableRecord(path, data, f"a list of {len(items)}")
    return tuple(
        _value(hint, item, f"{path}[{index}]") for index, (hint, item) in enumerate(zip(items, data, strict=True))
    )


def _mapping(items: tuple[Any, ...], data: object, path: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise UndecodableRecord(path, data, "a mapping")
    hint = items[1] if items else Any
    return {key: _value(hint, item, f"{path}.{key}" if path else key) for key, item in data.items()}


def _scalar(hint: Any, data: object, path: str) -> Any:
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(data)
        except ValueError:
            raise UndecodableRecord(path, data, f"one of {', '.join(str(m.value) for m in hint)}") from None
    if hint is datetime and isinstance(data, str):
        try:
            return datetime.fromisoformat(data)
        except ValueError:
            raise UndecodableRecord(path, data, "an ISO 8601 time") from None
    if hint is float:
        if isinstance(data, dict) and _is_non_finite(data):
            return float(data[_NON_FINITE])
        # A float field may hold a whole number that Python made an int; it stays what it was.
        if isinstance(data, int | float) and not isinstance(data, bool):
            return data
    elif type(data) is hint:
        return data
    raise UndecodableRecord(path, data, f"a {getattr(hint, '__name__', hint)}")
