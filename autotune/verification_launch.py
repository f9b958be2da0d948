"""One launch of a verification: which server is driven how, and what of it the gate's decision is made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from autotune.engine.base import Engine, LaunchPlan, Milestone, ServerIdentity
from autotune.errors import StorageError
from autotune.load.arrival_windows import WindowRule
from autotune.load.workload import Workload
from autotune.quality.prompts import PromptSet
from autotune.records import (
    GateLaunch,
    GateLevel,
    GateSide,
    GateSideName,
    LevelRole,
    LoadLevel,
    LoadPlan,
    Measurement,
    Phase,
    Quality,
    QualityThresholds,
    Slo,
    TrialResult,
)
from autotune.search.noise import RunNoise
from autotune.store.codec import encode
from autotune.trial import TrialOrder, TrialRun, run_trial
from autotune.trial_further import LONGEST, FurtherLoad
from autotune.trial_quality import QualityOrder

LAUNCHES, MOST_LAUNCHES = 4, 40
"""After how many launches to look first, and how many there are at most, where the operator says nothing: 40 find a
fifth less TTFT also where half of a deviation of 20 % lies between launches (benchmarks/gate.py)."""

RATE_FACTOR = 1.2
FIRST_NUMBER = 1_000_000
"""Numbers of the launches as trials: they salt prompts and seed a simulation's noise, and no trial has them."""

IDENTITY_FILE = "server.json"
"""In a launch's folder while its server runs: what a later verification reaps it by."""


class GateObserver(Protocol):
    """Told what happens, for people to watch; must not block."""

    def launch_started(self, place: int, launches: int, side: GateSide) -> None:
        """`place` is 1-based."""
        ...

    def phase(self, phase: Phase, detail: str) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOrder:
    """What is to be verified, against what, and how.

    Attributes:
        gate_seed: of prompts and arrivals; `gate_seed_of` makes one that no trial had.
        load: the study's two levels, per GPU used.
        noise: between launches of the study.
        directory: for raw records and logs, one folder a launch.
        gpu_indices: physical GPUs, at least as many as either side uses; empty on a node without GPUs.
        gpu_memory: bytes of each, by index.
        launches: before the first look; even, 2 at least.
        most_launches: where it goes on because more may decide; even, not below `launches`.
        rate_factor: of the level beyond the study's rate.
        same_server: both sides are the same server once vLLM's defaults are filled in.
        lossy: by what the candidate computes other numbers than what runs today.
        prompts, thresholds: of the quality guard, which is asked where there is something of that.
        node: name of the one that it runs on.
        studied: what the study's guard found of the candidate; None where it did not ask.
        doubts: known before it begins.
    """

    study: str
    study_seed: int
    gate_seed: int
    candidate: GateSide
    against: GateSide
    workload: Workload
    load: LoadPlan
    noise: RunNoise
    directory: Path
    slo: Slo | None = None
    gpu_indices: tuple[int, ...] = ()
    gpu_memory: Mapping[int, int] = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()
    launches: int = LAUNCHES
    most_launches: int = MOST_LAUNCHES
    windows: WindowRule = field(default_factory=WindowRule)
    rate_factor: float = RATE_FACTOR
    same_server: bool = False
    lossy: tuple[str, ...] = ()
    prompts: PromptSet | None = None
    thresholds: QualityThresholds = field(default_factory=QualityThresholds)
    studied: Quality | None = None
    node: str | None = None
    start_deadline_s: float = 1200.0
    stall_deadline_s: float = 600.0
    level_deadline_s: float = 600.0
    doubts: tuple[str, ...] = ()


