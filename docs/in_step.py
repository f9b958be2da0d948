"""A page that is written by a program: written anew, or compared with what it should be."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(target: Path, text: str, words: list[str], *, shows: str) -> int:
    """Write the page, or with `--check` say whether it is in step: exit status 0, or 1 when it is not.

    Args:
        shows: what the page is made from, for people.
    """
    if "--check" not in words:
        target.write_text(text, encoding="utf-8")
        return 0
    if target.exists() and target.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{target} is out of step with {shows}; run: python docs/{Path(sys.argv[0]).name}\n")
    return 1
