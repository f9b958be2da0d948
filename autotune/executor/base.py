"""The executor seam: perform one attempt of a trial somewhere, and tell what happens as it happens.

The tuner asks the sampler, stores, and decides what an end means; an executor launches, drives load and stops.
`study.py` calls `take` once and `perform` for every attempt, several at once where `floor` has room for them;
`session.py` calls `reap` before that and `close` at the very end. Every adapter passes tests/contract/test_executor.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from autotune.engine.base import ServerIdentity
from autotune.engine.reaping import ReapReport
from autotune.records import ClockKind
from autotune.scheduling.beside import RealTime, Turns
from autotune.scheduling.seats import Seat, Seating
from autotune.trial import TrialObserver, TrialOrder, TrialRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What a study's trials share.

    Attributes:
        most: trials at once; 1 for one after the other.
        turns: of the clock that they share.
        shares_nodes: whether trials at the same time may be neighbours on a node, so that what they show has to be
            measured alone before it decides; otherwise each has a node to itself.
    """

    seats: Seating
    most: int = 1
    turns: Turns = field(default_factory=RealTime)
    shares_nodes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One attempt to perform.

    Attributes:
        trial: its number in the study.
        order: what to do; GPUs and cores are those of the seat as far as the tuner knows them.
        host: the machine that it should run on where there are several and that one is there; None for any.
        seat: its place beside others; None for a node to itself.
    """

    trial: int
    order: TrialOrder
    host: str | None = None
    seat: Seat | None = None


class Executor(Protocol):
    """Performs attempts. Of one run of a study."""

    @property
    def clock(self) -> ClockKind:
        """What durations of its attempts mean."""
        ...

    @property
    def floor(self) -> Floor:
        """How many attempts it performs at once, and where they sit."""
        ...

    def now(self) -> float:
        """Seconds on the clock that the study's budgets count; durations only."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait on that clock."""
        ...

    async def take(self) -> None:
        """Get hold of what attempts need, and stop what a dead tuner left there. Waits as long as the study does.

        Raises:
            NodeBusy: somebody else uses it, for longer than that.
            ClusterUnusable: the nodes are not there any more.
        """
        ...

    async def perform(self, assignment: Assignment, observer: TrialObserver) -> TrialRun:
        """One attempt, from proving its GPUs free to the end of its server; raw files end in the order's folder.

        Never raises for what a server or a lost node does. Cancelled, it stops the server and passes that on; cancelled
        while the server is being stopped, the result stands (`TrialRun.cancelled`).

        Raises:
            NodeBusy, StorageError, VllmCommandError, StudyFatal: the study cannot go on; nothing is left running.
        """
        ...

    def reap(self, identity: ServerIdentity) -> ReapReport | None:
        """Stop what a killed tuner's attempt left, where it ran; None where nobody can look there now. Blocks."""
        ...

    def close(self) -> None:
        """Give everything back; twice is fine."""
        ...
