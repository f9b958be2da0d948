"""The seam's fake: nodes that are names, servers that are scripted, and attempts that are lost on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from autotune.engine.base import Milestone, ServerIdentity
from autotune.engine.fake import FakeEngine
from autotune.engine.reaping import ReapReport
from autotune.executor.base import Assignment, Floor
from autotune.executor.lost import Lost, lost_run
from autotune.executor.nodes import NodeSeats
from autotune.records import ClockKind, LoadLevel, Phase
from autotune.trial import TrialObserver, TrialRun, run_trial


class _Gone(Exception):
    """The node went."""


@dataclass(slots=True)
class _Watched:
    """Passes on what happens, until the node goes."""

    observer: TrialObserver
    goes_at: Phase | None
    phase_now: Phase = Phase.WAITING
    elapsed_s: float = 0.0

    def phase(self, phase: Phase, elapsed_s: float) -> None:
        self.phase_now, self.elapsed_s = phase, elapsed_s
        self.observer.phase(phase, elapsed_s)
        if phase is self.goes_at:
            raise _Gone

    def identity(self, identity: ServerIdentity) -> None:
        self.observer.identity(identity)

    def milestone(self, milestone: Milestone) -> None:
        self.observer.milestone(milestone)

    def level(self, level: LoadLevel) -> None:
        self.observer.level(level)


@dataclass(slots=True)
class FakeExecutor:
    """Performs attempts on a scripted engine in virtual time, each on the next of its hosts that is free.

    Attributes:
        goes_at: the phase in which an attempt's node goes; None for one that stays. Told the trial and how many of its
            attempts went before.
        performed: (trial, host) of every attempt.
        reaped: identities that were asked for.
    """

    engine: FakeEngine
    hosts: tuple[str, ...] = ("node-0",)
    goes_at: Callable[[int, int], Phase | None] = lambda _trial, _before: None
    performed: list[tuple[int, str]] = field(default_factory=list)
    reaped: list[ServerIdentity] = field(default_factory=list)
    closed: int = 0
    _busy: set[str] = field(default_factory=set)
    _floor: Floor | None = None

    @property
    def clock(self) -> ClockKind:
        return self.engine.clock

    @property
    def floor(self) -> Floor:
        if self._floor is None:
            most = len(self.hosts)
            self._floor = Floor(seats=NodeSeats(most), most=most, turns=self.engine.time, shares_nodes=False)
        return self._floor

    def now(self) -> float:
        return self.engine.now()

    async def sleep(self, seconds: float) -> None:
        await self.engine.time.sleep(seconds)

    async def take(self) -> None:
        """Nothing to take."""

    async def perform(self, assignment: Assignment, observer: TrialObserver) -> TrialRun:
        before = [host for trial, host in self.performed if trial == assignment.trial]
        free = [host for host in self.hosts if host not in self._busy]
        host = next((one for one in free if one == assignment.host), None)
        host = host or next((one for one in free if one not in before), free[0])
        self._busy.add(host)
        self.performed.append((assignment.trial, host))
        watched = _Watched(observer=observer, goes_at=self.goes_at(assignment.trial, len(before)))
        try:
            run = await run_trial(self.engine, assignment.order, clock=self.engine.now, observer=watched)
        except _Gone:
            lost = Lost(host=host, phase=watched.phase_now, elapsed_s=watched.elapsed_s, why="it went")
            return lost_run(lost, self.clock, observer)
        finally:
            self._busy.remove(host)
        return replace(run, result=replace(run.result, host=host))

    def reap(self, identity: ServerIdentity) -> ReapReport | None:
        self.reaped.append(identity)
        return ReapReport(found=(), killed=0, remaining=(), seconds=0.0) if identity.host in self.hosts else None

    def close(self) -> None:
        self.closed += 1
