"""Where the attempts of a study run on a Ray cluster: its nodes, the places on them, the groups that Ray is asked for.

A placement group is one bundle (STRICT_PACK: all GPUs of a trial on one node): a whole node's GPUs, or those that the
config needs where trials share nodes. Only alike nodes are candidates, by their labels; after a loss, others than the
lost one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotune.engine.command import chooses_gpus
from autotune.errors import ClusterUnusable, NodeBusy
from autotune.executor.base import Assignment, Floor
from autotune.executor.nodes import NodeReport, NodeSeats
from autotune.executor.packed import PackedSeats, is_uniform
from autotune.executor.ray_cluster import Cluster
from autotune.planning import StudyPlan
from autotune.recipe import AUTO_PARALLEL
from autotune.records import EngineKind
from autotune.scheduling.cores import most_beside

POLL_S = 0.5
TOLD_S = 60.0
"""How long a trial waits for its node before the operator is told."""
GONE_S = 120.0
"""How long a study waits for nodes when none is left."""
OTHERS_S = 10.0
"""How long a trial waits for the very node that it was seated on, before any other will do."""


class Placing:
    """The nodes of one study.

    Args:
        folder: of the study; it exists.
        tell: one line for the operator.

    Attributes:
        nodes: that the study uses, by Ray's id.
    """

    def __init__(self, plan: StudyPlan, cluster: Cluster, folder: Path, tell: Callable[[str], None]) -> None:
        """Ask the nodes.

        Raises:
            ClusterUnusable: none of them is there for this study, or they differ.
        """
        self._plan, self._cluster, self._folder, self._tell = plan, cluster, folder, tell
        self.nodes = {one.id: one for one in self._fitting(cluster.usable(plan.recipe.ray_nodes, folder))}
        self.floor = self._made_floor()
        self._lost: dict[int, set[str]] = {}
        self._placed = 0

    def limit_to(self, nodes: int) -> None:
        """Use no more than so many of them; before anything is performed."""
        self.nodes = dict(list(self.nodes.items())[:nodes])
        self.floor = self._made_floor()

    def lost(self, trial: int, node: str) -> None:
        """A trial went with a node: the next attempt goes elsewhere."""
        self._lost.setdefault(trial, set()).add(node)

    def bundle(self, assignment: Assignment) -> dict[str, float]:
        """What Ray is asked for."""
        if assignment.seat is not None and isinstance(self.floor.seats, PackedSeats):
            return {"GPU": float(len(assignment.seat.places))}
        need = self._plan.node.gpu_count
        return {"GPU": float(need)} if need else {"CPU": float(min(one.cpus for one in self.nodes.values()))}

    async def group(self, assignment: Assignment, *, anywhere: bool) -> tuple[Any, tuple[str, ...]]:
        """A placement group for an attempt, which is not placed yet, and the nodes that it may get.

        Args:
            anywhere: it has waited long enough for the node that it was seated on.

        Raises:
            ClusterUnusable: no node is left, and none came back in time.
        """
        from ray.util import placement_group

        candidates = await self._candidates(assignment, anywhere=anywhere)
        made = placement_group(
            [self.bundle(assignment)],
            strategy="STRICT_PACK",
            bundle_label_selector=[{"ray.io/node-id": f"in({','.join(candidates)})"}],
        )
        return made, candidates

    async def place(
        self, group: Any, candidates: Sequence[str], assignment: Assignment, *, anywhere: bool
    ) -> NodeReport | None:
        """Wait for the node; None when none of them is left, or another one will do from now on.

        Raises:
            NodeBusy: somebody else uses all of them, for longer than the study waits.
        """
        from ray.util import placement_group_table

        begun_s, told = time.monotonic(), False
        while not await asyncio.to_thread(group.wait, POLL_S):
            if not set(candidates) & set(self._cluster.nodes()):
                return None
            waited_s = time.monotonic() - begun_s
            if not anywhere and assignment.seat is not None and waited_s > OTHERS_S and len(self.nodes) > 1:
                return None
            if self._placed >= (1 if self.floor.shares_nodes else len(self.nodes)):
                begun_s = time.monotonic()  # behind trials of its own
            elif waited_s > max(self._plan.recipe.gpu_busy_s, TOLD_S / 4):
                raise NodeBusy(
                    f"no node of the Ray cluster has become free for trial {assignment.trial} in {waited_s:.0f} s",
                    hint="`ray status` shows who uses them; --gpu-busy wait would have waited.",
                )
            elif waited_s > TOLD_S and not told:
                told = True
                self._tell(f"trial {assignment.trial} waits for a free node of the Ray cluster")
        (node,) = placement_group_table(group)["bundles_to_node_id"].values()
        if assignment.seat is not None and isinstance(self.floor.seats, PackedSeats):
            self.floor.seats.moved(assignment.seat, node)
        return self.nodes.get(node)

    def begun(self) -> None:
        """An attempt runs where it was placed."""
        self._placed += 1

    def ended(self) -> None:
        """It does no more."""
        self._placed -= 1

    def _fitting(self, nodes: tuple[NodeReport, ...]) -> tuple[NodeReport, ...]:
        """Nodes with as many GPUs as the planned one; of a simulation Ray's figures alone are there to be compared.

        Raises:
            ClusterUnusable: no node has them.
        """
        need = self._plan.node
        fitting = tuple(one for one in nodes if self._room(one))
        if self._plan.engine is EngineKind.PROCESS:
            fitting = tuple(one for one in fitting if one.node.name == need.name)
        if not fitting:
            raise ClusterUnusable(
                f"no node of the Ray cluster has the {need.gpu_count} GPUs of {need.name}", hint="See `ray status`."
            )
        return fitting

    def _room(self, node: NodeReport) -> int:
        """Trials with a node to themselves that Ray can place there: one, but on nodes larger than a simulated one."""
        need = self._plan.node.gpu_count
        return node.gpus // need if need else min(1, node.cpus)

    def _made_floor(self) -> Floor:
        asked, gpus = self._plan.recipe.parallel, self._plan.node.gpu_count
        if asked != 1 and gpus > 1 and self._packs():
            rooms = {one.id: self._trials_on(one) for one in self.nodes.values()}
            most = sum(rooms.values())
            most = most if asked == AUTO_PARALLEL else min(asked, most)
            return Floor(seats=PackedSeats(rooms, gpus), most=most)
        most = sum(self._room(one) for one in self.nodes.values())
        most = most if asked in (1, AUTO_PARALLEL) else min(asked, most)
        return Floor(seats=NodeSeats(most), most=most, shares_nodes=False)

    def _packs(self) -> bool:
        """Whether trials can share a node: told, where they cannot."""
        command = self._plan.command
        if command is not None and not self._plan.simulated and not chooses_gpus(command):
            self._tell("each trial has a node to itself: the server command runs containers and has no {gpus}")
            return False
        if self._plan.engine is EngineKind.PROCESS and not is_uniform(self._plan.node):
            self._tell("each trial has a node to itself: its GPUs are not equally near to each other (docs/nodes.md)")
            return False
        return True

    def _trials_on(self, node: NodeReport) -> int:
        """At once, as far as its cores go; a simulation needs none."""
        gpus = self._plan.node.gpu_count
        return gpus if self._plan.engine is EngineKind.SIMULATED else most_beside(node.cpus, gpus)

    async def _candidates(self, assignment: Assignment, *, anywhere: bool) -> tuple[str, ...]:
        """The node of its seat; or the wanted machine's where it is there, and none that it was lost on if others are.

        Raises:
            ClusterUnusable: no node is left, and none came back in time.
        """
        begun_s = time.monotonic()
        while True:
            alive = self._cluster.nodes()
            here = [node for node in self.nodes if node in alive]
            if here:
                break
            await self._welcome(alive)
            if time.monotonic() - begun_s > GONE_S:
                hosts = ", ".join(one.host for one in self.nodes.values())
                raise ClusterUnusable(
                    f"none of the nodes of this study is left ({hosts})",
                    hint="Bring one back with `ray start`, then the same command goes on.",
                )
            await asyncio.sleep(POLL_S)
        elsewhere = [node for node in here if node not in self._lost.get(assignment.trial, ())]
        seats = self.floor.seats
        if assignment.seat is not None and isinstance(seats, PackedSeats) and not anywhere:
            own = seats.node_of(assignment.seat)
            if own in elsewhere:
                return (own,)
        wanted = [node for node in elsewhere if self.nodes[node].host == assignment.host]
        return tuple(wanted or elsewhere or here)

    async def _welcome(self, alive: dict[str, dict[str, Any]]) -> None:
        """Nodes that joined since, if they are like the others."""
        fresh = [node for node in alive if node not in self.nodes]
        kinds = {one.kind for one in self.nodes.values()}
        for one in await asyncio.to_thread(self._cluster.reports, fresh, self._folder):
            if one.kind in kinds and self._room(one):
                self.nodes[one.id] = one
