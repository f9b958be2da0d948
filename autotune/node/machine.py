"""What a server needs of the machine beside GPUs: shared memory, NUMA nodes, disk room, a token, open files.

Everything is asked of the system itself. One program is run, `nvidia-smi topo -m`, and only by whoever lacks what it
knows: NVML answers the same questions without one. Nothing here raises; what cannot be read is None.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.node.topology import NamedTopology, fill_gaps, has_gaps, parse_cpu_list, parse_topo_matrix, subset
from autotune.records import Topology

SMI_DEADLINE_S = 20.0
"""`nvidia-smi` takes seconds where the driver is not kept loaded (no persistence daemon)."""
_MOST_TOKEN_BYTES = 4096
TOKEN_NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Environment variables that huggingface_hub reads its token from, in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A file system, in bytes; `free` is what this user can still write."""

    total: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFiles:
    """The limit of open files: what holds now, and what a process may raise it to; None for no limit."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process on a GPU; `name` is None where the pid is not visible (another user's container, the host's)."""

    pid: int
    name: str | None

    def __str__(self) -> str:
        return f"{self.pid} ({self.name or 'not visible from here'})"


def read_room(path: Path) -> Room | None:
    """The file system that `path` is on, or will be on once its missing folders are made."""
    for place in (path, *path.parents):
        try:
            found = os.statvfs(place)
        except FileNotFoundError:
            continue
        except (OSError, ValueError):  # not readable; a name with a NUL in it
            return None
        return Room(total=found.f_frsize * found.f_blocks, free=found.f_frsize * found.f_bavail)
    return None


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Where what is slow to ask is remembered: AUTOTUNE_CACHE_DIR, else `autotune` in the user's cache."""
    chosen = environ.get("AUTOTUNE_CACHE_DIR")
    return Path(chosen) if chosen else Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autotune"


def shm_bytes() -> int | None:
    """Size of /dev/shm."""
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108 - its size is asked, nothing is written there
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def count_numa_nodes(online: Path = Path("/sys/devices/system/node/online")) -> int | None:
    """NUMA nodes of the machine, from the kernel's list; None where there is no such list (no Linux, no /sys)."""
    try:
        nodes = parse_cpu_list(online.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return len(nodes) or None


def numa_cores(nodes: Path = Path("/sys/devices/system/node")) -> dict[int, tuple[int, ...]]:
    """Logical CPUs of each NUMA node, by the kernel's numbers; empty where it does not tell."""
    found = {}
    for folder in nodes.glob("node[0-9]*"):
        with suppress(OSError, ValueError):
            found[int(folder.name.removeprefix("node"))] = parse_cpu_list((folder / "cpulist").read_text("ascii"))
    return found


def own_cores() -> tuple[int, ...]:
    """Logical CPUs that this process may run on; empty where the system does not tell (macOS)."""
    try:
        return tuple(sorted(os.sched_getaffinity(0)))
    except AttributeError:
        return ()


def find_hf_token(environ: Mapping[str, str], home: Path) -> str | None:
    """Where a Hugging Face token is, e.g. `HF_TOKEN`; None for none. The token itself is never handed on.

    Places: HF_TOKEN, HUGGING_FACE_HUB_TOKEN, the file HF_TOKEN_PATH, HF_HOME/token, ~/.cache/huggingface/token, as
    huggingface_hub 1.x looks for it.
    """
    for name in TOKEN_NAMES:
        if environ.get(name, "").strip():
            return name
    if environ.get("HF_TOKEN_PATH"):
        file = Path(environ["HF_TOKEN_PATH"])
    elif environ.get("HF_HOME"):
        file = Path(environ["HF_HOME"]) / "token"
    else:
        base = Path(environ["XDG_CACHE_HOME"]) if environ.get("XDG_CACHE_HOME") else home / ".cache"
        file = base / "huggingface" / "token"
    try:
        with file.open("rb") as stream:
            return str(file) if stream.read(_MOST_TOKEN_BYTES).strip() else None
    except (OSError, ValueError):
        return None


def read_open_files() -> OpenFiles:
    """The limit of open files of this process, which a server that it starts inherits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OpenFiles(soft=_limit(soft), hard=_limit(hard))


def name_processes(pids: Iterable[int]) -> tuple[GpuProcess, ...]:
    """Processes with their names, this process itself left out."""
    return tuple(GpuProcess(pid=pid, name=_name(pid)) for pid in pids if pid != os.getpid())


def ask_nvidia_smi(environ: Mapping[str, str], program: str = "nvidia-smi") -> NamedTopology | None:
    """What `nvidia-smi topo -m` prints; None without the command, without an answer in time, or without a matrix."""
    try:
        done = subprocess.run(
            [program, "topo", "-m"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SMI_DEADLINE_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return parse_topo_matrix(done.stdout.decode("utf-8", "replace"))


def complete_topology(topology: Topology, indices: tuple[int, ...], environ: Mapping[str, str]) -> Topology:
    """`topology` of the GPUs `indices`; what NVML did not tell is filled in from `nvidia-smi`, asked only then."""
    if not has_gaps(topology):
        return topology
    told = ask_nvidia_smi(environ)
    return topology if told is None else fill_gaps(topology, subset(told, indices))


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _name(pid: int) -> str | None:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return None
