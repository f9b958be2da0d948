"""The server's command line: as a vector for the targets, as a line to paste for people. Pure."""

from __future__ import annotations

from autotune.promote.manifest import Deployment
from autotune.promote.parameters import (
    extra_value,
    flag_tokens,
    model_tokens,
    served_model,
    split_parameters,
    without_secrets_and_place,
)
from autotune.promote.quoting import shell_line
from autotune.records import Config, Value


def serve_argv(
    deployment: Deployment, *, command: tuple[str, ...] | None = None, host: str | None = None
) -> tuple[str, ...]:
    """The whole server command line; `command` and `host` stand in for the deployment's own (containers)."""
    use = deployment.command if command is None else command
    listen: list[tuple[str, Value]] = [("host", host or deployment.bind), ("port", deployment.port)]
    return (
        *use,
        *model_tokens(use, deployment.model),
        *flag_tokens(deployment.flags),
        *flag_tokens([*listen, *drain_flags(deployment)]),
        *deployment.extra_args,
    )


def drain_flags(deployment: Deployment) -> tuple[tuple[str, Value], ...]:
    """`shutdown-timeout`, where this vLLM knows it and the config does not name it itself."""
    named = "shutdown-timeout" in dict(deployment.flags) or extra_value(deployment.extra_args, "--shutdown-timeout")
    return () if named or not deployment.drains else (("shutdown-timeout", deployment.drain_s),)


def serve_line(model: str, config: Config, *, fixed: Config | None = None, extra_args: tuple[str, ...] = ()) -> str:
    """A `vllm serve` line for bash, environment first, ready to paste; for any trial, measured or not."""
    flags, environment, _ = split_parameters(fixed, config)
    extra, _ = without_secrets_and_place(extra_args)
    prefix = ["env", *(f"{name}={value}" for name, value in environment)] if environment else []
    return shell_line([*prefix, "vllm", "serve", served_model(model, config), *flag_tokens(flags), *extra])
