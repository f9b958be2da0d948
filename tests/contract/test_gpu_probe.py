"""Every GpuProbe: the fake, and NVML's adapter over a recorded two-GPU node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.errors import UnsupportedHardware
from autotune.node.probe import FakeGpuProbe, GpuProbe, NvmlProbe, ProbedGpu
from autotune.units import MIB

UUIDS = ("GPU-a0000000-0000-4000-8000-000000000001", "GPU-a0000001-0000-4000-8000-000000000002")
TOTAL, RESERVED, USED = 143771 * MIB, 615 * MIB, 500 * MIB


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
    NVML_DEVICE_MIG_ENABLE = 1
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
        return 0 if first != second and index == 2 else 5

    def nvmlSystemGetDriverVersion(self) -> str:
        if self.broken:
            raise NvmlError("no")
        return "580.159.04"


def fake() -> FakeGpuProbe:
    gpus = tuple(
        ProbedGpu(index=i, name="NVIDIA H200", uuid=uuid, memory_bytes=TOTAL - RESERVED, compute_capability=(9, 0))
        for i, uuid in enumerate(UUIDS)
    )
    return FakeGpuProbe(gpus=gpus, used_bytes={0: USED, 1: USED}, pids={0: (20, 10)}, nvlink=True, version="580.159.04")


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


def test_an_old_driver_still_answers() -> None:
    probe = NvmlProbe(RecordedNvml(old=True))
    assert probe.list_gpus()[0].memory_bytes == TOTAL
    assert probe.list_gpus()[0].name == "NVIDIA H200"
    assert probe.memory_used(0) == USED + RESERVED
    assert not probe.nvlink_joins(0, 1)


def test_a_lost_gpu_is_a_clear_refusal() -> None:
    probe = NvmlProbe(RecordedNvml(broken=True))
    assert probe.driver() is None
    for ask in (probe.list_gpus, lambda: probe.memory_used(0), lambda: probe.processes(0)):
        with pytest.raises(UnsupportedHardware, match="GPU is lost"):
            ask()
    with pytest.raises(UnsupportedHardware):
        probe.nvlink_joins(0, 1)
