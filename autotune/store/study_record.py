"""What the store says about a study, its attempts, refusals and promotions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from autotune.engine.base import ServerIdentity
from autotune.life import Transition
from autotune.records import ClockKind, EngineKind, TrialResult, Value


class StudyState(StrEnum):
    """Where a study stands; `running` is also what a killed tuner leaves behind."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


class AttemptState(StrEnum):
    """How one launch of a trial ended.

    `faulted` counts against the bounded retries; `interrupted` (Ctrl-C, kill -9) does not.
    """

    OPEN = "open"
    ENDED = "ended"
    FAULTED = "faulted"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySpec:
    """The question that a study asks. Two commands of one study name must agree on everything but the target.

    Attributes:
        identity: what makes results comparable, each as a short text that can be shown when it differs: model,
            workload, space (its hash), node, vllm_version, load; more keys are compared as well.
        choices: the values of every parameter of the space, fixed for the life of the study, because Optuna's
            categorical distributions cannot change once a trial used them.
        spec: everything else that a later command wants to read back (the full study file, say); never compared.
    """

    name: str
    seed: int
    engine: EngineKind
    simulated: bool
    clock: ClockKind
    target_trials: int
    identity: Mapping[str, str]
    choices: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord(StudySpec):
    """A stored study; `created_at` is UTC."""

    created_at: datetime
    state: StudyState


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionRecord:
    """A move of a trial's life; where it began a phase, `elapsed_s` counts from the attempt's start on `clock`."""

    move: Transition
    at_utc: datetime
    elapsed_s: float | None = None
    clock: ClockKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One launch of a trial; `number` is 1-based.

    Attributes:
        identity: of the server's processes, to reap them; None for engines that start none, or before the start.
        result: how it ended; None while open and after an interruption.
        transitions: of the trial's life while this attempt was its latest, in order.
    """

    study: str
    trial: int
    number: int
    state: AttemptState
    started_at: datetime
    ended_at: datetime | None
    directory: str
    argv: tuple[str, ...]
    identity: ServerIdentity | None
    result: TrialResult | None
    transitions: tuple[TransitionRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionRecord:
    """A pick that was rendered for production, with what is needed to tell where it came from.

    Attributes:
        targets: names of the targets rendered, e.g. `compose`.
        directory: where the files were written.
        details: provenance in the words of promote/; free JSON.
    """

    study: str
    trial: int
    created_at: datetime
    targets: tuple[str, ...]
    directory: str
    simulated: bool
    details: Mapping[str, Any] = field(default_factory=dict)
