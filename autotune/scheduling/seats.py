"""The places of one node that trials of a study are given: GPUs by where they are, and cores near them.

Shell: cores are leased node-wide, so that a second study with other GPUs does not use the same ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autotune.node.leases import Lease, NodeLeases, core_resource
from autotune.records import Node
from autotune.scheduling.cores import UNBOUND, Cores, near_cores, share_cores
from autotune.scheduling.packing import Demand, Wiring, place, reserve


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreMap:
    """The cores of this machine, as a study may use them.

    Attributes:
        allowed: that this process may run on; empty where none is to be bound (a simulation, one trial at a time).
        of_numa: of each NUMA node.
        gpus: of the machine, which share its cores; those of other studies too.
    """

    allowed: tuple[int, ...] = ()
    of_numa: Mapping[int, Sequence[int]] = field(default_factory=dict)
    gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What one trial has to itself while it runs.

    Attributes:
        places: of its GPUs in the node, in the order of its ranks.
        indices: the driver's numbers of them.
        server_cores: that its server is bound to: its own, or all where it has none of its own but the client, whose
            child it is, is bound to some; empty for those that it inherits.
    """

    places: tuple[int, ...]
    indices: tuple[int, ...]
    cores: Cores = UNBOUND
    server_cores: tuple[int, ...] = ()


class Seating(Protocol):
    """Who can be seated now. `scheduling/beside.py` asks, of one study; places are numbers that it may compare."""

    @property
    def free(self) -> frozenset[int]:
        """Places that no trial has."""
        ...

    @property
    def idle(self) -> bool:
        """Whether no trial runs."""
        ...

    def fits(self, demand: Demand, without: Collection[int] = ()) -> bool:
        """Whether a config can be seated now, some places kept free."""
        ...

    def kept_for(self, demand: Demand, running: Sequence[Collection[int]]) -> frozenset[int]:
        """Places to keep for a config that has to wait; those of `running` are taken to become free in that order."""
        ...

    def whole(self, demand: Demand) -> Seat:
        """The seat of a config that has a node to itself."""
        ...

    def take(self, demand: Demand, without: Collection[int] = ()) -> Seat | None:
        """Seat a config; None where it has to wait."""
        ...

    def leave(self, seat: Seat) -> None:
        """Its trial has ended."""
        ...

    def beside(self, seat: Seat, other: Seat) -> bool:
        """Whether trials of two seats that are taken run on one node."""
        ...


class Seats:
    """Who sits where on one node. Of one study, which holds the leases of the node's GPUs.

    Args:
        leases: for cores; None leases none.
        bind_client: told the cores of all clients that run now whenever these change; empty for all.
    """

    def __init__(
        self,
        node: Node,
        cores: CoreMap | None = None,
        leases: NodeLeases | None = None,
        *,
        bind_client: Callable[[Collection[int]], None] = lambda _: None,
    ) -> None:
        self.wiring = Wiring.of(node)
        self._node, self._cores = node, cores or CoreMap()
        self._leases, self._bind_client = leases, bind_client
        self._taken: dict[Seat, tuple[Lease, ...]] = {}

    @property
    def free(self) -> frozenset[int]:
        """Places of the GPUs that no trial has."""
        taken = {place for seat in self._taken for place in seat.places}
        return frozenset(range(self._node.gpu_count)) - taken

    @property
    def idle(self) -> bool:
        """Whether no trial runs."""
        return not self._taken

    def kept_for(self, demand: Demand, running: Sequence[Collection[int]]) -> frozenset[int]:
        """See `packing.reserve`."""
        return reserve(demand, self.free, running, self.wiring)

    def fits(self, demand: Demand, without: Collection[int] = ()) -> bool:
        """Whether a config can be seated now, some GPUs kept free."""
        return place(demand, self.free - frozenset(without), self.wiring) is not None

    def whole(self, demand: Demand) -> Seat:
        """The seat of a config that has the node to itself: the best GPUs, and all cores."""
        chosen = place(demand, range(self._node.gpu_count), self.wiring) or ()
        return Seat(places=chosen, indices=self._indices(chosen))

    def take(self, demand: Demand, without: Collection[int] = ()) -> Seat | None:
        """Seat a config beside the others; None where it has to wait."""
        chosen = place(demand, self.free - frozenset(without), self.wiring)
        if chosen is None:
            return None
        cores, leases = self._bound(chosen)
        server_cores = cores.server or self._cores.allowed
        seat = Seat(places=chosen, indices=self._indices(chosen), cores=cores, server_cores=server_cores)
        self._taken[seat] = leases
        self._tell_client()
        return seat

    def leave(self, seat: Seat) -> None:
        """Its trial has ended."""
        for lease in self._taken.pop(seat, ()):
            lease.release()
        self._tell_client()

    def beside(self, seat: Seat, other: Seat) -> bool:
        """There is one node."""
        del seat, other
        return True

    def _indices(self, places: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._node.gpus[one].index for one in places)

    def _bound(self, places: Sequence[int]) -> tuple[Cores, tuple[Lease, ...]]:
        """Cores for some GPUs with their leases; none of either where there are too few."""
        allowed = self._cores.allowed
        near = near_cores([self.wiring.numa(one) for one in places], self._cores.of_numa)
        busy = {core for seat in self._taken for core in seat.cores.all}
        while allowed:
            cores = share_cores(len(places), self._cores.gpus, set(allowed) - busy, allowed, near)
            if self._leases is None or cores == UNBOUND:
                return cores, ()
            leases: list[Lease] = []
            for core in cores.all:
                lease = self._leases.take(core_resource(core), tries=1)
                if lease is None:  # another study's: the share is made up without it
                    busy.add(core)
                    break
                leases.append(lease)
            else:
                return cores, tuple(leases)
            for lease in leases:
                lease.release()
        return UNBOUND, ()

    def _tell_client(self) -> None:
        self._bind_client({core for seat in self._taken for core in seat.cores.client})


def bind_this_process(all_cores: Sequence[int]) -> Callable[[Collection[int]], None]:
    """Binds the calling thread, in which the load is driven, to some of its cores, or to all of them again."""

    def bind(cores: Collection[int]) -> None:
        if all_cores:
            os.sched_setaffinity(0, set(cores) or set(all_cores))

    return bind
