"""The matrix of `nvidia-smi topo -m`, and what named nodes are assumed to have."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.node.topology import (
    NamedTopology,
    assumed_topology,
    fill_gaps,
    has_gaps,
    parse_cpu_list,
    parse_topo_matrix,
    subset,
)
from autotune.records import GpuPath, Link, Topology

DATA = Path(__file__).parents[2] / "data" / "node"
PATHS = list(GpuPath)


def read(name: str) -> NamedTopology:
    found = parse_topo_matrix((DATA / name).read_text(encoding="utf-8"))
    assert found is not None
    return found


def words(topology: Topology) -> list[list[str]]:
    """The matrix as the tool spells it."""
    size = range(len(topology.numa))
    return [
        [
            "X" if i == j else f"NV{topology.nvlinks[i][j]}" if topology.nvlinks[i][j] else str(topology.paths[i][j])
            for j in size
        ]
        for i in size
    ]


def test_the_recorded_pair() -> None:
    found = read("h200-x2/nvidia-smi-topo-m.txt")
    assert found.indices == (0, 1)
    assert words(found.topology) == [["X", "NV18"], ["NV18", "X"]]
    assert found.topology.paths[0][1] is GpuPath.NVLINK
    assert found.topology.numa == (0, 0)
    assert found.topology.worst_path is GpuPath.NVLINK


def test_pcie_only() -> None:
    topology = read("topo-m-4xL40S-pcie.txt").topology
    assert words(topology)[0] == ["X", "PXB", "NODE", "NODE"]
    assert words(topology)[2] == ["NODE", "NODE", "X", "PXB"]
    assert topology.worst_path is GpuPath.NUMA_NODE
    assert topology.numa == (0, 0, 0, 0)


def test_a_switch_beside_network_cards() -> None:
    topology = read("topo-m-8xH100-nvswitch.txt").topology
    assert len(topology.numa) == 8
    assert {cell for row in words(topology) for cell in row} == {"X", "NV18"}
    assert topology.numa == (0, 0, 0, 0, 1, 1, 1, 1)


def test_bridged_pairs_on_two_sockets() -> None:
    found = read("topo-m-4xA100-bridged-two-sockets.txt")
    assert words(found.topology) == [
        ["X", "NV12", "SYS", "SYS"],
        ["NV12", "X", "SYS", "SYS"],
        ["SYS", "SYS", "X", "NV12"],
        ["SYS", "SYS", "NV12", "X"],
    ]
    assert found.topology.worst_path is GpuPath.SOCKETS
    pair = subset(found, (3, 2), numa_nodes=2)
    assert (words(pair), pair.numa, pair.numa_nodes) == ([["X", "NV12"], ["NV12", "X"]], (1, 1), 2)
    beyond = subset(found, (0, 7))
    assert (beyond.paths, beyond.numa) == (((None, None), (None, None)), (0, None))


def test_pasted_with_blanks_and_without_numa() -> None:
    topology = read("topo-m-mixed-cards-pasted.txt").topology
    assert words(topology) == [["X", "PIX", "PHB"], ["PIX", "X", "PHB"], ["PHB", "PHB", "X"]]
    assert topology.numa == (None, None, None)
    assert has_gaps(topology)


@pytest.mark.parametrize("name", ["no-nvidia-smi.txt", "nvidia-smi-without-driver.txt", "h200-x2/lscpu.txt"])
def test_no_matrix(name: str) -> None:
    assert parse_topo_matrix((DATA / name).read_text(encoding="utf-8")) is None


def test_damage_is_unknown_and_not_an_error() -> None:
    cut = "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV0\tSOC\t0-7\t0-1\nGPU1\tPIX\t X"
    found = parse_topo_matrix(cut)
    assert found is not None
    # NV0 is no link; SOC is the old word for SYS; the row of GPU1 stops half-way, that of GPU2 is missing.
    assert found.topology.paths == (
        (None, None, GpuPath.SOCKETS),
        (GpuPath.ONE_SWITCH, None, None),
        (None, None, None),
    )
    assert found.topology.numa == (None, None, None)


@given(st.text() | st.text(alphabet="GPU0123\t XNV\nSYCAffinity", max_size=200))
def test_any_text_is_read_without_an_error(text: str) -> None:
    found = parse_topo_matrix(text)
    if found is not None:
        size = len(found.indices)
        assert {len(found.topology.paths), len(found.topology.nvlinks), len(found.topology.numa)} == {size}


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    size = draw(st.integers(1, 9))
    paths: list[list[GpuPath | None]] = [[None] * size for _ in range(size)]
    links = [[0] * size for _ in range(size)]
    for i in range(size):
        for j in range(size):
            if i != j:
                path = draw(st.sampled_from(PATHS))
                paths[i][j], links[i][j] = path, draw(st.integers(1, 18)) if path is GpuPath.NVLINK else 0
    numa = tuple(draw(st.none() | st.integers(0, 7)) for _ in range(size))
    return Topology(paths=tuple(map(tuple, paths)), nvlinks=tuple(map(tuple, links)), numa=numa)


@given(topologies(), st.booleans())
def test_what_is_printed_is_read_back(topology: Topology, blanks: bool) -> None:
    between = "    " if blanks else "\t"
    size = len(topology.numa)
    lines = [between + between.join([*(f"GPU{i}" for i in range(size)), "CPU Affinity", "NUMA Affinity"])]
    for i, row in enumerate(words(topology)):
        cells = [" X " if cell == "X" else cell for cell in row]
        node = "N/A" if topology.numa[i] is None else str(topology.numa[i])
        lines.append(between.join([f"GPU{i}", *cells, "0-7", node]))
    assert parse_topo_matrix("\n".join(lines)) == NamedTopology(indices=tuple(range(size)), topology=topology)


def test_gaps_are_filled_and_nothing_else() -> None:
    known = Topology(
        paths=((None, GpuPath.NVLINK, None), (GpuPath.NVLINK, None, None), (None, None, None)),
        nvlinks=((0, 4, 0), (4, 0, 0), (0, 0, 0)),
        numa=(0, None, None),
        numa_nodes=2,
    )
    other = Topology(
        paths=tuple(tuple(None if i == j else GpuPath.SOCKETS for j in range(3)) for i in range(3)),
        nvlinks=((0,) * 3,) * 3,
        numa=(1, 1, None),
    )
    filled = fill_gaps(known, other)
    assert words(filled) == [["X", "NV4", "SYS"], ["NV4", "X", "SYS"], ["SYS", "SYS", "X"]]
    assert (filled.numa, filled.numa_nodes) == ((0, 1, None), 2)
    assert has_gaps(known)
    assert has_gaps(filled)


def test_cpu_lists_say_what_numactl_counts_out() -> None:
    lscpu = (DATA / "h200-x2" / "lscpu.txt").read_text(encoding="utf-8")
    listed = next(line.split(":")[1] for line in lscpu.splitlines() if line.startswith("NUMA node0 CPU(s)"))
    numactl = (DATA / "h200-x2" / "numactl-H.txt").read_text(encoding="utf-8")
    counted = next(line.split(":")[1] for line in numactl.splitlines() if line.startswith("node 0 cpus"))
    assert parse_cpu_list(listed) == tuple(int(word) for word in counted.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-3,8\n", (0, 1, 2, 3, 8)),
        ("", ()),
        ("N/A", ()),
        ("5-3", ()),
        ("1,1,0", (0, 1)),
        ("0,x,2", (0, 2)),
        ("99999999999999999999", ()),
    ],
)
def test_cpu_lists(text: str, expected: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == expected


def test_a_huge_range_costs_nothing() -> None:
    assert len(parse_cpu_list("0-999999")) == 65537


def test_assumed() -> None:
    four = assumed_topology(4, Link.PCIE)
    assert {cell for row in words(four) for cell in row} == {"X", "NODE"}
    assert (four.numa, four.numa_nodes) == ((0, 0, 0, 0), 1)
    eight = assumed_topology(8, Link.PCIE)
    assert words(eight)[0] == ["X", "NODE", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert (eight.numa, eight.numa_nodes, eight.worst_path) == ((0,) * 4 + (1,) * 4, 2, GpuPath.SOCKETS)
    joined = assumed_topology(8, Link.NVLINK, 18)
    assert {cell for row in words(joined) for cell in row} == {"X", "NV18"}
    assert joined.numa == eight.numa
    single = assumed_topology(1, Link.NONE)
    assert (single.paths, single.worst_path, single.numa) == (((None,),), None, (0,))
