"""Tables that take plain text: rich would read `[bold]` or `:smile:` in a study's name as markup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
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


def print_to(console: Console, renderable: RenderableType) -> None:
    """Print part by part, since rich would crop a line that is longer than its console."""
    if isinstance(renderable, Group):
        for part in renderable.renderables:
            print_to(console, part)
    elif isinstance(renderable, Unbroken):
        console.print(Text(printable_lines(renderable.text)), soft_wrap=True)
    else:
        console.print(renderable)
