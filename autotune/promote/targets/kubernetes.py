"""Kubernetes: a Deployment, its Service and the volume of its caches."""

from __future__ import annotations

import math
from typing import Any

from autotune.promote.container import CACHE_DIR, ENTRYPOINT, arguments, environment, local_paths, pinned_image
from autotune.promote.manifest import Deployment
from autotune.promote.quoting import comment_text, double_dollars, label_value, slug, yaml_text
from autotune.promote.rendering import RenderedFile, gate_text, rate_text, seconds_text, stamped
from autotune.promote.timing import grace_period_s, prestop_s, start_budget_s
from autotune.units import GIB

PROBE_PERIOD_S = 10

USER_ID = 2000
"""Any user but root; the cache volume is made writable for the group of the same number."""

SHM_GIB_PER_WORKER = 2
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
    return {
        "name": name,
        "labels": {
            **_selector(name),
            "app.kubernetes.io/version": label_value(deployment.vllm_version),
            "app.kubernetes.io/managed-by": "autotune",
        },
        "annotations": provenance_annotations(deployment),
    }


def provenance_annotations(deployment: Deployment) -> dict[str, str]:
    """Where the deployment comes from, for who looks at the cluster and not at the file."""
    facts = deployment.provenance
    return {
        "autotune/study": comment_text(facts.study),
        "autotune/trial": str(facts.trial),
        "autotune/config-hash": facts.config_hash,
        "autotune/node": comment_text(facts.node),
        "autotune/vllm-version": comment_text(deployment.vllm_version),
        "autotune/workload": comment_text(facts.workload),
        "autotune/output": f"{rate_text(facts.output_tok_s)}, per GPU {rate_text(facts.output_tok_s_per_gpu)}",
        "autotune/ttft-p95": seconds_text(facts.ttft_p95_s),
        "autotune/gate": gate_text(facts),
        "autotune/simulated": "true" if facts.simulated else "false",
    }


def scrape_annotations(deployment: Deployment) -> dict[str, str]:
    """Of the pods: where Prometheus finds the metrics, and which config they are of."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(deployment.port),
        "prometheus.io/path": "/metrics",
        "autotune/config-hash": deployment.provenance.config_hash,
    }


def _selector(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": name}


def cache_gib(deployment: Deployment) -> int:
    """Size of the cache volume: twice the weights, for two revisions of the model, and room for compiled code."""
    resolved = deployment.provenance.resolved
    weights = resolved.weights_bytes if resolved and resolved.weights_bytes else 0
    return max(50, math.ceil(2 * weights * deployment.workers / GIB) + 20)


def _volume_claim(deployment: Deployment, name: str) -> dict[str, Any]:
    size = {"storage": f"{cache_gib(deployment)}Gi"}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {**_metadata(deployment, name), "name": f"{name}-cache"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": size},
        },
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
                    "annotations": scrape_annotations(deployment),
                },
                "spec": _pod(deployment, name),
            },
        },
    }


def pod_security() -> dict[str, Any]:
    """Not root, and the cache volume writable for the group."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """No way to become root."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def host_volumes(deployment: Deployment) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and mounts of what the arguments name on the host."""
    paths = list(enumerate(local_paths(deployment)))
    return (
        [{"name": f"host-{index}", "hostPath": {"path": path}} for index, path in paths],
        [{"name": f"host-{index}", "mountPath": path, "readOnly": True} for index, path in paths],
    )


def _pod(deployment: Deployment, name: str) -> dict[str, Any]:
    volumes, _ = host_volumes(deployment)
    return {
        "terminationGracePeriodSeconds": grace_period_s(deployment),
        "automountServiceAccountToken": False,
        # A Service called vllm would set VLLM_PORT=tcp://..., which the server reads as its own setting.
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "containers": [_container(deployment, name)],
        "volumes": [
            {"name": "cache", "persistentVolumeClaim": {"claimName": f"{name}-cache"}},
            *_shm_volume(deployment),
            *volumes,
        ],
    }


def _container(deployment: Deployment, name: str) -> dict[str, Any]:
    _, mounts = host_volumes(deployment)
    container: dict[str, Any] = {
        "name": "vllm",
        "image": pinned_image(deployment),
        "command": list(ENTRYPOINT),
        "args": [double_dollars(word) for word in arguments(deployment)],
        "env": [
            *({"name": key, "value": double_dollars(value)} for key, value in environment(deployment).items()),
            *(secret_variable(key, f"{name}-secrets") for key in deployment.secret_names),
        ],
        "ports": [{"name": "http", "containerPort": deployment.port, "protocol": "TCP"}],
    }
    if deployment.gpus:
        amount = {"nvidia.com/gpu": str(deployment.gpus)}
        container["resources"] = {"requests": amount, "limits": amount}
    return {
        **container,
        **probes(deployment, port="http"),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(prestop_s(deployment))]}}},
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "cache", "mountPath": CACHE_DIR},
            *([{"name": "shm", "mountPath": "/dev/shm"}] if deployment.shares_memory else []),  # noqa: S108 - a mount
            *mounts,
        ],
    }


def probes(deployment: Deployment, *, port: int | str) -> dict[str, Any]:
    """Start-up gates the other two, so these have no delay of their own; a fixed delay kills slow loads.

    /health may be true while the model cannot be used, so readiness asks /v1/models; not where that needs the API key.
    """
    period = {"periodSeconds": PROBE_PERIOD_S}
    ready_path = "/health" if "VLLM_API_KEY" in deployment.secret_names else "/v1/models"
    return {
        "startupProbe": {
            **_get("/health", port),
            **period,
            "timeoutSeconds": 5,
            "failureThreshold": math.ceil(start_budget_s(deployment) / PROBE_PERIOD_S),
        },
        "readinessProbe": {**_get(ready_path, port), **period, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {
            **_get("/health", port),
            **period,
            "initialDelaySeconds": 0,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
    }


def _get(path: str, port: int | str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": port}}


def secret_variable(key: str, secret: str) -> dict[str, Any]:
    """A variable whose value lies in a Secret; the server starts without it where that lacks it."""
    return {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}


def shm_size(deployment: Deployment) -> str:
    """Of /dev/shm, where workers share memory."""
    return f"{max(8, SHM_GIB_PER_WORKER * deployment.workers)}Gi"


def _shm_volume(deployment: Deployment) -> list[dict[str, Any]]:
    if not deployment.shares_memory:
        return []
    return [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm_size(deployment)}}]
