"""The `autotune` command. Commands import what they need when they run, so that `--help` stays quick."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from autotune import __version__
from autotune.cli import (
    archive,
    bench,
    capacity,
    check,
    compare,
    diagnose,
    doctor,
    explain,
    gc,
    history,
    measure,
    plan,
    promote,
    report,
    reporting,
    review,
    schema,
    serve,
    simulate,
    steer,
    study,
    workload,
)


class _Commands(TyperGroup):
    """Typer ends with 1 when the reader of its output goes away (`autotune list | head`), which is nobody's error."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            reporting.silence_output()
            raise typer.Exit from None


app = typer.Typer(
    name="autotune",
    cls=_Commands,
    help="Find the `vllm serve` flags that give the most throughput for the p95 time-to-first-token you can accept.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    del version  # acted on by its callback


for module in (
    study,
    plan,
    review,
    compare,
    explain,
    steer,
    promote,
    report,
    history,
    check,
    diagnose,
    doctor,
    serve,
    simulate,
    measure,
    capacity,
    schema,
    workload,
    gc,
    archive,
    bench,
):
    module.register(app)


def main() -> None:
    """Entry point of the console script."""
    reporting.run(lambda: app())
