"""What Docker, Compose and Kubernetes have in common: entry point, caches, mounts, the health probe."""

from __future__ import annotations

from pathlib import PurePosixPath

from autotune.errors import NotPromotable
from autotune.promote.command import serve_argv
from autotune.promote.manifest import Deployment

ENTRYPOINT = ("vllm", "serve")
"""Named always: the official image's own entry point changed between versions."""

CACHE_DIR = "/cache"

GPU_ORDER = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
"""Indices mean what nvidia-smi shows; CUDA's own order puts the fastest GPU first."""


def pinned_image(deployment: Deployment) -> str:
    """The image to run.

    Raises:
        NotPromotable: the measured build is in no public image.
    """
    if deployment.image is None:
        raise NotPromotable(
            f"vLLM {deployment.vllm_version} is a development build: no public image holds what was measured",
            hint="Build an image of it and name it with --image, or promote to vllm-config, systemd or shell.",
        )
    return deployment.image


def arguments(deployment: Deployment) -> tuple[str, ...]:
    """What follows the entry point. Inside a container the server listens on all its addresses."""
    return serve_argv(deployment, command=ENTRYPOINT, host="0.0.0.0")[len(ENTRYPOINT) :]  # noqa: S104 - see above


def cache_environment(root: str) -> dict[str, str]:
    """Every cache that a start fills, below one writable folder; without it each restart compiles again.

    USER is set because torch asks for the name of a user id that the image's passwd may not hold.
    """
    return {
        "HOME": root,
        "USER": "vllm",
        "XDG_CACHE_HOME": root,
        "HF_HOME": f"{root}/huggingface",
        "VLLM_CACHE_ROOT": f"{root}/vllm",
        "TRITON_CACHE_DIR": f"{root}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{root}/torchinductor",
        "FLASHINFER_WORKSPACE_BASE": f"{root}/flashinfer",
    }


def environment(deployment: Deployment) -> dict[str, str]:
    """Variables of the server in a container; the config's own win over the cache folders."""
    return {**cache_environment(CACHE_DIR), **dict(deployment.environment)}


def local_paths(deployment: Deployment) -> tuple[str, ...]:
    """Absolute paths that the arguments name on the host, to be mounted read-only under the same path."""
    values = [value for _, value in deployment.flags if isinstance(value, str)]
    words = [deployment.model, *values, *(_value_part(word) for word in deployment.extra_args)]
    paths = (str(PurePosixPath(word)) for word in words if word.startswith("/") and len(word) > 1)
    return tuple(dict.fromkeys(path for path in paths if path != "/"))


def _value_part(word: str) -> str:
    return word.partition("=")[2] if word.startswith("--") and "=" in word else word


def health_command(deployment: Deployment) -> tuple[str, ...]:
    """Exits 0 when the server names its model; Python, because not every image of vLLM carries curl.

    /health may be true while the model cannot be used. The key comes from the container's own environment.
    """
    url = f"http://127.0.0.1:{deployment.port}/v1/models"
    key = "{'Authorization': 'Bearer ' + os.environ.get('VLLM_API_KEY', '')}"
    return ("python3", "-c", f"import os, urllib.request as u; u.urlopen(u.Request('{url}', headers={key}), timeout=5)")