async def launch_of(
    order: GateOrder,
    engine: Engine,
    place: int,
    name: GateSideName,
    windows: WindowRule,
    *,
    clock: Callable[[], float],
    observer: GateObserver,
) -> tuple[TrialRun, GateLaunch]:
    """Make one launch, `place` 1-based, of one side.

    Raises:
        StorageError: raw records cannot be written.
    """
    side = order.candidate if name is GateSideName.CANDIDATE else order.against
    directory = _folder(order, place, name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{directory}: {error.strerror or error}", hint="Its folder must be writable.") from None
    trial = TrialOrder(
        number=FIRST_NUMBER + place,
        launch=LaunchPlan(
            model=side.model,
            config=side.config,
            gpu_indices=order.gpu_indices[: side.gpus],
            extra_args=order.extra_args,
            directory=directory,
            start_deadline_s=order.start_deadline_s,
            stall_deadline_s=order.stall_deadline_s,
            trial=FIRST_NUMBER + place,
        ),
        workload=order.workload,
        # A level that grows as it needs would be another one in each launch.
        load=replace(order.load, ttft_most_requests_per_gpu=None),
        gpus=side.gpus,
        seed=order.gate_seed,
        level_deadline_s=order.level_deadline_s,
        slo=order.slo,
        further=FurtherLoad(windows=windows, rate_factor=order.rate_factor),
        quality=_quality(order, name, place),
    )
    recorder = _Recorder(observer, directory / IDENTITY_FILE)
    run = await run_trial(engine, trial, clock=clock, observer=recorder)
    recorder.stopped()
    return run, _seen(order, place, name, side, directory, run)


def _folder(order: GateOrder, place: int, name: GateSideName) -> Path:
    return order.directory / f"launch-{place}-{name.name.lower()}"


def _quality(order: GateOrder, name: GateSideName, place: int) -> QualityOrder | None:
    """The candidate's answers are held against those of the first launch, which is of what runs today."""
    if not order.lossy or order.prompts is None:
        return None
    return QualityOrder(
        prompts=order.prompts,
        thresholds=order.thresholds,
        lossy=order.lossy if name is GateSideName.CANDIDATE else (),
        reference=_folder(order, 1, GateSideName.AGAINST) if place > 1 else None,
        label=order.against.label if place > 1 else None,
    )


def _seen(
    order: GateOrder, place: int, name: GateSideName, side: GateSide, directory: Path, run: TrialRun
) -> GateLaunch:
    """What one launch showed."""
    result = run.result
    failure = _failure(result)
    longest = next((one for one in result.measurements if one.level.name == LONGEST), None)
    seconds = dict(result.phase_seconds)
    ttft = result.of_role(LevelRole.TTFT)
    totals = [order.gpu_memory[index] for index in order.gpu_indices[: side.gpus] if index in order.gpu_memory]
    used = [
        gpu.memory_used_max_bytes
        for one in result.measurements
        if one.use is not None
        for gpu in one.use.gpus
        if gpu.memory_used_max_bytes is not None
    ]
    started = Phase.WARMING in seconds
    return GateLaunch(
        place=place,
        side=name,
        directory=str(directory),
        argv=run.argv,
        failure=failure,
        failure_kind=result.failure.kind if result.failure else None,
        startup_s=(result.facts.startup_s if result.facts else None) or seconds.get(Phase.LAUNCHING),
        stop_s=seconds.get(Phase.STOPPING),
        stopped_cleanly=all(one.code != "gpu_not_free" for one in result.caveats) if started else None,
        levels=tuple(_level(one, side.gpus) for one in result.measurements),
        longest_prompt_tokens=longest.prompt_tokens if longest is not None else None,
        longest_answered=longest.completed > 0 and not longest.failed if longest is not None else None,
        memory_used_bytes=max(used, default=None),
        memory_total_bytes=min(totals, default=None),
        within_slo=tuple(limit.figure(ttft) for limit in order.slo.limits) if order.slo and ttft is not None else (),
        quality=result.quality,
        caveats=result.caveats,
    )


def _failure(result: TrialResult) -> str | None:
    """Why a launch cannot be compared; None where it was measured to its end."""
    if result.failure is not None:
        line = result.failure.line or "no line of its log says why"
        return f"{result.failure.kind}: {line}"
    slow = next((one for one in result.caveats if one.code == "too_slow"), None)
    return slow.text if slow is not None else None


def _level(measured: Measurement, gpus: int) -> GateLevel:
    closed = measured.level.role is LevelRole.THROUGHPUT
    rate = measured.output_tok_s
    return GateLevel(
        level=measured.level,
        completed=measured.completed,
        failed=measured.failed,
        errors=measured.errors,
        tok_s_per_gpu=rate.times(1 / gpus) if closed and rate is not None else None,
        ttft_p95_s=measured.ttft_s.p95 if measured.ttft_s is not None else None,
        preemptions=measured.server.preemptions if measured.server is not None else None,
        caveats=measured.caveats,
    )


class _Recorder:
    """Shows what a launch does, and keeps its server's identity on disk while it may run."""

    def __init__(self, observer: GateObserver, identity_file: Path) -> None:
        self._observer, self._file = observer, identity_file
        self._phase = Phase.WAITING

    def phase(self, phase: Phase, elapsed_s: float) -> None:
        del elapsed_s
        self._phase = phase
        self._observer.phase(phase, "")

    def identity(self, identity: ServerIdentity) -> None:
        try:
            # Renamed, so that whoever is killed while it is written leaves no half of one.
            beside = self._file.with_suffix(".tmp")
            beside.write_text(json.dumps(encode(identity)), encoding="utf-8")
            beside.replace(self._file)
        except OSError as error:
            raise StorageError(f"{self._file}: {error.strerror or error}") from None

    def milestone(self, milestone: Milestone) -> None:
        self._observer.phase(self._phase, milestone.name)

    def level(self, level: LoadLevel) -> None:
        self._observer.phase(self._phase, level.name)

    def stopped(self) -> None:
        """Nothing of the launch runs any more."""
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
