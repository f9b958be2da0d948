"""Tables that take plain text: rich would read `[bold]` or `:smile:` in a study's name as markup."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text


def titled(title: str, table: Table) -> Group:
    """A table under its title; rich's own titles wrap at the width of a narrow table."""
    return Group(Text(title, style="bold"), table, Text())


def grid() -> Table:
    """A table with a ruled head; columns come by `column`."""
    return Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)


def column(table: Table, head: str, *, right: bool = False, at_least: int | None = None) -> None:
    """One column. Figures stay in one piece, words fold; nothing is cut off."""
    table.add_column(
        Text(head), justify="right" if right else "left", no_wrap=right, overflow="fold", min_width=at_least
    )


def pairs() -> Table:
    """Names and values without rules."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def add(table: Table, *cells: str | Text, style: str | None = None) -> None:
    """One row; text is taken as it is."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), style=style)


def unbroken(text: str) -> Text:
    """A line to paste: never folded, however narrow the terminal; needs `print_to`, which does not crop."""
    return Text(text, no_wrap=True, overflow="ignore")


def print_to(console: Console, renderable: RenderableType) -> None:
    """Print without cropping what is unbroken on purpose."""
    console.print(renderable, crop=False)
