"""The closed set of targets and who renders each."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import assert_never

from autotune.promote.manifest import Deployment
from autotune.promote.rendering import RenderedFile
from autotune.promote.targets import compose, docker, helm, kubernetes, shell, systemd, vllm_config


class Target(StrEnum):
    """Where a deployment can go, in the words of `--target`."""

    VLLM_CONFIG = "vllm-config"
    DOCKER = "docker"
    COMPOSE = "compose"
    KUBERNETES = "kubernetes"
    HELM = "helm"
    SYSTEMD = "systemd"
    SHELL = "shell"


def render(deployment: Deployment, targets: Iterable[Target]) -> tuple[RenderedFile, ...]:
    """The files of several targets, in the order given; their paths differ between targets.

    Raises:
        NotPromotable: a container target, and no public image holds the measured build.
    """
    return tuple(file for target in dict.fromkeys(targets) for file in _render_one(deployment, target))


def _render_one(deployment: Deployment, target: Target) -> tuple[RenderedFile, ...]:
    match target:
        case Target.VLLM_CONFIG:
            return vllm_config.render(deployment)
        case Target.DOCKER:
            return docker.render(deployment)
        case Target.COMPOSE:
            return compose.render(deployment)
        case Target.KUBERNETES:
            return kubernetes.render(deployment)
        case Target.HELM:
            return helm.render(deployment)
        case Target.SYSTEMD:
            return systemd.render(deployment)
        case Target.SHELL:
            return shell.render(deployment)
        case _:
            assert_never(target)
