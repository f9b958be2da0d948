"""Ports: free, on loopback, never twice."""

from __future__ import annotations

import socket
from itertools import chain, repeat

import pytest

from autotune.engine.ports import LOOPBACK, NoFreePort, Ports


def test_ports_can_be_bound_and_differ() -> None:
    ports = Ports()
    handed = [ports.fresh() for _ in range(20)]
    assert len(set(handed)) == 20
    for port in handed:
        with socket.socket() as server:
            server.bind((LOOPBACK, port))


def test_a_used_port_is_not_handed_out_again() -> None:
    choices = chain([5000, 5000, 5000, 5001], repeat(5000))
    ports = Ports(choose=lambda: next(choices))
    assert [ports.fresh(), ports.fresh()] == [5000, 5001]
    with pytest.raises(NoFreePort, match="2 handed out"):
        ports.fresh()


def test_an_occupied_port_is_not_chosen() -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        ports = Ports()
        assert taken.getsockname()[1] not in [ports.fresh() for _ in range(50)]
