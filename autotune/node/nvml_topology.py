"""How GPUs are wired, asked of NVML: common ancestor in the PCIe tree, NVLinks, nearest NUMA node.

Every question may be unknown to a driver or a card; then the answer is "unknown", never a guess. `nvidia-smi topo -m`
asks the same library, so its text (node/topology.py) can fill in only what the Python binding lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from autotune.records import GpuPath, Topology

NODE_WORDS = 4
"""Words of 64 bits in the set of NUMA nodes that is asked for: 256 nodes, more than Linux machines with GPUs have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Links:
    """Active NVLinks of one GPU.

    Attributes:
        to_gpus: links by the PCI bus id of the GPU at their other end.
        others: links that end at a switch, or whose other end is not told (inside virtual machines).
    """

    to_gpus: dict[str, int]
    others: int


def read_topology(nvml: ModuleType | Any, handles: Sequence[Any]) -> Topology:
    """The topology of the GPUs behind `handles`, in their order; `numa_nodes` is left to whoever reads the machine.

    Raises:
        nvml.NVMLError: the driver stopped answering; a question that it does not know is no such error.
    """
    count = len(handles)
    bus_ids = [_bus_id(nvml, handle) for handle in handles]
    links = [_links(nvml, handle) for handle in handles]
    paths: list[list[GpuPath | None]] = [[None] * count for _ in range(count)]
    bonded = [[0] * count for _ in range(count)]
    for i in range(count):
        for j in range(count):
            if i == j:
                continue
            if nvlink_joins(nvml, handles[i], handles[j]):
                paths[i][j] = GpuPath.NVLINK
                bonded[i][j] = _bonded(links[i], links[j], bus_ids[j])
            else:
                paths[i][j] = _ancestor(nvml, handles[i], handles[j])
    return Topology(
        paths=tuple(map(tuple, paths)),
        nvlinks=tuple(map(tuple, bonded)),
        numa=tuple(_numa_node(nvml, handle) for handle in handles),
    )


def nvlink_joins(nvml: ModuleType | Any, first: Any, second: Any) -> bool:
    """Whether two GPUs reach each other over NVLink; consumer cards and old drivers do not know the question."""
    status = _p2p(nvml, first, second, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    return bool(status == nvml.NVML_P2P_STATUS_OK)


def peer_access(nvml: ModuleType | Any, first: Any, second: Any) -> bool | None:
    """Whether each of two GPUs can read the other's memory; None where the driver does not know the question."""
    # The binding (nvidia-ml-py 12 and 13) has NVML_P2P_CAPS_INDEX_READ as the tuple (0,), by a stray comma.
    status = _p2p(nvml, first, second, 0)
    return None if status is None or status == nvml.NVML_P2P_STATUS_UNKNOWN else status == nvml.NVML_P2P_STATUS_OK


def _p2p(nvml: ModuleType | Any, first: Any, second: Any, index: int) -> int | None:
    try:
        return int(nvml.nvmlDeviceGetP2PStatus(first, second, index))
    except _unknown(nvml):
        return None


def _bonded(mine: _Links, theirs: _Links, their_bus_id: str | None) -> int:
    """Links between two GPUs that NVLink joins; at least 1.

    Direct links name the GPU at their other end. Behind a switch every link of a GPU reaches every other GPU.
    """
    direct = mine.to_gpus.get(their_bus_id or "", 0)
    return direct or max(1, min(mine.others, theirs.others))


def _links(nvml: ModuleType | Any, handle: Any) -> _Links:
    to_gpus: dict[str, int] = {}
    others = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link) == 0:
                continue
        except _unknown(nvml):
            continue  # the card has fewer links than any card could have
        remote = _remote_gpu(nvml, handle, link)
        if remote is None:
            others += 1
        else:
            to_gpus[remote] = to_gpus.get(remote, 0) + 1
    return _Links(to_gpus=to_gpus, others=others)


def _remote_gpu(nvml: ModuleType | Any, handle: Any, link: int) -> str | None:
    try:
        if nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) != nvml.NVML_NVLINK_DEVICE_TYPE_GPU:
            return None
        return _text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
    except _unknown(nvml):
        return None


def _bus_id(nvml: ModuleType | Any, handle: Any) -> str | None:
    try:
        return _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
    except _unknown(nvml):
        return None


def _ancestor(nvml: ModuleType | Any, first: Any, second: Any) -> GpuPath | None:
    levels = {
        nvml.NVML_TOPOLOGY_INTERNAL: GpuPath.ONE_SWITCH,  # two GPUs of one board, as on a K80, behind its own switch
        nvml.NVML_TOPOLOGY_SINGLE: GpuPath.ONE_SWITCH,
        nvml.NVML_TOPOLOGY_MULTIPLE: GpuPath.SWITCHES,
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: GpuPath.HOST_BRIDGE,
        nvml.NVML_TOPOLOGY_NODE: GpuPath.NUMA_NODE,
        nvml.NVML_TOPOLOGY_SYSTEM: GpuPath.SOCKETS,
    }
    try:
        return levels.get(int(nvml.nvmlDeviceGetTopologyCommonAncestor(first, second)))
    except _unknown(nvml):
        return None


def _numa_node(nvml: ModuleType | Any, handle: Any) -> int | None:
    """The NUMA node whose memory and CPUs are nearest (`NUMA Affinity` of nvidia-smi); None for several or none.

    Not `nvmlDeviceGetNumaNodeId`, which on Grace machines tells the node that the GPU's own memory forms.
    """
    try:
        words = nvml.nvmlDeviceGetMemoryAffinity(handle, NODE_WORDS, nvml.NVML_AFFINITY_SCOPE_NODE)
    except _unknown(nvml):
        return None
    nodes = [64 * place + bit for place, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1]
    return nodes[0] if len(nodes) == 1 else None


def _unknown(nvml: ModuleType | Any) -> tuple[type[Exception], ...]:
    """Errors that say "I do not know this question", as opposed to "I am gone"."""
    return (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument, nvml.NVMLError_FunctionNotFound)


def _text(value: str | bytes) -> str:
    return (value.decode("ascii", "replace") if isinstance(value, bytes) else value).lower()
