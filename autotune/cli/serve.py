"""`autotune serve`: the same as a service, with a REST API and a page."""

from __future__ import annotations

import os
import ssl
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
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM) to serve over TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's private key (PEM).")] = None,
    behind_tls: Annotated[
        bool, typer.Option("--behind-tls", help="A proxy in front speaks TLS: the page's cookie is sent over it only.")
    ] = False,
    simulated_only: Annotated[
        bool, typer.Option("--simulated-only", help="Requests may start simulated studies only, and no server.")
    ] = False,
    look_only: Annotated[
        bool,
        typer.Option(
            "--look-only",
            help="Show only: no request may change anything, and nothing is written, so the folder may be read-only.",
        ),
    ] = False,
    allow_flag: Annotated[
        list[str] | None,
        typer.Option(help="Server flag that a request may pass on, e.g. trust-remote-code; may be given again."),
    ] = None,
    allow_model: Annotated[
        list[str] | None,
        typer.Option(help="Pattern of model names that a request may name, e.g. 'meta-llama/*'; default: any name."),
    ] = None,
    allow_ray_address: Annotated[
        list[str] | None,
        typer.Option(
            help="HOST:PORT of a Ray cluster that a request may name, which runs code as this user; may be given again."
        ),
    ] = None,
    models_dir: Annotated[
        list[Path] | None,
        typer.Option(help="Folder below which a request may name a model's folder; may be given again."),
    ] = None,
    files_dir: Annotated[
        Path | None,
        typer.Option(help="Folder whose spaces, workloads, traces and prompts a request may name; default: none."),
    ] = None,
    promotions_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for the files of promotions; default: `.service/promotions` in the studies folder."),
    ] = None,
    vllm_command: Annotated[
        str | None,
        typer.Option(help="Server command of studies and gates; default: as AUTOTUNE_VLLM_COMMAND says."),
    ] = None,
    stop_wait: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds that a running study may take to end with the service.")
    ] = 120.0,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
) -> None:
    """Serve studies, fronts and promotions on a page and as a REST API, until it is stopped.

    Without a token it answers on the loopback only. A token is asked for where there is a token file or
    AUTOTUNE_TOKEN.
    """
    from autotune.web.policy import Policy
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
        policy=Policy(
            server_flags=tuple(name.removeprefix("--") for name in allow_flag or ()),
            models=tuple(allow_model or ("*",)),
            model_folders=tuple(_folder("--models-dir", folder) for folder in models_dir or ()),
            files=None if files_dir is None else _folder("--files-dir", files_dir),
            ray_addresses=tuple(_cluster(text) for text in allow_ray_address or ()),
            simulated_only=simulated_only,
        ),
        promotions_dir=None if promotions_dir is None else promotions_dir.absolute(),
        vllm_command=vllm_command,
        secure_cookie=behind_tls or tls_cert is not None,
        stop_s=stop_wait,
        look_only=look_only,
    )
    _check_address(settings)
    run_service(settings, typer.echo, tls=_tls(tls_cert, tls_key))


def _cluster(text: str) -> str:
    """A cluster's address.

    Raises:
        InvalidOption: it is none.
    """
    from autotune.errors import InvalidOption
    from autotune.recipe import parse_address

    address = parse_address(text, "--allow-ray-address")
    if address is None:
        raise InvalidOption("--allow-ray-address", text, "HOST:PORT; auto is always allowed")
    return address


def _folder(option: str, folder: Path) -> Path:
    """A folder that is there, by its whole path.

    Raises:
        InvalidOption: it is not.
    """
    from autotune.errors import InvalidOption

    if not folder.is_dir():
        raise InvalidOption(option, str(folder), "a folder that exists")
    return folder.resolve()


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What TLS is spoken with; None for plain HTTP.

    Raises:
        InvalidOption: one without the other, or files that are none.
    """
    from autotune.errors import InvalidOption

    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        given = ("--tls-cert", certificate) if certificate else ("--tls-key", key)
        raise InvalidOption(given[0], str(given[1]), "--tls-cert and --tls-key together")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise InvalidOption("--tls-cert", str(certificate), f"a certificate and its key in PEM ({why})") from None
    return context


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
