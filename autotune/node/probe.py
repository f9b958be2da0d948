"""What GPUs this machine has and which of them we may use, asked of the driver behind a small seam.

Indices are NVML's, in PCI bus order, as `nvidia-smi` prints them; CUDA agrees once CUDA_DEVICE_ORDER=PCI_BUS_ID is set,
which whoever launches a server must do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Protocol

from autotune.errors import InvalidOption, UnsupportedHardware
from autotune.node.gpu_load import GpuLoad
from autotune.node.gpus import describe_gpus, find_by_driver_name
from autotune.node.topology import NamedTopology, subset
from autotune.records import Gpu, GpuPath, Link, Node, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedGpu:
    """One physical GPU as the driver describes it.

    Attributes:
        memory_bytes: what a process can have: the total without the driver's own reserve.
        mig: the GPU is cut into MIG instances.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None = None
    mig: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """One GPU's memory now, in bytes; what the driver keeps for itself is in neither.

    Attributes:
        total: what processes can have together.
        used: what they have, whoever owns them.
    """

    total: int
    used: int

    @property
    def free(self) -> int:
        """What a new process can have."""
        return max(0, self.total - self.used)


class GpuProbe(Protocol):
    """Asks the driver. Called before a study, around every launch and measurement, while a server stops, by `doctor`.

    Every call returns within a second or so and owns nothing. An index is one that `list_gpus` returned.

    Raises (any verb):
        UnsupportedHardware: the driver stopped answering.
    """

    def list_gpus(self) -> tuple[ProbedGpu, ...]:
        """All physical GPUs, by index."""
        ...

    def memory_used(self, index: int) -> int:
        """Bytes in use by processes on one GPU, whoever owns them."""
        ...

    def processes(self, index: int) -> tuple[int, ...]:
        """Process ids that compute on one GPU; inside a container these may be the host's."""
        ...

    def nvlink_joins(self, first: int, second: int) -> bool:
        """Whether two GPUs reach each other over NVLink."""
        ...

    def driver(self) -> str | None:
        """Driver version."""
        ...

    def memory(self, index: int) -> GpuMemory:
        """Memory of one GPU now."""
        ...

    def topology(self) -> NamedTopology:
        """How all physical GPUs are wired, by index; what the driver does not tell is unknown in it."""
        ...

    def peer_access(self, first: int, second: int) -> bool | None:
        """Whether two GPUs can read each other's memory directly; None where the driver does not tell."""
        ...

    def energy_j(self, index: int) -> float | None:
        """Joules that one GPU has used since the driver was loaded; differences count. None on older cards.

        The counter has a resolution of 1 mJ and steps every 20 to 100 ms (nvmlDeviceGetTotalEnergyConsumption, from
        Volta on).
        """
        ...

    def load(self, index: int) -> GpuLoad:
        """What one GPU does now; asked twice a second during a level. Takes about 40 ms."""
        ...

    def cuda_version(self) -> tuple[int, int] | None:
        """The newest CUDA that the driver supports, e.g. (13, 0)."""
        ...


@dataclass(slots=True, kw_only=True)
class FakeGpuProbe:
    """The seam's fake: holds what it is told. What is by index may be changed by a test.

    Attributes:
        wiring: the topology of all its GPUs; None for one in which nothing is known but NVLink (`nvlink`).
        peers: what `peer_access` answers for every pair.
        energies_j: by index; a GPU that is not in it has no counter.
        loads: by index, what `load` answers, one after the other and the last for ever; the memory in use is added.
    """

    gpus: tuple[ProbedGpu, ...] = ()
    used_bytes: dict[int, int] = field(default_factory=dict)
    pids: dict[int, tuple[int, ...]] = field(default_factory=dict)
    nvlink: bool = False
    version: str | None = "580.0"
    cuda: tuple[int, int] | None = (13, 0)
    wiring: Topology | None = None
    peers: bool | None = True
    energies_j: dict[int, float] = field(default_factory=dict)
    loads: dict[int, list[GpuLoad]] = field(default_factory=dict)

    def list_gpus(self) -> tuple[ProbedGpu, ...]:
        return self.gpus

    def memory_used(self, index: int) -> int:
        return self.used_bytes.get(index, 0)

    def processes(self, index: int) -> tuple[int, ...]:
        return tuple(sorted(self.pids.get(index, ())))

    def nvlink_joins(self, first: int, second: int) -> bool:
        return self.nvlink and first != second

    def driver(self) -> str | None:
        return self.version

    def memory(self, index: int) -> GpuMemory:
        total = next(gpu.memory_bytes for gpu in self.gpus if gpu.index == index)
        return GpuMemory(total=total, used=self.memory_used(index))

    def topology(self) -> NamedTopology:
        indices = tuple(gpu.index for gpu in self.gpus)
        return NamedTopology(indices=indices, topology=self.wiring or self._unknown_wiring(indices))

    def peer_access(self, first: int, second: int) -> bool | None:
        return None if self.peers is None else self.peers and first != second

    def energy_j(self, index: int) -> float | None:
        return self.energies_j.get(index)

    def load(self, index: int) -> GpuLoad:
        script = self.loads.get(index, [])
        told = (script.pop(0) if len(script) > 1 else script[0]) if script else GpuLoad()
        return replace(told, memory_used_bytes=self.memory_used(index))

    def cuda_version(self) -> tuple[int, int] | None:
        return self.cuda

    def _unknown_wiring(self, indices: tuple[int, ...]) -> Topology:
        joined = [[self.nvlink_joins(a, b) for b in indices] for a in indices]
        return Topology(
            paths=tuple(tuple(GpuPath.NVLINK if cell else None for cell in row) for row in joined),
            nvlinks=tuple(tuple(int(cell) for cell in row) for row in joined),
            numa=(None,) * len(indices),
        )


