"""Named nodes and the GPU catalogue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import ExitCode, UnknownName
from autotune.node.gpus import CATALOGUE, describe_gpus, find_by_driver_name, known_nodes, parse_node_name
from autotune.records import Gpu, Link
from autotune.units import GIB


@pytest.mark.parametrize(
    ("text", "count", "driver_name", "memory_gib", "link"),
    [
        ("1xH100-80GB", 1, "NVIDIA H100 80GB HBM3", 79.1, Link.NONE),
        ("4xA100-80GB-NVLink", 4, "NVIDIA A100-SXM4-80GB", 79.15, Link.NVLINK),
        ("8xh200-141gb", 8, "NVIDIA H200", 139.8, Link.NVLINK),
        ("2xRTX4090-24GB-PCIe", 2, "NVIDIA GeForce RTX 4090", 23.55, Link.PCIE),
        ("2x RTX 3090", 2, "NVIDIA GeForce RTX 3090", 23.58, Link.PCIE),
        ("2xRTX-3090-24GB-NVLink", 2, "NVIDIA GeForce RTX 3090", 23.58, Link.NVLINK),
        ("4xL40S-48GB", 4, "NVIDIA L40S", 44.4, Link.PCIE),
        ("H200", 1, "NVIDIA H200", 139.8, Link.NONE),
        ("4xA100-80GB-PCIe", 4, "NVIDIA A100 80GB PCIe", 79.15, Link.PCIE),
        ("2xH100-94GB", 2, "NVIDIA H100 NVL", 93.1, Link.NVLINK),
        ("4xH100-94GB", 4, "NVIDIA H100 NVL", 93.1, Link.PCIE),
        ("4xA100-40GB", 4, "NVIDIA A100-SXM4-40GB", 39.39, Link.NVLINK),
    ],
)
def test_named_nodes(text: str, count: int, driver_name: str, memory_gib: float, link: Link) -> None:
    node = parse_node_name(text)
    assert node.gpu_count == count
    assert {gpu.name for gpu in node.gpus} == {driver_name}
    assert node.gpus[0].memory_bytes == round(memory_gib * GIB)
    assert node.link is link
    assert node.simulated
    assert [gpu.index for gpu in node.gpus] == list(range(count))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1xH300-80GB", "unknown node"),
        ("4xA100-60GB", "A100-80GB, A100-40GB"),
        ("0xH100-80GB", "1 to 16 GPUs"),
        ("17xH100-80GB", "1 to 16 GPUs"),
        ("2xL40S-48GB-NVLink", "has no NVLink"),
        ("4xRTX3090-24GB-NVLink", "at most 2"),
        ("four of them", "<count>x<GPU>-<memory>GB"),
        ("", "<count>x<GPU>-<memory>GB"),
    ],
)
def test_bad_names_say_what_is_allowed(text: str, says: str) -> None:
    with pytest.raises(UnknownName) as caught:
        parse_node_name(text)
    assert says in str(caught.value)
    assert caught.value.exit_code is ExitCode.UNKNOWN_NODE


@given(st.sampled_from(CATALOGUE), st.integers(1, 8))
def test_a_nodes_name_means_the_same_node(model, count: int) -> None:
    node = parse_node_name(f"{count}x{model.label}")
    assert parse_node_name(node.name) == node


def test_every_suggested_node_is_accepted() -> None:
    assert all(parse_node_name(name).gpu_count == 1 for name in known_nodes())


def test_catalogue_is_plausible() -> None:
    for model in CATALOGUE:
        # The driver offers less than the label's decimal gigabytes, but never less than 85 % of them.
        assert 0.85 * model.label_gb * 1e9 < model.memory_gib * GIB <= 1.08 * model.label_gb * 1e9, model.label
        if model.fp8_tflops is not None:
            assert model.fp8_tflops / model.bf16_tflops == pytest.approx(2.0, rel=0.02), model.label
        assert (model.fp8_tflops is not None) == (model.compute_capability >= (8, 9)), model.label


def test_real_gpus_are_recognised_by_their_driver_name() -> None:
    found = find_by_driver_name("NVIDIA A100 80GB PCIe", round(79.1 * GIB))
    assert found is not None
    assert (found.label, found.is_pcie_variant) == ("A100-80GB", True)
    assert find_by_driver_name("NVIDIA GB999", 10 * GIB) is None


def test_mixed_and_unknown_gpus_are_described() -> None:
    known = parse_node_name("2xL4-24GB").gpus
    unknown = Gpu(index=2, name="NVIDIA Some Card", memory_bytes=32 * GIB)
    assert describe_gpus((*known, unknown), Link.PCIE) == "2xL4-24GB+1xSomeCard-32GB-PCIe"
    assert describe_gpus((), Link.NONE) == "cpu"
    assert describe_gpus(parse_node_name("1xH100-80GB-PCIe").gpus, Link.NONE) == "1xH100-80GB-PCIe"
