"""The executor on a Ray cluster: each attempt is a Ray task in a placement group of its own (ray_placing.py).

Ray decides which node that is, notices when one is lost, and ends tasks and groups with the tuner that made them.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.engine.base import Milestone, ServerIdentity
from autotune.engine.reaping import ReapReport, reap
from autotune.errors import AutotuneError, StorageError
from autotune.executor.base import Assignment, Floor
from autotune.executor.errand import (
    Entered,
    Errand,
    Event,
    FilePart,
    Performed,
    Placed,
    Refused,
    Told,
    Withdrawn,
    keep,
    packed,
    travelling,
    unpacked,
)
from autotune.executor.lost import Lost, lost_run
from autotune.executor.nodes import NodeReport
from autotune.executor.ray_cluster import Cluster, first_line
from autotune.executor.ray_placing import Placing
from autotune.executor.ray_task import END, GOES_S, HURRY, Wishes, task
from autotune.planning import StudyPlan
from autotune.records import ClockKind, EngineKind, LoadLevel, Phase
from autotune.trial import TrialObserver, TrialRun


class _Lost(Exception):
    """The node or Ray's worker on it went while an attempt ran."""


@dataclass(slots=True)
class _Running:
    """One attempt as the tuner has heard of it."""

    observer: TrialObserver
    node: NodeReport
    folder: Path
    key: str
    phase: Phase = Phase.WAITING
    elapsed_s: float = 0.0
    scratch: str | None = None
    urgency: int = 0
    cancelled: bool = False
    events: asyncio.Queue[Event | BaseException] = field(default_factory=asyncio.Queue)


