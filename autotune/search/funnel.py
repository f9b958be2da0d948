"""All configs of a space judged by rules, at the price of judging what differs. Pure.

A rule's verdict depends on the few parameters it reads; what it does not read multiplies. So the space is an array
with one axis per parameter, a rule is asked once per combination of what it reads that an earlier rule has left over,
and the answer is spread along the other axes. The result is that of asking every config one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.records import Config, Value
from autotune.search.parameter import same_value
from autotune.search.space import Parameter, SearchSpace

Verdict = Callable[[dict[str, Value]], tuple[int, str] | None]
"""From the values of some parameters (inactive ones missing) to the first rule of the question that refuses, by its
place in it, and the reason; None when none refuses."""

MAX_CELLS = 4_000_000
"""Combinations, inactive parameters counted as often as they are multiplied, that are held in one array."""

_MAX_AXES = 60  # numpy has at most 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Rules that read the same parameters, as the funnel asks them.

    Attributes:
        rules: name and row of each, in order.
        reads: names of the parameters that the verdict may depend on.
    """

    rules: tuple[tuple[str, str], ...]
    reads: frozenset[str]
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCount:
    """How many configs one rule refused of those that the rules before it had left, and how many are left now."""

    name: str
    row: str
    refused: int
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Funnel:
    """What is left of a space after every question.

    Attributes:
        size: configs of the space.
        counts: one per rule of the questions, in order.
        reasons: how many configs each reason refused, most first; a config counts for the first rule it breaks.
    """

    size: int
    counts: tuple[RuleCount, ...]
    reasons: tuple[tuple[str, int], ...]
    left: NDArray[np.bool_]
    space: SearchSpace

    @property
    def count(self) -> int:
        """Configs that nothing refused."""
        return int(np.count_nonzero(self.left))

    def configs(self) -> tuple[Config, ...]:
        """Those configs, in the space's order."""
        return tuple(_configs(self.space, self.left))

    def survives(self, values: Mapping[str, Value]) -> bool:
        """Whether any config with these values of some parameters is left."""
        index: list[object] = [slice(None)] * self.left.ndim
        for axis, parameter in enumerate(self.space.parameters):
            if parameter.name in values:
                wanted = values[parameter.name]
                found = [at for at, choice in enumerate(parameter.choices) if same_value(choice, wanted)]
                if not found:
                    return False
                index[axis] = found[0]
        return bool(self.left[tuple(index)].any())  # type: ignore[arg-type]  # slices and numbers, as numpy takes them


def fits_array(space: SearchSpace) -> bool:
    """Whether the space is small enough to be held in one array."""
    cells = 1
    for parameter in space.parameters:
        cells *= len(parameter.choices)
        if cells > MAX_CELLS:
            return False
    return len(space.parameters) <= _MAX_AXES


def ask_all(space: SearchSpace, questions: Sequence[Question]) -> Funnel:
    """Every config of `space` asked every question until one refuses it. The space must fit an array."""
    left = _distinct(space)
    size = int(np.count_nonzero(left))
    counts: list[RuleCount] = []
    reasons: dict[str, int] = {}
    for question in questions:
        axes = _with_parents(space, question.reads)
        refused = [0] * len(question.rules)
        for (rule, reason), cells in _asked(space, question, axes, left).items():
            where = left & _as_mask(space, axes, cells)
            number = int(np.count_nonzero(where))
            refused[rule] += number
            reasons[reason] = reasons.get(reason, 0) + number
            left &= ~where
        for (name, row), number in zip(question.rules, refused, strict=True):
            before = counts[-1].left if counts else size
            counts.append(RuleCount(name=name, row=row, refused=number, left=before - number))
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    return Funnel(size=size, counts=tuple(counts), reasons=tuple(ordered), left=left, space=space)


