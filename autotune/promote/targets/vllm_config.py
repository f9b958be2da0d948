"""vLLM's own `--config FILE` YAML.

Its reader turns every key into `--key` and every value into `str(value)`, with traps between versions: `key: false`
was dropped up to 0.26 (the flag keeps its default True), a key with underscores is ignored, null becomes the text
`None`, mappings are JSON only from 0.19 on. So: dashes, `no-key: true`, JSON as a string, nothing that is null.
"""

from __future__ import annotations

import re

from autotune.engine.flags import STORE_TRUE_FLAGS
from autotune.promote.command import drain_flags
from autotune.promote.manifest import Deployment
from autotune.promote.parameters import flag_tokens, model_tokens
from autotune.promote.quoting import shell_line, slug, yaml_text
from autotune.promote.rendering import RenderedFile, stamped
from autotune.records import Value

_PLAIN_FLAG = re.compile(r"--[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)


def render(deployment: Deployment) -> tuple[RenderedFile, ...]:
    """One YAML file; its header holds the command that reads it."""
    path = f"{slug(deployment.name)}.vllm.yaml"
    usage = (
        "Run it with (the model must stand before --config, and --config=FILE in one word is not read):",
        f"  {command_line(deployment, path)}",
    )
    return (RenderedFile(path=path, text=stamped(deployment, yaml_text(document(deployment)), usage=usage)),)


def document(deployment: Deployment) -> dict[str, bool | int | float | str]:
    """What the YAML says; never empty, since the reader fails on an empty file."""
    listen: tuple[tuple[str, Value], ...] = (("host", deployment.bind), ("port", deployment.port))
    entries: dict[str, bool | int | float | str] = {}
    for name, value in (*deployment.flags, *listen, *drain_flags(deployment)):
        if value is None or _only_on_command_line(value):
            continue
        if isinstance(value, bool):
            if value or name not in STORE_TRUE_FLAGS:  # these have no `--no-` form, and are off when absent
                entries[name if value else f"no-{name}"] = True
        else:
            entries[name] = value
    for name, text in _extra_entries(deployment.extra_args) or ():
        for other in (name, f"no-{name}", name.removeprefix("no-")):  # the later of two wins on a command line
            entries.pop(other, None)
        entries[name] = True if text is None else text
    return entries


def _extra_entries(extra_args: tuple[str, ...]) -> tuple[tuple[str, str | None], ...] | None:
    """Raw arguments as keys and values; None where one cannot be a key, and all of them stay on the command line.

    Not short forms, not several values of one flag (a list is text up to 0.10), not a flag that is named twice.
    """
    found: dict[str, str | None] = {}
    open_flag: str | None = None
    for word in extra_args:
        name, equals, value = word.partition("=")
        if open_flag is not None and not word.startswith("-"):
            found[open_flag], open_flag = word, None
            continue
        key = name.removeprefix("--").replace("_", "-")
        if not _PLAIN_FLAG.fullmatch(name) or key in found or (equals and _only_on_command_line(value)):
            return None
        found[key] = value if equals else None
        open_flag = None if equals else key
    return tuple(found.items())


def command_line(deployment: Deployment, path: str) -> str:
    """The bash line that starts the server from the file."""
    prefix = ["env", *(f"{name}={value}" for name, value in deployment.environment)] if deployment.environment else []
    return shell_line([*prefix, *argv(deployment, path)])


def argv(deployment: Deployment, path: str) -> tuple[str, ...]:
    """The command that reads the file, with what can only stand on a command line."""
    entries = _extra_entries(deployment.extra_args)
    named = dict(entries or ())
    rest = [(key, value) for key, value in deployment.flags if _only_on_command_line(value) and key not in named]
    return (
        *deployment.command,
        *model_tokens(deployment.command, deployment.model),
        "--config",
        path,
        *flag_tokens(rest),
        *(deployment.extra_args if entries is None else ()),
    )


def _only_on_command_line(value: Value) -> bool:
    """The reader splits key and value into two words, where argparse takes a leading dash for another flag."""
    return isinstance(value, str) and value.startswith("-")
