"""The catalogue of GPUs, and named nodes such as `4xA100-80GB-NVLink`.

Memory is what the CUDA driver offers a process (`torch.cuda.mem_get_info` total, the number vLLM multiplies by the
utilisation), which is less than the label: an H100 of 80 GB shows 79.1 GiB, an H200 of 141 GB shows 139.8 GiB.
Peaks are the vendor's data-sheet figures without sparsity; a GPU without bfloat16 units (T4) has its fp16 figure there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from autotune.errors import UnknownName
from autotune.node.topology import assumed_topology
from autotune.records import Gpu, Link, Node
from autotune.units import GIB

MAX_GPUS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One row of the catalogue.

    Attributes:
        key: the name in node names, without memory, e.g. `A100`.
        label_gb: memory on the label, part of node names.
        driver_names: as NVML reports them; the first is used for simulated nodes.
        nvlink_up_to: how many of them NVLink can join pairwise: 1 none, 2 a bridge, 16 a switch.
        nvlinks: links of one GPU, as `nvidia-smi topo -m` counts them (NV12, NV18); 0 without NVLink.
        is_pcie_variant: the PCIe card of a part that also exists as SXM; named by the suffix `-PCIe`.
    """

    key: str
    label_gb: int
    driver_names: tuple[str, ...]
    memory_gib: float
    compute_capability: tuple[int, int]
    bf16_tflops: float
    fp8_tflops: float | None
    memory_gb_per_s: float
    nvlink_up_to: int
    nvlinks: int = 0
    is_pcie_variant: bool = False

    @property
    def label(self) -> str:
        """`A100-80GB`."""
        return f"{self.key}-{self.label_gb}GB"

    def gpu(self, index: int, *, uuid: str | None = None, memory_bytes: int | None = None) -> Gpu:
        """A GPU of this model at `index`; `memory_bytes` overrides the catalogue with what the driver said."""
        return Gpu(
            index=index,
            name=self.driver_names[0],
            memory_bytes=memory_bytes or round(self.memory_gib * GIB),
            compute_capability=self.compute_capability,
            bf16_flops=self.bf16_tflops * 1e12,
            fp8_flops=None if self.fp8_tflops is None else self.fp8_tflops * 1e12,
            memory_bytes_per_s=self.memory_gb_per_s * 1e9,
            uuid=uuid,
        )


def _row(
    key: str,
    label_gb: int,
    names: str,
    memory_gib: float,
    capability: tuple[int, int],
    peaks: tuple[float, float | None, float],
    nvlink_up_to: int,
    nvlinks: int = 0,
    *,
    pcie: bool = False,
) -> GpuModel:
    return GpuModel(
        key=key,
        label_gb=label_gb,
        driver_names=tuple(names.split("|")),
        memory_gib=memory_gib,
        compute_capability=capability,
        bf16_tflops=peaks[0],
        fp8_tflops=peaks[1],
        memory_gb_per_s=peaks[2],
        nvlink_up_to=nvlink_up_to,
        nvlinks=nvlinks,
        is_pcie_variant=pcie,
    )