def visible_gpus(gpus: Sequence[ProbedGpu], env: Mapping[str, str], requested: str | None) -> tuple[ProbedGpu, ...]:
    """The GPUs we may use, in the order asked for.

    CUDA_VISIBLE_DEVICES is read as CUDA reads it: indices or (starts of) UUIDs, an empty value hides all, the first
    entry that names no GPU (`-1`) ends the list. `--gpus` uses the same physical names and must stay within it.

    Raises:
        InvalidOption: `--gpus` names a GPU that does not exist or is hidden, or something twice.
        UnsupportedHardware: a MIG instance is named.
    """
    inherited = env.get("CUDA_VISIBLE_DEVICES")
    allowed = tuple(gpus)
    if inherited is not None:
        listed: list[ProbedGpu] = []
        for entry in inherited.split(","):
            gpu = _find(gpus, entry.strip(), "CUDA_VISIBLE_DEVICES")
            if gpu is None:
                break
            listed.append(gpu)
        allowed = tuple(dict.fromkeys(listed))
    if requested is None:
        return allowed
    known = ", ".join(str(gpu.index) for gpu in allowed) or "none, this process sees no NVIDIA GPU"
    chosen: list[ProbedGpu] = []
    for entry in requested.split(","):
        gpu = _find(allowed, entry.strip(), "--gpus")
        if gpu is None or gpu in chosen:
            hidden = " (CUDA_VISIBLE_DEVICES hides the others)" if inherited is not None else ""
            raise InvalidOption("--gpus", requested, f"each of these once, separated by commas: {known}{hidden}")
        chosen.append(gpu)
    return tuple(chosen)


def detect_node(
    probe: GpuProbe | None,
    env: Mapping[str, str],
    requested: str | None = None,
    *,
    shm_bytes: int | None = None,
    has_kfd: bool = False,
    numa_nodes: int | None = None,
) -> Node | None:
    """The node as this process may use it; None when there is no GPU for us.

    Args:
        probe: None where there is no NVIDIA driver.
        requested: the value of `--gpus`.
        shm_bytes: size of /dev/shm.
        has_kfd: whether /dev/kfd exists, which is how AMD's driver shows.
        numa_nodes: of the machine (`machine.count_numa_nodes`).

    Raises:
        InvalidOption: see `visible_gpus`.
        UnsupportedHardware: an AMD GPU without an NVIDIA one, or a visible GPU in MIG mode.
    """
    physical = probe.list_gpus() if probe is not None else ()
    if not physical and has_kfd:
        raise UnsupportedHardware(
            "this machine has an AMD GPU (/dev/kfd) and no NVIDIA GPU; autotune does not tune ROCm yet",
            hint="Use --engine simulated to plan for an NVIDIA node.",
        )
    visible = visible_gpus(physical, env, requested)
    if probe is None or not visible:
        return None
    mig = [gpu.index for gpu in visible if gpu.mig]
    if mig:
        raise UnsupportedHardware(
            f"GPU {', '.join(map(str, mig))} is in MIG mode; an instance's memory and speed are not those of the GPU",
            hint="Turn MIG off for it, or leave it out with --gpus.",
        )
    gpus = tuple(_as_gpu(gpu) for gpu in visible)
    link = Link.NONE
    if len(visible) > 1:
        joined = all(probe.nvlink_joins(a.index, b.index) for a, b in combinations(visible, 2))
        link = Link.NVLINK if joined else Link.PCIE
    return Node(
        name=describe_gpus(gpus, link),
        gpus=gpus,
        link=link,
        simulated=False,
        driver=probe.driver(),
        shm_bytes=shm_bytes,
        topology=subset(probe.topology(), [gpu.index for gpu in visible], numa_nodes),
    )


def cpu_node(*, shm_bytes: int | None = None) -> Node:
    """The node of a machine without GPUs, for vLLM's CPU build."""
    return Node(name="cpu", gpus=(), link=Link.NONE, simulated=False, shm_bytes=shm_bytes)


def _as_gpu(probed: ProbedGpu) -> Gpu:
    model = find_by_driver_name(probed.name, probed.memory_bytes)
    known = model.gpu(probed.index) if model is not None else None
    return Gpu(
        index=probed.index,
        name=probed.name,
        memory_bytes=probed.memory_bytes,
        compute_capability=probed.compute_capability,
        bf16_flops=known.bf16_flops if known else None,
        fp8_flops=known.fp8_flops if known else None,
        memory_bytes_per_s=known.memory_bytes_per_s if known else None,
        uuid=probed.uuid,
    )


def _find(gpus: Sequence[ProbedGpu], entry: str, option: str) -> ProbedGpu | None:
    if entry.upper().startswith("MIG-"):
        raise UnsupportedHardware(f"{option} names the MIG instance {entry}; autotune tunes whole GPUs only")
    if entry.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    # "GPU" alone would be the start of every UUID.
    starts = [gpu for gpu in gpus if len(entry) > 4 and gpu.uuid.lower().startswith(entry.lower())]
    return starts[0] if len(starts) == 1 else None
