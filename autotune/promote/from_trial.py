"""The deployment of a measured trial: what its study, its server and the operator say, put together. Pure.

The time of creation and the version of autotune come in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address

from autotune.errors import InvalidOption, NotPromotable
from autotune.promote.manifest import Deployment, Provenance, StudyFacts
from autotune.promote.parameters import extra_value, split_parameters, without_secrets_and_place
from autotune.records import GateRecord, LevelRole, Phase, Trial, TrialResult, Value
from autotune.search.objective import Figures, own_figures

ASSUMED_VLLM_VERSION = "0.32.0"
"""Stands in for a simulated trial's missing version, and the artefacts say that it was assumed."""

_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?[A-Za-z0-9.+_-]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the operator may ask of a deployment.

    Attributes:
        port: 1..65535.
        bind: where the port is published. vLLM asks for no password by default, so loopback.
        image: instead of the official image of the measured version.
        vllm_version: instead of the version that the server told.
        gpu_indices: physical GPUs to pin.
        allow_simulated: promote figures that no server produced.
    """

    port: int = 8000
    bind: str = "127.0.0.1"
    image: str | None = None
    vllm_version: str | None = None
    gpu_indices: tuple[int, ...] = ()
    allow_simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is told of a promotion beside its trial.

    Attributes:
        created_at: now, UTC-aware.
        autotune_version: of this program.
        figures: of all launches of the config; those of the trial's own launch when not given.
        gate: the verification of this config, which passed or was skipped.
        author: who promotes it.
        reason: why, in the operator's words.
    """

    created_at: datetime
    autotune_version: str
    figures: Figures | None = None
    gate: GateRecord | None = None
    author: str = ""
    reason: str = ""


def deployment_from(
    study: StudyFacts, trial: Trial, *, name: str, story: Story, wishes: Wishes | None = None
) -> Deployment:
    """The deployment of a measured trial.

    Args:
        trial: the pick, or the trial the operator chose.
        name: of the deployment, e.g. `prod-chat`.

    Raises:
        NotPromotable: not measured, or simulated without leave, or of an unknown vLLM version.
        InvalidOption: a value that no target could render safely.
    """
    wishes = wishes or Wishes()
    _check_wishes(wishes)
    result, simulated = _promotable(study, trial, allow_simulated=wishes.allow_simulated)
    version, measured = _version(study, trial, result, wishes, simulated=simulated)
    flags, environment, secrets = split_parameters(study.fixed, trial.config)
    extra, extra_secrets = without_secrets_and_place(study.extra_args)
    model = study.model_of(trial.config)
    _check_words(model, wishes.bind, extra, flags, environment, study.command)
    gpus = _gpus(study, trial, wishes)
    return Deployment(
        name=name,
        model=model,
        flags=flags,
        environment=environment,
        secret_names=tuple(dict.fromkeys(("HF_TOKEN", *secrets, *extra_secrets))),
        extra_args=extra,
        command=_host_command(study.command),
        gpus=gpus,
        gpu_indices=wishes.gpu_indices,
        vllm_version=version,
        startup_s=_startup_s(trial),
        drain_s=_drain_s(trial, flags, extra),
        max_model_len=result.facts.max_model_len if result.facts else None,
        port=wishes.port,
        bind=wishes.bind,
        image=wishes.image or measured_image(study.command) or official_image(version, gpus=gpus),
        provenance=_provenance(study, trial, story, simulated=simulated, version_measured=measured),
    )


def _version(
    study: StudyFacts, trial: Trial, result: TrialResult, wishes: Wishes, *, simulated: bool
) -> tuple[str, bool]:
    """The version to pin, and whether it is the one that was measured."""
    told = result.facts.vllm_version if result.facts else None
    if simulated and told is not None and not _VERSION.fullmatch(told):
        told = None  # a simulated server may call itself anything
    pinned = _pinned_version(wishes.vllm_version or told, simulated=simulated, study=study.name, trial=trial.number)
    return pinned, wishes.vllm_version is None and told is not None


def _check_wishes(wishes: Wishes) -> None:
    """Refuse what is no port, address or image: each becomes a word of a command or a key of an object.

    Raises:
        InvalidOption: it is none.
    """
    if not 1 <= wishes.port <= 65535:
        raise InvalidOption("--port", wishes.port, "1..65535")
    try:
        ip_address(wishes.bind)
    except ValueError:
        raise InvalidOption("--bind", wishes.bind, "an IP address, e.g. 127.0.0.1, 0.0.0.0 or ::") from None
    if wishes.image is not None and not _REFERENCE.fullmatch(wishes.image):
        raise InvalidOption("--image", wishes.image, "an image such as registry.io:5000/vllm/vllm-openai:v0.32.0")


def _gpus(study: StudyFacts, trial: Trial, wishes: Wishes) -> int:
    """How many the config uses here, which are as many as were asked for.

    Raises:
        InvalidOption: other ones were named.
    """
    gpus = trial.gpus if study.node.gpu_count else 0
    if wishes.gpu_indices and len(wishes.gpu_indices) != gpus:
        said = ",".join(map(str, wishes.gpu_indices))
        raise InvalidOption("--gpus", said, f"exactly {gpus} GPUs, as the config uses")
    return gpus


def _provenance(
    study: StudyFacts, trial: Trial, story: Story, *, simulated: bool, version_measured: bool
) -> Provenance:
    figures = story.figures or own_figures(trial)
    return Provenance(
        autotune_version=story.autotune_version,
        study=study.name,
        workload=study.workload,
        trial=trial.number,
        config_hash=trial.config.hash,
        node=study.node.name,
        created_at=story.created_at,
        simulated=simulated,
        version_measured=version_measured,
        runs=figures.runs,
        output_tok_s=figures.output_tok_s,
        output_tok_s_per_gpu=figures.output_tok_s_per_gpu,
        ttft_p95_s=figures.ttft_p95_s,
        resolved=trial.result.facts if trial.result else None,
        caveats=tuple(caveat.text for caveat in trial.caveats),
        gate=story.gate,
        author=story.author,
        reason=story.reason,
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
    if pinned is None or not _VERSION.fullmatch(pinned):
        raise NotPromotable(
            f"trial {trial} of study {study!r}: vLLM version {pinned!r} is not one that can be pinned",
            hint="Say which vLLM was measured with --vllm-version, e.g. 0.32.0.",
        )
    return pinned


def official_image(version: str, *, gpus: int) -> str | None:
    """The project's public image of exactly this version; None for development builds, which have none."""
    public = version.partition("+")[0]
    if ".dev" in public:
        return None
    return f"vllm/vllm-openai:v{public}" if gpus else f"vllm/vllm-openai-cpu:v{public}"


_REFERENCE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9.-]*(?::\d+(?=/))?(?:/[a-z0-9][a-z0-9._-]*)*(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
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
    slowest = level.e2e_s.p99 if level and level.e2e_s else None
    slowest_s = slowest.value if slowest else 30.0
    return int(min(300.0, max(30.0, -(-2 * slowest_s // 1))))
