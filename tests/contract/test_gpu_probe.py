"""Every GpuProbe: the fake, and NVML's adapter over a recorded two-GPU node."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.errors import UnsupportedHardware
from autotune.node.gpu_load import ClockLimit, GpuLoad
from autotune.node.nvml_probe import NvmlProbe
from autotune.node.probe import FakeGpuProbe, GpuProbe, ProbedGpu, detect_node
from autotune.records import GpuPath, Topology
from autotune.units import MIB

RECORDED = json.loads((Path(__file__).parents[1] / "data/node/h200-x2/nvml.json").read_text(encoding="utf-8"))

UUIDS = ("GPU-a0000000-0000-4000-8000-000000000001", "GPU-a0000001-0000-4000-8000-000000000002")
TOTAL, RESERVED, USED = 143771 * MIB, 615 * MIB, 500 * MIB


LOAD = GpuLoad(
    busy_share=0.97,
    memory_busy_share=0.61,
    power_w=652.3,
    power_limit_w=700.0,
    sm_clock_mhz=1830,
    sm_clock_limit_mhz=1980,
    limits=frozenset({ClockLimit.POWER_CAP, ClockLimit.HEAT}),
    pcie_tx_bytes_per_s=1_024_000.0,
    pcie_rx_bytes_per_s=512_000.0,
    nvlink_tx_bytes=4 * MIB,
    nvlink_rx_bytes=8 * MIB,
)


class NvmlError(Exception):
    pass


class NotSupported(NvmlError):
    pass


class RecordedNvml:
    """NVML's functions with the answers of a node of two H200s (driver 580); `broken` makes every call fail."""

    NVMLError = NvmlError
    NVMLError_NotSupported = NotSupported
    NVMLError_FunctionNotFound = NotSupported
    NVMLError_InvalidArgument = NotSupported
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0
    NVML_P2P_STATUS_UNKNOWN = 6
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_NVLINK_MAX_LINKS = 36
    NVML_NVLINK_DEVICE_TYPE_GPU = 0
    NVML_AFFINITY_SCOPE_NODE = 0
    NVML_TOPOLOGY_INTERNAL, NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_MULTIPLE = 0, 10, 20
    NVML_TOPOLOGY_HOSTBRIDGE, NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_SYSTEM = 30, 40, 50
    nvmlMemory_v2 = 33554472

    def __init__(self, *, broken: bool = False, old: bool = False) -> None:
        self.broken, self.old = broken, old

    def nvmlDeviceGetCount(self) -> int:
        if self.broken:
            raise NvmlError("GPU is lost")
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self.broken:
            raise NvmlError("GPU is lost")
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> Any:
        if version is None:
            return SimpleNamespace(total=TOTAL, used=USED + RESERVED)
        if self.old:
            raise NotSupported
        return SimpleNamespace(total=TOTAL, used=USED, reserved=RESERVED)

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:
        if self.old:
            raise NotSupported
        return (0, 0)

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return (9, 0)

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:
        return b"NVIDIA H200" if self.old else "NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return UUIDS[handle]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=20), SimpleNamespace(pid=10)] if handle == 0 else []

    def nvmlDeviceGetP2PStatus(self, first: int, second: int, index: int) -> int:
        if self.old:
            raise NotSupported
        answer: int = RECORDED["pairs"][f"{first},{second}"]["p2p"][str(index)]
        return answer

    def nvmlDeviceGetTopologyCommonAncestor(self, first: int, second: int) -> int:
        return self._told(RECORDED["pairs"][f"{first},{second}"]["ancestor"])

    def nvmlDeviceGetMemoryAffinity(self, handle: int, words: int, scope: int) -> list[int]:
        answer: list[int] = self._device(handle, "nvmlDeviceGetMemoryAffinity")
        return answer[:words]

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=self._device(handle, "nvmlDeviceGetPciInfo.busId"))

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        return self._link(handle, link, "state")

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return self._link(handle, link, "remote_type")

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return SimpleNamespace(busId=self._link(handle, link, "remote_bus_id"))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        if self.broken:
            raise NvmlError("GPU is lost")
        return self._device(handle, "nvmlDeviceGetTotalEnergyConsumption")

    # What a GPU does at one moment is made up: nothing was running there.
    NVML_CLOCK_SM = 1
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=self._told(97), memory=61)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._new(652_300)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return self._new(700_000)

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return self._new({self.NVML_CLOCK_SM: 1830}[kind])

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:
        return self._new({self.NVML_CLOCK_SM: 1980}[kind])

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return self._new(0x04 | 0x20 | 0x01)

    def nvmlDeviceGetPcieThroughput(self, handle: int, counter: int) -> int:
        return self._new({0: 1000, 1: 500}[counter])

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[tuple[int, int]]) -> list[Any]:
        assert [scope for _, scope in fields] == [0xFFFFFFFF] * 2
        kib = {138: self._new(4096), 139: 8192}
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=kib[field])) for field, _ in fields]

    def _new(self, answer: int) -> int:
        """Not known to an old driver."""
        if self.old:
            raise NotSupported
        return answer

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        if self.broken:
            raise NvmlError("no")
        return RECORDED["nvmlSystemGetCudaDriverVersion_v2"]

    def _device(self, handle: int, question: str) -> Any:
        return self._told(RECORDED["devices"][handle][question])

    def _link(self, handle: int, link: int, question: str) -> Any:
        return self._told(RECORDED["devices"][handle]["links"][link][question])

    def _told(self, answer: Any) -> Any:
        """A recorded answer, or the recorded error, all of which are of the "I do not know that" kind."""
        if self.old or isinstance(answer, dict):
            raise NotSupported
        return answer

    def nvmlSystemGetDriverVersion(self) -> str:
        if self.broken:
            raise NvmlError("no")
        return "580.159.04"


