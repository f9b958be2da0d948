"""Values for the Helm chart of the vLLM production-stack (`vllm-stack`, read at 0.1.16).

What the chart makes of them, in `templates/deployment-vllm-multi.yaml` and `_helpers.tpl`, decides what stands here:

* Without `vllmConfig.enablePrefixCaching` it passes `--no-enable-prefix-caching`, so the value is always said.
* It mounts /dev/shm only where `vllmConfig.tensorParallelSize` is said, so that is said wherever workers talk.
* All other flags go through `extraArgs`; its own keys exist for a few flags only, and differ between its versions.
* It has no key for the grace period and no pre-stop hook: pods get Kubernetes' 30 s, and the drain has to fit in them.
* Service and subdomain are `RELEASE-NAME-engine-service`, which must stay within a DNS label's 63 characters.
* Helm lays values over the chart's own key by key, so what those hold and must not be is said as well: a delay of 15 s
  before each probe, and containers that may be root.
"""

from __future__ import annotations

from typing import Any

from autotune.errors import NotPromotable
from autotune.promote.command import drain_flags
from autotune.promote.container import cache_environment, pinned_image
from autotune.promote.manifest import Deployment
from autotune.promote.parameters import flag_tokens
from autotune.promote.quoting import YAML_WORDS, double_dollars, slug, yaml_text
from autotune.promote.rendering import RenderedFile, stamped
from autotune.promote.targets.kubernetes import (
    cache_gib,
    container_security,
    host_volumes,
    pod_security,
    probes,
    provenance_annotations,
    scrape_annotations,
    secret_variable,
    shm_size,
)

CHART_CACHE_DIR = "/data"
"""Where the chart mounts the volume of `pvcStorage`, and what it sets HF_HOME to."""

GRACE_S = 30
"""Kubernetes' own grace period, which the chart leaves as it is."""

MOST_DRAIN_S = 20
"""Of those, so that the server has time to free its GPUs before the kill."""

NAME_LIMIT = 29
RELEASE_LIMIT = 18

_PREFIX_CACHING = "enable-prefix-caching"
_TENSOR_PARALLEL = "tensor-parallel-size"


def render(deployment: Deployment) -> tuple[RenderedFile, ...]:
    """One values file."""
    name = slug(deployment.name)
    path = f"{name}.helm-values.yaml"
    release = _word(slug(deployment.name, limit=RELEASE_LIMIT))
    usage = [
        "Values of the chart vllm/vllm-stack (vLLM production-stack; written for 0.1.16). Install:",
        f"  helm upgrade --install {release} vllm/vllm-stack -f {path}",
        "Secrets, from a file of NAME=value lines that git ignores:",
        f"  kubectl create secret generic {name}-secrets --from-env-file=secrets.env",
        "CPU and memory requests are a rule of thumb, not measured.",
    ]
    if deployment.drains and deployment.drain_s > MOST_DRAIN_S:
        usage.append(
            f"The chart leaves {GRACE_S} s between TERM and KILL: requests are cut {MOST_DRAIN_S} s after TERM, though "
            f"the slowest may need {deployment.drain_s} s."
        )
    return (RenderedFile(path=path, text=stamped(deployment, yaml_text(document(deployment)), usage=tuple(usage))),)


def document(deployment: Deployment) -> dict[str, Any]:
    """The values; `$` is doubled in arguments and variables, as Kubernetes expands `$(NAME)`."""
    engine: dict[str, Any] = {
        "containerPort": deployment.port,
        "imagePullPolicy": "IfNotPresent",
        "securityContext": pod_security(),
        "containerSecurityContext": {"runAsNonRoot": True, **container_security()},
        # A rolling update waits for GPUs that the old pod holds, for ever on a full node.
        "strategy": {"type": "Recreate"},
        **{
            name: {"initialDelaySeconds": 0, **probe}
            for name, probe in probes(deployment, port=deployment.port).items()
        },
    }
    if "VLLM_API_KEY" in deployment.secret_names:
        # The chart's own key, because its router has to send it.
        engine["vllmApiKey"] = {"secretName": f"{slug(deployment.name)}-secrets", "secretKey": "VLLM_API_KEY"}
    if not deployment.gpus:
        engine["runtimeClassName"] = ""
    return {"servingEngineSpec": {**engine, "modelSpec": [_model(deployment)]}}


