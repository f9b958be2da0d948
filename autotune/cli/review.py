"""Reviewing studies: `pareto`, `show`, `list`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import DEFAULT_STUDIES, Json, SloText, Storage, StudiesDir, StudyName
from autotune.cli.surroundings import places_of

if TYPE_CHECKING:
    from autotune.records import Trial
    from autotune.report.view import StudyView
    from autotune.store.study_record import StudyRecord

PICTURE_SUFFIXES = (".png", ".svg", ".html")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("pareto")(pareto)
    app.command("show")(show)
    app.command("list")(list_studies)


def pareto(
    study: StudyName,
    slo: SloText = None,
    picture: Annotated[
        Path | None, typer.Option(help="Write the front as a picture: FILE.png, FILE.svg or FILE.html.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print every trial as CSV on standard output.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Also list every trial: its own figures, or why it has none.")
    ] = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Show the front of a study, and the trial to pick."""
    from autotune.cli.console import output_console
    from autotune.cli.stores import opened
    from autotune.errors import InvalidOption
    from autotune.report.grid import print_to
    from autotune.report.tables import study_report, trials_table
    from autotune.review.views import brief_view_of, view_of

    chosen = [name for name, given in (("--csv", as_csv), ("--json", as_json), ("--all", every)) if given]
    if len(chosen) > 1:
        raise InvalidOption(chosen[0], chosen[1], "one of --csv, --json and --all")
    if picture is not None and picture.suffix.lower() not in PICTURE_SUFFIXES:
        raise InvalidOption("--picture", str(picture), f"a file ending in {', '.join(PICTURE_SUFFIXES)}")
    places = places_of(studies_dir, storage)
    with opened(places, study) as store:
        stored = store.study(study)
        # These show something of every trial's full record, the rest only of those that are compared.
        view = (view_of if chosen else brief_view_of)(store, stored, places, slo=slo)
    if picture is not None:
        _draw(view, stored, picture)
    if as_json:
        from autotune.report.json_view import study_document

        typer.echo(json.dumps(study_document(view), indent=2))
    elif as_csv:
        from autotune.report.csv_view import trials_csv

        typer.echo(trials_csv(view, view.trials), nl=False)
    else:
        print_to(output_console(), study_report(view))
        if every:
            print_to(output_console(), trials_table(view))
        if picture is not None:
            typer.echo(f"Picture: {picture}")


def _draw(view: StudyView, stored: StudyRecord, picture: Path) -> None:
    from autotune.errors import StorageError
    from autotune.report.figures import png_bytes, svg_text
    from autotune.report.html import front_page
    from autotune.review.evidence import serve_line_of

    suffix = picture.suffix.lower()
    if suffix == ".png":
        content = png_bytes(view)
    elif suffix == ".svg":
        content = svg_text(view).encode()
    else:
        line = serve_line_of(stored, view.picked_trial) if view.picked_trial else None
        content = front_page(view, serve_line=line).encode()
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(content)
    except OSError as error:
        raise StorageError(f"{picture}: {error.strerror}", hint="Choose a place that can be written.") from None


def show(
    study: StudyName,
    trial: Annotated[int, typer.Argument(help="Number of the trial, 0 is the baseline.")],
    export_bench: Annotated[
        Path | None,
        typer.Option(help="Folder for each level's requests as JSON of `vllm bench serve`.", metavar="DIR"),
    ] = None,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Show all the evidence of one trial: a ready command line, figures with intervals, capacity, phases, log."""
    from autotune.cli.console import output_console
    from autotune.cli.stores import opened
    from autotune.report.detail import trial_detail
    from autotune.report.grid import print_to
    from autotune.report.json_view import show_document
    from autotune.review.evidence import log_path, serve_line_of
    from autotune.review.views import view_of, with_evidence

    places = places_of(studies_dir, storage)
    with opened(places, study) as store:
        stored = store.study(study)
        view = view_of(store, stored, places)
        chosen = with_evidence(store, study, store.trial(study, trial))
        attempts = store.attempts(study, trial)
    line = serve_line_of(stored, chosen)
    log = log_path(chosen)
    written = [] if export_bench is None else _export_bench(view, chosen, export_bench)
    if as_json:
        typer.echo(json.dumps(show_document(view, chosen, serve_line=line, log_path=log, attempts=attempts), indent=2))
    else:
        print_to(output_console(), trial_detail(view, chosen, serve_line=line, log_path=log, attempts=attempts))
        for path in written:
            typer.echo(f"wrote {path}")


def _export_bench(view: StudyView, trial: Trial, folder: Path) -> list[Path]:
    """One file a level whose records are still there.

    Raises:
        InvalidOption: there are none.
        StorageError: they cannot be read, or the files not written.
    """
    from datetime import UTC, datetime

    from autotune import __version__
    from autotune.errors import InvalidOption
    from autotune.load.records_file import read_records
    from autotune.report.bench_serve_json import bench_serve_document, bench_serve_path, write_bench_serve

    kept = sorted(Path(trial.directory).glob("level-*.jsonl.gz")) if trial.directory else []
    if not kept:
        allowed = "a trial whose request records are kept; this one never had any, or `autotune gc` removed them"
        raise InvalidOption("--export-bench", f"trial {trial.number}", allowed)
    simulated = trial.result.simulated if trial.result else view.simulated
    written = []
    for records in kept:
        level = read_records(records)
        document = bench_serve_document(
            level,
            model=view.model,
            api=_endpoint(view, trial),
            at=datetime.fromtimestamp(records.stat().st_mtime, UTC).astimezone(),
            metadata=(
                ("exported_by", f"autotune {__version__}"),
                ("study", view.name),
                ("trial", str(trial.number)),
                ("level", level.level.name),
                *((("simulated", "true"),) if simulated else ()),
            ),
        )
        written.append(bench_serve_path(folder, records))
        write_bench_serve(written[-1], document)
    return written


def _endpoint(view: StudyView, trial: Trial) -> str:
    """`chat` or `completions`: what the workload asks for, where it is still there and its prompts could go there."""
    from autotune.errors import AutotuneError
    from autotune.load.workloads import Api, load_workload

    if any(caveat.code == "completions_instead" for caveat in trial.caveats):
        return Api.COMPLETIONS
    try:
        return load_workload(view.workload).api
    except AutotuneError:
        return Api.CHAT


def list_studies(studies_dir: StudiesDir = DEFAULT_STUDIES, storage: Storage = None, as_json: Json = False) -> None:
    """List the studies in the database."""
    from autotune.cli.steer import print_studies

    print_studies(studies_dir, storage, live=False, as_json=as_json)
