"""The executor on this machine: one engine, the study's hold on its GPUs, trials one by one or beside each other."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from autotune.engine.base import Engine, ServerIdentity
from autotune.engine.holding import NodeHold
from autotune.engine.reaping import ReapReport, reap
from autotune.executor.base import Assignment, Floor
from autotune.records import ClockKind
from autotune.trial import TrialObserver, TrialRun, run_trial


def reap_here(identity: ServerIdentity) -> ReapReport | None:
    """Stop what is left of a server on this machine; what ran on another one cannot be looked for from here."""
    return reap(identity) if identity.host in ("", platform.node()) else None


@dataclass(slots=True, kw_only=True)
class LocalExecutor:
    """Performs attempts in this process.

    Attributes:
        clock_s: seconds on the engine's clock.
        wait: waits on it; virtual engines pass one that returns at once.
        hold: on the study's GPUs.
    """

    engine: Engine
    floor: Floor
    clock_s: Callable[[], float]
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep
    hold: NodeHold = field(default_factory=NodeHold)

    @property
    def clock(self) -> ClockKind:
        """The engine's."""
        return self.engine.clock

    def now(self) -> float:
        """Seconds on it."""
        return self.clock_s()

    async def sleep(self, seconds: float) -> None:
        """Wait on it."""
        await self.wait(seconds)

    async def take(self) -> None:
        """Lease the study's GPUs."""
        await self.hold.take()

    async def perform(self, assignment: Assignment, observer: TrialObserver) -> TrialRun:
        """See the seam."""
        order = assignment.order
        await self.hold.prove_free(order.launch.gpu_indices)
        return await run_trial(self.engine, order, clock=self.clock_s, observer=observer)

    def reap(self, identity: ServerIdentity) -> ReapReport | None:
        """See `reap_here`."""
        return reap_here(identity)

    def close(self) -> None:
        """Release the leases."""
        self.hold.close()
