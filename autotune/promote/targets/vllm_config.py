"""vLLM's own `--config FILE` YAML.

Its reader turns every key into `--key` and every value into `str(value)`, with traps between versions: `key: false`
was dropped up to 0.26 (the flag keeps its default True), a key with underscores is ignored, null becomes the text
`None`, mappings are JSON only from 0.19 on. So: dashes, `no-key: true`, JSON as a string, nothing that is null.
"""

from __future__ import annotations

from autotune.engine.flags import STORE_TRUE_FLAGS
from autotune.promote.command import drain_flags
from autotune.promote.manifest import Deployment
from autotune.promote.parameters import flag_tokens, model_tokens
from autotune.promote.quoting import shell_line, slug, yaml_text
from autotune.promote.rendering import RenderedFile, stamped
from autotune.records import Value


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
    return entries


def command_line(deployment: Deployment, path: str) -> str:
    """The bash line that starts the server from the file."""
    rest = tuple((name, value) for name, value in deployment.flags if _only_on_command_line(value))
    prefix = ["env", *(f"{name}={value}" for name, value in deployment.environment)] if deployment.environment else []
    return shell_line(
        [
            *prefix,
            *deployment.command,
            *model_tokens(deployment.command, deployment.model),
            "--config",
            path,
            *flag_tokens(rest),
            *deployment.extra_args,
        ]
    )


def _only_on_command_line(value: Value) -> bool:
    """The reader splits key and value into two words, where argparse takes a leading dash for another flag."""
    return isinstance(value, str) and value.startswith("-")
