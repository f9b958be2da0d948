"""The history of promotions: `promotions`, `diff`, `rollback`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import DEFAULT_STUDIES, Json, Storage, StudiesDir, check_out
from autotune.cli.promote import commit, committed
from autotune.cli.promote_asked import Author, GitFolder, Overwrite, Reason
from autotune.cli.surroundings import author_of, places_of

if TYPE_CHECKING:
    from autotune.promote import Entry

_WHICH = "NAME, NAME@3, NAME@previous: a promotion as `autotune promotions` lists it; NAME is what runs today."


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("promotions")(promotions)
    app.command("diff")(diff)
    app.command("rollback")(rollback)


def promotions(
    name: Annotated[str | None, typer.Argument(help="Only this deployment, each version with its reason.")] = None,
    git: GitFolder = None,
    overwrite: Overwrite = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """List what was promoted: what runs today, what ran before, who, why, and what the gate said."""
    from autotune.cli.console import output_console
    from autotune.cli.stores import opened
    from autotune.errors import InvalidOption
    from autotune.promote.history import current_of, named
    from autotune.report.grid import print_to
    from autotune.review.history import history_of
    from autotune.review.history_text import history_document, history_table

    if git is not None and name is None:
        raise InvalidOption("--git", str(git), "together with the name of a deployment")
    places = places_of(studies_dir, storage)
    shown: tuple[Entry, ...] = ()
    history: tuple[Entry, ...] = ()
    # Like a database without promotions: none at all is no error where all are asked for.
    if name is not None or places.storage is not None or Path(places.database).exists():
        with opened(places, name or "", kind="promotion") as store:
            history = shown = history_of(store)
            if name is not None:
                latest = named(history, name)
                shown = tuple(entry for entry in history if entry.promotion.name == latest.promotion.name)
                made = commit(store, latest, git, overwrite=overwrite) if git is not None else ()
    current = frozenset(entry.label for entry in current_of(history))
    if as_json:
        typer.echo(json.dumps(history_document(shown, current), indent=2))
        return
    print_to(output_console(), history_table(shown, current))
    if git is not None:
        typer.echo(f"committed to {git}: {', '.join(entry.label for entry in made) or 'nothing that was not there'}")


def diff(
    a: Annotated[str, typer.Argument(help=_WHICH)],
    b: Annotated[str | None, typer.Argument(help="The other one; default: A against the one before it.")] = None,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Show what differs between two promotions: flags, variables, model, version, and the rendered files."""
    from autotune.cli.console import output_console
    from autotune.cli.stores import opened
    from autotune.promote.history import before, named
    from autotune.report.grid import print_to
    from autotune.review.history import history_of
    from autotune.review.history_text import diff_document, diff_text

    with opened(places_of(studies_dir, storage), a, kind="promotion") as store:
        history = history_of(store)
    first = named(history, a)
    if b is None:
        own = [entry for entry in history if entry.promotion.name == first.promotion.name]
        first, second = before(own[: first.version]), first
    else:
        second = named(history, b)
    if as_json:
        typer.echo(json.dumps(diff_document(first, second), indent=2))
    else:
        print_to(output_console(), diff_text(first, second))


def rollback(
    name: Annotated[str, typer.Argument(help="Name of the deployment.")],
    to: Annotated[
        int | None, typer.Option(min=1, help="Version to go back to; default: the last one before what runs today.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the files; default: where those of today are.")] = None,
    reason: Reason = None,
    author: Author = None,
    git: GitFolder = None,
    overwrite: Overwrite = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Write the files of an earlier promotion again, byte for byte, and record that as the newest one."""
    from autotune.cli.stores import opened
    from autotune.review.promoting import roll_back

    check_out(out, "a folder")
    with opened(places_of(studies_dir, storage), name, kind="promotion") as store:
        done = roll_back(
            store,
            name,
            to=to,
            folder=out,
            reason=reason,
            author=author_of(author),
            created_at=datetime.now(UTC),
            overwrite=overwrite,
        )
        if git is not None:
            committed(store, done.entry, git, overwrite=overwrite)
    entry, back = done.entry, done.entry.promotion
    if as_json:
        written = {"written": [str(path) for path in done.written], "left_behind": [str(path) for path in done.left]}
        typer.echo(json.dumps({**back.as_document(), "version": entry.version, **written}, indent=2))
        return
    typer.echo(f"{entry.label} is version {done.source.version} again: trial {back.trial} of study {back.study}")
    for path in done.written:
        typer.echo(f"  {path}")
    for path in done.left:
        typer.echo(f"still there from {done.latest.label}, and not part of this version: {path}")
