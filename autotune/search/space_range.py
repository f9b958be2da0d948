"""Ranges of a search-space file, turned into the finite list of values that they stand for. Pure."""

from __future__ import annotations

import math
from decimal import Decimal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt

from autotune.errors import InvalidFile
from autotune.records import Value

MAX_CHOICES = 1_000
"""Of one parameter. A finer grid tells values apart that no measurement can."""

_SIGNIFICANT_DIGITS = 6
_Number = StrictInt | StrictFloat


class RangeEntry(BaseModel):
    """A range is written as `low, high, step`, or as `low, high, log: true, points`."""

    model_config = ConfigDict(
        extra="forbid",
        title="Range",
        json_schema_extra={
            "oneOf": [
                {"required": ["step"], "not": {"anyOf": [{"required": ["points"]}, {"required": ["log"]}]}},
                {"required": ["log", "points"], "properties": {"log": {"const": True}}, "not": {"required": ["step"]}},
            ]
        },
    )

    low: _Number = Field(description="First value.")
    high: _Number = Field(description="Last value; with `step`, a whole number of steps above `low`.")
    step: _Number | None = Field(default=None, description="Distance between values.")
    log: StrictBool = Field(default=False, description="Even ratios instead of even distances; needs `points`.")
    points: StrictInt | None = Field(
        default=None,
        description="How many values with `log: true`. Between whole ends they are rounded, equal ones kept once.",
    )


def choices_of_range(entry: RangeEntry, *, file: str, key: str) -> tuple[Value, ...]:
    """The values, rising. Whole numbers where both ends (and the step) are written as whole numbers.

    Raises:
        InvalidFile: no rising range, neither of the two forms, or too many values.
    """

    def refuse(part: str, value: object, allowed: str) -> InvalidFile:
        return InvalidFile(file, f"{key}.{part}", value, allowed)

    if entry.low >= entry.high:
        raise refuse("high", entry.high, f"a number above low, which is {entry.low}")
    if entry.log:
        if entry.step is not None:
            raise refuse("step", entry.step, "points instead of a step with log: true")
        if entry.points is None or not 2 <= entry.points <= MAX_CHOICES:
            raise refuse("points", entry.points, f"with log: true, a whole number from 2 to {MAX_CHOICES:,}")
        if entry.low <= 0:
            raise refuse("low", entry.low, "a number above 0 with log: true")
        return _geometric(entry.low, entry.high, entry.points)
    if entry.points is not None:
        raise refuse("points", entry.points, "a step instead, or points together with log: true")
    if entry.step is None or entry.step <= 0:
        raise refuse("step", entry.step, "a number above 0, or log: true with points")
    # In decimals, so that 0.88 + 0.02 is 0.9 and not 0.9000000000000001.
    low, high, step = (Decimal(repr(number)) for number in (entry.low, entry.high, entry.step))
    steps = (high - low) / step
    if steps >= MAX_CHOICES:
        raise refuse("step", entry.step, f"a step that makes at most {MAX_CHOICES:,} values; or log: true with points")
    if steps != int(steps):
        nearest = low + int(steps) * step
        raise refuse("high", entry.high, f"low plus a whole number of steps, such as {nearest}")
    values = [low + index * step for index in range(int(steps) + 1)]
    whole = all(isinstance(number, int) for number in (entry.low, entry.step))
    return tuple(int(value) if whole else float(value) for value in values)


def _geometric(low: float, high: float, points: int) -> tuple[Value, ...]:
    ratio = math.log(high) - math.log(low)
    inner = [math.exp(math.log(low) + ratio * index / (points - 1)) for index in range(1, points - 1)]
    if isinstance(low, int) and isinstance(high, int):
        return tuple(dict.fromkeys([low, *(min(high, max(low, round(value))) for value in inner), high]))
    rounded = [float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for value in inner]
    kept = [value for value in rounded if low < value < high]
    return tuple(dict.fromkeys([float(low), *kept, float(high)]))
