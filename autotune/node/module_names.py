"""Which modules a list of a quantised checkpoint means: names, parts of names, `*` patterns and `re:` patterns. Pure.

The lists come from files that anybody may have written, so patterns are bounded.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass

from autotune.errors import InvalidFile

_LONGEST_PATTERN = 200
_FEW_NAMES = 32
_MOST_PATTERNS = 512
_MOST_PREFIXES = 4096
_MOST_REPEATS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NameFilter:
    """Modules named by their whole path, a part of it, a `*` pattern or a `re:` pattern.

    Attributes:
        parts: whole paths or runs of their dotted parts.
        prefixes: what a path begins with.
        patterns: compiled; matched from the start of the path.
    """

    parts: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()

    def matches(self, name: str) -> bool:
        """Whether this dotted path is meant."""
        return (
            self._has_part(name)
            or name.startswith(self.prefixes)
            or any(pattern.match(name) for pattern in self.patterns)
        )

    def _has_part(self, name: str) -> bool:
        if len(self.parts) <= _FEW_NAMES:
            dotted = f".{name}."
            return any(f".{part}." in dotted for part in self.parts)
        # Some checkpoints list every layer's modules: looked up instead of searched for.
        pieces = name.split(".")
        return any(
            ".".join(pieces[i:j]) in self.parts for i in range(len(pieces)) for j in range(i + 1, len(pieces) + 1)
        )


def name_filter(names: Iterable[str], file: str, key: str) -> NameFilter:
    """The modules that `names` mean.

    Raises:
        InvalidFile: a pattern that could run for ever, or too many of them; `file` and `key` say where.
    """
    parts: set[str] = set()
    prefixes: set[str] = set()
    patterns: dict[str, re.Pattern[str]] = {}
    for name in names:
        if name.startswith("re:"):
            patterns[name] = _safe_pattern(name.removeprefix("re:"), file, key)
        elif name.endswith("*") and not set(name[:-1]) & set("*?["):
            prefixes.add(name[:-1])
        elif set(name) & set("*?["):
            patterns[name] = re.compile(fnmatch.translate(name[:_LONGEST_PATTERN]))
        else:
            parts.add(name.strip("."))
    if len(patterns) > _MOST_PATTERNS or len(prefixes) > _MOST_PREFIXES:
        seen = f"{len(patterns) + len(prefixes)} patterns"
        raise InvalidFile(file, key, seen, f"at most {_MOST_PATTERNS}, or {_MOST_PREFIXES} that end in *")
    return NameFilter(parts=frozenset(parts), prefixes=tuple(prefixes), patterns=tuple(patterns.values()))


def _safe_pattern(text: str, file: str, key: str) -> re.Pattern[str]:
    """Compiled; refuses what could run for ever: a repeated group, or many unbounded repeats in one pattern."""
    repeats_group = re.search(r"\)[*+{]", text) is not None
    if len(text) > _LONGEST_PATTERN or repeats_group or len(re.findall(r"[*+]|\{\d*,", text)) > _MOST_REPEATS:
        allowed = f"a pattern of at most {_LONGEST_PATTERN} characters and {_MOST_REPEATS} repeats, none of a group"
        raise InvalidFile(file, key, text, allowed)
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidFile(file, key, text, f"a regular expression ({error})") from None
