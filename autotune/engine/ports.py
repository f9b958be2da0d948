"""Fresh loopback ports: each trial gets ports that no earlier trial of this process used.

A port in TIME_WAIT, or one that a dying worker of the previous trial still holds, must not be met again; and
`--port` must differ from every other port a server is given (vLLM issue 20119: equal HTTP and data-parallel RPC ports
give no error, only garbage answers). A port is leased until it is given back: between the moment that it was free and
the moment that the server listens on it, another tuner of this node must not choose it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import psutil

from autotune.node.leases import Lease, NodeLeases, port_resource

LOOPBACK = "127.0.0.1"
ATTEMPTS = 200


class NoFreePort(Exception):
    """The system handed out used ports only: the ephemeral range is exhausted."""


def free_port() -> int:
    """A loopback TCP port that was free a moment ago (the system's choice)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


class Ports:
    """Hands out ports and remembers them; one per process.

    Args:
        choose: how a free port is found.
        leases: of the node; None where no other tuner can be met (tests).
    """

    def __init__(self, choose: Callable[[], int] = free_port, leases: NodeLeases | None = None) -> None:
        self._choose, self._leases = choose, leases
        self._used: set[int] = set()
        self._held: dict[int, Lease] = {}

    def fresh(self) -> int:
        """A port never handed out before, leased until `give_back`.

        Raises:
            NoFreePort: ATTEMPTS choices were all used ones.
            StorageError: ports cannot be leased.
        """
        for _ in range(ATTEMPTS):
            port = self._choose()
            if port in self._used:
                continue
            if self._leases is not None:
                lease = self._leases.take(port_resource(port), tries=1)
                if lease is None:
                    continue
                self._held[port] = lease
            self._used.add(port)
            return port
        raise NoFreePort(f"no unused loopback port in {ATTEMPTS} attempts, {len(self._used)} handed out so far")

    def give_back(self, port: int) -> None:
        """Nothing listens on it any more; twice is fine."""
        lease = self._held.pop(port, None)
        if lease is not None:
            lease.release()


def listeners(port: int) -> frozenset[int]:
    """Pids that listen on a TCP port, as far as the system tells.

    An answer on a port does not prove whose it is: vLLM binds with SO_REUSEPORT, so two servers can share one.
    """
    found = set()
    for connection in psutil.net_connections(kind="tcp"):
        address = connection.laddr
        if address and connection.status == psutil.CONN_LISTEN and address.port == port and connection.pid is not None:
            found.add(connection.pid)
    return frozenset(found)
