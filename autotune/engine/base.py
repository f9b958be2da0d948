"""The engine seam: launch a server for a config, drive load at it, stop it.

`trial.py` is the only caller. Every adapter passes tests/contract/test_engine.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from autotune.records import (
    Caveat,
    ClockKind,
    Config,
    EngineKind,
    Failure,
    LevelUse,
    LoadLevel,
    PlannedRequest,
    RequestRecord,
    ServerDelta,
    ServerFacts,
)

if TYPE_CHECKING:
    # The store knows a server's identity from here, and `autotune list` must not wait for what measures.
    from autotune.load.growing import Looks
    from autotune.quality.answers import Answers
    from autotune.quality.prompts import QualityPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Everything a launch needs.

    Attributes:
        config: the trial's parameters, with the study's fixed parameters merged in.
        gpu_indices: physical GPU indices leased for this trial; empty on a CPU-only machine.
        extra_args: passed through to the server verbatim (what followed `--` on the command line).
        directory: the attempt's own folder; `server.log` is written there.
        server_cores: CPUs that the server is bound to; empty for all.
        trial: number of the trial, the same for all its attempts; what a simulation seeds its noise with.
        start_deadline_s: readiness must be reached within this; milestones of progress do not extend it.
        stall_deadline_s: without a new milestone for this long the start counts as hung.
    """

    model: str
    config: Config
    gpu_indices: tuple[int, ...]
    extra_args: tuple[str, ...]
    directory: Path
    start_deadline_s: float
    stall_deadline_s: float
    trial: int = 0
    server_cores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """Enough to find, and prove to be ours, a server that an earlier tuner left: stored before the launch returns.

    Attributes:
        pid: of the keeper process that owns the server's process group.
        started: the pid's start time as psutil reports it; a reused pid differs in it.
        pgid: process group of the server itself; None before it was started.
        marker: random token in the environment of every process we start (AUTOTUNE_MARKER).
        host: name of the machine it runs on; empty for the tuner's own.
        folder: that the server has to itself (private_folders.py); empty for none, and before it was started.
        grace_s: that the server is to have from TERM to KILL.
    """

    pid: int
    started: float
    pgid: int | None
    marker: str
    host: str = ""
    folder: str = ""
    grace_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """A known step of a start, e.g. `weights loaded`; `at_s` counts from the launch on the engine's clock."""

    name: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveResult:
    """Raw records of one level, and what the server's counters said over it.

    Attributes:
        energy_j: of the trial's GPUs together, from the start of the level to its end; None where nobody counts it.
        use: what was seen beside the level; None where nobody looked.
    """

    records: tuple[RequestRecord, ...]
    server: ServerDelta | None
    duration_s: float
    energy_j: float | None = None
    use: LevelUse | None = None


class LaunchFailed(Exception):
    """The server never became ready. Everything it started is already gone when this is raised.

    Attributes:
        argv: the command line as launched, secrets taken out; empty when the launch ended before there was one.
    """

    def __init__(self, failure: Failure, facts: ServerFacts | None = None, argv: Sequence[str] = ()) -> None:
        super().__init__(f"{failure.kind}: {failure.line or 'no line in the log says why'}")
        self.failure = failure
        self.facts = facts
        self.argv = tuple(argv)


class ServerDied(Exception):
    """The server ended, stopped answering or was restarted under load; `records` is what was seen until then."""

    def __init__(self, failure: Failure, records: Sequence[RequestRecord] = ()) -> None:
        super().__init__(f"{failure.kind}: {failure.line or 'the server ended under load'}")
        self.failure = failure
        self.records = tuple(records)


class Server(Protocol):
    """A server that is ready. Owned by the trial; `stop` must be awaited exactly once, whatever happened."""

    @property
    def facts(self) -> ServerFacts:
        """Resolved settings as known now."""
        ...

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line as launched."""
        ...

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Doubts about everything that is measured on this server."""
        ...

    async def drive(
        self,
        level: LoadLevel,
        requests: Sequence[PlannedRequest],
        *,
        deadline_s: float,
        looks: Looks | None = None,
    ) -> DriveResult:
        """Send `requests` as `level` says and wait for their end, at most `deadline_s` on the engine's clock.

        Requests still open at the deadline come back with error `deadline`. What `looks` has no need of is never sent;
        without it, a level that may grow decides for itself (load/growing.py).

        Raises:
            ServerDied: the server ended or was restarted; carries the diagnosed failure.
        """
        ...

    async def ask(self, prompts: Sequence[QualityPrompt], *, output_tokens: int, deadline_s: float) -> Answers:
        """Log-probabilities of the prompts and greedy tokens after them, one prompt after the other.

        Never raises: what stands in the way is told in the answers' `problem`. Takes little longer than `deadline_s`.
        """
        ...

    async def stop(self) -> float:
        """TERM, wait, KILL the whole group and prove GPU memory is back; seconds it took.

        Never raises for a server that is already gone.

        Raises:
            LaunchFailed: with GPU_BUSY, when memory did not come back: an environment fault for what follows.
        """
        ...


class Engine(Protocol):
    """Starts servers. One per study; `clock` says what its durations mean."""

    @property
    def kind(self) -> EngineKind: ...

    @property
    def clock(self) -> ClockKind: ...

    async def launch(
        self,
        plan: LaunchPlan,
        *,
        on_identity: Callable[[ServerIdentity], None],
        on_milestone: Callable[[Milestone], None],
    ) -> Server:
        """Start a server and return when it is ready.

        `on_identity` is called (and must have stored it) before the server can hold a GPU; it is not called by engines
        that start no process. Cancellation stops what was started before it propagates.

        Raises:
            LaunchFailed: with the diagnosed root cause; nothing is left running.
        """
        ...