def fake() -> FakeGpuProbe:
    gpus = tuple(
        ProbedGpu(index=i, name="NVIDIA H200", uuid=uuid, memory_bytes=TOTAL - RESERVED, compute_capability=(9, 0))
        for i, uuid in enumerate(UUIDS)
    )
    wiring = Topology(paths=((None, GpuPath.NVLINK), (GpuPath.NVLINK, None)), nvlinks=((0, 18), (18, 0)), numa=(0, 0))
    return FakeGpuProbe(
        gpus=gpus,
        used_bytes={0: USED, 1: USED},
        pids={0: (20, 10)},
        nvlink=True,
        version="580.159.04",
        cuda=(13, 0),
        wiring=wiring,
        energies_j={0: 2413.142, 1: 2380.242},
        loads={0: [LOAD]},
    )


@pytest.fixture(params=["fake", "nvml"])
def probe(request: pytest.FixtureRequest) -> GpuProbe:
    return fake() if request.param == "fake" else NvmlProbe(RecordedNvml())


def test_gpus_in_index_order_with_usable_memory(probe: GpuProbe) -> None:
    gpus = probe.list_gpus()
    assert [(gpu.index, gpu.uuid) for gpu in gpus] == list(enumerate(UUIDS))
    assert gpus[0].memory_bytes == pytest.approx(139.8 * 1024**3, rel=1e-3)  # what CUDA offered there
    assert (gpus[0].name, gpus[0].compute_capability, gpus[0].mig) == ("NVIDIA H200", (9, 0), False)


def test_use_and_processes(probe: GpuProbe) -> None:
    assert probe.memory_used(1) == USED
    assert probe.processes(0) == (10, 20)
    assert probe.processes(1) == ()


def test_links_and_driver(probe: GpuProbe) -> None:
    assert probe.nvlink_joins(0, 1)
    assert not probe.nvlink_joins(1, 1)
    assert probe.driver() == "580.159.04"


def test_memory_now(probe: GpuProbe) -> None:
    memory = probe.memory(0)
    assert (memory.total, memory.used) == (TOTAL - RESERVED, USED)
    assert memory.free == TOTAL - RESERVED - USED


def test_wiring_is_what_nvidia_smi_printed_there(probe: GpuProbe) -> None:
    """`nvidia-smi topo -m` of the same node says NV18 and NUMA node 0 for both."""
    found = probe.topology()
    assert found.indices == (0, 1)
    assert found.topology.paths == ((None, GpuPath.NVLINK), (GpuPath.NVLINK, None))
    assert found.topology.nvlinks == ((0, 18), (18, 0))
    assert found.topology.numa == (0, 0)


def test_the_node_has_the_wiring_of_its_gpus_in_their_order(probe: GpuProbe) -> None:
    node = detect_node(probe, {"CUDA_VISIBLE_DEVICES": "1,0"}, numa_nodes=1)
    assert node is not None
    assert node.topology is not None
    assert (node.topology.nvlinks, node.topology.numa_nodes) == (((0, 18), (18, 0)), 1)
    single = detect_node(probe, {}, "1")
    assert single is not None
    assert single.topology is not None
    assert (single.topology.paths, single.topology.numa) == (((None,),), (0,))


