"""Packing: TP groups stay in their islands, islands stay whole, nobody waits for ever. Against every partition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.node.gpus import parse_node_name
from autotune.node.topology import assumed_topology
from autotune.records import GpuPath, Link, Topology
from autotune.scheduling.packing import Demand, Wiring, place, reserve

N, P, B, S = GpuPath.NVLINK, GpuPath.ONE_SWITCH, GpuPath.HOST_BRIDGE, GpuPath.SOCKETS


def wired(count: int, paths: dict[tuple[int, int], GpuPath], other: GpuPath, numa: tuple[int, ...]) -> Wiring:
    """A node whose pairs are `other` but for those named."""

    def path(i: int, j: int) -> GpuPath | None:
        return None if i == j else paths.get((min(i, j), max(i, j)), other)

    return Wiring(
        count,
        Topology(
            paths=tuple(tuple(path(i, j) for j in range(count)) for i in range(count)),
            nvlinks=tuple(tuple(4 if path(i, j) is N else 0 for j in range(count)) for i in range(count)),
            numa=numa,
        ),
    )


BRIDGES = wired(8, {(0, 4): N, (1, 5): N, (2, 6): N, (3, 7): N}, GpuPath.NUMA_NODE, (0,) * 8)
"""RTX cards with bridges between i and i + 4."""
SWITCHES = wired(
    8,
    {pair: P for first in (0, 4) for pair in combinations(range(first, first + 4), 2)},
    S,
    (0, 0, 0, 0, 1, 1, 1, 1),
)
"""Two PCIe switches of four, one on each socket."""
SXM = Wiring.of(parse_node_name("8xH200-141GB"))
PCIE = Wiring.of(parse_node_name("8xL40S-48GB"))
UNKNOWN = Wiring(8, None)


def test_a_pair_takes_a_bridge_and_not_the_first_two() -> None:
    assert place(Demand(group=2), range(8), BRIDGES) == (0, 4)
    assert place(Demand(group=2), {1, 2, 3, 6}, BRIDGES) == (2, 6)


def test_a_pair_waits_rather_than_be_measured_across() -> None:
    assert place(Demand(group=2), {0, 1, 2, 3}, BRIDGES) is None
    assert place(Demand(group=2), {3, 4}, SWITCHES) is None
    assert place(Demand(group=4), {1, 2, 3, 4, 5}, SWITCHES) is None


def test_what_no_island_can_hold_takes_the_nearest_there_is() -> None:
    assert place(Demand(group=4), range(8), BRIDGES) == (0, 1, 2, 3)
    assert place(Demand(group=8), range(8), SWITCHES) == tuple(range(8))
    assert place(Demand(group=8), range(7), SWITCHES) is None


def test_single_gpus_leave_pairs_and_switches_whole() -> None:
    assert place(Demand(group=1), {0, 1, 4}, BRIDGES) == (1,)
    assert place(Demand(group=1), {3, 4, 5, 6, 7}, SWITCHES) == (3,)
    assert place(Demand(group=2), {2, 3, 4, 5, 6, 7}, SWITCHES) == (2, 3)


def test_replicas_are_groups_of_their_own() -> None:
    assert place(Demand(group=2, groups=2), range(8), BRIDGES) == (0, 4, 1, 5)
    assert place(Demand(group=2, groups=4), range(8), SWITCHES) == tuple(range(8))
    assert place(Demand(group=4, groups=2), range(8), SWITCHES) == tuple(range(8))


def test_pipeline_stages_come_next_to_each_other() -> None:
    assert place(Demand(group=2, groups=2, stages=2), {0, 1, 4, 5, 6, 7}, SWITCHES) == (4, 5, 6, 7)
    assert place(Demand(group=1, groups=4, stages=4), {1, 2, 3, 4, 5, 6, 7}, SWITCHES) == (4, 5, 6, 7)


def test_eight_gpus_take_four_pairs() -> None:
    for wiring in (BRIDGES, SWITCHES, SXM, PCIE, UNKNOWN):
        free = set(range(8))
        for _ in range(4):
            found = place(Demand(group=2), free, wiring)
            assert found is not None
            free -= set(found)
        assert free == set()


def test_nothing_is_placed_where_too_little_is_free() -> None:
    assert place(Demand(group=1), (), SXM) is None
    assert place(Demand(group=2, groups=4), range(7), SXM) is None
    assert place(Demand(group=0), (), Wiring(0, None)) == ()


def test_the_fastest_bonds_first() -> None:
    """A cube mesh: two links to one neighbour, one to the others."""
    links = ((0, 2, 1, 1), (2, 0, 1, 1), (1, 1, 0, 2), (1, 1, 2, 0))
    paths = tuple(tuple(None if i == j else N for j in range(4)) for i in range(4))
    mesh = Wiring(4, Topology(paths=paths, nvlinks=links, numa=(0, 0, 0, 0)))
    assert place(Demand(group=2), {1, 2, 3}, mesh) == (2, 3)
    assert place(Demand(group=2), {1, 2}, mesh) is None


def partitions(free: frozenset[int], size: int, groups: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every choice of disjoint groups; the slow oracle."""
    if groups == 0:
        yield ()
        return
    for group in combinations(sorted(free), size):
        for rest in partitions(free - set(group), size, groups - 1):
            yield (group, *rest)


