"""The seam of `node.probe` over NVML, the driver's own library."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from autotune.errors import UnsupportedHardware
from autotune.node import nvml_topology
from autotune.node.gpu_load import GpuLoad, read_load
from autotune.node.probe import GpuMemory, ProbedGpu
from autotune.node.topology import NamedTopology


class NvmlProbe:
    """The seam over NVML. Use `open_probe`; the module is an argument so that tests can hand in a recorded one."""

    def __init__(self, nvml: ModuleType | Any) -> None:
        self._nvml = nvml

    def list_gpus(self) -> tuple[ProbedGpu, ...]:
        try:
            return tuple(self._describe(index) for index in range(self._nvml.nvmlDeviceGetCount()))
        except self._nvml.NVMLError as error:
            raise self._lost(error) from error

    def memory_used(self, index: int) -> int:
        try:
            return int(self._memory(self._handle(index)).used)
        except self._nvml.NVMLError as error:
            raise self._lost(error) from error

    def processes(self, index: int) -> tuple[int, ...]:
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle(index))
        except self._nvml.NVMLError as error:
            raise self._lost(error) from error
        return tuple(sorted(process.pid for process in found))

    def nvlink_joins(self, first: int, second: int) -> bool:
        try:
            # The driver says of a GPU that it reaches itself over NVLink.
            return first != second and nvml_topology.nvlink_joins(self._nvml, self._handle(first), self._handle(second))
        except self._nvml.NVMLError as error:
            raise self._lost(error) from error

    def driver(self) -> str | None:
        try:
            return _text(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return None

    def memory(self, index: int) -> GpuMemory:
        try:
            memory = self._memory(self._handle(index))
        except self._nvml.NVMLError as error:
            raise self._lost(error) from error
        return GpuMemory(total=_usable(memory), used=int(memory.used))

    def topology(self) -> NamedTopology:
        try:
            indices = tuple(range(self._nvml.nvmlDeviceGetCount()))
            found = nvml_topology.read_topology(self._nvml, [self._handle(index) for index in indices])
        except self._nvml.NVMLError as error:
            raise self._lost(error) from error
        return NamedTopology(indices=indices, topology=found)

    def peer_access(self, first: int, second: int) -> bool | None:
        try:
            return nvml_topology.peer_access(self._nvml, self._handle(first), self._handle(second))
        except self._nvml.NVMLError as error:
            raise self._lost(error) from error

    def energy_j(self, index: int) -> float | None:
        nvml = self._nvml
        try:
            return int(nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle(index))) / 1000
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            return None
        except nvml.NVMLError as error:
            raise self._lost(error) from error

    def load(self, index: int) -> GpuLoad:
        try:
            handle = self._handle(index)
            return read_load(self._nvml, handle, int(self._memory(handle).used))
        except self._nvml.NVMLError as error:
            raise self._lost(error) from error

    def cuda_version(self) -> tuple[int, int] | None:
        try:
            number = int(self._nvml.nvmlSystemGetCudaDriverVersion_v2())
        except self._nvml.NVMLError:
            return None
        return number // 1000, number % 1000 // 10  # CUDA's own encoding: 12080 is 12.8

    def _handle(self, index: int) -> Any:
        return self._nvml.nvmlDeviceGetHandleByIndex(index)

    def _memory(self, handle: Any) -> Any:
        # The first version of this call counts the driver's reserve (0.6 GiB of an H200) as used by processes.
        try:
            return self._nvml.nvmlDeviceGetMemoryInfo(handle, self._nvml.nvmlMemory_v2)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return self._nvml.nvmlDeviceGetMemoryInfo(handle)

    def _describe(self, index: int) -> ProbedGpu:
        nvml, handle = self._nvml, self._handle(index)
        memory = self._memory(handle)
        try:
            mig = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        except nvml.NVMLError_NotSupported:
            mig = False
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        return ProbedGpu(
            index=index,
            name=_text(nvml.nvmlDeviceGetName(handle)),
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            memory_bytes=_usable(memory),
            compute_capability=(int(major), int(minor)),
            mig=mig,
        )

    @staticmethod
    def _lost(error: Exception) -> UnsupportedHardware:
        return UnsupportedHardware(
            f"the NVIDIA driver does not answer: {error}",
            hint="Check that `nvidia-smi` works here; inside a container the GPUs must be passed in (--gpus all).",
        )


def open_probe() -> NvmlProbe | None:
    """A probe over this machine's NVML; None where there is no NVIDIA driver.

    Raises:
        UnsupportedHardware: there is a driver, but it cannot be used (version mismatch, no permission).
    """
    import pynvml  # imported here: `autotune --help` must not pay for it

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return None
    except pynvml.NVMLError as error:
        raise NvmlProbe._lost(error) from error
    return NvmlProbe(pynvml)


def _usable(memory: Any) -> int:
    """The total without the driver's reserve, which the first version of the call does not tell."""
    return int(memory.total) - int(getattr(memory, "reserved", 0))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
