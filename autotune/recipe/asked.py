"""What a study is asked to do."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum

from autotune.life import FIRST_PAUSE_S
from autotune.records import Config, Objective, QualityThresholds

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Study names become folder names and Optuna study names."""


AUTO_SPACE, WIDE_SPACE = "auto", "auto-wide"
"""Spaces that are made for the node, the model and the workload; the wide one is not held to a few thousand configs."""


AUTO_CHECKPOINTS = "auto"
"""Among a recipe's checkpoints: every quantised one of the model that the catalogue knows."""


EXPECTING_SAMPLER = "prior"
"""The one that knows how much it expects of a proposal."""
AUTO_PARALLEL, MOST_PARALLEL = 0, 64
"""As a number of trials at once: as many as the node carries; and more than any node has GPUs."""


class EngineChoice(StrEnum):
    """`auto` takes real servers where there is a GPU, the simulation where there is none."""

    AUTO = "auto"
    SIMULATED = "simulated"
    PROCESS = "process"


class ExecutorChoice(StrEnum):
    """Where trials run: on this machine, or each on a node of a Ray cluster (docs/nodes.md)."""

    LOCAL = "local"
    RAY = "ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadChoice:
    """How the two load levels are set; all None is `auto`: found on the baseline.

    Attributes:
        concurrency: closed loop of the throughput level, per GPU used.
        rate_rps: Poisson rate of the TTFT level, per GPU used.
        requests: requests of each level, per GPU used.
    """

    concurrency: int | None = None
    rate_rps: float | None = None
    requests: int | None = None

    @property
    def fixed(self) -> bool:
        """Whether the operator fixed both levels, so that no ramp is needed."""
        return self.concurrency is not None and self.rate_rps is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestNumbers:
    """A workload straight from four numbers of real traffic (G40): lengths in tokens, requests at once per GPU.

    Attributes:
        prompt_p95: None for the mean, i.e. prompts of one length.
        concurrency: where the baseline's ramp ends at the latest; None for the workload's default.
    """

    prompt_mean: float
    output_mean: float
    prompt_p95: float | None = None
    concurrency: int | None = None


ABANDON_CONFIDENCE = 0.99
"""Of each single trial: a study has a few dozen."""

LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.8, 0.9999


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityChoice:
    """How the quality guard asks; it does so only where a study tries what changes a model's numbers.

    Attributes:
        prompts: path of a file; None for the shipped ones.
    """

    enabled: bool = True
    prompts: str | None = None
    thresholds: QualityThresholds = field(default_factory=QualityThresholds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One study as asked for; `planning.py` turns it into a plan for a node.

    Attributes:
        gpus: physical indices to use (`--gpus 0,1`); None for all visible ones.
        node: a named node to simulate; None for this machine.
        default_node: the node to simulate where this machine has no GPU; a recipe names the one it was written for.
        checkpoints: quantised checkpoints of the same model that a generated space compares.
        numbers: the workload from four numbers, instead of `workload`.
        min_model_len: no config may admit fewer tokens per request than this.
        trials: counted trials, the baseline included.
        max_time_s: of one run of the study, its launches again included; None for no limit.
        max_gpu_s: seconds times GPUs used, of all runs of the study; None for no limit.
        min_gain: the study ends when no config is expected to add this share to the front's hypervolume; None for
            never. Only the sampler `prior` expects anything.
        notify_command: told of the end, see `notify.py`; empty for nobody.
        notify_url: the same; it may hold a secret.
        abandon: confidence with which a trial must be shown to be dominated to be ended early; 0 for never.
        objective: what is maximised; the goodput needs an SLO, here or in the workload.
        repeats: how often the baseline and the pick are launched again at the end, to see drift and noise.
        start_deadline_s: a server that is not ready by then is stopped.
        stall_deadline_s: a start without a new milestone for this long counts as hung.
        level_deadline_s: one load level may take this long.
        attempts: launches of one trial when the environment is at fault.
        retry_pause_s: before a spoilt trial is launched again; doubled each time, up to a minute.
        stop_grace_s: what a server gets from TERM to KILL.
        gpu_busy_s: how long GPUs that somebody else uses are waited for; 0 stops the study at once, inf never does.
        parallel: trials at once on the node; AUTO_PARALLEL for as many as it carries.
        executor: where trials run.
        ray_address: of the cluster, HOST:PORT; None for the one that this machine is part of.
        ray_nodes: its nodes to use, by host name, address or kind; empty for all with GPUs.
        starting_points: configs tried right after the baseline, before the sampler's own.
        today: what runs today, as it is; tried before those, in the space or not, where it can start.
        quality: how it is seen whether configs that change numerics still answer alike.
    """

    name: str
    model: str
    workload: str = "chat"
    numbers: RequestNumbers | None = None
    space: str = AUTO_SPACE
    checkpoints: tuple[str, ...] = ()
    engine: EngineChoice = EngineChoice.AUTO
    node: str | None = None
    default_node: str | None = None
    min_model_len: int | None = None
    gpus: tuple[int, ...] | None = None
    vllm_command: str | None = None
    extra_args: tuple[str, ...] = ()
    trials: int = 24
    max_time_s: float | None = None
    max_gpu_s: float | None = None
    min_gain: float | None = None
    notify_command: tuple[str, ...] = field(default=(), repr=False)
    notify_url: str | None = field(default=None, repr=False)
    repeats: int = 1
    sampler: str = "prior"
    seed: int = 0
    load: LoadChoice = LoadChoice()
    objective: Objective = Objective.THROUGHPUT
    abandon: float = ABANDON_CONFIDENCE
    slo: str | None = None
    start_deadline_s: float = 1200.0
    stall_deadline_s: float = 600.0
    level_deadline_s: float = 600.0
    attempts: int = 2
    retry_pause_s: float = FIRST_PAUSE_S
    stop_grace_s: float = 20.0
    gpu_busy_s: float = math.inf
    parallel: int = 1
    executor: ExecutorChoice = ExecutorChoice.LOCAL
    ray_address: str | None = None
    ray_nodes: tuple[str, ...] = ()
    starting_points: tuple[Config, ...] = ()
    today: Config | None = None
    quality: QualityChoice = field(default_factory=QualityChoice)
