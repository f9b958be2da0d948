"""Writes docs/database.md from the tables' own declarations: `python docs/generate_database.py [--check]`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from in_step import write_or_check
from sqlalchemy import Column, Table, UniqueConstraint
from sqlalchemy.types import JSON, BigInteger, Boolean, Double, Integer, String, Text, TypeEngine

from autotune.store.table_names import VERSION_TABLE
from autotune.store.tables import Base, UtcDateTime

TARGET = Path(__file__).with_name("database.md")
HEAD = f"""\
# Database

Written by `python docs/generate_database.py` from the tables themselves; a test keeps it in step.

One SQLite file, `autotune.db` in the studies folder, or PostgreSQL by URL ([storage.md](storage.md)). Read it beside a
running study as you like, and write nothing into it. For scripts `--json` of the commands is the steadier way: its form
has a version, while these tables change by migrations whenever that helps.

* Times are UTC; SQLite holds them without an offset. Durations are seconds, on the clock that stands beside them.
* JSON columns hold whole records, with the names that the fields have in `autotune/records/`. The columns beside them
  that can be sorted by are written with them. A number that is not finite is `{{"$float": "inf"}}`.
* Whatever belongs to a study is deleted with it.
* Tables without the prefix `autotune_` are Optuna's. They are a projection of ours for `optuna-dashboard`, made again
  when a study is taken up: what is changed there is lost. `{VERSION_TABLE}` holds the revision of ours,
  `alembic_version` that of Optuna's.
"""
KINDS: tuple[tuple[type[TypeEngine[Any]], str], ...] = (
    (BigInteger, "integer, 64 bits"),
    (Integer, "integer"),
    (Boolean, "boolean"),
    (Double, "number"),
    (JSON, "JSON"),
    (Text, "text"),
)
"""Subclasses come before what they are made from."""


def render() -> str:
    """The whole page."""
    sections = [HEAD]
    for mapper in sorted(Base.registry.mappers, key=lambda mapper: _order(mapper.local_table)):
        sections.append("\n".join(_section(mapper.local_table, mapper.class_)))
    return "\n".join(sections)


def _order(table: Any) -> int:
    """Of the declarations."""
    return list(Base.metadata.tables).index(table.name)


def _section(table: Any, declared: type) -> Iterator[str]:
    if not isinstance(table, Table):
        raise SystemExit(f"{declared.__name__} is not mapped to a table of its own")
    yield f"## {table.name}\n\n{' '.join((inspect.getdoc(declared) or '').split())}\n"
    unique = [
        ", ".join(f"`{column.name}`" for column in constraint.columns)
        for constraint in table.constraints
        if isinstance(constraint, UniqueConstraint) and len(constraint.columns) > 1
    ]
    if unique:
        yield f"Unique together: {'; '.join(sorted(unique))}.\n"
    yield "| column | type | | |"
    yield "|---|---|---|---|"
    for column in table.columns:
        yield f"| `{column.name}` | {_kind(column)} | {_marks(column)} | {_words(column)} |"
    yield ""


def _kind(column: Column[Any]) -> str:
    if isinstance(column.type, UtcDateTime):
        return "time"
    if isinstance(column.type, String) and not isinstance(column.type, Text):
        return f"text, at most {column.type.length}"
    return next(word for kind, word in KINDS if isinstance(column.type, kind))


def _marks(column: Column[Any]) -> str:
    marks = ["key"] if column.primary_key else []
    marks += [f"of [{key.column.table.name}](#{key.column.table.name})" for key in column.foreign_keys]
    marks += [word for word, given in (("unique", column.unique), ("indexed", column.index)) if given]
    marks += ["may be NULL"] if column.nullable else []
    return ", ".join(marks)


def _words(column: Column[Any]) -> str:
    if not column.doc:
        raise SystemExit(
            f"{column.table.name}.{column.name} has no `doc`: say in autotune/store/tables.py what it holds"
        )
    return column.doc.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, render(), sys.argv[1:], shows="the tables"))
