"""`autotune diagnose`: what went wrong in a server's log, and in what order to turn the knobs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated

import typer

from autotune.cli.options import Json

CHUNK_BYTES = 1 << 20


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diagnose")(diagnose)


def diagnose(
    file: Annotated[Path, typer.Argument(help="A server's log; `-` reads standard input.")],
    exit_status: Annotated[
        int | None, typer.Option(help="Exit status of the server, where known (negative: the signal that ended it).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Name the first root cause in a vLLM log, with the numbers read and the remedies in the order to try."""
    from autotune.engine.diagnosis import diagnose as diagnosis_of

    diagnosis = diagnosis_of(_chunks(file), exit_status)
    if diagnosis.line is None and not diagnosis.milestones:
        typer.echo(f"autotune: {file} holds no line of a vLLM server that is known here", err=True)
    if as_json:
        typer.echo(json.dumps(diagnosis.as_json_dict(), indent=2))
        return
    typer.echo(f"class     {diagnosis.kind}")
    typer.echo(f"line      {diagnosis.line or '-'}")
    for position, remedy in enumerate(diagnosis.remedies, start=1):
        typer.echo(f"{'remedies' if position == 1 else '':<10}{position}. {remedy}")
    for position, (name, value) in enumerate(diagnosis.facts):
        typer.echo(f"{'facts' if position == 0 else '':<10}{name} = {value}")
    if diagnosis.milestones:
        typer.echo(f"reached   {', '.join(diagnosis.milestones)}")


def _chunks(file: Path) -> Iterator[bytes]:
    """The log in pieces, so that its size does not matter.

    Raises:
        InvalidFile: it cannot be read.
    """
    from autotune.errors import InvalidFile

    if str(file) == "-":
        yield from _pieces(sys.stdin.buffer)
        return
    try:
        with file.open("rb") as stream:
            yield from _pieces(stream)
    except OSError as error:
        raise InvalidFile(str(file), "", error.strerror or str(error), "a readable log file") from None


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    while piece := stream.read(CHUNK_BYTES):
        yield piece
