"""What was worked out of a study's trials, kept while the same trials are asked about again. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TypeVar

from autotune.records import Trial

Found = TypeVar("Found")

_KEPT = 2
"""Studies; front, pick and certainty of one are asked for in turn, and each asks for the same again."""


def remembered(function: Callable[[Sequence[Trial]], Found]) -> Callable[[Sequence[Trial]], Found]:
    """The function, worked out once for a tuple of trials, which nobody can change. For results nobody changes either.

    By identity: comparing 10,000 trials with others would take longer than most of what is worked out of them.
    """
    kept: deque[tuple[tuple[Trial, ...], Found]] = deque(maxlen=_KEPT)

    @wraps(function)
    def found(trials: Sequence[Trial]) -> Found:
        if not isinstance(trials, tuple):
            return function(trials)
        for seen, result in tuple(kept):
            if seen is trials:
                return result
        result = function(trials)
        kept.append((trials, result))
        return result

    return found
