"""Tables that take plain text: rich would read `[bold]` or `:smile:` in a study's name as markup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from autotune.report.wording import printable_lines


def titled(title: str, table: RenderableType) -> Group:
    """A table under its title; rich's own titles wrap at the width of a narrow table."""
    return Group(Text(title, style="bold"), table, Text())


def grid() -> Table:
    """A table with a ruled head; columns come by `column`."""
    return Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)


def column(table: Table, head: str, *, right: bool = False, whole: bool = False) -> None:
    """One column. Figures, and what one copies (`whole`), stay in one piece; words fold; nothing is cut off."""
    justify: Literal["right", "left"] = "right" if right else "left"
    table.add_column(Text(head), justify=justify, no_wrap=right or whole, overflow="fold")


def pairs() -> Table:
    """Names and values without rules."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def add(table: Table, *cells: str | Text, style: str | None = None) -> None:
    """One row; text is taken as it is, but for control characters."""
    table.add_row(*(Text(printable_lines(cell)) if isinstance(cell, str) else cell for cell in cells), style=style)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbroken:
    """A line to paste: `print_to` leaves it in one piece however narrow the terminal; elsewhere it folds."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(printable_lines(self.text), overflow="fold")


_LEAST_FOLDED = 16
"""Characters of a line of folded words below which a table of records is read more easily."""


def _narrowest(console: Console, table: Table) -> int:
    """Width that a table needs: figures and names in one piece, words folded to lines that can still be read."""
    width = 0
    for each in table.columns:
        cells = [each.header, *each.cells]
        sizes = [Measurement.get(console, console.options.update(width=10_000), cell) for cell in cells]
        if each.no_wrap:
            width += max(size.maximum for size in sizes)
        else:
            width += max(min(size.maximum, _LEAST_FOLDED) for size in sizes)
    return width + 2 * (len(table.columns) - 1)


def _as_records(table: Table) -> Group:
    """Every row as names and values below each other."""
    heads = [each.header for each in table.columns]
    parts: list[RenderableType] = []
    for row in zip(*(list(each.cells) for each in table.columns), strict=True):
        record = pairs()
        for head, cell in zip(heads, row, strict=True):
            record.add_row(head, cell)
        parts += [record, Text()]
    return Group(*parts[:-1])


def print_to(console: Console, renderable: RenderableType) -> None:
    """Print part by part, since rich would crop a line that is longer than its console, and columns to nothing."""
    if isinstance(renderable, Group):
        for part in renderable.renderables:
            print_to(console, part)
    elif isinstance(renderable, Unbroken):
        console.print(Text(printable_lines(renderable.text)), soft_wrap=True)
    elif isinstance(renderable, Table) and renderable.show_header and _narrowest(console, renderable) > console.width:
        console.print(_as_records(renderable))
    else:
        console.print(renderable)
