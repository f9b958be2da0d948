"""`measure`: load on a server that somebody else started."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import Json, SloText, check_out

if TYPE_CHECKING:
    from autotune.measuring import Measuring
    from autotune.measuring_order import MeasureOrder

DEFAULT_CONCURRENCIES = (8, 16, 32)
MOST_LEVELS = 24
MOST_IN_FLIGHT = 65_536
HIGHEST_RATE = 100_000.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("measure")(measure)


def measure(
    url: Annotated[str, typer.Option(help="Address of the server, before /v1: http://127.0.0.1:8000.")],
    workload: Annotated[str, typer.Option(help="A workload's name, or a YAML or trace file.")] = "chat",
    model: Annotated[str | None, typer.Option(help="Model to ask for, where the server has several.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the server's API key.", metavar="NAME")
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            help="Requests in flight, one closed loop each: 8,16,32 (the default without --rate).", metavar="N,N"
        ),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="Requests per second, one open loop each: 2,4.5.", metavar="R,R")
    ] = None,
    requests: Annotated[int | None, typer.Option(help="Requests of each load.", min=1, max=1_000_000)] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of the prompts' content. Default: another one each time, so that no prompt is cached.", min=0
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder, tokenizer.json or hub name of the model's tokenizer.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs of the server, for figures per GPU.", min=1, max=65_536)
    ] = None,
    slo: SloText = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the raw records of every request, also as JSON of `vllm bench serve`."),
    ] = None,
    level_deadline: Annotated[float, typer.Option(help="Seconds that one load may take.", min=1, max=86_400)] = 300.0,
    as_json: Json = False,
) -> None:
    """Load a server that somebody else started, and show the figures that a study would."""
    from autotune.errors import AutotuneError, InvalidOption
    from autotune.load.workloads import load_workload
    from autotune.measuring_order import MeasureOrder
    from autotune.slo_text import parse_slo

    check_out(out, "a folder")
    concurrencies = _whole_numbers(concurrency)
    rates = _numbers(rate)
    if len(concurrencies) + len(rates) > MOST_LEVELS:
        raise InvalidOption("--concurrency", concurrency, f"at most {MOST_LEVELS} loads together with --rate")
    loaded = load_workload(workload)
    order = MeasureOrder(
        url=url,
        workload=loaded,
        concurrencies=concurrencies if concurrencies or rates else DEFAULT_CONCURRENCIES,
        rates=rates,
        seed=secrets.randbelow(2**31) if seed is None else seed,
        model=model,
        api_key_env=api_key_env,
        requests=requests,
        tokenizer=tokenizer,
        gpus=gpus,
        slo=parse_slo(slo) if slo else loaded.slo,
        out=out,
        level_deadline_s=level_deadline,
    )
    begun: list[Measuring] = []
    try:
        _run(order, begun)
    except AutotuneError:
        if begun and begun[0].measurements:
            _show(order, begun[0], as_json=as_json)
        raise
    _show(order, begun[0], as_json=as_json)


def _run(order: MeasureOrder, begun: list[Measuring]) -> None:
    """Until every load was driven.

    Raises:
        Interrupted: Ctrl-C, TERM or HUP.
    """
    from autotune.cli.interrupted import heard_signals
    from autotune.errors import Interrupted
    from autotune.load.loops import new_loop
    from autotune.measuring import measure as drive_levels

    async def run() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is not None:
            for number in heard_signals():
                loop.add_signal_handler(number, task.cancel)
        await drive_levels(order, environ=os.environ, tell=lambda line: typer.echo(line, err=True), begun=begun.append)

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(run())
    except asyncio.CancelledError:
        raise Interrupted(
            "the measurement was stopped; what had ended by then is shown"
            if begun and begun[0].measurements
            else "the measurement was stopped before a load had figures"
        ) from None


def _show(order: MeasureOrder, measuring: Measuring, *, as_json: bool) -> None:
    from autotune.cli.console import output_console
    from autotune.measuring import result_of
    from autotune.report.grid import print_to
    from autotune.report.measured import measured_document, measured_report

    found = result_of(order, measuring)
    if as_json:
        typer.echo(json.dumps(measured_document(found), indent=2))
    else:
        print_to(output_console(), measured_report(found))


def _whole_numbers(text: str | None) -> tuple[int, ...]:
    from autotune.errors import InvalidOption

    allowed = f"whole numbers from 1 to {MOST_IN_FLIGHT}, separated by commas"
    found = []
    for part in _parts(text):
        if not (part.isascii() and part.isdigit() and len(part) <= 9 and 1 <= int(part) <= MOST_IN_FLIGHT):
            raise InvalidOption("--concurrency", text, allowed)
        found.append(int(part))
    if len(set(found)) != len(found):
        raise InvalidOption("--concurrency", text, "each number once")
    return tuple(found)


def _numbers(text: str | None) -> tuple[float, ...]:
    from autotune.errors import InvalidOption

    found = []
    for part in _parts(text):
        try:
            value = float(part)
        except ValueError:
            value = 0.0
        if not 0.001 <= value <= HIGHEST_RATE:  # also refuses NaN
            raise InvalidOption("--rate", text, f"numbers from 0.001 to {HIGHEST_RATE:g}, separated by commas")
        found.append(value)
    if len({f"{value:g}" for value in found}) != len(found):
        raise InvalidOption("--rate", text, "each number once, to six digits")
    return tuple(found)


def _parts(text: str | None) -> list[str]:
    return [] if text is None else [part.strip() for part in text.split(",")]
