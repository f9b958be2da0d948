"""Which wire a tensor-parallel group uses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.node.gpus import parse_node_name
from autotune.records import GpuPath, Link, Node, Topology
from autotune.simulator.wiring import Wire, wire_of


def wired(*rows: str) -> Node:
    """A PCIe node of four cards; rows name paths by their word, `X` on the diagonal."""
    paths = tuple(tuple(None if word == "X" else GpuPath(word) for word in row.split()) for row in rows)
    topology = Topology(paths=paths, nvlinks=((0,) * 4,) * 4, numa=(0, 0, 1, 1), numa_nodes=2)
    return replace(parse_node_name("4xA6000-48GB-PCIe"), topology=topology)


BRIDGED = wired("X NV SYS SYS", "NV X SYS SYS", "SYS SYS X NV", "SYS SYS NV X")
SWITCHED = wired("X PIX PXB SYS", "PIX X PXB SYS", "PXB PXB X SYS", "SYS SYS SYS X")


@pytest.mark.parametrize(
    ("node", "gpus", "expected"),
    [
        (parse_node_name("4xL40S-48GB-PCIe"), 1, Wire(link=Link.NONE)),
        (parse_node_name("4xL40S-48GB-PCIe"), 2, Wire(link=Link.PCIE)),
        (parse_node_name("8xH100-80GB"), 8, Wire(link=Link.NVLINK)),
        (BRIDGED, 2, Wire(link=Link.NVLINK)),
        (BRIDGED, 4, Wire(link=Link.PCIE, across_sockets=True)),
        (SWITCHED, 3, Wire(link=Link.PCIE)),
        (SWITCHED, 4, Wire(link=Link.PCIE, across_sockets=True)),
    ],
)
def test_the_slowest_pair_of_the_group_decides(node: Node, gpus: int, expected: Wire) -> None:
    assert wire_of(node, gpus) == expected


def test_an_unknown_pair_leaves_the_nodes_own_link() -> None:
    holes = wired("X NV SYS SYS", "NV X SYS SYS", "SYS SYS X X", "SYS SYS NV X")
    assert wire_of(holes, 2).link is Link.NVLINK
    assert wire_of(holes, 4) == Wire(link=Link.PCIE)
