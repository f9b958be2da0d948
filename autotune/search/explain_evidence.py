"""Which values of a knob were measured, and beside which settings of the rest. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.search.explain_effect import Basis
from autotune.search.explain_model import Beliefs
from autotune.search.knob import Key, Knob, Values, key_of, value_of


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of one knob.

    Attributes:
        settings: for each measured value the settings of everything else that it was measured beside.
    """

    settings: dict[Key, set[Key]]

    @classmethod
    def of(cls, beliefs: Beliefs, knob: Knob) -> Evidence:
        """What measured servers say. Parameters that come and go with the knob are no part of the rest."""
        parameters = beliefs.question.space.parameters
        own = {one.name for one in knob.parameters} | {parameters[place].name for place in knob.dependent}
        settings: dict[Key, set[Key]] = {}
        for seen in beliefs.seen:
            if seen.logs is not None:
                rest = key_of(tuple((name, value) for name, value in seen.config if name not in own))
                settings.setdefault(key_of(value_of(knob, seen.config)), set()).add(rest)
        return cls(settings)

    def has(self, values: Values) -> bool:
        """Whether a measured trial has them."""
        return key_of(values) in self.settings

    def basis(self, a: Values, b: Values) -> Basis:
        """Of a difference between two values."""
        beside = [self.settings.get(key_of(one)) for one in (a, b)]
        if beside[0] is None or beside[1] is None:
            return Basis.EXPECTED
        return Basis.MEASURED if beside[0] & beside[1] else Basis.INFERRED