def _asked(
    space: SearchSpace, question: Question, axes: Sequence[int], left: NDArray[np.bool_]
) -> dict[tuple[int, str], list[tuple[int, ...]]]:
    """Refused combinations of what the question reads, by rule and reason, as indices along `axes`."""
    others = tuple(axis for axis in range(left.ndim) if axis not in axes)
    alive = np.argwhere(left.any(axis=others) if others else left)
    found: dict[tuple[int, str], list[tuple[int, ...]]] = {}
    for cell in alive.tolist():
        verdict = question.verdict(_values(space, axes, cell))
        if verdict is not None:
            found.setdefault(verdict, []).append(tuple(cell))
    return found


def _values(space: SearchSpace, axes: Sequence[int], cell: Sequence[int]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for axis, index in zip(axes, cell, strict=True):
        parameter = space.parameters[axis]
        if not parameter.conditional or space.is_active(parameter, values):
            values[parameter.name] = parameter.choices[index]
    return values


def _as_mask(space: SearchSpace, axes: Sequence[int], cells: Sequence[tuple[int, ...]]) -> NDArray[np.bool_]:
    """An array that is true for these combinations and broadcasts along all other axes."""
    sizes = [len(space.parameters[axis].choices) for axis in axes]
    mask = np.zeros(sizes, dtype=bool)
    if cells:
        mask[tuple(np.array(cells, dtype=np.intp).reshape(len(cells), len(axes)).T)] = True
    shape = [1] * len(space.parameters)
    for axis, size in zip(axes, sizes, strict=True):
        shape[axis] = size
    return mask.reshape(shape)


def _distinct(space: SearchSpace) -> NDArray[np.bool_]:
    """True once per config: an inactive parameter stands for its first choice only."""
    left = np.ones([len(parameter.choices) for parameter in space.parameters], dtype=bool)
    for axis, parameter in enumerate(space.parameters):
        if parameter.conditional:
            first = np.arange(len(parameter.choices)) == 0
            left &= _activity(space, parameter) | first.reshape([-1 if at == axis else 1 for at in range(left.ndim)])
    return left


def _activity(space: SearchSpace, parameter: Parameter) -> NDArray[np.bool_]:
    """Where `parameter` is active, broadcasting along the axes that do not decide it."""
    axes = _with_parents(space, parameter.parents)
    cells = np.ndindex(*(len(space.parameters[axis].choices) for axis in axes))
    active = [cell for cell in cells if space.is_active(parameter, _values(space, axes, cell))]
    return _as_mask(space, axes, active)


def _with_parents(space: SearchSpace, names: Iterable[str]) -> tuple[int, ...]:
    """Axes of the named parameters and of all that decide whether they are active, in the space's order."""
    axis_of = {parameter.name: axis for axis, parameter in enumerate(space.parameters)}
    waiting = [name for name in names if name in axis_of]
    found: set[int] = set()
    while waiting:
        axis = axis_of[waiting.pop()]
        if axis not in found:
            found.add(axis)
            waiting += [name for name in space.parameters[axis].parents if name in axis_of]
    return tuple(sorted(found))


def _configs(space: SearchSpace, left: NDArray[np.bool_]) -> Iterator[Config]:
    """The configs where `left` is true, in the space's order; equal pairs are one object."""
    at = np.nonzero(left)
    by_name = sorted(range(len(space.parameters)), key=lambda axis: space.parameters[axis].name)
    columns: list[NDArray[np.object_]] = []
    for axis in by_name:
        parameter = space.parameters[axis]
        pairs = np.empty(len(parameter.choices), dtype=object)
        pairs[:] = [None] * len(parameter.choices)
        for index, choice in enumerate(parameter.choices):
            pairs[index] = (parameter.name, choice)
        column = pairs[at[axis]]
        if parameter.conditional:
            active = np.broadcast_to(_activity(space, parameter), left.shape)[at]
            column[~active] = None
        columns.append(column)
    conditional = any(parameter.conditional for parameter in space.parameters)
    for pairs_of_one in zip(*columns, strict=True):
        kept = tuple(pair for pair in pairs_of_one if pair is not None) if conditional else pairs_of_one
        yield Config(params=kept)
