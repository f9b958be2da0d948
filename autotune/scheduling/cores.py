"""Which CPU cores a trial gets, and which of them its server and its load client have for themselves. Pure.

vLLM keeps about two cores busy per server (API server, engine core) and one per GPU worker; the client that sends and
stamps needs one that nobody else uses. A trial that cannot have as many is not bound to any: a server that is short of
cores measures the cores.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

SERVER_CORES, CORES_PER_GPU = 2, 1
"""A server's least: for its API server and engine core, and for each worker."""

CLIENT_SHARE = 4
"""One core of so many is the client's, at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """Logical CPUs, by the kernel's numbers; both empty where a trial is bound to none."""

    server: tuple[int, ...] = ()
    client: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        """Both ends'."""
        return (*self.server, *self.client)


UNBOUND = Cores()


def least_cores(gpus: int) -> int:
    """Cores below which a trial of so many GPUs is not bound."""
    return SERVER_CORES + CORES_PER_GPU * gpus + 1


def share_cores(
    gpus: int,
    node_gpus: int,
    free: Collection[int],
    allowed: Collection[int],
    near: Collection[int] = (),
) -> Cores:
    """A trial's part of the cores: as many of all as it has of the GPUs, the ones near its GPUs first.

    Args:
        gpus: that the trial uses, of `node_gpus`.
        free: cores that nobody has leased.
        allowed: cores that this process may use at all; the share is one of these.
        near: cores of the NUMA nodes of its GPUs.
    """
    wanted = len(allowed) * gpus // max(1, node_gpus)
    home = sorted(set(near) & set(free))
    chosen = [*home, *sorted(set(free) - set(home))][:wanted]
    if len(chosen) < least_cores(gpus) or len(chosen) == len(allowed):
        return UNBOUND  # all of them is no binding
    client = max(1, len(chosen) // CLIENT_SHARE)
    return Cores(server=tuple(sorted(chosen[:-client])), client=tuple(sorted(chosen[-client:])))


def most_beside(allowed: int, gpus: int) -> int:
    """How many trials of one GPU the cores of a node can carry beside each other; at least 1."""
    return max(1, min(gpus, allowed // least_cores(1))) if gpus else 1


def near_cores(numa: Sequence[int | None], of_node: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """Cores of the NUMA nodes of some GPUs; empty where these are not known."""
    nodes = dict.fromkeys(node for node in numa if node is not None)
    return tuple(core for node in nodes for core in of_node.get(node, ()))
