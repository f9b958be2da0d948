"""Which GPUs a config gets: each tensor-parallel group where its GPUs are nearest to each other. Pure.

The GPUs of a tensor-parallel group exchange data in every layer, so the farthest pair of a group decides how fast the
config is. A group is placed only where its farthest pair is as near as on an empty node: a TP=2 config that crosses
sockets because its neighbours left nothing else would be judged by that, and not by its flags. Pipeline stages come
next to each other where they can; replicas exchange nothing.

GPUs are named by their place in `Node.gpus` here, 0-based; whoever launches turns places into the driver's indices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from autotune.records import GpuPath, Node, Topology

_RANK = {path: rank for rank, path in enumerate(GpuPath)}
_UNKNOWN = len(_RANK)
"""A pair of which the driver said nothing counts as the farthest: all such pairs are alike."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Distance:
    """How far the farthest pair of a group is; smaller is better.

    Attributes:
        rank: place of its path in `GpuPath`.
        narrowness: minus the NVLinks bonded between them, 0 without.
    """

    rank: int
    narrowness: int


NEAREST = Distance(rank=-1, narrowness=0)
"""Of a group of one, which has no pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a config needs.

    Attributes:
        group: GPUs of one tensor-parallel group.
        groups: how many such groups: pipeline stages x replicas.
        stages: pipeline stages of one replica.
    """

    group: int
    groups: int = 1
    stages: int = 1

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.group * self.groups


class Wiring:
    """Distances of one node; keeps what it has computed, so make one per study."""

    def __init__(self, count: int, topology: Topology | None) -> None:
        """Args:
        count: GPUs of the node.
        topology: None where nothing is known: then all pairs are alike.
        """
        self.count = count
        self._topology = topology
        self._best = cache(self._compute_best)
        self.near = cache(self._compute_near)

    @classmethod
    def of(cls, node: Node) -> Wiring:
        """The node's own."""
        return cls(node.gpu_count, node.topology)

    def distance(self, group: Iterable[int]) -> Distance:
        """Of the farthest pair."""
        return max((self._pair(a, b) for a, b in combinations(group, 2)), default=NEAREST)

    def best(self, size: int) -> Distance:
        """The nearest that a group of `size` can be on the empty node."""
        return self._best(size)

    def numa(self, place: int) -> int | None:
        """The NUMA node of a GPU; None where it is not known."""
        return None if self._topology is None else self._topology.numa[place]

    def _compute_near(self, place: int, distance: Distance) -> frozenset[int]:
        """GPUs as near to one as `distance`: its island, as a group of that distance sees it."""
        return frozenset(at for at in range(self.count) if at != place and self._pair(place, at) <= distance)

    def _pair(self, a: int, b: int) -> Distance:
        if self._topology is None:
            return Distance(rank=_UNKNOWN, narrowness=0)
        path = self._topology.paths[a][b]
        return Distance(rank=_UNKNOWN if path is None else _RANK[path], narrowness=-self._topology.nvlinks[a][b])

    def _compute_best(self, size: int) -> Distance:
        found = (self.distance(group) for group in combinations(range(self.count), size))
        return min(found, default=NEAREST)


def place(demand: Demand, free: Collection[int], wiring: Wiring) -> tuple[int, ...] | None:
    """GPUs for a config, the groups one after the other as vLLM numbers its ranks; None where it has to wait.

    Among places as good, those that break up the least: the island with the fewest GPUs left. An empty node takes
    whatever has as many GPUs.

    Args:
        free: places of the GPUs that nobody uses.
    """
    if demand.gpus > len(free):
        return None
    found = _all_groups(demand, frozenset(free), wiring, wiring.best(demand.group))
    if found is None and len(free) == wiring.count:
        return _nearest_groups(demand, frozenset(free), wiring)
    return found


def _all_groups(demand: Demand, free: frozenset[int], wiring: Wiring, worst: Distance) -> tuple[int, ...] | None:
    """Group after group, each within `worst`. The first that leaves room for the others is taken."""
    return _extended((), demand, free, wiring, worst)


def _extended(
    taken: tuple[int, ...], demand: Demand, free: frozenset[int], wiring: Wiring, worst: Distance
) -> tuple[int, ...] | None:
    if len(taken) == demand.gpus:
        return taken
    stage = len(taken) // demand.group % demand.stages
    before = taken[-demand.group :] if stage else ()
    to_come = demand.group * (demand.stages - 1 - stage)
    for group in _candidates(demand.group, free, wiring, worst, before, to_come):
        found = _extended((*taken, *group), demand, free - set(group), wiring, worst)
        if found is not None:
            return found
    return None


def _candidates(
    size: int, free: frozenset[int], wiring: Wiring, worst: Distance, before: Sequence[int], to_come: int
) -> list[tuple[int, ...]]:
    """Groups within `worst`, the one to take first in front.

    Args:
        before: the stage that this one follows; empty for a replica's first.
        to_come: GPUs of the stages that follow it.
    """
    groups = [group for group in combinations(sorted(free), size) if wiring.distance(group) <= worst]
    island = Distance(rank=_RANK[GpuPath.SWITCHES], narrowness=0) if size == 1 else worst

    def cost(group: tuple[int, ...]) -> tuple[object, ...]:
        to_stage = max((wiring.distance((a, b)) for a in group for b in before), default=NEAREST)
        left = frozenset().union(*(wiring.near(one, island) for one in group)) & free - set(group)
        home = {wiring.numa(one) for one in group}
        on_node = sum(wiring.numa(one) in home for one in free)
        return wiring.distance(group), to_stage, max(0, to_come - len(left)), len(home), len(left), on_node, group

    return sorted(groups, key=cost)


def _nearest_groups(demand: Demand, free: frozenset[int], wiring: Wiring) -> tuple[int, ...]:
    """On an empty node whose islands cannot hold all groups: each group as near as what is left allows."""
    taken: list[int] = []
    left = free
    for _ in range(demand.groups):
        group = min(combinations(sorted(left), demand.group), key=lambda one: (wiring.distance(one), one))
        taken += group
        left = left - set(group)
    return tuple(taken)


def reserve(
    demand: Demand, free: Collection[int], running: Sequence[Collection[int]], wiring: Wiring
) -> frozenset[int]:
    """GPUs to keep for a config that has to wait, so that smaller ones do not keep it waiting for ever.

    The trials that run are taken to end in the order given; the GPUs are those that it would get once the first few of
    them have ended, as few as it needs. Empty where it fits now.
    """
    open_now = frozenset(free)
    if place(demand, open_now, wiring) is not None:
        return frozenset()
    for ended in running:
        open_now |= frozenset(ended)
        found = place(demand, open_now, wiring)
        if found is not None:
            return frozenset(found)
    return frozenset(range(wiring.count))
