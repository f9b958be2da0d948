"""`autotune doctor`: is this node fit to serve and to measure?"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.options import Json

if TYPE_CHECKING:
    from autotune.doctor import Check, Findings
    from autotune.doctor.gather import Here, Looked

SCHEMA = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    server_args: Annotated[
        list[str] | None,
        typer.Argument(help="After `--`: flags for the small server of --serve, e.g. -- --trust-remote-code."),
    ] = None,
    gpus: Annotated[str | None, typer.Option(help="Physical GPUs to look at, e.g. 0,1; default: all visible.")] = None,
    vllm_command: Annotated[
        str | None,
        typer.Option(help="The server command, e.g. '/opt/vllm/bin/vllm serve'. Environment: AUTOTUNE_VLLM_COMMAND."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Look also whether this model fits and can be downloaded: a folder or a name.")
    ] = None,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="Start a small server with a short context, ask it once, stop it, look for rests."
        ),
    ] = False,
    node: Annotated[
        str | None, typer.Option(help="Look at a named node instead of this machine, e.g. 4xL40S-48GB-PCIe.")
    ] = None,
    start_deadline: Annotated[
        float, typer.Option(min=1, help="Seconds until the small server of --serve must be ready.")
    ] = 1200.0,
    as_json: Json = False,
) -> None:
    """Look at GPUs, links, memory, vLLM, disk and more; each check ok, warn or fail with its remedy."""
    from autotune.doctor import CHECKS, DRY_CHECKS, examine, failed
    from autotune.errors import NodeUnfit

    extra = tuple(server_args or ())
    _refuse_contradictions(node, gpus=gpus, vllm_command=vllm_command, serve=serve, extra=extra)
    if node is not None:
        from autotune.doctor.gather import look_at_named

        found = look_at_named(node, model, _here(look=False))
        checks = examine(found, DRY_CHECKS)
    else:
        found = _look(gpus, vllm_command, model, serve=serve, extra=extra, start_deadline_s=start_deadline)
        checks = examine(found, CHECKS)
    _print(found, checks, as_json=as_json)
    bad = failed(checks)
    if bad:
        raise NodeUnfit([str(check.name) for check in bad])


def _refuse_contradictions(
    node: str | None, *, gpus: str | None, vllm_command: str | None, serve: bool, extra: Sequence[str]
) -> None:
    from autotune.errors import InvalidOption

    if node is not None:
        for option, given in (("--gpus", gpus), ("--vllm-command", vllm_command), ("--serve", serve or None)):
            if given is not None:
                raise InvalidOption(option, given, "nothing with --node, which looks at no machine")
    if extra and not serve:
        raise InvalidOption("--", extra[0], "flags only with --serve, which starts a server")


def _here(*, look: bool) -> Here:
    """This machine; its driver is opened only to `look`."""
    from autotune.cli.surroundings import has_kfd
    from autotune.doctor import Problem
    from autotune.doctor.gather import Here
    from autotune.errors import UnsupportedHardware
    from autotune.node.machine import cache_dir
    from autotune.node.nvml_probe import open_probe

    environ = dict(os.environ)
    probe, problem = None, None
    try:
        probe = open_probe() if look else None
    except UnsupportedHardware as error:
        problem = Problem(text=error.message, remedy=error.hint)
    return Here(
        environ=environ,
        home=Path.home(),
        probe=probe,
        probe_problem=problem,
        cache_dir=cache_dir(environ),
        has_kfd=has_kfd(),
    )


def _look(
    gpus: str | None,
    vllm_command: str | None,
    model: str | None,
    *,
    serve: bool,
    extra: tuple[str, ...],
    start_deadline_s: float,
) -> Findings:
    from dataclasses import replace

    from autotune.doctor.gather import Asked, look
    from autotune.doctor.serving import DEFAULT_MODEL

    here = _here(look=True)
    if serve and model is None:
        model = DEFAULT_MODEL
    if serve:
        _check_flags(extra)
    _tell("looking at this machine; the server command may take half a minute to show its flags")
    looked = look(Asked(gpus=gpus, vllm_command=vllm_command, model=model), here)
    if not serve:
        return looked.findings
    assert model is not None  # set above
    return replace(looked.findings, serve=_serve(looked, here, model, extra, start_deadline_s))


def _check_flags(extra: tuple[str, ...]) -> None:
    """Refuse what a launch decides for itself before anything slow is done."""
    from autotune.engine.flags import MANAGED_FLAGS, SECRET_FLAGS, from_argv
    from autotune.errors import InvalidOption

    for name, _ in from_argv(extra):
        if name in MANAGED_FLAGS or name in SECRET_FLAGS:
            raise InvalidOption("--", f"--{name}", "flags of the server other than its door, its model and its secrets")


def _serve(looked: Looked, here: Here, model: str, extra: tuple[str, ...], start_deadline_s: float) -> Any:
    """The small server, where the command starts at all and the GPUs can be used."""
    from autotune.doctor import Problem
    from autotune.doctor.findings import Served
    from autotune.doctor.serving import engine_for, hold_for, plan_small, serve_small
    from autotune.errors import NodeBusy, VllmCommandError
    from autotune.node.leases import NodeLeases, lease_folder, this_process

    findings = looked.findings
    if looked.command is None or looked.installed is None:
        return Problem(text="not tried: the server command does not start", remedy="See the check `vllm`.")
    if findings.gpu_problem is not None:
        return Problem(text="not tried: the GPUs cannot be used", remedy="See the check `gpus`.")
    small = plan_small(findings, model, extra, looked.installed.version)
    if isinstance(small, Problem):
        return small
    probe = here.probe if findings.node is not None else None
    directory = Path(tempfile.mkdtemp(prefix="autotune-doctor-"))
    gpus = [gpu for gpu in findings.node.gpus if gpu.index in small.gpus] if findings.node is not None else []
    hold = hold_for(gpus, NodeLeases(lease_folder(os.environ), this_process("doctor")))
    try:
        served = serve_small(
            small,
            engine_for(looked.command, looked.installed, probe, hold),
            probe,
            directory=directory,
            start_deadline_s=start_deadline_s,
            tell=_tell,
            hold=hold,
        )
    except NodeBusy as error:
        return Problem(text=f"not tried: {error.message}", remedy="Ask again when that has ended.")
    except VllmCommandError as error:
        return Problem(text=error.message, remedy=error.hint or f"The server's log: {directory / 'server.log'}")
    if isinstance(served, Served):
        shutil.rmtree(directory, ignore_errors=True)
    return served


def _print(found: Findings, checks: Sequence[Check], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(document(found, checks), indent=2))
        return
    from rich.text import Text

    from autotune.cli.console import output_console
    from autotune.report.grid import add, column, grid, print_to
    from autotune.report.wording import printable

    table = grid()
    column(table, "check", whole=True)
    column(table, "", whole=True)
    column(table, "what was seen, and what to do")
    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    for check in checks:
        said = Text(printable(check.text))
        if check.remedy:
            said.append(f"\n→ {printable(check.remedy)}", style="dim" if check.status == "ok" else "")
        add(table, str(check.name), Text(str(check.status), style=styles[str(check.status)]), said)
    print_to(output_console(), table)


def document(found: Findings, checks: Sequence[Check]) -> dict[str, Any]:
    """The versioned JSON: the verdicts, and the node as a study would record it."""
    from autotune.doctor import failed
    from autotune.store.codec import encode

    counts = {status: sum(check.status == status for check in checks) for status in ("ok", "warn", "fail")}
    return {
        "schema": SCHEMA,
        "fit": not failed(checks),
        "counts": counts,
        "checks": [
            {
                "name": str(check.name),
                "status": str(check.status),
                "text": check.text,
                "remedy": check.remedy or None,
            }
            for check in checks
        ],
        "node": None if found.node is None else encode(found.node),
    }


def _tell(text: str) -> None:
    typer.echo(text, err=True)