def model_name(deployment: Deployment) -> str:
    """The `name` of the model."""
    return _word(slug(deployment.name, limit=NAME_LIMIT))


def _word(name: str) -> str:
    """A name that the chart may write without quotes, as it does in labels, where `on` would be no text."""
    return f"v-{name}" if name in YAML_WORDS else name


def _model(deployment: Deployment) -> dict[str, Any]:
    repository, tag = _split_image(pinned_image(deployment))
    own = [name for name in deployment.secret_names if name != "VLLM_API_KEY"]
    volumes, mounts = host_volumes(deployment)
    model: dict[str, Any] = {
        "name": model_name(deployment),
        "annotations": provenance_annotations(deployment),
        "podAnnotations": scrape_annotations(deployment),
        "repository": repository,
        "tag": tag,
        "modelURL": double_dollars(deployment.model),
        "replicaCount": 1,
        "requestCPU": deployment.workers + 2,  # one of each worker, the API server, the engine core
        "requestMemory": f"{8 + 4 * deployment.workers}Gi",
        "requestGPU": deployment.gpus,
        "pvcStorage": f"{cache_gib(deployment)}Gi",
        "pvcAccessMode": ["ReadWriteOnce"],
        "vllmConfig": vllm_config(deployment),
        "env": [
            *({"name": key, "value": double_dollars(value)} for key, value in _environment(deployment).items()),
            *(secret_variable(key, f"{slug(deployment.name)}-secrets") for key in own),
        ],
    }
    if deployment.shares_memory:
        model["shmSize"] = shm_size(deployment)
    if volumes:
        model |= {"extraVolumes": volumes, "extraVolumeMounts": mounts}
    return model


def vllm_config(deployment: Deployment) -> dict[str, Any]:
    """`vllmConfig`: what the chart must be told by its own keys, the rest as arguments."""
    flags = dict(deployment.flags)
    config: dict[str, Any] = {"enablePrefixCaching": _prefix_caching(deployment)}
    own = {_PREFIX_CACHING}
    if deployment.shares_memory:
        size = flags.get(_TENSOR_PARALLEL, 1)
        config["tensorParallelSize"] = int(size) if size is not None else 1
        own.add(_TENSOR_PARALLEL)
    rest = [(name, value) for name, value in deployment.flags if name not in own]
    drain = [(name, min(deployment.drain_s, MOST_DRAIN_S)) for name, _ in drain_flags(deployment)]
    words = (*flag_tokens(rest), *flag_tokens(drain), *deployment.extra_args)
    config["extraArgs"] = [double_dollars(word) for word in words]
    return config


def _prefix_caching(deployment: Deployment) -> bool:
    """As configured, else as the measured server had resolved it, else vLLM's own default since 0.8."""
    said = dict(deployment.flags).get(_PREFIX_CACHING)
    resolved = deployment.provenance.resolved
    told = resolved.prefix_caching if resolved else None
    return bool(said if said is not None else True if told is None else told)


def _environment(deployment: Deployment) -> dict[str, str]:
    caches = cache_environment(CHART_CACHE_DIR)
    del caches["HF_HOME"]  # the chart's own, which is the same volume
    return {**caches, **dict(deployment.environment)}


def _split_image(image: str) -> tuple[str, str]:
    """Repository and tag, which the chart joins by a colon; a digest's own colon serves as well.

    Raises:
        NotPromotable: neither is there, so the chart's `repository:tag` could not name the image.
    """
    repository, colon, tag = image.rpartition(":")
    if not colon or "/" in tag:
        raise NotPromotable(
            f"image {image!r} has no tag, and the chart needs one",
            hint="Give --image REPOSITORY:TAG or @sha256:DIGEST.",
        )
    return repository, tag
