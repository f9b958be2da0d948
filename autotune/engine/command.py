"""The server command: where it comes from, what kind it is, and the whole argv of a launch.

Three kinds are told apart:

* `vllm serve`, `python -m vllm.entrypoints.cli.main serve` and others that take the model as first positional argument;
* `python -m vllm.entrypoints.openai.api_server`, which takes `--model` (builds whose console script is broken);
* templates, recognised by `{port}` or `{model}`: a container, a wrapper. `{flags}` says where the flags go, else they
  go last; `--host`, `--port` and `--model` are left to the template where it has the placeholder. `{gpus}` stands for
  the indices of a launch's GPUs, separated by commas: a container does not get CUDA_VISIBLE_DEVICES by itself.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from autotune.engine.flags import MANAGED_FLAGS, SECRET_FLAGS
from autotune.engine.redaction import REDACTED, redact
from autotune.errors import InvalidOption, VllmCommandError

DEFAULT_COMMAND = "vllm serve"
ENVIRONMENT_NAME = "AUTOTUNE_VLLM_COMMAND"

_HINT = (
    "Name the server with --vllm-command, e.g. --vllm-command '/opt/vllm/bin/vllm serve' or "
    "'/opt/vllm/bin/python -m vllm.entrypoints.openai.api_server'."
)


class CommandKind(StrEnum):
    """How a command takes the model."""

    SERVE = "serve"
    API_SERVER = "api_server"
    TEMPLATE = "template"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmCommand:
    """A parsed command; `source` is where it was written, for messages."""

    words: tuple[str, ...]
    kind: CommandKind
    source: str

    @property
    def text(self) -> str:
        """As one would type it, secrets taken out."""
        return shlex.join(shown_argv(self.words))


def choose_command(
    *, argument: str | None = None, environ: Mapping[str, str] | None = None, study_file: str | None = None
) -> VllmCommand:
    """The command that counts: the argument beats the environment beats the study file beats the default.

    Raises:
        VllmCommandError: it cannot be split into words, or names a bare interpreter.
    """
    from_environment = (environ or {}).get(ENVIRONMENT_NAME)
    for text, source in (
        (argument, "--vllm-command"),
        (from_environment, f"environment variable {ENVIRONMENT_NAME}"),
        (study_file, "the study file (vllm_command)"),
    ):
        if text is not None and (text.strip() or source == "--vllm-command"):
            return parse_command(text, source=source)
    return parse_command(DEFAULT_COMMAND, source="the default")


def parse_command(text: str, *, source: str) -> VllmCommand:
    """Split and classify a command.

    Raises:
        VllmCommandError: unbalanced quotes, nothing at all, or an interpreter without a module.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise VllmCommandError(f"{source}: {text!r} cannot be split into words: {error}", hint=_HINT) from error
    if not words:
        raise VllmCommandError(f"{source}: the server command is empty", hint=_HINT)
    name = os.path.basename(words[-1])  # noqa: PTH119 - a word of a command, not a path on this machine
    if any(mark in word for word in words for mark in ("{port}", "{model}")):
        return VllmCommand(words=words, kind=CommandKind.TEMPLATE, source=source)
    if any(word.endswith(("api_server", "api_server.py")) for word in words):
        return VllmCommand(words=words, kind=CommandKind.API_SERVER, source=source)
    if len(words) == 1 and name.startswith("python"):
        raise VllmCommandError(f"{source}: {text!r} is an interpreter without a module to run", hint=_HINT)
    if name == "vllm":
        words = (*words, "serve")
    return VllmCommand(words=words, kind=CommandKind.SERVE, source=source)


def resolve_command(command: VllmCommand, *, search_path: str | None = None) -> VllmCommand:
    """The same command with the executable's full path.

    Args:
        search_path: directories as in PATH; None for the process's own PATH.

    Raises:
        VllmCommandError: not found or not executable; says what was tried.
    """
    wanted = command.words[0]
    found = shutil.which(wanted, path=search_path)
    if found is None:
        if os.path.dirname(wanted):  # noqa: PTH120 - whether the word names a directory at all
            why = "is not executable" if os.path.exists(wanted) else "does not exist"  # noqa: PTH110 - as above
            tried = f"the file {wanted!r} {why}"
        else:
            tried = f"no executable {wanted!r} in PATH ({search_path or os.environ.get('PATH', '')})"
        raise VllmCommandError(
            f"cannot run the server command {command.text!r} (from {command.source}): {tried}", hint=_HINT
        )
    return replace(command, words=(os.path.abspath(found), *command.words[1:]))  # noqa: PTH100 - keeps symlinks of a venv


