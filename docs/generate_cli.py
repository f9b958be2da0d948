"""Writes docs/cli.md from the command line's own declarations: `python docs/generate_cli.py [--check]`.

It reads what the commands declare to Typer, not what `--help` prints: layout and width of that change with Typer's
version and with the terminal, the declarations do not.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from in_step import write_or_check
from typer.models import ArgumentInfo, OptionInfo

from autotune.cli.main import command_line
from autotune.simulator import server_faults
from autotune.simulator.server_args import build_parser

TARGET = Path(__file__).with_name("cli.md")
HEAD = """\
# Command line

Written by `python docs/generate_cli.py` from the commands themselves; a test keeps it in step.

`autotune --version` prints the version, `autotune --install-completion` sets up completion for your shell, and
`--help` explains every command. Exit codes are in [exit-codes.md](exit-codes.md), study files and environment
variables in [settings.md](settings.md).
"""
SIMULATOR_HEAD = """\
Every option is the server's own: vLLM's flags as its parser takes them (`autotune simulate-server --help` lists those
that do something), and these:
"""
FAULTS_HEAD = "Faults of `--sim-fault` (and of `AUTOTUNE_SIM_FAULT`, several separated by commas):\n"
PASSED_ON = "`-- FLAG ...`"
WORDS = {str: "text", int: "integer", float: "number", Path: "path", bool: ""}


def render() -> str:
    """The whole page."""
    sections, app = [HEAD], command_line()
    for command in app.registered_commands:
        if command.callback is None or command.name is None:
            raise SystemExit("a command without a name or a function cannot be documented")
        sections.append("\n".join(_command(command.name, command.callback)))
    for group in app.registered_groups:
        for command in group.typer_instance.registered_commands if group.typer_instance else ():
            if command.callback is None or command.name is None or group.name is None:
                raise SystemExit("a group or command without a name cannot be documented")
            sections.append("\n".join(_command(f"{group.name} {command.name}", command.callback)))
    return "\n".join(sections)


def _command(name: str, callback: Callable[..., Any]) -> Iterator[str]:
    yield f"## autotune {name}\n"
    yield f"{_prose(inspect.getdoc(callback) or '')}\n"
    if name == "simulate-server":
        yield SIMULATOR_HEAD
        yield from _table(_simulator_options())
        yield f"{FAULTS_HEAD}\n{_faults()}\n"
        return
    rows = sorted(_parameters(callback), key=lambda row: row[0] == PASSED_ON)
    words = [row[0].strip("`") for row in rows if not row[0].startswith("`-")]
    tail = ["[-- FLAG ...]"] if rows[-1][0] == PASSED_ON else []
    yield f"```\n{' '.join(['autotune', name, *words, '[OPTIONS]', *tail])}\n```\n"
    yield from _table(rows)


def _parameters(callback: Callable[..., Any]) -> Iterator[tuple[str, str, str, str]]:
    """One row per parameter: how it is written, what it takes, its default, what it means."""
    hints = get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        hint = hints[name]
        if get_origin(hint) is not Annotated:
            continue
        kind, info = get_args(hint)
        given = parameter.default if parameter.default is not inspect.Parameter.empty else None
        meaning = _prose(info.help or "")
        if info.envvar:
            meaning += f" Environment: `{info.envvar}`."
        if isinstance(info, ArgumentInfo):
            repeated = any(get_origin(each) is list for each in (kind, *get_args(kind)))
            plain = name.upper() if _required(parameter) else f"[{name.upper()}]"
            written = PASSED_ON.strip("`") if repeated else plain
        elif isinstance(info, OptionInfo):
            written = ", ".join(_spellings(info) or (f"--{name.replace('_', '-')}",))
        else:
            continue
        yield f"`{written}`", _takes(kind, info), _default(given, parameter), meaning


def _spellings(info: OptionInfo) -> tuple[str, ...]:
    """Inside Annotated the first spelling stands where a default would stand otherwise."""
    return tuple(text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str))


def _required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty


def _takes(kind: Any, info: Any) -> str:
    plain = next((word for each, word in WORDS.items() if kind is each or each in get_args(kind)), "text")
    low, high = info.min, info.max
    if low is not None and high is not None:
        return f"{plain}, {low} to {high}"
    return f"{plain}, {low} or more" if low is not None else plain


def _default(given: object, parameter: inspect.Parameter) -> str:
    if _required(parameter):
        return "required"
    return "" if given is None or given is False else f"`{given}`"


def _simulator_options() -> Iterator[tuple[str, str, str, str]]:
    for action in build_parser()._actions:  # argparse has no public list of them
        option = next((text for text in action.option_strings if text.startswith("--sim-")), None)
        if option is not None:
            default = "" if action.default in (None, []) else f"`{action.default}`"
            takes = str(action.metavar or ("number" if action.type is float else "text"))
            yield f"`{option}`", takes, default, action.help or ""


def _faults() -> str:
    """The table in the module that reads them."""
    lines = (inspect.getdoc(server_faults) or "").splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))


def _table(rows: Iterable[tuple[str, str, str, str]]) -> Iterator[str]:
    yield "| | takes | default | |"
    yield "|---|---|---|---|"
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


def _prose(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, render(), sys.argv[1:], shows="the commands"))