def test_peers_energy_and_cuda(probe: GpuProbe) -> None:
    assert probe.peer_access(0, 1) is True
    assert probe.energy_j(0) == pytest.approx(2413.142)  # the counter's millijoules
    assert probe.cuda_version() == (13, 0)


def test_load_now(probe: GpuProbe) -> None:
    assert probe.load(0) == replace(LOAD, memory_used_bytes=USED)


def test_a_binding_without_the_functions_and_counters_without_a_value_are_nothing_told() -> None:
    class Older(RecordedNvml):
        def __getattribute__(self, name: str) -> Any:
            if name in {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetPcieThroughput"}:
                raise AttributeError(name)
            return super().__getattribute__(name)

        def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
            return 0x80 | 0x08

        def nvmlDeviceGetFieldValues(self, handle: int, fields: list[tuple[int, int]]) -> list[Any]:
            return [SimpleNamespace(nvmlReturn=3, value=SimpleNamespace(ullVal=0)) for _ in fields]

    load = NvmlProbe(Older()).load(1)
    assert load.limits == {ClockLimit.POWER_BRAKE, ClockLimit.HARDWARE}
    assert (load.pcie_tx_bytes_per_s, load.nvlink_tx_bytes, load.nvlink_rx_bytes) == (None, None, None)
    assert load.power_w == pytest.approx(652.3)


def test_an_old_driver_still_answers() -> None:
    probe = NvmlProbe(RecordedNvml(old=True))
    assert probe.load(0) == GpuLoad(memory_used_bytes=USED + RESERVED)
    assert probe.memory(0).used == USED + RESERVED
    topology = probe.topology().topology
    assert topology.paths == ((None, None), (None, None))
    assert (topology.nvlinks, topology.numa) == (((0, 0), (0, 0)), (None, None))
    assert probe.peer_access(0, 1) is None
    assert probe.energy_j(0) is None
    assert probe.list_gpus()[0].memory_bytes == TOTAL
    assert probe.list_gpus()[0].name == "NVIDIA H200"
    assert probe.memory_used(0) == USED + RESERVED
    assert not probe.nvlink_joins(0, 1)


def test_a_lost_gpu_is_a_clear_refusal() -> None:
    probe = NvmlProbe(RecordedNvml(broken=True))
    assert probe.driver() is None
    assert probe.cuda_version() is None
    for ask in (
        probe.list_gpus,
        lambda: probe.memory_used(0),
        lambda: probe.processes(0),
        lambda: probe.memory(0),
        probe.topology,
        lambda: probe.peer_access(0, 1),
        lambda: probe.energy_j(0),
        lambda: probe.load(0),
    ):
        with pytest.raises(UnsupportedHardware, match="GPU is lost"):
            ask()
    with pytest.raises(UnsupportedHardware):
        probe.nvlink_joins(0, 1)


class Wired(RecordedNvml):
    """Three GPUs: 0 and 1 bridged by four direct links, 2 behind another socket."""

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetP2PStatus(self, first: int, second: int, index: int) -> int:
        return 0 if index == 2 and {first, second} == {0, 1} else 3

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"00000000:0{handle}:00.0".encode())

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= 6:
            raise NotSupported
        return int(handle < 2 and link < 4)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return self.NVML_NVLINK_DEVICE_TYPE_GPU

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return SimpleNamespace(busId=f"00000000:0{1 - handle}:00.0".encode())

    def nvmlDeviceGetTopologyCommonAncestor(self, first: int, second: int) -> int:
        return self.NVML_TOPOLOGY_SYSTEM

    def nvmlDeviceGetMemoryAffinity(self, handle: int, words: int, scope: int) -> list[int]:
        return [(1, 3, 0)[handle], (0, 0, 1)[handle]]


def test_direct_links_ancestors_and_numa_nodes() -> None:
    probe = NvmlProbe(Wired())
    topology = probe.topology().topology
    assert topology.nvlinks == ((0, 4, 0), (4, 0, 0), (0, 0, 0))
    assert topology.paths[0] == (None, GpuPath.NVLINK, GpuPath.SOCKETS)
    assert topology.worst_path is GpuPath.SOCKETS
    # Node 0; nodes 0 and 1, none of them the nearest; node 64, the first of the second word.
    assert topology.numa == (0, None, 64)
    assert probe.peer_access(0, 2) is False