class RayExecutor:
    """Performs attempts on alike nodes of a cluster.

    Args:
        folder: of the study; it exists.
        tell: one line for the operator.
        pace: of an attempt, by its trial; see `Errand`. Asked as it is sent to its node.

    Attributes:
        performed: (trial, Ray's id of the node) of every attempt.
    """

    def __init__(
        self,
        plan: StudyPlan,
        cluster: Cluster,
        folder: Path,
        tell: Callable[[str], None],
        *,
        pace: Callable[[int], float] = lambda _: 0.0,
    ) -> None:
        """Ask the nodes.

        Raises:
            ClusterUnusable: none of them is there for this study, or they differ.
        """
        self._plan, self._cluster, self._tell = plan, cluster, tell
        self._folder, self._pace = folder.resolve(), pace
        self.placing = Placing(plan, cluster, self._folder, tell)
        self.performed: list[tuple[int, str]] = []
        self._sent = cluster.ray.put(packed(travelling(plan)))
        self._wishes = self._desk()
        nodes = self.placing.nodes.values()
        unshared = sorted({one.host for one in nodes if not one.reads})
        drivers = sorted({str(one.node.driver) for one in nodes if one.node.gpus})
        if len(drivers) > 1:
            tell(f"the nodes have different drivers ({', '.join(drivers)}), which figures may show")
        if unshared:
            tell(f"{self._folder} is not shared with {', '.join(unshared)}: raw files are sent when a trial has ended")

    @property
    def clock(self) -> ClockKind:
        """The nodes' engines'."""
        return ClockKind.VIRTUAL if self._plan.engine is EngineKind.SIMULATED else ClockKind.WALL

    @property
    def floor(self) -> Floor:
        """A place for each node, or for each GPU where trials share nodes."""
        return self.placing.floor

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the nodes' machines."""
        return tuple(one.host for one in self.placing.nodes.values())

    def now(self) -> float:
        """Real seconds, which a study on a cluster is limited in."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait them."""
        await asyncio.sleep(seconds)

    async def take(self) -> None:
        """Nothing: GPUs are leased attempt by attempt, on the node that Ray chooses."""

    def reap(self, identity: ServerIdentity) -> ReapReport | None:
        """On the machine that it ran on."""
        return self._cluster.reap(identity) if identity.host else reap(identity)

    def close(self) -> None:
        """Leave the cluster; what is left of this study there ends."""
        self._cluster.leave()

    async def perform(self, assignment: Assignment, observer: TrialObserver) -> TrialRun:
        """See the seam."""
        anywhere = False
        while (run := await self._tried(assignment, observer, anywhere=anywhere)) is None:
            self._tell(f"trial {assignment.trial}: the node that it waited for went or is used; it waits for another")
            anywhere = True
        return run

    async def _tried(self, assignment: Assignment, observer: TrialObserver, *, anywhere: bool) -> TrialRun | None:
        """The attempt on a node; None where all that it could have had went before, or are used by others."""
        from ray.util import remove_placement_group

        group, candidates = await self.placing.group(assignment, anywhere=anywhere)
        try:
            node = await self.placing.place(group, candidates, assignment, anywhere=anywhere)
            if node is None:
                return None
            self.performed.append((assignment.trial, node.id))
            self.placing.begun()
            try:
                run = await self._on(node, group, assignment, observer)
            finally:
                self.placing.ended()
        finally:
            remove_placement_group(group)
        return replace(run, result=replace(run.result, host=node.host))

    # --- one attempt ------------------------------------------------------------------------------------------------

    def _desk(self) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        mine = self._cluster.ray.get_runtime_context().get_node_id()
        here = NodeAffinitySchedulingStrategy(node_id=mine, soft=False)
        return self._cluster.ray.remote(num_cpus=0)(Wishes).options(scheduling_strategy=here).remote()

    async def _on(self, node: NodeReport, group: Any, assignment: Assignment, observer: TrialObserver) -> TrialRun:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        folder = assignment.order.launch.directory.resolve()
        order = replace(assignment.order, launch=replace(assignment.order.launch, directory=folder))
        bundle = self.placing.bundle(assignment)
        shared = None if assignment.seat is None or not self.floor.shares_nodes else int(bundle["GPU"])
        pace = self._pace(assignment.trial)
        errand = Errand(trial=assignment.trial, order=order, shares_folder=node.reads, pace=pace, shared_gpus=shared)
        running = _Running(observer=observer, node=node, folder=folder, key=secrets.token_hex(8))
        there = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        remote = self._cluster.ray.remote(num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0), max_retries=0)
        stream = (
            remote(task)
            .options(scheduling_strategy=there, name=f"autotune {self._plan.recipe.name} trial {assignment.trial}")
            .remote(self._sent, packed(errand), self._wishes, running.key, self._plan.recipe.stop_grace_s)
        )
        following = asyncio.create_task(self._follow(stream, running))
        try:
            return await self._heard(running)
        except _Lost as lost:
            self.placing.lost(assignment.trial, node.id)
            left = "" if running.scratch is None else f"; what it wrote may still lie there in {running.scratch}"
            told = Lost(host=node.host, phase=running.phase, elapsed_s=running.elapsed_s, why=f"{lost}{left}")
            return lost_run(told, self.clock, observer)
        finally:
            following.cancel()
            self._wishes.wish.remote(running.key, HURRY)  # whatever ended it here, nothing is to run on

    async def _follow(self, stream: Any, running: _Running) -> None:
        """Queue what the node tells; a loss as the exception that says so."""
        try:
            async for reference in stream:
                event = unpacked(await reference)
                running.events.put_nowait(event)
                if isinstance(event, Performed | Withdrawn | Refused):
                    return
            raise _Lost("its process ended without a word")
        except self._cluster.ray.exceptions.RayError as error:
            running.events.put_nowait(_Lost(first_line(error)))
        except _Lost as error:
            running.events.put_nowait(error)

    async def _heard(self, running: _Running) -> TrialRun:
        """Pass on what the node tells, until the end.

        Cancelled, ask the node to end the attempt and hear that it did; one whose server is being stopped already has
        its result, which is waited for, unless cancelled again.
        """
        deadline_s: float | None = None
        broken: BaseException | None = None
        while True:
            try:
                left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
                async with asyncio.timeout(left_s):
                    event = await running.events.get()
            except TimeoutError:
                raise broken or asyncio.CancelledError from None
            except asyncio.CancelledError:
                running.cancelled = True
                self._wish(running)
                deadline_s = time.monotonic() + self._plan.recipe.stop_grace_s + GOES_S
                continue
            if isinstance(event, BaseException):
                if running.cancelled or broken:
                    raise broken or asyncio.CancelledError
                raise event
            if isinstance(event, Performed) and broken is None:
                return replace(event.run, cancelled=event.run.cancelled or running.cancelled)
            if isinstance(event, Performed | Withdrawn | Refused):
                raise broken or (event.error if isinstance(event, Refused) else asyncio.CancelledError())
            try:
                self._pass_on(event, running)
            except AutotuneError as error:  # the store refused: the server is stopped, then that is passed on
                broken = broken or error
                self._wish(running)
                deadline_s = time.monotonic() + self._plan.recipe.stop_grace_s + GOES_S

    def _wish(self, running: _Running) -> None:
        if running.phase is Phase.STOPPING and running.urgency == 0:
            running.urgency = END  # it is being stopped
            return
        running.urgency = min(HURRY, running.urgency + 1)
        self._wishes.wish.remote(running.key, running.urgency)

    def _pass_on(self, event: Event, running: _Running) -> None:
        match event:
            case Entered():
                running.phase, running.elapsed_s = event.phase, event.elapsed_s
                running.observer.phase(event.phase, event.elapsed_s)
            case ServerIdentity():
                running.observer.identity(replace(event, host=running.node.host))
            case Milestone():
                running.observer.milestone(event)
            case LoadLevel():
                running.observer.level(event)
            case Told():
                self._tell(f"{running.node.host}: {event.text}")
            case Placed():
                running.scratch = event.directory
            case FilePart():
                try:
                    keep(event, running.folder)
                except OSError as error:
                    raise StorageError(f"{running.folder / event.name}: {error.strerror or error}") from None
            case Performed() | Withdrawn() | Refused():
                raise AssertionError("an end is not passed on")
