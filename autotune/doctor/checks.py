"""The checks, one function each: findings in, a verdict out. Pure.

A function returns None where its question does not arise (links without a GPU). Thresholds state where they come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from autotune.doctor.findings import Check, CheckName, Findings, Problem, ServeFailure, Status
from autotune.doctor.link_checks import check_links, check_numa
from autotune.engine.gpu_memory import TOLERANCE_BYTES
from autotune.node.defaults import default_utilization, parse_version
from autotune.node.machine import GpuProcess
from autotune.records import BF16_CAPABILITY, FP8_CAPABILITY, Gpu
from autotune.units import GIB, MIB, format_bytes, format_seconds

LEAST_CUDA_MAJOR = 12
"""PyTorch, and with it vLLM, has had no builds for CUDA 11 since 2025."""
DRIVER_OF_CUDA_13 = "580"
LEAST_CAPABILITY = (7, 5)
"""Turing; vLLM's builds of today hold no code for older ones."""
LEAST_SHM_BYTES = 256 * MIB
"""A TP or PP group's message queue is 10 chunks of 16 MiB (vllm/v1/executor/multiproc_executor.py 0.32), NCCL's buffers
come on top; Docker gives a container 64 MiB unless told otherwise."""
ROOMY_SHM_BYTES = 2 * GIB
LEAST_DISK_BYTES = 20 * 10**9
"""Weights of a model of 8 billion parameters in 16 bit, with some room."""
DOWNLOAD_SHARE = 1.05
"""Of the weights' bytes: the tokenizer, the configuration, and the download's own files come on top."""
LEAST_OPEN_FILES = 4096
"""Two sockets per request in flight at the concurrency of 1024 that vLLM admits, and the program's own files."""
_ADD_GPUS = "in Docker pass --gpus all, in Kubernetes request nvidia.com/gpu."


