"""Parameters of a config turned into server arguments and environment, secrets kept out. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from autotune.engine.flags import MODEL, SECRET_FLAGS, to_argv, to_env
from autotune.errors import InvalidOption
from autotune.records import Config, Value

PLACE_FLAGS = frozenset({"host", "port", "uds"})
"""Where a server listens is the deployment's to say, not the study's."""

FLAG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SECRET_ENV = re.compile(r"TOKEN\Z|SECRET|PASSWORD|API_KEY|CREDENTIAL", re.IGNORECASE)


def split_parameters(
    fixed: Config | None, config: Config
) -> tuple[tuple[tuple[str, Value], ...], tuple[tuple[str, str], ...], tuple[str, ...]]:
    """The fixed parameters and a config over them, as (flags, environment, names of secrets), ordered by name.

    The checkpoint (`model`) is no flag; see `served_model`.

    Raises:
        InvalidOption: a name that is no flag and no variable.
    """
    params = {**(fixed.as_dict() if fixed else {}), **config.as_dict()}
    flags: dict[str, Value] = {}
    environment: dict[str, str] = {}
    secrets: list[str] = []
    for name, value in sorted(params.items()):
        if value is None:
            continue
        if name.startswith("env:"):
            variable = name.removeprefix("env:")
            if not _ENV_NAME.match(variable):
                raise InvalidOption(name, value, "env:NAME with a name of letters, digits and _")
            if _SECRET_ENV.search(variable):
                secrets.append(variable)
            else:
                environment |= to_env(Config.of({name: value}))
            continue
        flag = _dashed(name)
        if not FLAG_NAME.match(flag):
            raise InvalidOption(name, value, "a flag name of letters, digits, dashes and dots")
        if flag in SECRET_FLAGS:
            secrets.append(SECRET_FLAGS[flag])
        elif flag not in PLACE_FLAGS and flag != MODEL:
            flags[flag] = value
    return tuple(flags.items()), tuple(environment.items()), tuple(secrets)


def _dashed(name: str) -> str:
    """vLLM's YAML ignores `enable_prefix_caching: false`; only the part before a dot is a flag's own name."""
    head, dot, key = name.removeprefix("--").partition(".")
    return f"{head.replace('_', '-')}{dot}{key}"


def without_secrets_and_place(extra_args: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Extra arguments without secrets (their variables are named instead) and without host and port."""
    kept: list[str] = []
    secrets: list[str] = []
    dropping = False
    for word in extra_args:
        if word.startswith("-"):
            flag = word.partition("=")[0].replace("_", "-").removeprefix("--")
            dropping = flag in SECRET_FLAGS or flag in PLACE_FLAGS
            if flag in SECRET_FLAGS:
                secrets.append(SECRET_FLAGS[flag])
        if not dropping:
            kept.append(word)
    return tuple(kept), tuple(secrets)


def extra_value(extra_args: tuple[str, ...], flag: str) -> str | None:
    """The value that raw arguments give a flag, in one word or two; None when they do not name it."""
    for index, word in enumerate(extra_args):
        if word == flag and index + 1 < len(extra_args):
            return extra_args[index + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def flag_tokens(flags: Iterable[tuple[str, Value]]) -> tuple[str, ...]:
    """Flags as the engine launched them when they were measured; see `engine.flags.to_argv`."""
    return to_argv(Config(params=tuple(flags)))


def served_model(model: str, config: Config) -> str:
    """The checkpoint that a config serves: its own where checkpoints were searched, else the study's model."""
    own = config.get(MODEL)
    return own if isinstance(own, str) else model


def model_tokens(command: tuple[str, ...], model: str) -> tuple[str, ...]:
    """The model: positional for `serve` (where `--model` is refused), `--model M` for the bare API server."""
    bare = any(word.endswith(("api_server", "api_server.py")) for word in command)
    return ("--model", model) if bare else (model,)
