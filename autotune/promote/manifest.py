"""The deployment: one measured trial with everything that is needed to run it again, elsewhere and for long.

All targets are rendered from this record alone. Pure: the time of creation and the version of autotune come in.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime

from autotune.errors import InvalidOption, NotPromotable
from autotune.promote.parameters import extra_value, served_model, split_parameters, without_secrets_and_place
from autotune.records import (
    Config,
    Estimate,
    GateRecord,
    LevelRole,
    Node,
    Phase,
    ServerFacts,
    Trial,
    TrialResult,
    Value,
)
from autotune.search.objective import Figures, own_figures

ASSUMED_VLLM_VERSION = "0.32.0"
"""Stands in for a simulated trial's missing version, and the artefacts say that it was assumed."""

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


def deployment_from(
    study: StudyFacts,
    trial: Trial,
    *,
    name: str,
    created_at: datetime,
    autotune_version: str,
    figures: Figures | None = None,
    allow_simulated: bool = False,
    port: int = 8000,
    bind: str = "127.0.0.1",
    image: str | None = None,
    vllm_version: str | None = None,
    gpu_indices: tuple[int, ...] = (),
    gate: GateRecord | None = None,
    author: str = "",
    reason: str = "",
) -> Deployment:
    """The deployment of a measured trial.

    Args:
        study: the study the trial belongs to.
        trial: the pick, or the trial the operator chose.
        name: of the deployment, e.g. `prod-chat`.
        created_at: now, UTC-aware.
        autotune_version: of this program.
        figures: of all launches of its config; those of the trial's own launch when not given.
        allow_simulated: promote figures that no server produced.
        port: 1..65535.
        bind: where the port is published. vLLM asks for no password by default, so loopback.
        image: instead of the official image of the measured version.
        vllm_version: instead of the version that the server told.
        gpu_indices: physical GPUs to pin.
        gate: the verification of this config, which passed or was skipped.
        author: who promotes it.
        reason: why, in the operator's words.

    Raises:
        NotPromotable: not measured, or simulated without `allow_simulated`, or of an unknown vLLM version.
        InvalidOption: a value that no target could render safely.
    """
    result, simulated = _promotable(study, trial, allow_simulated=allow_simulated)
    told = result.facts.vllm_version if result.facts else None
    if simulated and told is not None and not _VERSION.match(told):
        told = None  # a simulated server may call itself anything
    version = _pinned_version(vllm_version or told, simulated=simulated, study=study.name, trial=trial.number)
    if not 1 <= port <= 65535:
        raise InvalidOption("--port", port, "1..65535")
    flags, environment, secrets = split_parameters(study.fixed, trial.config)
    extra, extra_secrets = without_secrets_and_place(study.extra_args)
    model = study.model_of(trial.config)
    _check_words(model, bind, extra, flags, environment, study.command)
    gpus = trial.gpus if study.node.gpu_count else 0
    if gpu_indices and len(gpu_indices) != gpus:
        raise InvalidOption("--gpus", ",".join(map(str, gpu_indices)), f"exactly {gpus} GPUs, as the config uses")
    return Deployment(
        name=name,
        model=model,
        flags=flags,
        environment=environment,
        secret_names=tuple(dict.fromkeys(("HF_TOKEN", *secrets, *extra_secrets))),
        extra_args=extra,
        command=_host_command(study.command),
        gpus=gpus,
        gpu_indices=gpu_indices,
        vllm_version=version,
        startup_s=_startup_s(trial),
        drain_s=_drain_s(trial, flags, extra),
        max_model_len=result.facts.max_model_len if result.facts else None,
        port=port,
        bind=bind,
        image=image or measured_image(study.command) or official_image(version, gpus=gpus),
        provenance=_provenance(
            study,
            trial,
            figures or own_figures(trial),
            autotune_version=autotune_version,
            created_at=created_at,
            simulated=simulated,
            version_measured=vllm_version is None and told is not None,
            gate=gate,
            author=author,
            reason=reason,
        ),
    )


def _provenance(
    study: StudyFacts,
    trial: Trial,
    figures: Figures,
    *,
    autotune_version: str,
    created_at: datetime,
    simulated: bool,
    version_measured: bool,
    gate: GateRecord | None,
    author: str,
    reason: str,
) -> Provenance:
    return Provenance(
        autotune_version=autotune_version,
        study=study.name,
        workload=study.workload,
        trial=trial.number,
        config_hash=trial.config.hash,
        node=study.node.name,
        created_at=created_at,
        simulated=simulated,
        version_measured=version_measured,
        runs=figures.runs,
        output_tok_s=figures.output_tok_s,
        output_tok_s_per_gpu=figures.output_tok_s_per_gpu,
        ttft_p95_s=figures.ttft_p95_s,
        resolved=trial.result.facts if trial.result else None,
        caveats=tuple(caveat.text for caveat in trial.caveats),
        gate=gate,
        author=author,
        reason=reason,
    )


def _host_command(command: tuple[str, ...]) -> tuple[str, ...]:
    """The server command for targets on the host; a template (a container, a wrapper) is no part of a deployment."""
    template = any(mark in word for word in command for mark in ("{port}", "{model}", "{flags}"))
    return ("vllm", "serve") if template or not command else command


