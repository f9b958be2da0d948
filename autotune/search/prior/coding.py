"""Configs as points, so that a distance between them means something. Pure.

A parameter of numbers has one coordinate, 0..1 over its choices: by logarithm where the largest is four times the
smallest or more (sizes double from choice to choice), else as they are (shares of memory). It may hold a value that is
no choice, as vLLM's own default often is. Any other parameter has one coordinate per choice, so that any two are one
apart. A parameter that a config lacks, or leaves to vLLM, has a coordinate for that.

Behind those stand marks, 1 or 0, one for each choice: whether a config has it. Distance says that neighbours are alike;
marks are for what one choice does by itself. A value that is no choice has no mark.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.records import Config, Value
from autotune.search.parameter import Parameter, is_number, value_key
from autotune.search.prior.expectation import Floats
from autotune.search.space import SearchSpace

MARK, LAYOUT_MARK = -1, -2
"""Groups of the marks of choices: of any parameter, and of one that lays the model out over GPUs."""

LAYOUT = frozenset(
    {
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "data-parallel-size",
        "enable-expert-parallel",
        "all2all-backend",
    }
)

_LOG_FROM = 4.0
_APART = math.sqrt(0.5)
"""One-hot coordinates of this size lie 1 apart."""
_BEYOND = 0.5
"""How far outside 0..1 a value that is no choice may lie."""


class Coder:
    """Turns configs of one space into coordinates.

    Attributes:
        groups: for each coordinate, the place of its parameter in `names`; below 0 for marks.
        owners: for each mark, the place of its parameter.
        marks: which coordinates are marks.
        names: parameters that have more than one choice, or whose only choice a config may lack.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._columns = tuple(_Column(parameter) for parameter in space.parameters if len(parameter.choices) > 1)
        self.names = tuple(column.name for column in self._columns)
        places = np.arange(len(self._columns))
        self.owners: NDArray[np.intp] = np.repeat(places, [column.choices for column in self._columns])
        kinds = np.array([LAYOUT_MARK if name in LAYOUT else MARK for name in self.names], dtype=np.intp)
        self.groups: NDArray[np.intp] = np.concatenate(
            [np.repeat(places, [column.width for column in self._columns]), kinds[self.owners]]
        )
        self.marks: NDArray[np.bool_] = self.groups < 0

    def pull(self, names: Collection[str]) -> Floats:
        """A direction: 1 along the numbers of each of these parameters, 0 along everything else."""
        found = np.zeros(len(self.groups))
        for place, column in enumerate(self._columns):
            if column.name in names and column.is_ordered:
                found[np.flatnonzero(self.groups == place)[0]] = 1.0
        return found

    def encode(self, configs: Sequence[Config]) -> Floats:
        """Coordinates, shape (configs, coordinates)."""
        given = [config.as_dict() for config in configs]
        parts = [column.encode(given) for column in self._columns]
        if not parts:
            return np.zeros((len(configs), 0))
        coordinates = [part[:, : column.width] for part, column in zip(parts, self._columns, strict=True)]
        marks = [part[:, column.width :] for part, column in zip(parts, self._columns, strict=True)]
        return np.hstack([*coordinates, *marks])


class _Column:
    """One parameter's coordinates."""

    def __init__(self, parameter: Parameter) -> None:
        self.name = parameter.name
        numbers = sorted(float(choice) for choice in parameter.choices if is_number(choice))
        named = [choice for choice in parameter.choices if choice is not None]
        self.is_ordered = len(numbers) == len(named) >= 2
        self._log = self.is_ordered and numbers[0] > 0 and numbers[-1] >= _LOG_FROM * numbers[0]
        self._low, self._high = (self._scaled(numbers[0]), self._scaled(numbers[-1])) if self.is_ordered else (0.0, 1.0)
        self._places = {value_key(choice): place for place, choice in enumerate(named)}
        self._marks = {value_key(choice): place for place, choice in enumerate(parameter.choices)}
        self.choices = len(parameter.choices)
        self.width = 2 if self.is_ordered else len(named) + 1

    def encode(self, given: Sequence[dict[str, Value]]) -> Floats:
        """Coordinates, then marks."""
        known: dict[tuple[bool, Value], int] = {}
        rows: list[list[float]] = []
        places = np.empty(len(given), dtype=np.intp)
        for index, values in enumerate(given):
            key = value_key(values.get(self.name))
            place = known.get(key)
            if place is None:
                place = known[key] = len(rows)
                mark = self._marks.get(key, -1)
                rows.append([*self._row(key[1]), *(float(one == mark) for one in range(self.choices))])
            places[index] = place
        return np.array(rows).reshape(-1, self.width + self.choices)[places]

    def _row(self, value: Value) -> list[float]:
        if self.is_ordered:
            if not is_number(value) or (self._log and value <= 0):
                return [0.5, 1.0]
            share = (self._scaled(float(value)) - self._low) / (self._high - self._low)
            return [min(1.0 + _BEYOND, max(-_BEYOND, share)), 0.0]
        row = [0.0] * self.width
        row[self._places.get(value_key(value), self.width - 1)] = _APART
        return row

    def _scaled(self, value: float) -> float:
        return math.log(value) if self._log else value
