"""Trials that share the nodes of a cluster: who sits on which, who waits, who is beside whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import ClusterUnusable
from autotune.executor.node_process import check_gpus
from autotune.executor.packed import PackedSeats, is_uniform
from autotune.node.gpus import parse_node_name
from autotune.records import GpuPath, Topology
from autotune.scheduling.packing import Demand
from autotune.scheduling.seats import Seat


def seated(seats: PackedSeats, gpus: int) -> Seat:
    seat = seats.take(Demand(group=gpus))
    assert seat is not None
    return seat


def test_a_node_of_eight_takes_four_pairs_and_no_fifth() -> None:
    seats = PackedSeats({"a": 8}, 8)
    pairs = [seated(seats, 2) for _ in range(4)]
    assert seats.take(Demand(group=2)) is None
    assert sorted(place for pair in pairs for place in pair.places) == list(range(8))
    assert all(seats.beside(one, other) for one in pairs for other in pairs)
    seats.leave(pairs[1])
    assert seats.fits(Demand(group=2))
    assert not seats.idle


def test_a_config_gets_all_its_gpus_on_one_node_the_fullest_that_has_them() -> None:
    seats = PackedSeats({"a": 4, "b": 4}, 4)
    three, two = seated(seats, 3), seated(seats, 2)
    assert (seats.node_of(three), seats.node_of(two)) == ("a", "b")
    assert seats.take(Demand(group=3)) is None  # three are free, on two nodes
    assert seats.node_of(seated(seats, 1)) == "a"
    assert not seats.beside(three, two)


def test_cores_for_two_trials_are_not_shared_by_three() -> None:
    seats = PackedSeats({"a": 2, "b": 1}, 8)
    nodes = [seats.node_of(seated(seats, 1)) for _ in range(3)]
    assert sorted(nodes) == ["a", "a", "b"]
    assert seats.take(Demand(group=1)) is None


def test_a_large_config_has_a_node_kept_for_it() -> None:
    seats = PackedSeats({"a": 4, "b": 4}, 4)
    first, second, third = seated(seats, 4), seated(seats, 2), seated(seats, 1)
    running = [second.places, third.places, first.places]
    kept = seats.kept_for(Demand(group=4), running)
    assert kept == set(range(4, 8))  # b is free once second and third have ended
    assert not seats.fits(Demand(group=1), without=kept)
    assert seats.kept_for(Demand(group=1), running) == frozenset()


def test_one_that_got_another_node_is_beside_those_there() -> None:
    seats = PackedSeats({"a": 2, "b": 2}, 2)
    first, second = seated(seats, 1), seated(seats, 2)
    assert not seats.beside(first, second)
    seats.moved(first, "b")
    assert seats.beside(first, second)
    seats.leave(first)
    seats.moved(first, "a")  # it has ended
    seats.leave(second)
    assert seats.idle


def test_a_whole_node_is_no_place_of_many() -> None:
    assert PackedSeats({"a": 8}, 8).whole(Demand(group=2)) == Seat(places=(), indices=())


@given(st.lists(st.integers(1, 4), max_size=30), st.integers(1, 3))
def test_no_gpu_is_given_twice_and_no_trial_crosses_nodes(sizes: list[int], nodes: int) -> None:
    seats = PackedSeats({f"n{number}": 4 for number in range(nodes)}, 4)
    taken: list[Seat] = []
    for turn, size in enumerate(sizes):
        fits = seats.fits(Demand(group=size))
        seat = seats.take(Demand(group=size))
        assert (seat is not None) is fits
        if seat is None:
            seats.leave(taken.pop(turn % len(taken)))
            continue
        assert len({place // 4 for place in seat.places}) == 1
        assert not {place for one in taken for place in one.places} & set(seat.places)
        taken.append(seat)


def test_gpus_in_islands_are_not_uniform() -> None:
    node = parse_node_name("4xH100-80GB-NVLink")
    near, far = GpuPath.SWITCHES, GpuPath.SOCKETS
    paths = tuple(tuple(None if a == b else near if a // 2 == b // 2 else far for b in range(4)) for a in range(4))
    islands = Topology(paths=paths, nvlinks=tuple((0,) * 4 for _ in range(4)), numa=(0, 0, 1, 1))
    assert is_uniform(replace(node, topology=None))
    assert not is_uniform(replace(node, topology=islands))
    assert is_uniform(parse_node_name("1xH100-80GB"))


def test_what_ray_made_visible_must_be_gpus_of_the_study() -> None:
    planned = parse_node_name("8xH100-80GB-NVLink")
    pair = replace(parse_node_name("2xH100-80GB-NVLink"), gpus=planned.gpus[4:6])
    check_gpus(planned, planned, None)
    check_gpus(pair, planned, 2)
    for here, shared in ((pair, None), (pair, 1), (planned, 2), (parse_node_name("2xA100-80GB-NVLink"), 2)):
        with pytest.raises(ClusterUnusable, match="the study is for"):
            check_gpus(here, planned, shared)