def _promotable(study: StudyFacts, trial: Trial, *, allow_simulated: bool) -> tuple[TrialResult, bool]:
    """The result of a trial that may be promoted, and whether it is simulated.

    Raises:
        NotPromotable: not measured, void, or simulated without leave.
    """
    result = trial.result
    if trial.void is not None:
        raise NotPromotable(
            f"the load client was the limit of trial {trial.number} of study {study.name!r} ({trial.void.code}), so "
            "its figures are not the server's",
            hint=trial.void.remedy,
        )
    if result is None or not trial.measured:
        ended = "still running" if result is None else str(result.outcome)
        raise NotPromotable(
            f"trial {trial.number} of study {study.name!r} was not measured ({ended})",
            hint="Promote a trial of the front: `autotune pareto STUDY` shows it.",
        )
    simulated = result.simulated or study.node.simulated
    if simulated and not allow_simulated:
        raise NotPromotable(
            f"trial {trial.number} of study {study.name!r} is simulated: no server was ever measured",
            hint="Run the study on the node with --engine process; or, to look at the files only, --allow-simulated.",
        )
    return result, simulated


def _pinned_version(version: str | None, *, simulated: bool, study: str, trial: int) -> str:
    """The version to pin; a simulated trial may lack one.

    Raises:
        NotPromotable: none is known, or it is no version.
    """
    pinned = version or (ASSUMED_VLLM_VERSION if simulated else None)
    if pinned is None or not _VERSION.match(pinned):
        raise NotPromotable(
            f"trial {trial} of study {study!r}: vLLM version {pinned!r} is not one that can be pinned",
            hint="Say which vLLM was measured with --vllm-version, e.g. 0.32.0.",
        )
    return pinned


def version_of(version: str) -> tuple[int, int]:
    """Major and minor of a vLLM version such as `0.18.1`, `0.32.0+cpu`, `0.19.0rc1`."""
    found = _VERSION.match(version)
    if found is None:
        raise ValueError(f"not a version: {version!r}")
    return int(found[1]), int(found[2])


def official_image(version: str, *, gpus: int) -> str | None:
    """The project's public image of exactly this version; None for development builds, which have none."""
    public = version.partition("+")[0]
    if ".dev" in public:
        return None
    return f"vllm/vllm-openai:v{public}" if gpus else f"vllm/vllm-openai-cpu:v{public}"


_IMAGE = re.compile(r"[a-z0-9][\w.-]*(?::\d+)?(?:/[\w.-]+)*(?::[\w.-]+|@sha256:[0-9a-f]{64})", re.ASCII)
_AFTER_IMAGE = frozenset({"{model}", "{flags}", "--model", "serve", "vllm", "python", "python3", "-m"})


def measured_image(command: tuple[str, ...]) -> str | None:
    """The image that a study's server command ran, so that production runs the very same; None where it ran none.

    It is the word before the first of those that belong to the server.
    """
    if not any(word.rpartition("/")[2] in {"docker", "podman", "nerdctl"} for word in command[:2]):
        return None
    at = next((index for index, word in enumerate(command) if word in _AFTER_IMAGE), len(command))
    word = command[at - 1]
    return word if _IMAGE.fullmatch(word) else None


def _check_words(
    model: str,
    bind: str,
    extra: tuple[str, ...],
    flags: tuple[tuple[str, Value], ...],
    environment: tuple[tuple[str, str], ...],
    command: tuple[str, ...],
) -> None:
    """Refuse what cannot be passed to a process, and a model that means another folder elsewhere."""
    if not model or model.startswith(("-", ".", "~")):
        raise InvalidOption(
            "--model", model, "a hub name or an absolute path; a relative one means another folder in production"
        )
    values = [value for _, value in flags] + [value for _, value in environment]
    for word in (model, bind, *extra, *command, *(value for value in values if isinstance(value, str))):
        if "\0" in word or any(0xD800 <= ord(char) <= 0xDFFF for char in word):
            raise InvalidOption("promote", word, "text without NUL that can be written as UTF-8")


def _startup_s(trial: Trial) -> float | None:
    result = trial.result
    if result is None:
        return None
    if result.facts is not None and result.facts.startup_s is not None:
        return result.facts.startup_s
    return dict(result.phase_seconds).get(Phase.LAUNCHING)


def _drain_s(trial: Trial, flags: tuple[tuple[str, Value], ...], extra: tuple[str, ...]) -> int:
    """The operator's own `--shutdown-timeout`, else twice the slowest percent of requests, within 30..300 s."""
    given = dict(flags).get("shutdown-timeout", extra_value(extra, "--shutdown-timeout"))
    if given is not None:
        try:
            return max(0, int(float(given)))
        except ValueError as error:
            raise InvalidOption("--shutdown-timeout", given, "seconds") from error
    level = trial.result.of_role(LevelRole.TTFT) if trial.result else None
    slowest_s = level.e2e_s.p99.value if level and level.e2e_s else 30.0
    return int(min(300.0, max(30.0, -(-2 * slowest_s // 1))))
