"""What `doctor` found on a machine, and what it says about it. Bytes and seconds; None where nothing could be read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from autotune.node.machine import GpuProcess, OpenFiles, Room
from autotune.node.probe import GpuMemory
from autotune.records import Failure, ModelShape, Node


class CheckName(StrEnum):
    """The checks, in the order in which they are shown; docs/doctor.md has a heading for each."""

    GPUS = "gpus"
    DRIVER = "driver"
    COMPUTE = "compute-capability"
    MEMORY = "gpu-memory"
    PROCESSES = "gpu-processes"
    LINKS = "links"
    NUMA = "numa"
    SHM = "shm"
    VLLM = "vllm"
    TOKEN = "hf-token"  # noqa: S105 - the name of a check
    MODEL = "model"
    DISK = "disk"
    PORTS = "ports"
    FILES = "open-files"
    SERVE = "serve"


class Status(StrEnum):
    """How a check went. Only `fail` stands in the way of serving or measuring."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: what was seen, and what to do about it or with it; `remedy` is empty where that is nothing."""

    name: CheckName
    status: Status
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that could not be asked or done, and what to do about it."""

    text: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One visible GPU as it is now; `processes` are those of others."""

    index: int
    memory: GpuMemory
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundVllm:
    """A server command that answers like vLLM.

    Attributes:
        version: None where only a server could tell (a container, a wrapper).
        flags: how many its parser knows.
        binds_numa: it has `--numa-bind`.
    """

    command: str
    version: str | None
    flags: int
    binds_numa: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """The model asked about.

    Attributes:
        shape: None where its config.json cannot be read here; `doubt` then says why.
        is_folder: it is a folder of this machine and not the name of a download.
        weights_here: its weights are on this machine.
    """

    name: str
    shape: ModelShape | None
    is_folder: bool
    weights_here: bool
    doubt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPorts:
    """Ports of this machine.

    Attributes:
        can_listen: a fresh loopback port could be opened.
        taken: well-known ports of servers that somebody listens on, with who, as far as the system tells.
    """

    can_listen: bool
    taken: tuple[tuple[int, tuple[GpuProcess, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A small server that answered.

    Attributes:
        models: names in its /v1/models.
        gpus: indices that it ran on; empty on a machine without GPUs.
        output_tokens: of the one completion; None when the server did not count.
        max_model_len: what it was started with, or what it told.
        memory_back: GPU memory is where it was before; None where there was no GPU to look at.
        simulated: a simulated server answered, which proves nothing about a real one.
    """

    model: str
    models: tuple[str, ...]
    gpus: tuple[int, ...]
    version: str | None
    max_model_len: int | None
    kv_cache_tokens: int | None
    startup_s: float
    answer_s: float
    output_tokens: int | None
    stop_s: float
    memory_back: bool | None
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFailure:
    """A small server that did not start, answer or stop; `log` is where its words are kept."""

    step: str
    failure: Failure
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that the checks look at.

    Attributes:
        node: None where no GPU is there for us; `gpu_problem` says why when that is a fault.
        hidden: physical GPUs that CUDA_VISIBLE_DEVICES or --gpus leave out.
        gpus: state of the node's GPUs, in its order; empty for a node that is only named.
        cuda: newest CUDA that the driver supports.
        strangers: pairs of GPUs that cannot read each other's memory.
        token: where a Hugging Face token is, never the token.
        serve: None where no server was asked for.
    """

    node: Node | None
    gpu_problem: Problem | None = None
    hidden: int = 0
    gpus: tuple[GpuState, ...] = ()
    cuda: tuple[int, int] | None = None
    strangers: tuple[tuple[int, int], ...] = ()
    numa_nodes: int | None = None
    shm: Room | None = None
    vllm: FoundVllm | Problem | None = None
    token: str | None = None
    model: FoundModel | None = None
    cache: str = ""
    cache_room: Room | None = None
    ports: FoundPorts | None = None
    open_files: OpenFiles | None = None
    serve: Served | ServeFailure | Problem | None = None


def failed(checks: Iterable[Check]) -> tuple[Check, ...]:
    """The checks that stand in the way."""
    return tuple(check for check in checks if check.status is Status.FAIL)
