"""A bash script with `docker run`."""

from __future__ import annotations

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
from autotune.promote.quoting import shell_line, shell_rows, shell_word, slug
from autotune.promote.rendering import RenderedFile, stamped
from autotune.promote.timing import start_budget_s, stop_budget_s


def render(deployment: Deployment) -> tuple[RenderedFile, ...]:
    """One executable script that starts the container in the background."""
    name = slug(deployment.name)
    options = "\n".join(f"  {shell_line(option)}" for option in docker_options(deployment))
    words = "\n".join(f"  {row}" for row in shell_rows((*ENTRYPOINT[1:], *arguments(deployment))))
    body = "\n".join(
        [
            "set -euo pipefail",
            "",
            "options=(",
            options,
            ")",
            "server=(",
            words,
            ")",
            f'exec docker run "${{options[@]}}" {shell_word(pinned_image(deployment))} "${{server[@]}}"',
            "",
        ]
    )
    usage = (
        f"Start: ./{name}.docker.sh    Stop: docker stop {name} && docker rm {name}",
        "Secrets are passed by name from the environment of this script; their values stand nowhere.",
    )
    text = stamped(deployment, body, usage=usage, shebang=True)
    return (RenderedFile(path=f"{name}.docker.sh", text=text, mode=0o755),)


def docker_options(deployment: Deployment) -> tuple[tuple[str, ...], ...]:
    """Options of `docker run`, each as its words."""
    name = slug(deployment.name)
    return (
        ("--detach",),
        ("--name", name),
        *gpu_options(deployment),
        ("--ipc=host",),  # /dev/shm of a bare container is 64 MiB, too small for NCCL
        ("--ulimit", "memlock=-1"),
        ("--restart", "unless-stopped"),
        (f"--stop-timeout={stop_budget_s(deployment)}",),
        ("--publish", f"{_bracketed(deployment.bind)}:{deployment.port}:{deployment.port}"),
        ("--volume", f"{name}-cache:{CACHE_DIR}"),
        *(("--mount", _bind_mount(path)) for path in local_paths(deployment)),
        *(("--env", f"{key}={value}") for key, value in environment(deployment).items()),
        *(("--env", key) for key in deployment.secret_names),
        ("--health-cmd", shell_line(health_command(deployment))),
        ("--health-interval=10s",),
        ("--health-timeout=10s",),
        ("--health-retries=6",),
        (f"--health-start-period={start_budget_s(deployment)}s",),
        (f"--entrypoint={ENTRYPOINT[0]}",),
    )


def gpu_options(deployment: Deployment) -> tuple[tuple[str, ...], ...]:
    """`--gpus`; a device list needs quotes of its own, because the value is read as CSV."""
    if not deployment.gpus:
        return ()
    if deployment.gpu_indices:
        listed = ",".join(str(index) for index in deployment.gpu_indices)
        return (("--gpus", f'"device={listed}"'),)
    return (("--gpus", str(deployment.gpus)),)


def _bind_mount(path: str) -> str:
    """The value of `--mount` is CSV too; `--volume` would split a path at its colons."""
    return ",".join(_csv(field) for field in ("type=bind", f"source={path}", f"target={path}", "readonly"))


def _csv(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if any(char in field for char in ',"\r\n') else field


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
