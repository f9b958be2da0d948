"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StudiesDir = Annotated[
    Path,
    typer.Option("--studies-dir", envvar="AUTOTUNE_STUDIES_DIR", help="Folder of all studies' results."),
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        envvar="AUTOTUNE_STORAGE",
        help="Database: a path, or a URL such as postgresql+psycopg://user@host/db. "
        "Default: autotune.db in the studies folder.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
StudyName = Annotated[str, typer.Argument(help="Name of the study, as `autotune list` shows it.")]
SloText = Annotated[
    str | None,
    typer.Option(
        "--slo", help='Limits to meet, e.g. "ttft_p95<=500ms" or "ttft_p95<=500ms,tpot_p95<=50ms,error_rate<=0".'
    ),
]

DEFAULT_STUDIES = Path("studies")


def check_out(out: Path | None, allowed: str) -> None:
    """Refuse `-`, standard output's name, for what is not printed.

    Raises:
        InvalidOption: it is that.
    """
    from autotune.errors import InvalidOption

    if str(out) == "-":
        raise InvalidOption("--out", "-", f"{allowed}; the whole path of one of that name")