def check_gpus(found: Findings) -> Check:
    """Which GPUs there are for us."""
    name = CheckName.GPUS
    if found.gpu_problem is not None:
        return Check(name=name, status=Status.FAIL, text=found.gpu_problem.text, remedy=found.gpu_problem.remedy)
    if found.node is None:
        return _no_gpu(found)
    text = f"{found.node.name}: {_kinds(found.node.gpus)}"
    if found.node.simulated:
        text += " (named, not looked at)"
    if found.hidden:
        text += f"; {found.hidden} more hidden by CUDA_VISIBLE_DEVICES or --gpus"
    if len({(gpu.name, gpu.memory_bytes // GIB) for gpu in found.node.gpus}) > 1:
        remedy = "Use GPUs of one kind (--gpus 0,1): in one server the smallest memory and the slowest card decide."
        return Check(name=name, status=Status.WARN, text=f"{text}; of different kinds", remedy=remedy)
    return Check(name=name, status=Status.OK, text=text)


def _no_gpu(found: Findings) -> Check:
    if found.hidden:
        text = f"no GPU is visible: CUDA_VISIBLE_DEVICES hides all {found.hidden}"
        remedy = "Unset CUDA_VISIBLE_DEVICES, or let it name the GPUs to use."
    else:
        text = "no NVIDIA GPU on this machine"
        remedy = f"If there should be one, check that `nvidia-smi` works here; {_ADD_GPUS}"
    remedy += (
        " Without one: `autotune study` runs on the simulated engine (--node names the node), "
        "`autotune doctor --node` looks at a named node, `autotune study --engine process` tunes vLLM's CPU build."
    )
    return Check(name=CheckName.GPUS, status=Status.WARN, text=text, remedy=remedy)


def check_driver(found: Findings) -> Check | None:
    """Driver version and the newest CUDA it supports."""
    if found.node is None or found.node.simulated:
        return None
    name, driver = CheckName.DRIVER, found.node.driver
    if driver is None or found.cuda is None:
        text = f"driver {driver or 'unknown'}, CUDA unknown"
        return Check(name=name, status=Status.WARN, text=text, remedy="Check that `nvidia-smi` shows both versions.")
    text = f"driver {driver}, CUDA up to {found.cuda[0]}.{found.cuda[1]}"
    if found.cuda[0] < LEAST_CUDA_MAJOR:
        remedy = f"Update the driver: vLLM's builds need CUDA {LEAST_CUDA_MAJOR} (driver 525) or newer."
        return Check(name=name, status=Status.FAIL, text=text, remedy=remedy)
    if found.cuda[0] == LEAST_CUDA_MAJOR:
        text += f"; builds of vLLM for CUDA 13 need driver {DRIVER_OF_CUDA_13}, those for CUDA 12 run"
    return Check(name=name, status=Status.OK, text=text)


def check_compute(found: Findings) -> Check | None:
    """Compute capability: whether vLLM runs at all, and which number formats the GPUs have units for."""
    if found.node is None:
        return None
    name = CheckName.COMPUTE
    known = [gpu.compute_capability for gpu in found.node.gpus if gpu.compute_capability is not None]
    if not known:
        return Check(name=name, status=Status.WARN, text="unknown", remedy="Check the GPU in NVIDIA's list of GPUs.")
    least = min(known)
    text = f"{least[0]}.{least[1]}"
    if least < LEAST_CAPABILITY:
        remedy = "Leave this GPU out with --gpus: vLLM's builds need 7.5 (T4) or newer."
        return Check(name=name, status=Status.FAIL, text=f"{text} is too old for vLLM", remedy=remedy)
    if least < BF16_CAPABILITY:
        remedy = "Serve with --dtype half (vLLM's `auto` casts a bfloat16 model to it); try AWQ or GPTQ checkpoints."
        return Check(name=name, status=Status.WARN, text=f"{text}: no bfloat16 units", remedy=remedy)
    formats = "bfloat16 and fp8" if least >= FP8_CAPABILITY else "bfloat16; fp8 weights run without fp8 units"
    return Check(name=name, status=Status.OK, text=f"{text}: {formats}")


def check_memory(found: Findings) -> Check | None:
    """GPU memory free against total: a server that finds less than its share free refuses to start."""
    if not found.gpus:
        return None
    name = CheckName.MEMORY
    version = found.vllm.version if found.vllm is not None and not isinstance(found.vllm, Problem) else None
    share = default_utilization(parse_version(version))
    short = [gpu for gpu in found.gpus if gpu.memory.free < share * gpu.memory.total]
    used = [gpu for gpu in found.gpus if gpu.memory.used > TOLERANCE_BYTES]
    shown = ", ".join(
        f"GPU {gpu.index} {format_bytes(gpu.memory.free)} free of {format_bytes(gpu.memory.total)}"
        for gpu in short or used or found.gpus
    )
    if short:
        text = f"{shown}; vLLM takes {share:g} of the total by default and refuses to start with less free"
        remedy = "End what holds the memory (see gpu-processes), or leave the GPU out with --gpus."
        return Check(name=name, status=Status.FAIL, text=text, remedy=remedy)
    if used:
        remedy = "Measure on idle GPUs: what else runs there disturbs every figure."
        return Check(name=name, status=Status.WARN, text=shown, remedy=remedy)
    return Check(name=name, status=Status.OK, text=shown)


def check_processes(found: Findings) -> Check | None:
    """Other processes that compute on the GPUs."""
    if not found.gpus:
        return None
    busy = [(gpu.index, gpu.processes) for gpu in found.gpus if gpu.processes]
    if not busy:
        return Check(name=CheckName.PROCESSES, status=Status.OK, text="none")
    text = "; ".join(f"GPU {index}: pid {_listed(processes)}" for index, processes in busy)
    remedy = "End them, or use other GPUs with --gpus: neighbours disturb every figure."
    return Check(name=CheckName.PROCESSES, status=Status.WARN, text=text, remedy=remedy)


def check_shm(found: Findings) -> Check:
    """Shared memory, through which the workers of one server talk."""
    name, room = CheckName.SHM, found.shm
    several = found.node is not None and found.node.gpu_count > 1
    remedy = "In Docker pass --ipc=host or --shm-size=16g; in Kubernetes mount a memory-backed emptyDir at /dev/shm."
    if room is None:
        return Check(name=name, status=Status.WARN, text="it cannot be read", remedy=remedy)
    text = f"{format_bytes(room.free)} free of {format_bytes(room.total)}"
    if room.total >= ROOMY_SHM_BYTES > room.free:
        remedy = "Remove what ended servers left in /dev/shm (psm_*, nccl-*, sem.*) once none is running."
    if several and room.free < LEAST_SHM_BYTES:
        text += "; the workers of a server over several GPUs cannot start with it"
        return Check(name=name, status=Status.FAIL, text=text, remedy=remedy)
    if room.free < (ROOMY_SHM_BYTES if several else LEAST_SHM_BYTES):
        return Check(name=name, status=Status.WARN, text=text, remedy=remedy)
    return Check(name=name, status=Status.OK, text=text)


def check_vllm(found: Findings) -> Check | None:
    """Whether the server command starts, and which vLLM it is."""
    vllm = found.vllm
    if vllm is None:
        return None
    if isinstance(vllm, Problem):
        return Check(name=CheckName.VLLM, status=Status.FAIL, text=vllm.text, remedy=vllm.remedy)
    version = f"vLLM {vllm.version}" if vllm.version else "a vLLM that tells its version only when it serves"
    text = f"{version} with {vllm.flags} flags, by {vllm.command!r}"
    return Check(name=CheckName.VLLM, status=Status.OK, text=text)


def check_token(found: Findings) -> Check:
    """A Hugging Face token, which gated models (Llama, Gemma) need for their download."""
    name = CheckName.TOKEN
    if found.token is not None:
        return Check(name=name, status=Status.OK, text=f"present ({found.token})")
    if found.model is not None and (found.model.is_folder or found.model.weights_here):
        return Check(name=name, status=Status.OK, text="none, and none needed: the model is on this machine")
    remedy = "Set HF_TOKEN, or run `hf auth login`; without it gated models cannot be downloaded."
    return Check(name=name, status=Status.WARN, text="none", remedy=remedy)


def check_model(found: Findings) -> Check | None:
    """Whether the model's weights can fit the GPUs at all; `autotune plan` and the rules say the rest."""
    model = found.model
    if model is None:
        return None
    name = CheckName.MODEL
    if model.shape is None:
        remedy = "vLLM may serve it all the same; memory and divisibility are found out by launches."
        return Check(name=name, status=Status.WARN, text=model.doubt, remedy=remedy)
    weights = model.shape.weight_bytes
    text = f"{model.name}: {format_bytes(weights)} of weights"
    if found.node is None:
        return Check(name=name, status=Status.OK, text=text)
    there = sum(gpu.memory_bytes for gpu in found.node.gpus)
    text += f", {format_bytes(there)} of GPU memory"
    if weights >= there:
        remedy = "Use a quantised checkpoint (AWQ, GPTQ, FP8), a smaller model, or more GPUs."
        return Check(name=name, status=Status.FAIL, text=f"{text}: they do not fit", remedy=remedy)
    return Check(name=name, status=Status.OK, text=text)


def check_disk(found: Findings) -> Check:
    """Room where weights are downloaded to."""
    name, room, model = CheckName.DISK, found.cache_room, found.model
    if model is not None and model.weights_here:
        return Check(name=name, status=Status.OK, text=f"the weights of {model.name} are on this machine")
    if model is not None and model.is_folder:
        remedy = "Serve it with --load-format dummy, or put the weights into the folder."
        return Check(name=name, status=Status.WARN, text=f"the folder {model.name} holds no weights", remedy=remedy)
    remedy = "Free room, or let HF_HOME (or HF_HUB_CACHE) name a folder on a larger disk."
    if room is None:
        return Check(name=name, status=Status.WARN, text=f"{found.cache}: cannot be looked at", remedy=remedy)
    text = f"{format_bytes(room.free)} free at {found.cache}"
    if model is not None and model.shape is not None:
        needed = round(model.shape.weight_bytes * DOWNLOAD_SHARE)
        text += f", {format_bytes(needed)} needed for {model.name}"
        status = Status.OK if room.free >= needed else Status.FAIL
    else:
        status = Status.OK if room.free >= LEAST_DISK_BYTES else Status.WARN
    return Check(name=name, status=status, text=text, remedy="" if status is Status.OK else remedy)


def check_ports(found: Findings) -> Check | None:
    """Whether loopback ports can be opened, and who listens where servers usually do."""
    name = CheckName.PORTS
    if found.ports is None:
        return None
    if not found.ports.can_listen:
        remedy = "Allow listening on 127.0.0.1, and look for programs that hold the ephemeral ports (`ss -tan`)."
        return Check(name=name, status=Status.FAIL, text="no loopback port can be opened", remedy=remedy)
    if found.ports.taken:
        text = "; ".join(
            f"port {port} is taken" + (f" by pid {_listed(holders)}" if holders else "")
            for port, holders in found.ports.taken
        )
        remedy = "Trials take ports of their own; but is a server running that will disturb the figures?"
        return Check(name=name, status=Status.WARN, text=text, remedy=remedy)
    return Check(name=name, status=Status.OK, text="loopback ports can be opened, 8000 is free")


def check_open_files(found: Findings) -> Check | None:
    """The limit of open files: server and load client raise their own limit as far as the hard one goes."""
    if found.open_files is None:
        return None
    soft, hard = found.open_files.soft, found.open_files.hard
    text = f"{'no limit' if soft is None else soft}, can be raised to {'any number' if hard is None else hard}"
    if hard is not None and hard < LEAST_OPEN_FILES:
        remedy = "Raise it (`ulimit -Hn 65535`, LimitNOFILE in systemd, --ulimit nofile=65535 in Docker)."
        return Check(name=CheckName.FILES, status=Status.WARN, text=text, remedy=remedy)
    return Check(name=CheckName.FILES, status=Status.OK, text=text)


def check_serve(found: Findings) -> Check | None:
    """Whether a small server started, answered and left nothing behind."""
    name, served = CheckName.SERVE, found.serve
    if served is None:
        return None
    if isinstance(served, Problem):
        return Check(name=name, status=Status.FAIL, text=served.text, remedy=served.remedy)
    if isinstance(served, ServeFailure):
        failure = served.failure
        text = f"{served.step}: {failure.kind}: {failure.line or 'no line in the log says why'}"
        first = failure.remedies[0] if failure.remedies else "Read the server's log."
        return Check(name=name, status=Status.FAIL, text=text, remedy=f"{first} The server's log: {served.log}")
    tokens = "" if served.output_tokens is None else f" of {served.output_tokens} tokens"
    memory = "no GPU was used" if served.memory_back is None else "GPU memory is back"
    mark = "SIMULATED: " if served.simulated else ""
    text = (
        f"{mark}{served.model} ready after {format_seconds(served.startup_s)}, "
        f"/v1/models names {', '.join(served.models)}, "
        f"a completion{tokens} took {format_seconds(served.answer_s)}, "
        f"stopped within {format_seconds(served.stop_s)}: no process is left, {memory}"
    )
    return Check(name=name, status=Status.OK, text=text)


CHECKS: tuple[Callable[[Findings], Check | None], ...] = (
    check_gpus,
    check_driver,
    check_compute,
    check_memory,
    check_processes,
    check_links,
    check_numa,
    check_shm,
    check_vllm,
    check_token,
    check_model,
    check_disk,
    check_ports,
    check_open_files,
    check_serve,
)
DRY_CHECKS = (check_gpus, check_compute, check_links, check_numa, check_model)
"""What can be said of a node that is only named."""


def examine(found: Findings, checks: Iterable[Callable[[Findings], Check | None]] = CHECKS) -> tuple[Check, ...]:
    """Every check whose question arises, in their order."""
    return tuple(verdict for check in checks if (verdict := check(found)) is not None)


def _kinds(gpus: Iterable[Gpu]) -> str:
    kinds = Counter((gpu.name, gpu.memory_bytes) for gpu in gpus)
    return ", ".join(f"{count} x {name} with {format_bytes(size)}" for (name, size), count in kinds.items())


def _listed(processes: Iterable[GpuProcess]) -> str:
    return ", ".join(map(str, processes))
