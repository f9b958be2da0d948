"""The checks on how GPUs reach each other and the CPUs (guide G13, G31). Pure."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import assert_never

from autotune.doctor.findings import Check, CheckName, Findings, Problem, Status
from autotune.records import GpuPath, Node, Topology

_WORDS = {
    GpuPath.NVLINK: "NVLink",
    GpuPath.ONE_SWITCH: "one PCIe switch",
    GpuPath.SWITCHES: "several PCIe switches",
    GpuPath.HOST_BRIDGE: "a PCIe host bridge",
    GpuPath.NUMA_NODE: "several PCIe host bridges of one NUMA node",
    GpuPath.SOCKETS: "the link between CPU sockets",
}
_COMPARE = "Compare --pipeline-parallel-size with --tensor-parallel-size, and replicas where the model fits one GPU."


def check_links(found: Findings) -> Check | None:
    """The worst path between two GPUs decides what tensor parallelism costs."""
    node = found.node
    if node is None:
        return None
    if node.gpu_count == 1:
        return Check(name=CheckName.LINKS, status=Status.OK, text="one GPU, nothing to link")
    worst = node.topology.worst_path if node.topology else None
    if node.topology is None or worst is None:
        remedy = "Look at `nvidia-smi topo -m`, and compare TP with PP."
        return Check(name=CheckName.LINKS, status=Status.WARN, text="unknown", remedy=remedy)
    return _judge(found, node, node.topology, worst)


def _judge(found: Findings, node: Node, topology: Topology, worst: GpuPath) -> Check:
    name = CheckName.LINKS
    text = _described(node, topology, worst)
    if found.strangers and worst is not GpuPath.NVLINK:
        pairs = ", ".join(f"{a}-{b}" for a, b in found.strangers)
        text += f"; no peer access between GPUs {pairs}, so copies go through the memory of the host"
        return Check(name=name, status=Status.WARN, text=text, remedy=_COMPARE)
    match worst:
        case GpuPath.NVLINK:
            return Check(name=name, status=Status.OK, text=text)
        case GpuPath.SOCKETS:
            remedy = "Keep a TP group on one socket (--gpus), bind workers with --numa-bind. " + _COMPARE
            return Check(name=name, status=Status.WARN, text=text, remedy=remedy)
        case GpuPath.ONE_SWITCH | GpuPath.SWITCHES | GpuPath.HOST_BRIDGE | GpuPath.NUMA_NODE:
            return Check(name=name, status=Status.OK, text=text, remedy=_COMPARE)
        case _:
            assert_never(worst)


def _described(node: Node, topology: Topology, worst: GpuPath) -> str:
    """The worst path, the NVLinks there are, and whether it was looked at."""
    assumed = " (assumed for a named node)" if node.simulated else ""
    indices = [gpu.index for gpu in node.gpus]
    joined = {
        (indices[i], indices[j]): topology.nvlinks[i][j]
        for i, j in combinations(range(len(indices)), 2)
        if topology.paths[i][j] is GpuPath.NVLINK
    }
    if worst is GpuPath.NVLINK:
        least, most = min(joined.values()), max(joined.values())
        links = f"NV{least}" if least == most else f"NV{least} to NV{most}"
        return f"NVLink between all GPUs ({links}){assumed}"
    text = f"worst path {worst} ({_WORDS[worst]})"
    if joined:
        pairs = ", ".join(f"{a}-{b} NV{links}" for (a, b), links in joined.items())
        text += f"; NVLink between {pairs}"
    return text + assumed


def check_numa(found: Findings) -> Check | None:
    """Where the GPUs' nearest CPUs are; workers bound elsewhere fetch every byte across."""
    node = found.node
    topology = node.topology if node else None
    nodes = topology.numa_nodes if topology and topology.numa_nodes is not None else found.numa_nodes
    if nodes is None:
        return None if node is None else Check(name=CheckName.NUMA, status=Status.OK, text="NUMA nodes are not known")
    if nodes == 1:
        return Check(name=CheckName.NUMA, status=Status.OK, text="one NUMA node")
    if node is None or topology is None:
        return Check(name=CheckName.NUMA, status=Status.OK, text=f"{nodes} NUMA nodes")
    by_node: dict[int | None, list[int]] = defaultdict(list)
    for gpu, place in zip(node.gpus, topology.numa, strict=True):
        by_node[place].append(gpu.index)
    places = "; ".join(
        f"GPU {', '.join(map(str, indices))} on {'an unknown node' if place is None else f'node {place}'}"
        for place, indices in by_node.items()
    )
    text = f"{nodes} NUMA nodes: {places}"
    if None in by_node:
        remedy = "Tell vLLM by hand: --numa-bind --numa-bind-nodes, one node per GPU."
        return Check(name=CheckName.NUMA, status=Status.WARN, text=text, remedy=remedy)
    binds = found.vllm is None or isinstance(found.vllm, Problem) or found.vllm.binds_numa
    remedy = "Bind workers with --numa-bind." if binds else "This vLLM has no --numa-bind: start it under `numactl`."
    return Check(name=CheckName.NUMA, status=Status.OK, text=text, remedy=remedy)
