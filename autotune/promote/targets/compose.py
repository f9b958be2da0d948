"""A Compose file with one service."""

from __future__ import annotations

from typing import Any

from autotune.promote.container import (
    CACHE_DIR,
    ENTRYPOINT,
    arguments,
    environment,
    health_command,
    local_paths,
    pinned_image,
)
from autotune.promote.manifest import Deployment
from autotune.promote.quoting import double_dollars, slug, yaml_text
from autotune.promote.rendering import RenderedFile, stamped
from autotune.promote.timing import start_budget_s, stop_budget_s


def render(deployment: Deployment) -> tuple[RenderedFile, ...]:
    """One Compose file."""
    name = slug(deployment.name)
    path = f"{name}.compose.yaml"
    usage = (
        f"Start: docker compose -f {path} up -d",
        "Secrets come by name from the environment, or from a .env file beside this one that git ignores.",
    )
    return (RenderedFile(path=path, text=stamped(deployment, yaml_text(document(deployment)), usage=usage)),)


def document(deployment: Deployment) -> dict[str, Any]:
    """What the file says; every `$` doubled, as Compose interpolates values."""
    name = slug(deployment.name)
    return {
        "name": name,
        "services": {name: _service(deployment, f"{name}-cache")},
        "volumes": {f"{name}-cache": {}},
    }


def _service(deployment: Deployment, cache: str) -> dict[str, Any]:
    service: dict[str, Any] = {
        "image": double_dollars(pinned_image(deployment)),
        "entrypoint": list(ENTRYPOINT),
        "command": [double_dollars(word) for word in arguments(deployment)],
        "environment": {
            **{key: double_dollars(value) for key, value in environment(deployment).items()},
            **dict.fromkeys(deployment.secret_names),  # null: taken from the environment by name
        },
        "ipc": "host",
        "ulimits": {"memlock": -1},
        "restart": "unless-stopped",
        "stop_grace_period": f"{stop_budget_s(deployment)}s",
        "ports": [
            {
                "target": deployment.port,
                "published": str(deployment.port),
                "host_ip": double_dollars(deployment.bind),
                "protocol": "tcp",
            }
        ],
        "volumes": [{"type": "volume", "source": cache, "target": CACHE_DIR}, *_binds(deployment)],
        "healthcheck": {
            "test": ["CMD", *health_command(deployment)],
            "interval": "10s",
            "timeout": "10s",
            "retries": 6,
            "start_period": f"{start_budget_s(deployment)}s",
        },
    }
    if deployment.gpus:
        service["deploy"] = {"resources": {"reservations": {"devices": [_devices(deployment)]}}}
    return service


def _devices(deployment: Deployment) -> dict[str, Any]:
    chosen: dict[str, Any] = {"driver": "nvidia"}
    if deployment.gpu_indices:
        chosen["device_ids"] = [str(index) for index in deployment.gpu_indices]
    else:
        chosen["count"] = deployment.gpus
    chosen["capabilities"] = ["gpu"]
    return chosen


def _binds(deployment: Deployment) -> list[dict[str, Any]]:
    """Long form: the short one would split a path at its colons. A missing path is an error, not an empty folder."""
    return [
        {
            "type": "bind",
            "source": double_dollars(path),
            "target": double_dollars(path),
            "read_only": True,
            "bind": {"create_host_path": False},
        }
        for path in local_paths(deployment)
    ]
