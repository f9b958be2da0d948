"""Studies from one place to another: `export`, `import`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import DEFAULT_STUDIES, Json, Storage, StudiesDir, StudyName, check_out
from autotune.cli.surroundings import places_of
from autotune.units import plural

if TYPE_CHECKING:
    from autotune.store.archive import Moved

SUFFIX = ".autotune.zip"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("export")(export)
    app.command("import")(import_)


def export(
    study: StudyName,
    out: Annotated[Path | None, typer.Option(help=f"The file to write. Default: STUDY{SUFFIX} in this folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Write a study with its raw files to one archive, secrets taken out; it may be running meanwhile."""
    from autotune.cli.stores import opened
    from autotune.store.archive import export_study

    check_out(out, "a file, as an archive is not finished in one go")
    places = places_of(studies_dir, storage)
    with opened(places, study) as store:
        moved = export_study(store, places.root, study, out or Path(f"{study}{SUFFIX}"), replace=force)
    _tell(moved, as_json=as_json, verb="exported to")


def import_(
    archive: Annotated[Path, typer.Argument(help="What `autotune export` wrote.", metavar="FILE")],
    name: Annotated[str | None, typer.Option(help="Name of the study here. Default: the one it had.")] = None,
    max_size: Annotated[float, typer.Option(min=0, help="GB that the archive may take unpacked.", metavar="GB")] = 64.0,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Add a study from an archive, all of it or nothing; nothing outside the studies folder is touched."""
    from autotune.recipe import check_name
    from autotune.store.archive import import_study
    from autotune.store.archive_file import open_archive
    from autotune.store.projection import sync
    from autotune.store.repository import Store

    places = places_of(studies_dir, storage)
    with open_archive(archive, most_bytes=int(max_size * 1e9)) as found:
        chosen = found.study if name is None else name
        check_name(chosen)
        with Store.open(places.database, busy_timeout_s=places.busy_timeout_s) as store:
            moved = import_study(store, places.root, found, chosen)
    with Store.open(places.database, busy_timeout_s=places.busy_timeout_s) as store:
        sync(store, chosen)
    _tell(moved, as_json=as_json, verb="imported to")


def _tell(moved: Moved, *, as_json: bool, verb: str) -> None:
    if as_json:
        typer.echo(json.dumps({"schema": 1, **asdict(moved), "path": str(moved.path)}, indent=2))
    else:
        typer.echo(
            f"study {moved.study}: {plural(moved.trials, 'trial')} and {plural(moved.files, 'raw file')} {verb} "
            f"{moved.path} ({moved.size_bytes / 1e6:.1f} MB archive)"
        )