topologies = st.integers(min_value=1, max_value=6).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.lists(st.sampled_from([N, P, B, S]), min_size=count * count, max_size=count * count),
        st.sets(st.integers(min_value=0, max_value=count - 1)),
    )
)


@given(topologies, st.integers(min_value=1, max_value=3), st.integers(min_value=1, max_value=3))
def test_places_exactly_what_the_oracle_can_place(
    node: tuple[int, list[GpuPath], set[int]], size: int, groups: int
) -> None:
    count, cells, free = node
    named = {(i, j): cells[i * count + j] for i, j in combinations(range(count), 2)}
    wiring = wired(count, named, S, (0,) * count)
    best = min((wiring.distance(group) for group in combinations(range(count), size)), default=None)
    good = [
        chosen
        for chosen in partitions(frozenset(free), size, groups)
        if best is not None and all(wiring.distance(group) <= best for group in chosen)
    ]
    found = place(Demand(group=size, groups=groups), free, wiring)
    if good:
        assert found is not None
        in_groups = tuple(tuple(found[at : at + size]) for at in range(0, len(found), size))
        assert {frozenset(group) for group in in_groups} in [{frozenset(group) for group in chosen} for chosen in good]
    elif len(free) == count and size * groups <= count:
        assert found is not None  # an empty node waits for nothing
        assert len(set(found)) == size * groups
    else:
        assert found is None


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_an_assumed_node_is_packed_as_nvidia_builds_it(size: int) -> None:
    """Five GPUs and more are two sockets: no PCIe group that fits a socket crosses to the other."""
    for link in (Link.NVLINK, Link.PCIE):
        wiring = Wiring(8, assumed_topology(8, link, 18))
        free = set(range(8))
        while (found := place(Demand(group=size), free, wiring)) is not None:
            assert len({wiring.numa(one) for one in found}) == (2 if size == 8 else 1)
            free -= set(found)
        assert free == set()


def test_gpus_are_kept_for_who_waits_and_no_more() -> None:
    running = [{0, 1}, {2}, {3}]
    four = Demand(group=4)
    assert place(four, {4, 5}, SXM) is None
    kept = reserve(four, {4, 5}, running, Wiring(6, None))
    assert kept == {0, 1, 4, 5}
    assert reserve(Demand(group=2), {4, 5}, running, SXM) == frozenset()
    # On two switches: 6 and 7 are of no use to it, so they are not kept.
    assert reserve(four, {6, 7}, [{4}, {5}, {0}, {1, 2}, {3}], SWITCHES) == {4, 5, 6, 7}
    assert reserve(four, {4, 7}, [{0, 1}, {2, 3}, {5, 6}], SWITCHES) == {0, 1, 2, 3}
    assert reserve(Demand(group=8), {4, 7}, [{0, 1}, {2, 3}, {5, 6}], SWITCHES) == frozenset(range(8))
