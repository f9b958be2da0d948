"""The `autotune` command. Commands import what they need when they run, and only the one that is asked for is made, so
that each starts quickly."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from autotune import __version__
from autotune.cli import reporting

MODULES = {
    "study": ("study",),
    "plan": ("plan",),
    "review": ("pareto", "show", "list"),
    "compare": ("compare",),
    "explain": ("explain",),
    "steer": ("status", "logs", "stop"),
    "promote": ("promote",),
    "report": ("report",),
    "history": ("promotions", "diff", "rollback"),
    "check": ("check",),
    "diagnose": ("diagnose",),
    "doctor": ("doctor",),
    "serve": ("serve",),
    "simulate": ("simulate-server",),
    "measure": ("measure",),
    "capacity": ("capacity",),
    "schema": ("schema",),
    "workload": ("workload",),
    "gc": ("gc",),
    "archive": ("export", "import"),
    "bench": ("bench",),
}
"""Modules of this package with the commands they add, in the order of `--help`."""

YOUNG_OBJECTS = 50_000
"""New objects after which the garbage collector looks for cycles; after Python's 700 it takes a tenth of each start."""


ENDING_SOON = frozenset({"list", "status", "pareto", "show", "compare", "promotions", "diff"})
"""Commands that read, print and end: whatever garbage they make goes with them, and no matrix of theirs is worth the
threads of NumPy's BLAS, which spin from the moment it is imported: a tenth of the CPU time of `pareto`."""

HELP = "Find the `vllm serve` flags that give the most throughput for the p95 time-to-first-token you can accept."


class _Commands(TyperGroup):
    """Typer ends with 1 when the reader of its output goes away (`autotune list | head`), which is nobody's error."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            reporting.silence_output()
            raise typer.Exit from None


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"autotune {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    del version  # acted on by its callback


def command_line(modules: Iterable[str] = MODULES) -> typer.Typer:
    """The command line with the commands of some of `MODULES`."""
    app = typer.Typer(
        name="autotune",
        cls=_Commands,
        help=HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    for name in modules:
        import_module(f"autotune.cli.{name}").register(app)
    return app


def needed(word: str | None) -> tuple[str, ...]:
    """The modules for a command line that begins with `word`: one for a command, all for anything else, whose help or
    error names every command."""
    return next(((name,) for name, commands in MODULES.items() if word in commands), tuple(MODULES))


def main() -> None:
    """Entry point of the console script."""
    word = sys.argv[1] if len(sys.argv) > 1 else None
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    if word in ENDING_SOON:
        gc.disable()
        atexit.register(gc.freeze)  # nor does the interpreter look through all of it as it ends
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    reporting.run(lambda: command_line(needed(word))())