# The order matters where a node name leaves something open: the first row of a key wins.
# No V100: current vLLM needs compute capability 7.5.
# NVLinks by the data sheets' total bandwidth: 600 GB/s over A100's links of 50 GB/s, 900 over H100's of 50, 1800 over
# B200's of 100, 600 over the bridges of the PCIe cards, 112.5 over RTX 3090's and A6000's of 28.1.
CATALOGUE: tuple[GpuModel, ...] = (
    _row("H100", 80, "NVIDIA H100 80GB HBM3", 79.1, (9, 0), (989.4, 1978.9, 3350), 16, 18),
    _row("H100", 80, "NVIDIA H100 PCIe", 79.1, (9, 0), (756.5, 1513.0, 2039), 2, 12, pcie=True),
    _row("H100", 94, "NVIDIA H100 NVL", 93.1, (9, 0), (835.5, 1671.0, 3938), 2, 12),
    _row("H200", 141, "NVIDIA H200", 139.8, (9, 0), (989.4, 1978.9, 4800), 16, 18),
    _row("H20", 96, "NVIDIA H20", 95.2, (9, 0), (148.0, 296.0, 4000), 16, 18),
    _row("B200", 180, "NVIDIA B200", 178.35, (10, 0), (2250.0, 4500.0, 8000), 16, 18),
    _row("A100", 80, "NVIDIA A100-SXM4-80GB", 79.15, (8, 0), (312.0, None, 2039), 16, 12),
    _row("A100", 80, "NVIDIA A100 80GB PCIe", 79.15, (8, 0), (312.0, None, 1935), 2, 12, pcie=True),
    _row("A100", 40, "NVIDIA A100-SXM4-40GB", 39.39, (8, 0), (312.0, None, 1555), 16, 12),
    _row("A100", 40, "NVIDIA A100-PCIE-40GB", 39.39, (8, 0), (312.0, None, 1555), 2, 12, pcie=True),
    _row("L40S", 48, "NVIDIA L40S", 44.4, (8, 9), (362.05, 733.0, 864), 1),
    _row("L4", 24, "NVIDIA L4", 22.05, (8, 9), (121.0, 242.5, 300), 1),
    _row("A10", 24, "NVIDIA A10|NVIDIA A10G", 22.05, (8, 6), (125.0, None, 600), 1),
    _row("A6000", 48, "NVIDIA RTX A6000", 47.5, (8, 6), (154.8, None, 768), 2, 4),
    _row("T4", 16, "Tesla T4|NVIDIA T4", 14.56, (7, 5), (65.0, None, 320), 1),
    _row("RTX3090", 24, "NVIDIA GeForce RTX 3090", 23.58, (8, 6), (71.0, None, 936), 2, 4),
    _row("RTX4090", 24, "NVIDIA GeForce RTX 4090", 23.55, (8, 9), (165.2, 330.3, 1008), 1),
    _row("RTX5090", 32, "NVIDIA GeForce RTX 5090", 31.36, (12, 0), (209.5, 419.0, 1792), 1),
)

_LINKS = {"nvlink": Link.NVLINK, "pcie": Link.PCIE}
_LINK_NAMES = {Link.NVLINK: "NVLink", Link.PCIE: "PCIe"}
_NODE_NAME = re.compile(
    r"(?:(?P<count>\d{1,30})x)?(?P<gpu>[a-z0-9]+?)(?:-(?P<gb>\d{1,30})(?:gb)?)?(?:-(?P<link>nvlink|pcie))?"
)
_FORM = (
    "A node is named <count>x<GPU>-<memory>GB[-NVLink|-PCIe], "
    "e.g. 1xH100-80GB, 4xA100-80GB-NVLink, 2xRTX4090-24GB-PCIe."
)


def known_nodes() -> tuple[str, ...]:
    """Names of single-GPU nodes, one per kind of GPU: what error messages suggest."""
    return tuple(dict.fromkeys(f"1x{model.label}" for model in CATALOGUE))


