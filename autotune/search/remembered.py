"""What was worked out of a study's trials, kept while the same trials are asked about again. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from autotune.records import Trial

Found = TypeVar("Found")
Others = ParamSpec("Others")

_KEPT = 4
"""Studies, or limits of one: front, pick and certainty are asked for in turn, and each asks for the same again."""


def remembered(
    function: Callable[Concatenate[Sequence[Trial], Others], Found],
) -> Callable[Concatenate[Sequence[Trial], Others], Found]:
    """The function, worked out once for a tuple of trials, which nobody can change. For results nobody changes either.

    By identity: comparing 10,000 trials with others would take longer than most of what is worked out of them. What
    else it is asked with is compared.
    """
    kept: deque[tuple[tuple[Trial, ...], object, Found]] = deque(maxlen=_KEPT)

    @wraps(function)
    def found(trials: Sequence[Trial], /, *args: Others.args, **kwargs: Others.kwargs) -> Found:
        if not isinstance(trials, tuple):
            return function(trials, *args, **kwargs)
        asked = (args, kwargs)
        for seen, known, result in tuple(kept):
            if seen is trials and known == asked:
                return result
        result = function(trials, *args, **kwargs)
        kept.append((trials, asked, result))
        return result

    return found
