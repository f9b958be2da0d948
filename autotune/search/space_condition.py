"""Conditions of a search-space file, turned into the values of the other parameter that meet them. Pure.

A condition is a value (`true`), a list of values (`[2, 4]`), or a comparison in quotes (`"> 1"`).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence

from autotune.errors import InvalidFile
from autotune.records import Value
from autotune.search.parameter import Conditions, Parameter, is_number, same_value, spell_all, value_key

_COMPARISON = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(.*?)\s*", re.DOTALL)
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", re.IGNORECASE | re.ASCII)
_MOST_DIGITS = 19
"""Of a whole number; YAML's own have 64 bits, and Python reads no number of thousands of digits."""
_ORDER: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}


def resolve(
    wanted: Value | Sequence[Value], known: tuple[Value, ...], *, other: str, place: tuple[str, str]
) -> tuple[Value, ...]:
    """Those of `known`, the values that `other` can have, that meet a condition.

    Args:
        place: file and key path, for errors.

    Raises:
        InvalidFile: a value that `other` cannot have, no comparison, or one that no value meets.
    """
    file, key = place
    shown = spell_all(known)
    if isinstance(wanted, str) and not any(same_value(wanted, one) for one in known):
        compared = _COMPARISON.fullmatch(wanted)
        if compared is not None:
            met = _compared(compared[1], compared[2], known, other=other, place=place)
            if not met:
                raise InvalidFile(file, key, wanted, f"a condition that {other} can meet; it has {shown}")
            return met
    values = (wanted,) if isinstance(wanted, str) or not isinstance(wanted, Sequence) else tuple(wanted)
    for value in values:
        if not any(same_value(value, one) for one in known):
            raise InvalidFile(file, key, value, f'values of {other}: {shown}; or a comparison such as "> 1"')
    if not values:
        raise InvalidFile(file, key, [], f"at least one of the values of {other}: {shown}")
    return values


def _compared(
    sign: str, text: str, known: tuple[Value, ...], *, other: str, place: tuple[str, str]
) -> tuple[Value, ...]:
    operand = _operand(text)
    if sign in ("==", "!="):
        if not any(same_value(operand, one) for one in known):
            raise InvalidFile(*place, f"{sign} {text}", f"a comparison with a value of {other}: {spell_all(known)}")
        return tuple(one for one in known if same_value(operand, one) == (sign == "=="))
    if not is_number(operand) or not any(map(is_number, known)):
        raise InvalidFile(*place, f"{sign} {text}", f"{sign} between numbers; {other} has {spell_all(known)}")
    holds = _ORDER[sign]
    # A value that is no number (null: vLLM's own default) is on neither side of any.
    return tuple(one for one in known if is_number(one) and holds(one, operand))


def _operand(text: str) -> Value:
    if text in _WORDS:
        return _WORDS[text]
    if _NUMBER.fullmatch(text):
        whole = len(text) <= _MOST_DIGITS and not any(sign in text for sign in ".eE")
        return int(text) if whole else float(text)
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


def impossible(
    parameter: Parameter, by_name: Mapping[str, Parameter], fixed: Mapping[str, Value]
) -> tuple[str, str] | None:
    """Where a parameter's conditions contradict each other, or those of the parameters they name; None when not.

    Returns:
        The key of the condition below the parameter, and the name that would need two values at once.
    """
    for key, conditions in parameter.condition_groups:
        torn = _contradiction((*parameter.when, *conditions), by_name, fixed)
        if torn is not None:
            return key, torn
    return None


def _contradiction(conditions: Conditions, by_name: Mapping[str, Parameter], fixed: Mapping[str, Value]) -> str | None:
    """The name for which no value is left once everything that must hold is put together."""
    left: dict[str, set[tuple[bool, Value]]] = {}
    waiting = list(conditions)
    while waiting:
        other, values = waiting.pop()
        keys = {value_key(value) for value in values}
        if other not in left:
            known = by_name[other].choices if other in by_name else (fixed[other],)
            left[other] = {value_key(value) for value in known}
            # For the other to have a value at all, its own conditions hold too.
            waiting += by_name[other].when if other in by_name else ()
        left[other] &= keys
        if not left[other]:
            return other
    return None
