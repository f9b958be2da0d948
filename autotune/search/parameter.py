"""One parameter of a search space. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

from autotune.records import Value

Conditions = tuple[tuple[str, tuple[Value, ...]], ...]
"""(other parameter, values) pairs that must all hold: the other is active and has one of the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a space.

    Attributes:
        name: a flag of `vllm serve` without dashes, `env:NAME`, or `model` (the checkpoint that is served).
        choices: distinct values, in the file's order; None leaves vLLM's default (for `model`: the study's own).
        when: must all hold for this one to be active; empty: always active.
        when_any: where not empty, at least one of these must hold as well ("TP above 1, or DP above 1").
        lossy: other values of it change the numbers that the model computes, and so its answers.
    """

    name: str
    choices: tuple[Value, ...]
    why: str = ""
    when: Conditions = ()
    when_any: tuple[Conditions, ...] = ()
    lossy: bool = False

    @property
    def conditional(self) -> bool:
        """Whether there are configs without it."""
        return bool(self.when or self.when_any)

    @property
    def condition_groups(self) -> tuple[tuple[str, Conditions], ...]:
        """Its conditions under the keys that a file has them: `when`, `when_any[0]`, `when_any[1]`, ..."""
        return (("when", self.when), *((f"when_any[{index}]", group) for index, group in enumerate(self.when_any)))

    @property
    def parents(self) -> frozenset[str]:
        """The parameters, or fixed flags, that decide whether it is active."""
        return frozenset(other for _, conditions in self.condition_groups for other, _ in conditions)

    def is_active(self, values: Mapping[str, Value]) -> bool:
        """Whether its conditions hold for `values`, which lack what is inactive."""
        if not _all_hold(self.when, values):
            return False
        return not self.when_any or any(_all_hold(conditions, values) for conditions in self.when_any)


def same_value(one: Value, other: Value) -> bool:
    """Equal as flag values: 1 and 1.0 are the same, 1 and true are not."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def is_number(value: Value) -> TypeGuard[int | float]:
    """Whether a value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def value_key(value: Value) -> tuple[bool, Value]:
    """Equal for two values exactly where `same_value` holds; can be put into sets."""
    return isinstance(value, bool), value


def spell(value: Value) -> str:
    """A value as a file would write it."""
    return json.dumps(value)


def spell_all(values: tuple[Value, ...], most: int = 12) -> str:
    """Values for a message, the first ones of many."""
    shown = ", ".join(map(spell, values[:most]))
    return shown if len(values) <= most else f"{shown}, ... ({len(values)} values)"


def _all_hold(conditions: Conditions, values: Mapping[str, Value]) -> bool:
    return all(
        other in values and any(same_value(values[other], wanted) for wanted in allowed)
        for other, allowed in conditions
    )
