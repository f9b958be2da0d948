"""How named nodes are wired."""

from __future__ import annotations

import pytest

from autotune.node.gpus import CATALOGUE, known_nodes, parse_node_name
from autotune.records import GpuPath


@pytest.mark.parametrize(
    ("name", "worst", "links", "numa_nodes"),
    [
        ("4xL40S-48GB-PCIe", GpuPath.NUMA_NODE, 0, 1),
        ("8xH200-141GB-NVLink", GpuPath.NVLINK, 18, 2),
        ("2xRTX4090-24GB-PCIe", GpuPath.NUMA_NODE, 0, 1),
        ("8xB200-180GB", GpuPath.NVLINK, 18, 2),
        ("4xA100-80GB-NVLink", GpuPath.NVLINK, 12, 1),
        ("8xA100-40GB-PCIe", GpuPath.SOCKETS, 0, 2),
        ("2xH100-94GB", GpuPath.NVLINK, 12, 1),
        ("2xRTX3090-24GB-NVLink", GpuPath.NVLINK, 4, 1),
        ("8xL4-24GB", GpuPath.SOCKETS, 0, 2),
        ("4xA10-24GB", GpuPath.NUMA_NODE, 0, 1),
        ("4xT4-16GB", GpuPath.NUMA_NODE, 0, 1),
        ("8xRTX5090-32GB", GpuPath.SOCKETS, 0, 2),
    ],
)
def test_assumed_wiring(name: str, worst: GpuPath, links: int, numa_nodes: int) -> None:
    node = parse_node_name(name)
    assert node.topology is not None
    assert node.topology.worst_path is worst
    assert node.topology.nvlinks[0][1] == links
    assert node.topology.numa_nodes == numa_nodes
    assert len(node.topology.numa) == node.gpu_count


def test_one_gpu_has_nobody_to_reach() -> None:
    for name in known_nodes():
        topology = parse_node_name(name).topology
        assert topology is not None
        assert (topology.worst_path, topology.numa, topology.numa_nodes) == (None, (0,), 1)


def test_links_are_known_exactly_where_nvlink_can_join() -> None:
    assert [model.label for model in CATALOGUE if (model.nvlinks > 0) != (model.nvlink_up_to > 1)] == []
