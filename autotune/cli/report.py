"""`autotune report`: a study as one file for people who were not there."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import DEFAULT_STUDIES, SloText, Storage, StudiesDir, StudyName
from autotune.cli.surroundings import places_of

if TYPE_CHECKING:
    from autotune.report.view import StudyView


class ReportFormat(StrEnum):
    """What is written."""

    HTML = "html"
    MARKDOWN = "markdown"


_STANDARD_OUTPUT = ("-", "/dev/stdout")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    study: StudyName,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write, - for standard output; default: STUDY.html here, or Markdown on standard output.",
            metavar="FILE",
        ),
    ] = None,
    as_format: Annotated[
        ReportFormat, typer.Option("--format", help="html: one file with every picture; markdown: for a pull request.")
    ] = ReportFormat.HTML,
    slo: SloText = None,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
) -> None:
    """Write a study as one file: front, pick, growth, flags, curves, failures, evidence of the trials that matter.

    The HTML file loads nothing from anywhere and draws the same pictures as the page of `autotune serve`. Markdown that
    is written to a file has its picture of the front beside it.
    """
    from autotune.cli.stores import opened
    from autotune.review.report import report_document, report_html
    from autotune.review.views import view_of

    places = places_of(studies_dir, storage)
    printed = str(out) in _STANDARD_OUTPUT or (out is None and as_format is ReportFormat.MARKDOWN)
    target = None if printed else out or Path(f"{study}.html")
    with opened(places, study) as store:
        stored = store.study(study)
        view = view_of(store, stored, places, slo=slo)
        if as_format is ReportFormat.HTML:
            written = _written(report_html(report_document(store, stored, places, view), view), target)
        else:
            from autotune.review.evidence import serve_line_of

            line = serve_line_of(stored, view.picked_trial) if view.picked_trial else None
            written = _markdown(view, line, target)
    for path in written:
        typer.echo(f"wrote {path}")


def _markdown(view: StudyView, line: str | None, out: Path | None) -> list[Path]:
    """On standard output without a picture, which would have no place to lie."""
    from autotune.report.page.markdown import report_markdown

    if out is None:
        return _written(report_markdown(view, serve_line=line), None)
    from urllib.parse import quote

    from autotune.report.figures import DARK, LIGHT, svg_text

    light, dark = (out.with_name(f"{out.stem}-front{suffix}.svg") for suffix in ("", "-dark"))
    text = report_markdown(view, serve_line=line, picture=quote(light.name), dark_picture=quote(dark.name))
    return [_write(out, text), _write(light, svg_text(view, LIGHT)), _write(dark, svg_text(view, DARK))]


def _written(text: str, path: Path | None) -> list[Path]:
    """The file that was written; None for standard output."""
    if path is not None:
        return [_write(path, text)]
    typer.echo(text, nl=False)
    return []


def _write(path: Path, text: str) -> Path:
    from autotune.errors import StorageError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{path}: {error.strerror}", hint="Choose a place that can be written: --out FILE."
        ) from None
    return path