def parse_node_name(name: str) -> Node:
    """The simulated node that `name` stands for.

    Accepted: `4xA100-80GB-NVLink`; the count defaults to 1, the memory to the first model of that name, letter case
    and blanks do not matter. Without a link: NVLink when it can join that many of this GPU, PCIe otherwise, none for a
    single GPU. `-PCIe` picks the PCIe card of a part that exists in both forms. How it is wired inside is assumed
    (`assumed_topology`).

    Raises:
        UnknownName: not of this form, no such GPU or memory, a count outside 1..16, or NVLink on a card without it.
    """
    match = _NODE_NAME.fullmatch(re.sub(r"\s+|(?<=rtx)-", "", name.strip().lower()))
    if match is None:
        raise UnknownName("node", name, known_nodes(), hint=_FORM)
    count = int(match["count"] or 1)
    if not 1 <= count <= MAX_GPUS:
        raise UnknownName("node", name, (), hint=f"A node has 1 to {MAX_GPUS} GPUs; {count} were asked for. {_FORM}")
    model = _find_model(name, match["gpu"], match["gb"], pcie=match["link"] == "pcie")
    asked = _LINKS.get(match["link"] or "")
    if asked is Link.NVLINK and count > model.nvlink_up_to and count > 1:
        joins = "has no NVLink" if model.nvlink_up_to == 1 else f"NVLink joins at most {model.nvlink_up_to} of them"
        raise UnknownName("node", name, (f"{count}x{model.label}-PCIe",), hint=f"{model.label}: {joins}.")
    link = _default_link(model, count) if asked is None else asked
    if count == 1:
        link = Link.NONE
    gpus = tuple(model.gpu(index) for index in range(count))
    topology = assumed_topology(count, link, model.nvlinks)
    return Node(name=_spell(count, model, link), gpus=gpus, link=link, simulated=True, topology=topology)


def find_by_driver_name(driver_name: str, memory_bytes: int) -> GpuModel | None:
    """The catalogue row of a real GPU, by NVML's name; None when we do not know its peaks.

    Rows that share a name (none today) are told apart by the nearest memory.
    """
    wanted = driver_name.strip().lower()
    found = [m for m in CATALOGUE if wanted in {n.lower() for n in m.driver_names}]
    return min(found, key=lambda m: abs(m.memory_gib * GIB - memory_bytes), default=None)


def describe_gpus(gpus: Iterable[Gpu], link: Link) -> str:
    """A node's name from what was found: `4xA100-80GB-NVLink`; kinds joined by `+` on mixed nodes; `cpu` for none."""
    found = tuple(gpus)
    kinds = Counter(_label(gpu) for gpu in found)
    if not kinds:
        return "cpu"
    text = "+".join(f"{count}x{label}" for label, count in kinds.items())
    if link is not Link.NONE:
        return f"{text}-{_LINK_NAMES[link]}"
    model = find_by_driver_name(found[0].name, found[0].memory_bytes)
    return f"{text}-PCIe" if model is not None and model.is_pcie_variant else text


def _label(gpu: Gpu) -> str:
    model = find_by_driver_name(gpu.name, gpu.memory_bytes)
    if model is not None:
        return model.label
    return f"{re.sub(r'[^A-Za-z0-9]+', '', gpu.name.removeprefix('NVIDIA '))}-{round(gpu.memory_bytes / GIB)}GB"


def _default_link(model: GpuModel, count: int) -> Link:
    # A bridge is an option that most owners of PCIe cards and RTX 3090 did not buy; SXM parts always have NVLink,
    # and the NVL form is sold as bridged pairs.
    always = model.nvlink_up_to > 2 or model.label == "H100-94GB"
    return Link.NVLINK if always and count <= model.nvlink_up_to else Link.PCIE


def _find_model(name: str, key: str, label_gb: str | None, *, pcie: bool) -> GpuModel:
    same = [m for m in CATALOGUE if m.key.lower() == key or m.key.lower() == f"rtx{key}"]
    if not same:
        raise UnknownName("node", name, known_nodes(), hint=_FORM)
    if label_gb is not None:
        fitting = [m for m in same if m.label_gb == int(label_gb)]
        if not fitting:
            sizes = tuple(dict.fromkeys(m.label for m in same))
            raise UnknownName("node", name, sizes, hint=f"{same[0].key} is made with: {', '.join(sizes)}.")
        same = fitting
    return next((m for m in same if m.is_pcie_variant == pcie), same[0])


def _spell(count: int, model: GpuModel, link: Link) -> str:
    if link is not Link.NONE:
        return f"{count}x{model.label}-{_LINK_NAMES[link]}"
    return f"{count}x{model.label}{'-PCIe' if model.is_pcie_variant else ''}"
