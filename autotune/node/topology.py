"""How GPUs are wired: what `nvidia-smi topo -m` prints, read; and what a node that is only named is assumed to have.

Pure. The matrix is described in NVIDIA's manual page of nvidia-smi ("Topology"); its legend is printed below it. Sizes
of /dev/shm and of disks, and the machine's NUMA nodes, are asked of the system itself (node/machine.py), not of the
text of `df`, `lscpu` or `numactl`, which need not be installed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.records import GpuPath, Link, Topology

MOST_GPUS = 64
"""More than any machine has; a text that names more is not a matrix of GPUs."""
MOST_CPUS = 1 << 16

GPUS_OF_ONE_SOCKET = 4
"""From five GPUs on, a machine that is only named is assumed to have two sockets."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU(\d{1,3})")
_TITLES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_NUMA = "NUMA Affinity"
_WORDS = {path.value: path for path in GpuPath if path is not GpuPath.NVLINK} | {"SOC": GpuPath.SOCKETS}
"""`SOC` is how drivers before 2018 spelled SYS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTopology:
    """A topology with the physical indices that its rows stand for."""

    indices: tuple[int, ...]
    topology: Topology


def parse_topo_matrix(text: str) -> NamedTopology | None:
    """The GPUs of `nvidia-smi topo -m`; NICs in it are left out.

    Tabs, as printed, or blanks, as pasted from a web page, separate the columns; colours are dropped. A cell that is
    none of the legend's words is unknown, and so is everything of a row that is missing.

    Returns:
        None where the text holds no matrix (no driver, no such command, one that stopped half-way in its head).
    """
    lines = [_ANSI.sub("", line) for line in text.splitlines()]
    head = next((number for number, line in enumerate(lines) if _is_head(line)), None)
    if head is None:
        return None
    columns = _cells(lines[head])
    indices = tuple(dict.fromkeys(int(found[1]) for cell in columns if (found := _GPU.fullmatch(cell))))
    if len(indices) > MOST_GPUS:
        return None
    rows = _rows(lines[head + 1 :])
    place = {index: columns.index(f"GPU{index}") for index in indices if f"GPU{index}" in columns}
    numa_place = columns.index(_NUMA) if _NUMA in columns else None

    def cell(row: int, column: int | None) -> str:
        cells = rows.get(row, [])
        return cells[column] if column is not None and column < len(cells) else ""

    read = {(i, j): _read_cell(cell(i, place.get(j))) for i in indices for j in indices if i != j}
    topology = Topology(
        paths=tuple(tuple(read[i, j][0] if i != j else None for j in indices) for i in indices),
        nvlinks=tuple(tuple(read[i, j][1] if i != j else 0 for j in indices) for i in indices),
        numa=tuple(_one_node(cell(i, numa_place)) for i in indices),
    )
    return NamedTopology(indices=indices, topology=topology)


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """CPU or node numbers of a list as Linux writes it, e.g. `0-31,64-95`, in order, each once.

    Source: the kernel's "cpulist" format. What is no number or range is left out, and so are numbers that no machine
    has, such that a damaged text costs neither time nor memory.
    """
    found: set[int] = set()
    for piece in text.strip().split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", piece, flags=re.ASCII)
        if match:
            found.update(range(int(match[1]), min(int(match[2] or match[1]), MOST_CPUS) + 1))
    return tuple(sorted(number for number in found if number <= MOST_CPUS))


def subset(named: NamedTopology, indices: Sequence[int], numa_nodes: int | None = None) -> Topology:
    """The topology of some GPUs, in the order of `indices`; what the text did not name stays unknown."""
    place = {index: position for position, index in enumerate(named.indices)}
    whole = named.topology
    at = [place.get(index) for index in indices]
    return Topology(
        paths=tuple(tuple(None if a is None or b is None else whole.paths[a][b] for b in at) for a in at),
        nvlinks=tuple(tuple(0 if a is None or b is None else whole.nvlinks[a][b] for b in at) for a in at),
        numa=tuple(None if a is None else whole.numa[a] for a in at),
        numa_nodes=whole.numa_nodes if numa_nodes is None else numa_nodes,
    )


def fill_gaps(known: Topology, other: Topology) -> Topology:
    """`known`, completed by what only `other`, of the same GPUs, says."""
    size = range(len(known.numa))
    gap = [[known.paths[i][j] is None for j in size] for i in size]
    return Topology(
        paths=tuple(tuple(other.paths[i][j] if gap[i][j] else known.paths[i][j] for j in size) for i in size),
        nvlinks=tuple(tuple(other.nvlinks[i][j] if gap[i][j] else known.nvlinks[i][j] for j in size) for i in size),
        numa=tuple(known.numa[i] if known.numa[i] is not None else other.numa[i] for i in size),
        numa_nodes=known.numa_nodes if known.numa_nodes is not None else other.numa_nodes,
    )


def has_gaps(topology: Topology) -> bool:
    """Whether a pair's path or a GPU's NUMA node is unknown."""
    size = range(len(topology.numa))
    unknown_path = any(topology.paths[i][j] is None for i in size for j in size if i != j)
    return unknown_path or None in topology.numa


def assumed_topology(count: int, link: Link, nvlinks: int = 0) -> Topology:
    """What a node of which only the name is known probably looks like: ASSUMED, not read from a machine.

    NVLink joins every pair with all links of a GPU, as a switch or a bridge does. PCIe GPUs hang on host bridges of
    their own. Up to four GPUs share a socket; more are split evenly over two, and without NVLink the traffic between
    the halves crosses from one to the other (SYS).

    Args:
        nvlinks: links that one GPU of this kind has; used with NVLink only.
    """
    two = count > GPUS_OF_ONE_SOCKET
    numa = tuple(1 if two and index >= (count + 1) // 2 else 0 for index in range(count))

    def path(i: int, j: int) -> GpuPath | None:
        if i == j:
            return None
        if link is Link.NVLINK:
            return GpuPath.NVLINK
        return GpuPath.NUMA_NODE if numa[i] == numa[j] else GpuPath.SOCKETS

    links = nvlinks if link is Link.NVLINK else 0
    return Topology(
        paths=tuple(tuple(path(i, j) for j in range(count)) for i in range(count)),
        nvlinks=tuple(tuple(links if i != j else 0 for j in range(count)) for i in range(count)),
        numa=numa,
        numa_nodes=2 if two else 1,
    )


def _is_head(line: str) -> bool:
    """Whether a line is the matrix's head: a name, then another name or a title. A row's second cell is a path."""
    cells = _cells(line)
    if not cells or not _GPU.fullmatch(cells[0]):
        return False
    return len(cells) == 1 or cells[1] in _TITLES or bool(re.fullmatch(r"(?:GPU\d+|NIC\d+|mlx\w+)", cells[1]))


def _rows(lines: Sequence[str]) -> dict[int, list[str]]:
    """Cells by GPU, up to the legend; the first row of a GPU counts."""
    rows: dict[int, list[str]] = {}
    for line in lines:
        if line.strip().startswith("Legend"):
            break
        cells = _cells(line)
        found = _GPU.fullmatch(cells[0]) if cells else None
        if found:
            rows.setdefault(int(found[1]), cells[1:])
    return rows


def _cells(line: str) -> list[str]:
    """Cells of a line; a head's empty first column is dropped, so that its cells stand over a row's after its name."""
    if "\t" in line:
        cells = [cell.strip() for cell in line.rstrip().split("\t")]
        return cells[1:] if cells and not cells[0] else cells
    for title in _TITLES:
        line = line.replace(title, title.replace(" ", "\0"))
    return [cell.replace("\0", " ") for cell in line.split()]


def _read_cell(cell: str) -> tuple[GpuPath | None, int]:
    match = re.fullmatch(r"NV(\d{1,2})", cell, flags=re.ASCII)
    if match and int(match[1]) > 0:
        return GpuPath.NVLINK, int(match[1])
    return _WORDS.get(cell), 0


def _one_node(cell: str) -> int | None:
    """The NUMA node of a cell; None for `N/A`, and for several nodes, of which none is the nearest."""
    nodes = parse_cpu_list(cell)
    return nodes[0] if len(nodes) == 1 else None
