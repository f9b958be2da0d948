"""The nodes of a cluster as a study sees them: what each tells of itself, and which of them can measure one study."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from autotune import __version__
from autotune.errors import ClusterUnusable
from autotune.node.machine import count_numa_nodes, shm_bytes
from autotune.node.probe import GpuProbe, cpu_node, detect_node
from autotune.records import Node
from autotune.scheduling.packing import Demand
from autotune.scheduling.seats import Seat

SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One node.

    Attributes:
        id: Ray's; a node that is started again has another one.
        host: its name; `address` is how Ray reaches it.
        gpus, cpus: how many Ray hands out there.
        node: as servers would see it; `cpu` where Ray has no GPU there.
        version: of this program there.
        reads: whether the tuner's studies folder is the same there.
    """

    id: str
    host: str
    address: str
    gpus: int
    cpus: int
    node: Node
    version: str
    reads: bool

    @property
    def kind(self) -> str:
        """What figures are comparable within: the GPUs and their links, or of a node without, its cores."""
        return self.node.name if self.node.gpus else f"cpu ({self.cpus} cores)"


def node_here(probe: GpuProbe | None, environ: Mapping[str, str], most: int | None = None) -> Node:
    """This machine as a server would see it.

    Args:
        most: GPUs that Ray hands out here, the first ones; None for all that the environment leaves visible.
    """
    physical = () if probe is None else probe.list_gpus()
    requested = None if most is None else ",".join(str(gpu.index) for gpu in physical[:most])
    found = None
    if requested != "":
        found = detect_node(probe, environ, requested, shm_bytes=shm_bytes(), numa_nodes=count_numa_nodes())
    return found or cpu_node(shm_bytes=shm_bytes())


def report_here(node_id: str, address: str, gpus: int, cpus: int, shared: str) -> NodeReport:
    """What this machine tells; called on each node.

    Args:
        shared: path of a file in the tuner's studies folder, whose name holds a token.
    """
    from autotune.node.nvml_probe import open_probe

    return NodeReport(
        id=node_id,
        host=platform.node(),
        address=address,
        gpus=gpus,
        cpus=cpus,
        # Ray hides the GPUs from whoever has not asked for one.
        node=node_here(open_probe() if gpus else None, {}, gpus),
        version=__version__,
        reads=Path(shared).exists(),
    )


def chosen(reports: Sequence[NodeReport], wanted: Collection[str]) -> tuple[NodeReport, ...]:
    """The nodes that the operator named, by host, address or kind; without names, those with GPUs, or else all.

    Raises:
        ClusterUnusable: a name is nobody's.
    """
    if not wanted:
        return tuple(one for one in reports if one.gpus) or tuple(reports)
    for name in wanted:
        if not any(name in (one.host, one.address, one.kind) for one in reports):
            raise ClusterUnusable(
                f"--ray-nodes: no node of the Ray cluster is called {name!r}", hint=f"There are: {_shown(reports)}."
            )
    return tuple(one for one in reports if {one.host, one.address, one.kind} & set(wanted))


def alike(reports: Sequence[NodeReport]) -> tuple[NodeReport, ...]:
    """The same, if figures of all of them can be compared.

    Raises:
        ClusterUnusable: there is none, or they are of several kinds or versions.
    """
    if not reports:
        raise ClusterUnusable("the Ray cluster has no node for a study", hint="See `ray status`.")
    versions = sorted({one.version for one in reports} | {__version__})
    if len(versions) > 1:
        old = _shown([one for one in reports if one.version != __version__])
        raise ClusterUnusable(
            f"the nodes have autotune {', '.join(versions)}, and this machine has {__version__}: {old}",
            hint="Install the same version everywhere.",
        )
    kinds = sorted({one.kind for one in reports})
    if len(kinds) > 1:
        raise ClusterUnusable(
            f"the Ray cluster's nodes differ, and figures of different nodes cannot be compared: {_shown(reports)}",
            hint=f"Name those of one kind, e.g. --ray-nodes {kinds[0]!r}.",
        )
    return tuple(reports)


def _shown(reports: Sequence[NodeReport]) -> str:
    ordered = sorted(reports, key=lambda one: (one.kind, one.host))
    told = []
    for kind, group in groupby(ordered, key=lambda one: one.kind):
        hosts = [one.host for one in group]
        more = f" and {len(hosts) - SHOWN} more" if len(hosts) > SHOWN else ""
        told.append(f"{kind} ({', '.join(hosts[:SHOWN])}{more})")
    return "; ".join(told) or "none"


class NodeSeats:
    """Places on a cluster, each for one trial that has its node to itself. Which node that is, Ray decides."""

    def __init__(self, count: int) -> None:
        self._free = set(range(count))
        self._count = count

    @property
    def free(self) -> frozenset[int]:
        """Places that no trial has."""
        return frozenset(self._free)

    @property
    def idle(self) -> bool:
        """Whether no trial runs."""
        return len(self._free) == self._count

    def fits(self, demand: Demand, without: Collection[int] = ()) -> bool:
        """Any config fits any place."""
        del demand
        return bool(self._free - set(without))

    def kept_for(self, demand: Demand, running: Sequence[Collection[int]]) -> frozenset[int]:
        """Nothing: whoever waits, waits for any place."""
        del demand, running
        return frozenset()

    def whole(self, demand: Demand) -> Seat:
        """GPUs are chosen on the node."""
        del demand
        return Seat(places=(), indices=())

    def take(self, demand: Demand, without: Collection[int] = ()) -> Seat | None:
        """The first free place."""
        if not self.fits(demand, without):
            return None
        place = min(self._free - set(without))
        self._free.remove(place)
        return Seat(places=(place,), indices=())

    def leave(self, seat: Seat) -> None:
        """Its trial has ended."""
        self._free.update(seat.places)

    def beside(self, seat: Seat, other: Seat) -> bool:
        """No two are on one node."""
        del seat, other
        return False
