"""An NVML for machines without GPUs: `pynvml` for whoever has this folder on its path before the real one.

GPU i is the file `nvidia<i>` in the folder that AUTOTUNE_FAKE_GPUS names, as /dev/nvidia<i> is a real one's, and it is
used by the processes that have that file open: servers open it (`hold`), and so have the workers that they fork, also
when they are orphans under another name in a session of their own. Only the standard library is needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = "AUTOTUNE_FAKE_GPUS"
TOTAL_BYTES = 80 << 30
IDLE_BYTES, SERVING_BYTES = 500 << 20, 60 << 30
FRESH_S = 0.05
COLLISIONS = "collisions"
"""In the folder: one line for each server that found somebody on its GPU."""


class NVMLError(Exception):
    """The base of the errors."""


class NVMLError_NotSupported(NVMLError):
    """This GPU does not tell."""


class NVMLError_LibraryNotFound(NVMLError):
    """There is no driver."""


class NVMLError_DriverNotLoaded(NVMLError):
    """There is no driver."""


class NVMLError_FunctionNotFound(NVMLError):
    """The driver is too old."""


nvmlMemory_v2 = 2
NVML_DEVICE_MIG_ENABLE = 1


@dataclass(frozen=True)
class Memory:
    """In bytes."""

    total: int
    used: int
    reserved: int = 0


@dataclass(frozen=True)
class Process:
    """One that computes."""

    pid: int


def __getattr__(name: str) -> Any:
    """Every other question is one that these GPUs do not answer."""
    if name.startswith("NVMLError_"):
        return NVMLError_NotSupported
    if not name.startswith("nvml"):
        if name.startswith("NVML_"):
            return 0
        raise AttributeError(name)

    def unanswered(*_: object) -> Any:
        raise NVMLError_NotSupported(name)

    return unanswered


def nvmlInit() -> None:
    if not devices():
        raise NVMLError_LibraryNotFound


def nvmlDeviceGetCount() -> int:
    return len(devices())


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetName(handle: int) -> str:
    del handle
    return "NVIDIA H100 80GB HBM3"


def nvmlDeviceGetUUID(handle: int) -> str:
    return f"GPU-fake-{handle}"


def nvmlDeviceGetCudaComputeCapability(handle: int) -> tuple[int, int]:
    del handle
    return 9, 0


def nvmlDeviceGetMemoryInfo(handle: int, version: int = 1) -> Memory:
    del version
    used = IDLE_BYTES + (SERVING_BYTES if _seen(handle) else 0)
    return Memory(total=TOTAL_BYTES, used=used)


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[Process]:
    return [Process(pid) for pid in _seen(handle)]


def nvmlSystemGetDriverVersion() -> str:
    return "580.0"


def nvmlSystemGetCudaDriverVersion_v2() -> int:
    return 13000


def devices() -> list[Path]:
    """The GPUs."""
    folder = os.environ.get(FOLDER)
    return sorted(Path(folder).glob("nvidia[0-9]*")) if folder else []


def holders() -> dict[str, list[int]]:
    """Live processes that have a GPU open, by the GPU's path."""
    found: dict[str, list[int]] = {}
    for pid in _others():
        for path in _open_files(pid):
            if "/nvidia" in path:
                found.setdefault(path, []).append(pid)
    return found


_looked: tuple[float, dict[str, list[int]]] = (-1.0, {})


def _seen(index: int) -> list[int]:
    """Of one GPU, as of at most a moment ago: whoever asks for memory and processes of all GPUs looks once."""
    global _looked
    now = time.monotonic()
    if now - _looked[0] > FRESH_S:
        _looked = (now, holders())
    return _looked[1].get(_path(index), [])


def _path(index: int | str) -> str:
    return str(Path(os.environ[FOLDER]).resolve() / f"nvidia{index}")


def hold() -> list[int]:
    """Open the GPUs that CUDA_VISIBLE_DEVICES gives to this process, for as long as it lives; a child has them too.

    Whoever is on one already is written down: no two servers may ever meet on a GPU.

    Returns:
        Descriptors of the GPUs.
    """
    held = []
    for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","):
        if not word.isdigit():
            continue
        there = holders().get(_path(word), [])
        device = Path(os.environ[FOLDER], f"nvidia{word}")
        if there:
            with Path(os.environ[FOLDER], COLLISIONS).open("a", encoding="utf-8") as file:
                file.write(f"GPU {word} has {there}, and {os.getpid()} comes\n")
        held.append(os.open(device, os.O_RDONLY))
        os.set_inheritable(held[-1], True)
    return held


def _others() -> Iterator[int]:
    own = os.getuid()
    for entry in os.scandir("/proc"):
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == own:
                yield int(entry.name)


def _open_files(pid: int) -> set[str]:
    """Paths; none of a zombie, which has let go of everything."""
    found = set()
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(str(Path(entry.path).readlink()))
    return found
