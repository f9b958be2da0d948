"""Which GPUs a study may use, and the node they make."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.errors import InvalidOption, UnsupportedHardware
from autotune.node.probe import FakeGpuProbe, ProbedGpu, cpu_node, detect_node, visible_gpus
from autotune.records import Link
from autotune.units import GIB

GPUS = tuple(
    ProbedGpu(
        index=i,
        name="NVIDIA A100-SXM4-80GB",
        uuid=f"GPU-{i}aaaaaaa-0000-4000-8000-00000000000{i}",
        memory_bytes=79 * GIB,
        compute_capability=(8, 0),
    )
    for i in range(4)
)


@pytest.mark.parametrize(
    ("inherited", "requested", "expected"),
    [
        (None, None, (0, 1, 2, 3)),
        (None, "2,0", (2, 0)),
        ("1,3", None, (1, 3)),
        ("3, 1", "1", (1,)),
        ("", None, ()),
        ("-1", None, ()),
        ("0,-1,2", None, (0,)),
        ("7", None, ()),
        ("GPU-2aaaaaaa-0000-4000-8000-000000000002", None, (2,)),
        ("GPU-2aa,GPU-0aa", None, (2, 0)),
        ("GPU-", None, ()),
        (None, "GPU-3aaaaaaa", (3,)),
    ],
)
def test_visible(inherited: str | None, requested: str | None, expected: tuple[int, ...]) -> None:
    env = {} if inherited is None else {"CUDA_VISIBLE_DEVICES": inherited}
    assert tuple(gpu.index for gpu in visible_gpus(GPUS, env, requested)) == expected


@pytest.mark.parametrize(
    ("inherited", "requested", "says"),
    [(None, "4", "0, 1, 2, 3"), (None, "0,0", "once"), ("1,3", "0", "hides"), (None, "", "0, 1"), ("", "0", "none")],
)
def test_bad_requests(inherited: str | None, requested: str, says: str) -> None:
    env = {} if inherited is None else {"CUDA_VISIBLE_DEVICES": inherited}
    with pytest.raises(InvalidOption, match=says):
        visible_gpus(GPUS, env, requested)


def test_mig_is_refused() -> None:
    with pytest.raises(UnsupportedHardware, match="MIG"):
        visible_gpus(GPUS, {"CUDA_VISIBLE_DEVICES": "MIG-0000"}, None)
    probe = FakeGpuProbe(gpus=(replace(GPUS[0], mig=True), *GPUS[1:]))
    with pytest.raises(UnsupportedHardware, match="GPU 0 is in MIG mode"):
        detect_node(probe, {})
    rest = detect_node(probe, {}, "1,2")
    assert rest is not None
    assert rest.gpu_count == 2


def test_a_node_of_the_visible_gpus() -> None:
    node = detect_node(FakeGpuProbe(gpus=GPUS, nvlink=True), {"CUDA_VISIBLE_DEVICES": "2,3"}, shm_bytes=64)
    assert node is not None
    assert (node.name, node.link, node.simulated) == ("2xA100-80GB-NVLink", Link.NVLINK, False)
    assert [gpu.index for gpu in node.gpus] == [2, 3]
    assert (node.driver, node.shm_bytes) == ("580.0", 64)
    # Memory is the driver's, speed the catalogue's: A100 does 312 TFLOP/s and has no fp8 units.
    first = node.gpus[0]
    assert (first.memory_bytes, first.bf16_flops, first.fp8_flops) == (79 * GIB, 312e12, None)


def test_pcie_where_one_pair_lacks_nvlink() -> None:
    class Bridged(FakeGpuProbe):
        def nvlink_joins(self, first: int, second: int) -> bool:
            return {first, second} in ({0, 1}, {2, 3})

    pair = detect_node(Bridged(gpus=GPUS), {}, "0,1")
    four = detect_node(Bridged(gpus=GPUS), {})
    assert pair is not None
    assert four is not None
    assert (pair.link, four.link) == (Link.NVLINK, Link.PCIE)


def test_one_gpu_has_no_link_and_an_unknown_one_no_peaks() -> None:
    node = detect_node(FakeGpuProbe(gpus=(replace(GPUS[0], name="NVIDIA New Thing"),)), {})
    assert node is not None
    assert (node.link, node.gpus[0].bf16_flops) == (Link.NONE, None)


def test_no_gpu_and_rocm() -> None:
    assert detect_node(None, {}) is None
    assert detect_node(FakeGpuProbe(), {}) is None
    assert detect_node(FakeGpuProbe(gpus=GPUS), {"CUDA_VISIBLE_DEVICES": ""}, has_kfd=True) is None
    with pytest.raises(UnsupportedHardware, match="ROCm"):
        detect_node(None, {}, has_kfd=True)
    with pytest.raises(InvalidOption, match="no NVIDIA GPU"):
        detect_node(None, {}, "0")
    assert cpu_node().gpu_count == 0
