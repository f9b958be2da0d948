"""Cores and seats: each trial its share near its GPUs, never anybody else's, all or nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.node.gpus import parse_node_name
from autotune.node.leases import NodeLeases, ResourceKind, core_resource, this_process
from autotune.node.machine import numa_cores
from autotune.records import Gpu, Node
from autotune.scheduling.cores import UNBOUND, least_cores, most_beside, near_cores, share_cores
from autotune.scheduling.packing import Demand
from autotune.scheduling.seats import CoreMap, Seats

NODE = parse_node_name("8xH200-141GB")
HALVES = {0: tuple(range(32)), 1: tuple(range(32, 64))}
"""64 cores: GPUs 0 to 3 are near the first 32."""


def test_a_share_is_that_of_the_gpus_and_near_them() -> None:
    found = share_cores(2, 8, range(64), range(64), near=HALVES[1])
    assert found.server == tuple(range(32, 44))
    assert found.client == tuple(range(44, 48))


def test_what_is_near_and_taken_is_made_up_from_afar() -> None:
    found = share_cores(1, 8, range(28, 64), range(64), near=HALVES[0])
    assert found.all == (28, 29, 30, 31, 32, 33, 34, 35)


@pytest.mark.parametrize(("gpus", "cores"), [(1, 4), (2, 5), (8, 11)])
def test_who_cannot_have_enough_is_not_bound(gpus: int, cores: int) -> None:
    """Two for the API server and the engine core, one a worker, one for the client."""
    assert least_cores(gpus) == cores
    assert share_cores(gpus, gpus + 1, range(cores - 1), range(64)) == UNBOUND
    assert len(share_cores(gpus, gpus + 1, range(cores), range(2 * cores)).all) == cores


def test_all_cores_are_no_binding() -> None:
    assert share_cores(8, 8, range(64), range(64)) == UNBOUND


@given(
    gpus=st.integers(min_value=1, max_value=8),
    free=st.sets(st.integers(min_value=0, max_value=70), max_size=70),
    near=st.sets(st.integers(min_value=0, max_value=70), max_size=70),
)
def test_a_share_is_free_divided_and_never_too_large(gpus: int, free: set[int], near: set[int]) -> None:
    found = share_cores(gpus, 8, free, range(71), near)
    assert not set(found.server) & set(found.client)
    assert set(found.all) <= free
    assert len(found.all) <= 71 * gpus // 8
    assert (found == UNBOUND) or (found.client and len(found.all) >= least_cores(gpus))


@pytest.mark.parametrize(("cores", "at_once"), [(2, 1), (8, 2), (15, 3), (32, 8), (256, 8)])
def test_no_more_trials_than_the_cores_carry(cores: int, at_once: int) -> None:
    assert most_beside(cores, 8) == at_once
    assert most_beside(cores, 0) == 1


def test_near_cores_of_what_is_known() -> None:
    assert near_cores([1, None, 1], {0: (0, 1), 1: (2, 3)}) == (2, 3)
    assert near_cores([None], HALVES) == ()
    assert near_cores([7], HALVES) == ()


def test_cores_of_numa_nodes_as_the_kernel_tells_them(tmp_path: Path) -> None:
    for number, text in ((0, "0-1,4\n"), (1, "2-3\n")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(text, encoding="ascii")
    (tmp_path / "node9").mkdir()
    assert numa_cores(tmp_path) == {0: (0, 1, 4), 1: (2, 3)}
    assert numa_cores(tmp_path / "none") == {}


def seats(tmp_path: Path, bound: list[set[int]] | None = None, node: Node = NODE) -> Seats:
    where = CoreMap(allowed=tuple(range(64)), of_numa=HALVES, gpus=8)
    leases = NodeLeases(tmp_path / "leases", this_process("s"))
    told: list[set[int]] = [] if bound is None else bound
    return Seats(node, where, leases, bind_client=lambda cores: told.append(set(cores)))


def test_eight_trials_share_gpus_and_cores_without_a_core_in_common(tmp_path: Path) -> None:
    bound: list[set[int]] = []
    floor = seats(tmp_path, bound)
    taken = [floor.take(Demand(group=1)) for _ in range(8)]
    assert floor.take(Demand(group=1)) is None
    assert floor.free == frozenset()
    cores = [core for seat in taken if seat for core in seat.cores.all]
    assert sorted(cores) == list(range(64))
    for seat in taken:
        assert seat is not None
        assert len(seat.cores.server) == 6
        assert set(seat.cores.all) <= set(HALVES[seat.places[0] // 4])
    leases = NodeLeases(tmp_path / "leases", this_process("other"))
    assert len(leases.held(ResourceKind.CPU)) == 64
    assert len(bound[-1]) == 16
    for seat in taken:
        assert seat is not None
        floor.leave(seat)
    assert leases.held() == ()
    assert bound[-1] == set()
    assert floor.free == frozenset(range(8))


def test_cores_that_another_study_has_leased_are_left_to_it(tmp_path: Path) -> None:
    others = NodeLeases(tmp_path / "leases", this_process("other")).take_all([core_resource(core) for core in (0, 5)])
    assert others is not None
    floor = seats(tmp_path)
    seat = floor.take(Demand(group=1))
    assert seat is not None
    assert seat.cores.all == (1, 2, 3, 4, 6, 7, 8, 9)
    floor.leave(seat)
    for lease in others:
        lease.release()


def test_a_server_without_cores_of_its_own_is_given_all(tmp_path: Path) -> None:
    """It is a child of the client, which may be bound to few."""
    others = NodeLeases(tmp_path / "leases", this_process("other")).take_all(
        [core_resource(core) for core in range(61)]
    )
    assert others is not None
    floor = seats(tmp_path)
    seat = floor.take(Demand(group=1))
    assert seat is not None
    assert seat.cores == UNBOUND
    assert seat.server_cores == tuple(range(64))
    floor.leave(seat)
    for lease in others:
        lease.release()


def test_indices_are_the_drivers_in_the_order_of_the_study() -> None:
    gpus = tuple(Gpu(index=index, name="x", memory_bytes=1) for index in (5, 2, 7))
    floor = Seats(replace(NODE, gpus=gpus, topology=None))
    assert floor.whole(Demand(group=2)).indices == (5, 2)
    first = floor.take(Demand(group=2))
    assert first is not None
    second = floor.take(Demand(group=1))
    assert second is not None
    assert (first.indices, second.indices) == ((5, 2), (7,))
    assert first.server_cores == ()


def test_a_node_without_gpus_has_one_seat_without_any() -> None:
    floor = Seats(replace(NODE, gpus=(), topology=None))
    assert floor.whole(Demand(group=0)).indices == ()
