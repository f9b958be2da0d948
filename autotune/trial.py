"""The shell that performs one attempt of one trial: launch, warm up, drive the levels (trial_levels.py), stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol

from autotune.engine.base import Engine, LaunchFailed, Milestone, Server, ServerDied, ServerIdentity
from autotune.records import (
    INFEASIBLE_CLASSES,
    Caveat,
    ClockKind,
    Failure,
    LoadLevel,
    LoadPlan,
    Measurement,
    Outcome,
    Phase,
    ServerFacts,
    TrialResult,
)
from autotune.trial_level_ends import Abandoned, LevelFailed
from autotune.trial_levels import FixedLoad, TrialLevels, TrialOrder

__all__ = ["FixedLoad", "TrialObserver", "TrialOrder", "TrialRun", "outcome_of", "run_trial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRun:
    """What came out.

    Attributes:
        load: the plan the levels were driven with; None when none was reached.
        cancelled: somebody cancelled while the server was being stopped: the result stands, and the caller is to end.
    """

    result: TrialResult
    load: LoadPlan | None
    argv: tuple[str, ...] = ()
    cancelled: bool = False


class TrialObserver(Protocol):
    """Told everything as it happens; the study stores it. Must not block for long."""

    def phase(self, phase: Phase, elapsed_s: float) -> None: ...

    def identity(self, identity: ServerIdentity) -> None: ...

    def milestone(self, milestone: Milestone) -> None: ...

    def level(self, level: LoadLevel) -> None: ...


class _Timeline:
    """Phases and their durations on the engine's clock."""

    def __init__(self, clock: Callable[[], float], observer: TrialObserver) -> None:
        self._clock, self._observer = clock, observer
        self._start = clock()
        self._entered = self._start
        self._current: Phase | None = None
        self._seconds: list[tuple[Phase, float]] = []

    def enter(self, phase: Phase) -> None:
        now = self._clock()
        if self._current is not None:
            self._seconds.append((self._current, now - self._entered))
        self._current, self._entered = phase, now
        self._observer.phase(phase, now - self._start)

    @property
    def seconds(self) -> tuple[tuple[Phase, float], ...]:
        return tuple(self._seconds)


async def run_trial(
    engine: Engine, order: TrialOrder, *, clock: Callable[[], float], observer: TrialObserver
) -> TrialRun:
    """Perform one attempt. Never raises for what a server does; cancellation stops the server, then propagates."""
    timeline = _Timeline(clock, observer)
    timeline.enter(Phase.LAUNCHING)
    try:
        server = await engine.launch(order.launch, on_identity=observer.identity, on_milestone=observer.milestone)
    except LaunchFailed as failed:
        timeline.enter(Phase.ENDED)
        return TrialRun(
            result=_ended(failed.failure, engine.clock, timeline, facts=failed.facts),
            load=order.load,
            argv=failed.argv,
        )
    levels = TrialLevels(engine.clock, server, order, enter=timeline.enter, told=observer.level)
    try:
        failure, slow = await _measured(levels)
    except BaseException:  # cancelled, or the store refused: stop the server, then pass it on
        await _stop(server, timeline)
        raise
    caveats, cancelled = await _stop(server, timeline)
    result = _ended(
        failure,
        engine.clock,
        timeline,
        facts=server.facts,
        measurements=tuple(levels.measurements),
        caveats=slow + server.caveats + tuple(levels.caveats) + caveats,  # why it was abandoned comes first
    )
    result = replace(result, goodput=levels.goodput, early=levels.early, quality=levels.quality)
    if slow:
        result = replace(result, outcome=Outcome.ABANDONED)
    return TrialRun(result=result, load=levels.load, argv=server.argv, cancelled=cancelled)


async def _measured(levels: TrialLevels) -> tuple[Failure | None, tuple[Caveat, ...]]:
    """Drive the levels; what failed, and why the trial was abandoned if it was."""
    try:
        await levels.measure()
    except ServerDied as died:
        return died.failure, ()
    except LevelFailed as failed:
        return failed.failure, ()
    except Abandoned as abandoned:
        return None, (abandoned.caveat,)
    return None, ()


def outcome_of(failure: Failure | None) -> Outcome:
    """What a failure means for the trial: infeasible teaches the sampler, faulted does not."""
    if failure is None:
        return Outcome.MEASURED
    return Outcome.INFEASIBLE if failure.kind in INFEASIBLE_CLASSES else Outcome.FAULTED


def _ended(
    failure: Failure | None,
    clock: ClockKind,
    timeline: _Timeline,
    *,
    facts: ServerFacts | None,
    measurements: tuple[Measurement, ...] = (),
    caveats: tuple[Caveat, ...] = (),
) -> TrialResult:
    return TrialResult(
        outcome=outcome_of(failure),
        clock=clock,
        simulated=clock is ClockKind.VIRTUAL or bool(facts and facts.simulated),
        failure=failure,
        facts=facts,
        measurements=measurements,
        phase_seconds=timeline.seconds,
        caveats=caveats,
    )


async def _stop(server: Server, timeline: _Timeline) -> tuple[tuple[Caveat, ...], bool]:
    """Stop the server to the end, whoever cancels meanwhile; doubts about it, and whether somebody did."""
    try:
        timeline.enter(Phase.STOPPING)
    finally:  # the store may refuse to hear of it (full disk, locked): the server is stopped all the same
        failure, cancelled = await _uninterrupted(server.stop())
    timeline.enter(Phase.ENDED)
    if failure is None:
        return (), cancelled
    caveat = Caveat(
        code="gpu_not_free",
        text=failure.line or "GPU memory did not return to its baseline after the stop",
        remedy="Look at `nvidia-smi` for what still holds the GPU; the next launch waits for it.",
    )
    return (caveat,), cancelled


async def _uninterrupted(stopping: Coroutine[Any, Any, float]) -> tuple[Failure | None, bool]:
    """Wait for a stop to end; a second cancellation is passed on to it, for it to hurry."""
    task = asyncio.ensure_future(stopping)
    cancelled = False
    while True:
        try:
            await asyncio.shield(task)
        except LaunchFailed as failed:
            return failed.failure, cancelled
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            cancelled = True
            this = asyncio.current_task()
            if this is not None and this.cancelling() > 1:
                task.cancel()
        else:
            return None, cancelled
