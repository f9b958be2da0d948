"""A bash script that becomes the server."""

from __future__ import annotations

from autotune.promote.command import serve_argv
from autotune.promote.container import GPU_ORDER
from autotune.promote.manifest import Deployment
from autotune.promote.quoting import shell_rows, shell_word, slug
from autotune.promote.rendering import RenderedFile, stamped


def render(deployment: Deployment) -> tuple[RenderedFile, ...]:
    """One executable script; `exec`, so that signals reach the server and not a shell."""
    exports = [f"export {name}={shell_word(value)}" for name, value in environment(deployment)]
    secrets = [f"# {name} is read from the environment when it is set." for name in deployment.secret_names]
    words = "\n".join(f"  {row}" for row in shell_rows(serve_argv(deployment)))
    body = "\n".join(
        [
            "set -euo pipefail",
            "",
            *secrets,
            *exports,
            "",
            "command=(",
            words,
            ")",
            'exec "${command[@]}" "$@"',
            "",
        ]
    )
    path = f"{slug(deployment.name)}.sh"
    return (RenderedFile(path=path, text=stamped(deployment, body, shebang=True), mode=0o755),)


def environment(deployment: Deployment) -> tuple[tuple[str, str], ...]:
    """Variables of a server that runs on the host itself."""
    pinned: dict[str, str] = {}
    if deployment.gpu_indices:
        pinned = {
            GPU_ORDER[0]: GPU_ORDER[1],
            "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in deployment.gpu_indices),
        }
    return tuple({**pinned, **dict(deployment.environment)}.items())
