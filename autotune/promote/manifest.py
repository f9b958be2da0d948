"""The deployment: one measured trial with everything that is needed to run it again, elsewhere and for long.

All targets are rendered from this record alone. Pure: the time of creation and the version of autotune come in.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime

from autotune.promote.parameters import served_model
from autotune.records import (
    Config,
    Estimate,
    GateRecord,
    Node,
    ServerFacts,
    Value,
)

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFacts:
    """What a promotion needs to know of a study.

    Attributes:
        model: the study's; a trial that chose a checkpoint of its own is deployed with that.
        checkpoints: where that checkpoint lies here, by the name that its config has, for those that are folders.
        fixed: parameters that every trial of the study had.
        extra_args: what followed `--`, passed to the server verbatim.
        command: the server command up to the model, e.g. ("vllm", "serve").
    """

    name: str
    model: str
    workload: str
    node: Node
    fixed: Config | None = None
    extra_args: tuple[str, ...] = ()
    command: tuple[str, ...] = ("vllm", "serve")
    checkpoints: tuple[tuple[str, str], ...] = ()

    def model_of(self, config: Config) -> str:
        """The model that a deployment of `config` serves."""
        served = served_model(self.model, config)
        return dict(self.checkpoints).get(served, served)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a deployment comes from; opens every rendered file.

    Attributes:
        created_at: UTC-aware.
        version_measured: False when the vLLM version was assumed or given by hand.
        runs: launches of the config that the figures are means of.
        resolved: what the server itself said; vLLM's defaults drift between versions, so it stands in the file.
        gate: what the verification before the promotion said; None where none was asked for.
        author, reason: who promoted it, and why; empty where nobody said.
    """

    autotune_version: str
    study: str
    workload: str
    trial: int
    config_hash: str
    node: str
    created_at: datetime
    simulated: bool
    version_measured: bool
    runs: int
    output_tok_s: Estimate | None
    output_tok_s_per_gpu: Estimate | None
    ttft_p95_s: Estimate | None
    resolved: ServerFacts | None
    caveats: tuple[str, ...]
    gate: GateRecord | None = None
    author: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The input of every target.

    Attributes:
        name: as the operator wrote it; targets derive their own identifiers by `quoting.slug`.
        flags: `vllm serve` flags without dashes, fixed parameters merged in, ordered by name.
        environment: variables of the server, none of them secret.
        secret_names: variables that hold secrets; their values are never here.
        gpus: TP x PP x DP; 0 on a machine without GPUs.
        gpu_indices: physical GPUs to use; empty leaves the choice to the runtime.
        startup_s: measured from launch to ready, on the study's own caches.
        drain_s: how long requests in flight may take to end after TERM.
        bind: address that a published port listens on.
        image: pinned container image; None for a build that no public image holds.
    """

    name: str
    model: str
    flags: tuple[tuple[str, Value], ...]
    environment: tuple[tuple[str, str], ...]
    secret_names: tuple[str, ...]
    extra_args: tuple[str, ...]
    command: tuple[str, ...]
    gpus: int
    gpu_indices: tuple[int, ...]
    vllm_version: str
    startup_s: float | None
    drain_s: int
    max_model_len: int | None
    port: int
    bind: str
    image: str | None
    provenance: Provenance

    @property
    def workers(self) -> int:
        """Processes that compute: TP x PP x DP, also where no GPU is counted."""
        sizes = [dict(self.flags).get(f"{kind}-parallel-size") for kind in ("tensor", "pipeline", "data")]
        return max(self.gpus, math.prod(size for size in sizes if isinstance(size, int) and size > 0))

    @property
    def shares_memory(self) -> bool:
        """Whether several workers talk through /dev/shm, which is 64 MiB in a bare container."""
        return self.workers > 1

    @property
    def drains(self) -> bool:
        """Whether this vLLM knows `--shutdown-timeout` (0.18 on); an older one aborts requests in flight on TERM."""
        return version_of(self.vllm_version) >= (0, 18)

    @property
    def local_model(self) -> bool:
        """Whether the model is a folder of the host rather than a hub name."""
        return self.model.startswith("/")


def version_of(version: str) -> tuple[int, int]:
    """Major and minor of a vLLM version such as `0.18.1`, `0.32.0+cpu`, `0.19.0rc1`."""
    found = _VERSION.match(version)
    if found is None:
        raise ValueError(f"not a version: {version!r}")
    return int(found[1]), int(found[2])
