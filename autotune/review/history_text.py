"""The history of promotions for people and as JSON, and what differs between two of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.promote.history import Entry, PromotedFile
from autotune.promote.rendering import CHECKSUM, gate_summary, rate_text, seconds_text, unverified_mark
from autotune.records import Value
from autotune.report.grid import add, column, grid, titled
from autotune.report.wording import MISSING, printable, setting

SCHEMA = 1


def history_table(shown: Sequence[Entry], current: frozenset[str]) -> RenderableType:
    """One row a promotion, newest first; `current` holds the labels of what runs today."""
    if not shown:
        return Text("Nothing was promoted yet.\n")
    table = grid()
    for head in ("promotion", "", "from", "output per GPU, TTFT p95", "gate", "when, by whom, why"):
        column(table, head, whole=head == "promotion")
    for entry in reversed(shown):
        promotion = entry.promotion
        unverified = unverified_mark(promotion.gate)
        marks = [
            *(["runs today"] if entry.label in current else []),
            *([unverified] if unverified else []),
            *(["SIMULATED"] if promotion.simulated else []),
        ]
        back = f", back to version {promotion.restores}" if promotion.restores is not None else ""
        when = promotion.created_at.isoformat(sep=" ", timespec="minutes")
        add(
            table,
            entry.label,
            ", ".join(marks),
            f"trial {promotion.trial} of {promotion.study}{back}",
            f"{rate_text(promotion.output_tok_s_per_gpu)}, {seconds_text(promotion.ttft_p95_s)}",
            Text(gate_summary(promotion.gate), style="yellow" if unverified else ""),
            f"{when}, {promotion.author or MISSING}: {promotion.reason or MISSING}",
            style="bold" if entry.label in current else None,
        )
    return titled("Promotions", table)


def history_document(shown: Sequence[Entry], current: frozenset[str]) -> dict[str, Any]:
    """Oldest first, each with its whole record but for the files' texts."""
    return {"schema": SCHEMA, "promotions": [_entry(entry, current) for entry in shown]}


def _entry(entry: Entry, current: frozenset[str]) -> dict[str, Any]:
    document = entry.promotion.as_document()
    files = [{key: value for key, value in file.items() if key != "text"} for file in document["files"]]
    place = {"label": entry.label, "version": entry.version, "current": entry.label in current}
    return {**place, "directory": entry.directory, **document, "files": files}


# --- differences ----------------------------------------------------------------------------------------------------

_FACTS = ("model", "vllm_version", "study", "trial", "node", "workload", "gpus")


def flag_differences(a: Entry, b: Entry) -> tuple[tuple[str, Value, Value], ...]:
    """(parameter, of A, of B); None is vLLM's default. Variables are `env:NAME`."""
    one, other = a.promotion.config.as_dict(), b.promotion.config.as_dict()
    names = sorted(one.keys() | other.keys())
    return tuple((name, one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name))


def fact_differences(a: Entry, b: Entry) -> tuple[tuple[str, str, str], ...]:
    """(fact, of A, of B) of what else the two differ in."""
    pairs = [(name, getattr(a.promotion, name), getattr(b.promotion, name)) for name in _FACTS]
    return tuple((name, str(one), str(other)) for name, one, other in pairs if one != other)


def file_differences(a: Entry, b: Entry) -> tuple[tuple[str, str], ...]:
    """(path, unified difference) of the files that differ below their heads, which say when and from what."""
    one, other = ({file.path: file for file in entry.promotion.files} for entry in (a, b))
    found = []
    for path in sorted(one.keys() | other.keys()):
        text = "".join(_difference(path, a, one.get(path), b, other.get(path)))
        if text:
            found.append((path, text))
    return tuple(found)


def _difference(path: str, a: Entry, old: PromotedFile | None, b: Entry, new: PromotedFile | None) -> Iterator[str]:
    if old is None or new is None:
        return iter((f"{path}: only in {b.label if old is None else a.label}\n",))
    if old.text is None or new.text is None:
        same = old.sha256 == new.sha256
        return iter(() if same else (f"{path}: the text of one of them was not kept\n",))
    return difflib.unified_diff(
        _body(old), _body(new), fromfile=f"{a.label}/{path}", tofile=f"{b.label}/{path}", lineterm="\n"
    )


def _body(file: PromotedFile) -> list[str]:
    text = file.text or ""
    _, found, rest = text.partition(f"\n{CHECKSUM}")
    return (rest.partition("\n")[2] if found else text).splitlines(keepends=True)


def diff_text(a: Entry, b: Entry) -> Group:
    """For people: flags, other facts, files."""
    parts: list[RenderableType] = []
    for letter, entry in (("A", a), ("B", b)):
        promotion = entry.promotion
        parts.append(
            Text(f"{letter}: {printable(entry.label)}, trial {promotion.trial} of study {printable(promotion.study)}")
        )
    parts.append(Text())
    flags, facts = flag_differences(a, b), fact_differences(a, b)
    table = grid()
    for head in ("flag", "A", "B"):
        column(table, head)
    for name, old, new in flags:
        add(table, name, *("vLLM's default" if value is None else setting(name, value) for value in (old, new)))
    for name, was, now in facts:
        add(table, name, was, now)
    parts.append(titled("Differences", table) if flags or facts else Text("Both run with the same flags.\n"))
    for _, text in file_differences(a, b):
        parts += [Text("\n".join(map(printable, text.splitlines()))), Text()]
    return Group(*parts)


def diff_document(a: Entry, b: Entry) -> dict[str, Any]:
    """`diff --json`."""
    return {
        "schema": SCHEMA,
        "a": a.label,
        "b": b.label,
        "flags": [{"name": name, "a": old, "b": new} for name, old, new in flag_differences(a, b)],
        "facts": [{"name": name, "a": old, "b": new} for name, old, new in fact_differences(a, b)],
        "files": [{"path": path, "diff": text} for path, text in file_differences(a, b)],
    }