def server_argv(
    command: VllmCommand,
    *,
    model: str,
    flags: Sequence[str],
    host: str,
    port: int,
    extra: Sequence[str] = (),
    gpus: Sequence[int] = (),
) -> tuple[str, ...]:
    """The whole command line of one launch.

    Args:
        flags: the config as flags, e.g. ("--max-num-seqs", "64").
        extra: passed through verbatim, last, so that they win where vLLM lets the last one win.
        gpus: for a template that asks for them.

    Raises:
        InvalidOption: `extra` names a flag of which the launch decides.
    """
    for word in extra:
        if _flag_name(word) in MANAGED_FLAGS:
            owned = ", ".join(f"--{name}" for name in sorted(MANAGED_FLAGS))
            raise InvalidOption("--", word, f"flags of the server other than {owned}")
    door = ("--host", host, "--port", str(port))
    match command.kind:
        case CommandKind.SERVE:
            return (*command.words, model, *flags, *door, *extra)
        case CommandKind.API_SERVER:
            return (*command.words, "--model", model, *flags, *door, *extra)
        case CommandKind.TEMPLATE:
            return _fill(command.words, model=model, host=host, port=port, flags=(*flags, *extra), gpus=gpus)
        case _:
            assert_never(command.kind)


def question_words(command: VllmCommand) -> tuple[str, ...]:
    """The command for asking it a question (`--help=all` is put behind it): a template's placeholders are filled.

    Port 0 stands for any: `docker run -p 127.0.0.1:{port}:8000` would refuse the placeholder, and nothing listens.
    """
    if command.kind is not CommandKind.TEMPLATE:
        return command.words
    words = tuple(word for word in command.words if word != "{flags}")
    return _fill(words, model="model", host="127.0.0.1", port=0, flags=(), gpus=(0,))


def chooses_gpus(command: VllmCommand) -> bool:
    """Whether a launch can be given GPUs of its own: a template must pass them on into its container."""
    if command.kind is not CommandKind.TEMPLATE:
        return True
    return any("{gpus}" in word or "CUDA_VISIBLE_DEVICES" in word for word in command.words)


def shown_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line that may be stored and shown: values of secret flags, and secrets anywhere, taken out."""
    shown: list[str] = []
    secret = False
    for word in argv:
        name, equals, _ = word.partition("=")
        if word.startswith("--"):
            secret = _flag_name(word) in SECRET_FLAGS
            shown.append(f"{name}={REDACTED}" if secret and equals else redact(word))
            secret = secret and not equals
        else:
            shown.append(REDACTED if secret else redact(word))
    return tuple(shown)


def _flag_name(word: str) -> str | None:
    """`max-num-seqs` of `--max_num_seqs=4`, which vLLM's parser takes too; None for a word that is no long flag."""
    return word[2:].partition("=")[0].replace("_", "-") if word.startswith("--") else None


def _fill(
    words: tuple[str, ...], *, model: str, host: str, port: int, flags: tuple[str, ...], gpus: Sequence[int]
) -> tuple[str, ...]:
    whole = " ".join(words)
    added = flags
    if "{port}" not in whole:
        added = (*added, "--host", host, "--port", str(port))
    if "{model}" not in whole:
        added = ("--model", model, *added)
    filled: list[str] = []
    for word in words:
        if word == "{flags}":
            filled.extend(added)
        else:
            # One pass each, so that a model named "{port}" stays what it is.
            known = {"{port}": str(port), "{host}": host, "{gpus}": ",".join(map(str, gpus))}
            pieces = [_replaced(piece, known) for piece in word.split("{model}")]
            filled.append(model.join(pieces))
    return tuple(filled) if "{flags}" in words else (*filled, *added)


def _replaced(text: str, known: Mapping[str, str]) -> str:
    for name, value in known.items():
        text = text.replace(name, value)
    return text
