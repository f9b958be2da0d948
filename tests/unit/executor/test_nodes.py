"""Which nodes of a cluster can measure one study, and who sits on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune import __version__
from autotune.errors import ClusterUnusable, ExitCode
from autotune.executor.nodes import NodeReport, NodeSeats, alike, chosen, node_here
from autotune.node.gpus import parse_node_name
from autotune.node.probe import FakeGpuProbe, ProbedGpu
from autotune.scheduling.packing import Demand


def report(host: str, kind: str = "8xH100-80GB-NVLink", **values: Any) -> NodeReport:
    node = parse_node_name(kind)
    known = NodeReport(
        id=f"id-{host}",
        host=host,
        address=f"10.0.0.{host[-1]}",
        gpus=node.gpu_count,
        cpus=64,
        node=node,
        version=__version__,
        reads=True,
    )
    return replace(known, **values)


NODES = (report("gpu1"), report("gpu2"), report("old3", "4xA100-80GB-PCIe"))


def test_nodes_of_one_kind_are_a_cluster() -> None:
    assert alike(NODES[:2]) == NODES[:2]


def test_nodes_of_two_kinds_are_refused_by_name_with_a_way_out() -> None:
    with pytest.raises(ClusterUnusable, match="cannot be compared") as caught:
        alike(NODES)
    assert caught.value.exit_code is ExitCode.CLUSTER_UNUSABLE
    assert "8xH100-80GB-NVLink (gpu1, gpu2)" in caught.value.message
    assert "4xA100-80GB-PCIe (old3)" in caught.value.message
    assert "--ray-nodes" in caught.value.hint


def test_other_versions_of_the_program_are_refused() -> None:
    with pytest.raises(ClusterUnusable, match=r"autotune 0\.0\.1"):
        alike((NODES[0], replace(NODES[1], version="0.0.1")))


def test_a_cluster_without_nodes_is_refused() -> None:
    with pytest.raises(ClusterUnusable, match="no node"):
        alike(())


@pytest.mark.parametrize("name", ["old3", "10.0.0.3", "4xA100-80GB-PCIe"])
def test_nodes_are_named_by_host_address_or_kind(name: str) -> None:
    assert chosen(NODES, (name,)) == NODES[2:]


def test_a_name_that_is_nobodys_shows_who_is_there() -> None:
    with pytest.raises(ClusterUnusable, match="gpu9") as caught:
        chosen(NODES, ("gpu1", "gpu9"))
    assert "gpu1, gpu2" in caught.value.hint


def test_without_names_nodes_without_gpus_stand_back() -> None:
    head = report("head0", gpus=0, node=node_here(None, {}))
    assert chosen((head, *NODES[:2]), ()) == NODES[:2]
    assert chosen((head,), ()) == (head,)
    assert head.kind == "cpu (64 cores)"


def test_a_node_is_what_ray_hands_out_of_it() -> None:
    gpus = tuple(
        ProbedGpu(index=index, name="NVIDIA H100 80GB HBM3", uuid=f"GPU-{index}", memory_bytes=80 * 2**30)
        for index in range(4)
    )
    probe = FakeGpuProbe(gpus=gpus, nvlink=True)
    assert node_here(probe, {}, 2).gpu_count == 2
    # Within a task Ray says which by CUDA_VISIBLE_DEVICES.
    assert [gpu.index for gpu in node_here(probe, {"CUDA_VISIBLE_DEVICES": "2,3"}).gpus] == [2, 3]
    assert node_here(probe, {}, 0).gpus == ()


def test_each_place_takes_one_trial_of_any_size() -> None:
    seats = NodeSeats(2)
    assert seats.idle
    first, second = seats.take(Demand(group=8)), seats.take(Demand(group=1))
    assert first is not None
    assert second is not None
    assert not seats.fits(Demand(group=1))
    assert seats.take(Demand(group=1)) is None
    seats.leave(first)
    assert seats.fits(Demand(group=8))
    assert not seats.fits(Demand(group=8), without=seats.free)
    assert not seats.idle
    seats.leave(second)
    assert seats.idle
