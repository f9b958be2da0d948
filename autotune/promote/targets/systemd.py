"""A systemd service unit."""

from __future__ import annotations

import re

from autotune.promote.command import serve_argv
from autotune.promote.container import cache_environment
from autotune.promote.manifest import Deployment
from autotune.promote.quoting import slug, systemd_word
from autotune.promote.rendering import RenderedFile, stamped
from autotune.promote.targets.shell import environment
from autotune.promote.timing import stop_budget_s

RESTART_PAUSE_S = 30
"""Longer than a driver needs to give the memory of a killed server back; a sooner start finds the GPUs full."""


def render(deployment: Deployment) -> tuple[RenderedFile, ...]:
    """One unit file."""
    name = slug(deployment.name)
    usage = (
        f"Install: copy to /etc/systemd/system/{name}.service, then",
        f"  systemctl daemon-reload && systemctl enable --now {name}",
        f"Secrets: NAME=value lines in /etc/vllm/{name}.env, owned by root with mode 0600.",
        "A virtual environment or model below a private home needs User= and ProtectHome=no instead of DynamicUser=.",
    )
    return (RenderedFile(path=f"{name}.service", text=stamped(deployment, _unit(deployment, name), usage=usage)),)


def _unit(deployment: Deployment, name: str) -> str:
    cache = {**cache_environment(f"/var/cache/{name}"), **dict(environment(deployment))}
    cache.setdefault("PATH", "/opt/vllm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    variables = [f"Environment={systemd_word(f'{key}={value}', dollars=False)}" for key, value in cache.items()]
    # Not a quoted value: a backslash would continue the line, a percent sign is a specifier.
    described = re.sub(r"[^\w ./:+@-]", "?", f"vLLM {deployment.model}")
    return "\n".join(
        [
            "[Unit]",
            f"Description={described}",
            "After=network-online.target nvidia-persistenced.service",
            "Wants=network-online.target",
            "# A server that cannot start must not be started for ever.",
            "StartLimitIntervalSec=1h",
            "StartLimitBurst=5",
            "",
            "[Service]",
            "Type=exec",
            *variables,
            f"EnvironmentFile=-/etc/vllm/{name}.env",
            f"ExecStart={exec_start(deployment)}",
            "# TERM to the server alone, which drains; KILL to everything left in the group, workers included.",
            "KillMode=mixed",
            f"TimeoutStopSec={stop_budget_s(deployment)}",
            "Restart=on-failure",
            f"RestartSec={RESTART_PAUSE_S}",
            "LimitMEMLOCK=infinity",
            "LimitNOFILE=65536",
            "DynamicUser=yes",
            f"CacheDirectory={name}",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def exec_start(deployment: Deployment) -> str:
    """The value of ExecStart=: an absolute program, through `env` where the command is looked up in PATH."""
    argv = serve_argv(deployment)
    program = () if argv[0].startswith("/") else ("/usr/bin/env",)
    return " ".join(systemd_word(word, dollars=True) for word in (*program, *argv))
