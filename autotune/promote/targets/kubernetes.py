"""Kubernetes: a Deployment, its Service and the volume of its caches."""

from __future__ import annotations

import math
from typing import Any

from autotune.promote.container import CACHE_DIR, ENTRYPOINT, arguments, environment, local_paths, pinned_image
from autotune.promote.manifest import Deployment
from autotune.promote.quoting import comment_text, double_dollars, label_value, slug, yaml_text
from autotune.promote.rendering import RenderedFile, stamped
from autotune.promote.timing import grace_period_s, prestop_s, start_budget_s
from autotune.units import GIB

PROBE_PERIOD_S = 10

USER_ID = 2000
"""Any user but root; the cache volume is made writable for the group of the same number."""

SHM_GIB_PER_GPU = 2
"""NCCL and the workers' message queues; counts against a memory limit, of which there is none here."""


def render(deployment: Deployment) -> tuple[RenderedFile, ...]:
    """One file of three documents."""
    name = slug(deployment.name)
    documents = (_volume_claim(deployment, name), _service(deployment, name), _deployment(deployment, name))
    body = "---\n".join(yaml_text(document) for document in documents)
    path = f"{name}.kubernetes.yaml"
    usage = [
        f"Apply: kubectl apply -f {path}",
        "Secrets, from a file of NAME=value lines that git ignores:",
        f"  kubectl create secret generic {name}-secrets --from-env-file=secrets.env",
    ]
    if local_paths(deployment):
        usage.append("Host paths are mounted from the node that was measured; put their content in a volume instead.")
    return (RenderedFile(path=path, text=stamped(deployment, body, usage=tuple(usage))),)


def _metadata(deployment: Deployment, name: str) -> dict[str, Any]:
    facts = deployment.provenance
    return {
        "name": name,
        "labels": {
            **_selector(name),
            "app.kubernetes.io/version": label_value(deployment.vllm_version),
            "app.kubernetes.io/managed-by": "autotune",
        },
        "annotations": {
            "autotune/study": comment_text(facts.study),
            "autotune/trial": str(facts.trial),
            "autotune/config-hash": facts.config_hash,
            "autotune/gate": str(facts.gate),
            "autotune/simulated": "true" if facts.simulated else "false",
        },
    }


def _selector(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": name}


def _volume_claim(deployment: Deployment, name: str) -> dict[str, Any]:
    resolved = deployment.provenance.resolved
    weights = resolved.weights_bytes if resolved and resolved.weights_bytes else 0
    # Twice the weights, for two revisions of the model, and room for compiled code.
    size_gib = max(50, math.ceil(2 * weights * max(1, deployment.gpus) / GIB) + 20)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {**_metadata(deployment, name), "name": f"{name}-cache"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": f"{size_gib}Gi"}}},
    }


def _service(deployment: Deployment, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(deployment, name),
        "spec": {
            "selector": _selector(name),
            "ports": [{"name": "http", "port": deployment.port, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _deployment(deployment: Deployment, name: str) -> dict[str, Any]:
    scrape = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(deployment.port),
        "prometheus.io/path": "/metrics",
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(deployment, name),
        "spec": {
            "replicas": 1,
            # A rolling update waits for GPUs that the old pod holds, for ever on a full node.
            "strategy": {"type": "Recreate"},
            # The default of 600 s declares a slow load failed.
            "progressDeadlineSeconds": start_budget_s(deployment) + 600,
            "selector": {"matchLabels": _selector(name)},
            "template": {
                "metadata": {
                    "labels": _selector(name),
                    "annotations": {**scrape, "autotune/config-hash": deployment.provenance.config_hash},
                },
                "spec": _pod(deployment, name),
            },
        },
    }


def _pod(deployment: Deployment, name: str) -> dict[str, Any]:
    return {
        "terminationGracePeriodSeconds": grace_period_s(deployment),
        "automountServiceAccountToken": False,
        # A Service called vllm would set VLLM_PORT=tcp://..., which the server reads as its own setting.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(deployment, name)],
        "volumes": [
            {"name": "cache", "persistentVolumeClaim": {"claimName": f"{name}-cache"}},
            *_shm_volume(deployment),
            *(
                {"name": f"host-{index}", "hostPath": {"path": path}}
                for index, path in enumerate(local_paths(deployment))
            ),
        ],
    }


def _container(deployment: Deployment, name: str) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "vllm",
        "image": pinned_image(deployment),
        "command": list(ENTRYPOINT),
        "args": [double_dollars(word) for word in arguments(deployment)],
        "env": [
            *({"name": key, "value": double_dollars(value)} for key, value in environment(deployment).items()),
            *(_secret(key, f"{name}-secrets") for key in deployment.secret_names),
        ],
        "ports": [{"name": "http", "containerPort": deployment.port, "protocol": "TCP"}],
    }
    if deployment.gpus:
        amount = {"nvidia.com/gpu": str(deployment.gpus)}
        container["resources"] = {"requests": amount, "limits": amount}
    return {
        **container,
        **_probes(deployment),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(prestop_s(deployment))]}}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "cache", "mountPath": CACHE_DIR},
            *([{"name": "shm", "mountPath": "/dev/shm"}] if deployment.shares_memory else []),  # noqa: S108 - a mount
            *(
                {"name": f"host-{index}", "mountPath": path, "readOnly": True}
                for index, path in enumerate(local_paths(deployment))
            ),
        ],
    }


def _probes(deployment: Deployment) -> dict[str, Any]:
    """Start-up gates the other two, so these have no delay of their own; a fixed delay kills slow loads.

    /health may be true while the model cannot be used, so readiness asks /v1/models; not where that needs the API key.
    """
    period = {"periodSeconds": PROBE_PERIOD_S}
    ready_path = "/health" if "VLLM_API_KEY" in deployment.secret_names else "/v1/models"
    return {
        "startupProbe": {
            **_get("/health"),
            **period,
            "timeoutSeconds": 5,
            "failureThreshold": math.ceil(start_budget_s(deployment) / PROBE_PERIOD_S),
        },
        "readinessProbe": {**_get(ready_path), **period, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {
            **_get("/health"),
            **period,
            "initialDelaySeconds": 0,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
    }


def _get(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "http"}}


def _secret(key: str, secret: str) -> dict[str, Any]:
    return {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}


def _shm_volume(deployment: Deployment) -> list[dict[str, Any]]:
    if not deployment.shares_memory:
        return []
    size = f"{max(8, SHM_GIB_PER_GPU * deployment.gpus)}Gi"
    return [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}]
