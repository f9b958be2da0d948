"""What can be turned in a space: its parameters; layout flags together, as one can seldom be turned alone. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.records import Config, Value
from autotune.search.parameter import Parameter, value_key
from autotune.search.space import SearchSpace

LAYOUT = "layout"
"""The knob of these flags, where a space has several of them."""
LAYOUT_FLAGS = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "enable-expert-parallel")

Values = tuple[tuple[str, Value], ...]
Key = tuple[tuple[str, tuple[bool, Value]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """Parameters that are turned together.

    Attributes:
        columns: their places in the space.
        dependent: places of parameters that come and go with them.
    """

    name: str
    parameters: tuple[Parameter, ...]
    columns: tuple[int, ...]
    dependent: frozenset[int]


def knobs(space: SearchSpace) -> tuple[Knob, ...]:
    """Everything that can be turned: what has one choice only, and is always there, is left out."""
    places = {one.name: place for place, one in enumerate(space.parameters)}
    loose = [one for one in space.parameters if len(one.choices) > 1 or one.conditional]
    layout = [one for one in loose if one.name in LAYOUT_FLAGS]
    groups = [(LAYOUT, layout)] if len(layout) > 1 else []
    groups += [(one.name, [one]) for one in loose if len(layout) < 2 or one not in layout]
    return tuple(
        Knob(
            name=name,
            parameters=tuple(own),
            columns=tuple(places[one.name] for one in own),
            dependent=frozenset(places[name] for name in _descendants(space, {one.name for one in own})),
        )
        for name, own in groups
    )


def value_of(knob: Knob, config: Config) -> Values:
    """What a config has for a knob."""
    values = config.as_dict()
    return tuple((one.name, values[one.name]) for one in knob.parameters if one.name in values)


def key_of(values: Values) -> Key:
    """Equal for the same values: 1 and true are not, a flag left to vLLM and one that is not named are."""
    return tuple((name, value_key(value)) for name, value in values if value is not None)


def _descendants(space: SearchSpace, names: set[str]) -> set[str]:
    found: set[str] = set()
    while True:
        more = {one.name for one in space.parameters if one.parents & (names | found)} - found - names
        if not more:
            return found
        found |= more
