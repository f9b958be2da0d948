"""What the GPUs of one tensor-parallel group talk over. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.records import GpuPath, Link, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The slowest pair of a group.

    Attributes:
        across_sockets: the traffic passes from one CPU to another.
    """

    link: Link
    across_sockets: bool = False


def wire_of(node: Node, gpus: int) -> Wire:
    """The wire of a group of `gpus` neighbours: the first of the node, where vLLM puts its first group.

    Without a known topology the node's slowest pair stands for every group; with one, a bridged pair of PCIe cards is
    seen to have NVLink although the node as a whole has not.
    """
    if gpus < 2:
        return Wire(link=Link.NONE)
    topology = node.topology
    if topology is None or len(topology.paths) < gpus:
        return Wire(link=node.link)
    paths = [topology.paths[i][j] for i in range(gpus) for j in range(gpus) if i != j]
    known = [path for path in paths if path is not None]
    if len(known) < len(paths):
        return Wire(link=node.link)
    if all(path is GpuPath.NVLINK for path in known):
        return Wire(link=Link.NVLINK)
    return Wire(link=Link.PCIE, across_sockets=GpuPath.SOCKETS in known)
