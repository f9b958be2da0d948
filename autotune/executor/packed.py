"""Places on the nodes of a cluster for trials that share a node: which node, and how many of its GPUs.

Which GPUs of the node, Ray decides, and it knows nothing of links. So trials share a node only where all of its GPUs
are equally far from each other (NVSwitch; or nothing known, as of GPUs that are numbers).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from autotune.records import Node
from autotune.scheduling.packing import Demand, Wiring
from autotune.scheduling.seats import Seat


def is_uniform(node: Node) -> bool:
    """Whether any GPUs of a node are as good as any others."""
    wiring = Wiring.of(node)
    return len({wiring.distance(pair) for pair in combinations(range(node.gpu_count), 2)}) <= 1


class PackedSeats:
    """Who sits on which node. A place is a GPU of one, numbered through: what it stands for is how many are left.

    Args:
        rooms: of each node, by Ray's id, how many trials its cores carry at once.
        gpus: of each node.
    """

    def __init__(self, rooms: Mapping[str, int], gpus: int) -> None:
        self._nodes, self._rooms, self._gpus = list(rooms), dict(rooms), gpus
        self._taken: dict[Seat, str] = {}

    @property
    def free(self) -> frozenset[int]:
        """Places that no trial has."""
        taken = {place for seat in self._taken for place in seat.places}
        return frozenset(range(len(self._nodes) * self._gpus)) - taken

    @property
    def idle(self) -> bool:
        """Whether no trial runs."""
        return not self._taken

    def fits(self, demand: Demand, without: Collection[int] = ()) -> bool:
        """Whether a node has room now, some places kept free."""
        return self._found(demand, self.free - set(without)) is not None

    def kept_for(self, demand: Demand, running: Sequence[Collection[int]]) -> frozenset[int]:
        """The places of the node that has room first, once the first few of `running` have ended."""
        open_now, sharers = set(self.free), self._sharers()
        if self._found(demand, open_now, sharers) is not None:
            return frozenset()
        for ended in running:
            open_now |= set(ended)
            for node in {self._node_at(place) for place in ended}:
                sharers[node] -= 1
            found = self._found(demand, open_now, sharers)
            if found is not None:
                return frozenset(found)
        return frozenset(range(len(self._nodes) * self._gpus))

    def whole(self, demand: Demand) -> Seat:
        """A node to itself: GPUs are chosen there."""
        del demand
        return Seat(places=(), indices=())

    def take(self, demand: Demand, without: Collection[int] = ()) -> Seat | None:
        """On the node with the least room that suffices; None where the config has to wait."""
        found = self._found(demand, self.free - set(without))
        if found is None:
            return None
        seat = Seat(places=found, indices=())
        self._taken[seat] = self._node_at(found[0])
        return seat

    def leave(self, seat: Seat) -> None:
        """Its trial has ended."""
        self._taken.pop(seat, None)

    def beside(self, seat: Seat, other: Seat) -> bool:
        """Whether both are on one node."""
        return self._taken.get(seat) == self._taken.get(other)

    def node_of(self, seat: Seat) -> str:
        """The node, by Ray's id, that a seat is on."""
        return self._taken[seat]

    def moved(self, seat: Seat, node: str) -> None:
        """Its trial got another node than it was to have, which somebody else uses or which went."""
        if seat in self._taken:
            self._taken[seat] = node

    def _node_at(self, place: int) -> str:
        return self._nodes[place // self._gpus]

    def _sharers(self) -> dict[str, int]:
        count = dict.fromkeys(self._nodes, 0)
        for seat in self._taken:
            count[self._node_at(seat.places[0])] += 1
        return count

    def _found(
        self, demand: Demand, free: Collection[int], sharers: Mapping[str, int] | None = None
    ) -> tuple[int, ...] | None:
        """Places for a config, all on one node."""
        sharers = self._sharers() if sharers is None else sharers
        rooms = []
        for number, node in enumerate(self._nodes):
            own = [place for place in range(number * self._gpus, (number + 1) * self._gpus) if place in free]
            if len(own) >= demand.gpus and sharers[node] < self._rooms[node]:
                rooms.append((len(own), own))
        return tuple(min(rooms)[1][: demand.gpus]) if rooms else None
