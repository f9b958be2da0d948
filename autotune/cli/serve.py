"""`autotune serve`: the same as a service, with a REST API and a page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import DEFAULT_STUDIES, Storage, StudiesDir
from autotune.cli.surroundings import places_of

if TYPE_CHECKING:
    from autotune.web.settings import ServeSettings


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; any but the loopback's demands a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8321,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Name that requests may be sent to, beside addresses and localhost; may be given again."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token's hash; default: `.service/token` in the studies folder, if there."),
    ] = None,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Print a new token once, keep its hash in the token file, and stop.")
    ] = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
) -> None:
    """Serve studies, fronts and promotions on a page and as a REST API, until it is stopped.

    Without a token it answers on the loopback only. A token is asked for where there is a token file or
    AUTOTUNE_TOKEN.
    """
    from autotune.web.running import run_service
    from autotune.web.settings import ServeSettings, token_path
    from autotune.web.tokens import TOKEN_VARIABLE

    given = os.environ.pop(TOKEN_VARIABLE, None)  # a secret that nothing else that is started needs
    places = places_of(studies_dir.absolute(), storage)
    if new_token:
        _make_token(token_file or token_path(places))
        return
    settings = ServeSettings(
        places=places,
        host=host,
        port=port,
        token_hashes=_hashes(token_file, token_path(places), given),
        allowed_hosts=tuple(name.lower() for name in allow_host or ()),
    )
    _check_address(settings)
    run_service(settings, typer.echo)


def _make_token(path: Path) -> None:
    from autotune.web.tokens import new_token, write_token_file

    token = new_token()
    write_token_file(path, token)
    typer.echo(token)
    typer.echo(
        f"its hash is in {path}; the token is shown this once, and a service that runs must be restarted", err=True
    )


def _hashes(token_file: Path | None, default: Path, given: str | None) -> tuple[str, ...]:
    from autotune.web.tokens import read_token_file, token_of_environment

    found: tuple[str, ...] = ()
    if token_file is not None or default.exists():
        found = read_token_file(token_file or default)
    return (*found, token_of_environment(given)) if given else found


def _check_address(settings: ServeSettings) -> None:
    """Nobody beyond this machine reaches a service that asks for no token.

    Raises:
        InvalidOption: it would be so.
    """
    from autotune.errors import InvalidOption
    from autotune.web.settings import is_loopback

    if settings.token_hashes or is_loopback(settings.host):
        return
    raise InvalidOption(
        "--host",
        settings.host,
        "127.0.0.1, ::1 or localhost where there is no token",
        hint="Make one with `autotune serve --new-token`, or set AUTOTUNE_TOKEN.",
    )
