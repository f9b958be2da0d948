"""What a study runs on, and the shape of the model it serves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Link(StrEnum):
    """How the GPUs of a node reach each other; the slowest pair decides."""

    NONE = "none"
    PCIE = "pcie"
    NVLINK = "nvlink"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. Peaks are the vendor's dense figures; None where unknown."""

    index: int
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None = None
    bf16_flops: float | None = None
    fp8_flops: float | None = None
    memory_bytes_per_s: float | None = None
    uuid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a study runs on. `gpus` holds the visible GPUs only (`--gpus`, CUDA_VISIBLE_DEVICES)."""

    name: str
    gpus: tuple[Gpu, ...]
    link: Link
    simulated: bool
    driver: str | None = None
    shm_bytes: int | None = None

    @property
    def gpu_count(self) -> int:
        """Visible GPUs; 0 on a CPU-only machine."""
        return len(self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What `config.json` says about a dense decoder.

    Attributes:
        weight_bytes: all weights as loaded in `dtype`, summed over the model.
        kv_bytes_per_token: K and V of all layers for one token in 16 bit, whole model, before any TP split.
    """

    name: str
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    weight_bytes: int
    parameters: int
    tie_word_embeddings: bool = False
    dtype: str = "bfloat16"

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * 2
