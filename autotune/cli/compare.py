"""`autotune compare`: an honest A against B."""

from __future__ import annotations

import json
import math
from typing import Annotated

import typer

from autotune.cli.options import DEFAULT_STUDIES, Json, Storage, StudiesDir
from autotune.cli.surroundings import places_of


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare")(compare)


def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="A B",
            help="Two of STUDY, STUDY:TRIAL, STUDY:pick, STUDY:baseline (STUDY alone is its pick); or STUDY A B with "
            "two trials of one study.",
        ),
    ],
    gpu_hour_price: Annotated[
        float | None, typer.Option(help="Price of one GPU for an hour: adds the cost of a million output tokens.")
    ] = None,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Compare two configs: flags, figures, cost, and whether each difference is more than noise."""
    from autotune.cli.console import output_console
    from autotune.cli.stores import opened
    from autotune.errors import InvalidOption
    from autotune.report.compare import compare as compare_sides
    from autotune.report.compare import comparison_document, comparison_text
    from autotune.report.grid import print_to
    from autotune.review.compared import side_of

    if gpu_hour_price is not None and not (math.isfinite(gpu_hour_price) and gpu_hour_price > 0):
        raise InvalidOption("--gpu-hour-price", gpu_hour_price, "a price above 0")
    first, second = _two(names)
    places = places_of(studies_dir, storage)
    with opened(places, first.partition(":")[0]) as store:
        a, b = (side_of(store, places, name) for name in (first, second))
    found = compare_sides(a, b, gpu_hour_price=gpu_hour_price)
    if as_json:
        typer.echo(json.dumps(comparison_document(found), indent=2))
    else:
        print_to(output_console(), comparison_text(found))


def _two(names: list[str]) -> tuple[str, str]:
    from autotune.errors import InvalidOption

    if len(names) == 3:
        study, one, other = names
        return f"{study}:{one}", f"{study}:{other}"
    if len(names) != 2:
        raise InvalidOption("A B", " ".join(names), "two sides: STUDY:TRIAL STUDY:TRIAL, or STUDY TRIAL TRIAL")
    return names[0], names[1]
