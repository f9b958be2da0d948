"""What a study runs on, and the shape of the model it serves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

BF16_CAPABILITY = (8, 0)
FP8_CAPABILITY = (8, 9)
"""Compute capabilities from which on a GPU multiplies in bfloat16 (Ampere) and in fp8 (Ada)."""


class Link(StrEnum):
    """How the GPUs of a node reach each other; the slowest pair decides."""

    NONE = "none"
    PCIE = "pcie"
    NVLINK = "nvlink"


class GpuPath(StrEnum):
    """What the traffic between two GPUs passes, nearest first; the words of `nvidia-smi topo -m`."""

    NVLINK = "NV"
    ONE_SWITCH = "PIX"
    SWITCHES = "PXB"
    HOST_BRIDGE = "PHB"
    NUMA_NODE = "NODE"
    SOCKETS = "SYS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How the GPUs of a node are wired; rows and columns follow `Node.gpus`.

    Attributes:
        paths: paths[i][j] from GPU i to GPU j; None on the diagonal and where the driver did not say.
        nvlinks: links bonded between i and j; 0 for none.
        numa: NUMA node of each GPU's nearest CPUs; None where it is not known.
        numa_nodes: NUMA nodes of the machine; None where it is not known.
    """

    paths: tuple[tuple[GpuPath | None, ...], ...]
    nvlinks: tuple[tuple[int, ...], ...]
    numa: tuple[int | None, ...]
    numa_nodes: int | None = None

    @property
    def worst_path(self) -> GpuPath | None:
        """The farthest pair; None for a single GPU or when nothing is known."""
        known = [path for row in self.paths for path in row if path is not None]
        return max(known, key=list(GpuPath).index, default=None)


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
    topology: Topology | None = None

    @property
    def gpu_count(self) -> int:
        """Visible GPUs; 0 on a CPU-only machine."""
        return len(self.gpus)


class AttentionKind(StrEnum):
    """What a decoder layer keeps of a sequence."""

    FULL = "full"
    """K and V of every token."""
    SLIDING = "sliding"
    """K and V of the last `window` tokens."""
    LATENT = "latent"
    """One latent vector per token for all heads (MLA); tensor parallelism does not split it."""
    STATE = "state"
    """A state of fixed size per sequence (linear attention, Mamba)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAttention:
    """What one layer keeps of a sequence.

    Attributes:
        kv_heads: KV heads of the layer; 1 for LATENT, 0 for STATE.
        head_dim: size of one K (or V) head; for LATENT the latent plus the rotary part, stored once for K and V.
        window: tokens a SLIDING layer looks back; None for the other kinds.
        state_bytes: of one sequence, whole layer, for STATE; 0 for the other kinds.
    """

    kind: AttentionKind
    kv_heads: int
    head_dim: int
    window: int | None = None
    state_bytes: int = 0

    @property
    def kv_values_per_token(self) -> int:
        """Numbers stored per token, whole layer, before any split; 0 for STATE."""
        if self.kind is AttentionKind.STATE:
            return 0
        return (1 if self.kind is AttentionKind.LATENT else 2) * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """One decoder layer. Bytes are as loaded (after quantisation), whole layer, before any split.

    Attributes:
        split_bytes: weights that tensor parallelism divides: attention, dense MLP, shared experts.
        replicated_bytes: weights that every GPU of a TP group holds: norms, routers, MLA's down projections.
        expert_bytes: the routed experts; 0 in a dense layer. TP divides each of them, EP deals them out whole.
        parameters: all of the layer's parameters.
        active_parameters: those one token passes through; the same as `parameters` in a dense layer.
    """

    attention: LayerAttention
    split_bytes: int
    replicated_bytes: int
    expert_bytes: int
    parameters: int
    active_parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture of experts of a model.

    Attributes:
        count: routed experts of one MoE layer.
        per_token: routed experts that one token passes.
        intermediate_size: of one routed expert.
        shared: experts that every token passes.
    """

    count: int
    per_token: int
    intermediate_size: int
    shared: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What `config.json` says about a decoder.

    Attributes:
        kv_heads, head_dim: of a full-attention layer; of MLA: the query heads' own, before compression.
        weight_bytes: all weights as loaded, summed over the model, quantisation included.
        parameters: all parameters; `active_parameters` of one token where that is fewer.
        decoder: one entry per layer; empty for a plain dense decoder, whose layers are all alike
            (`node.layer_shapes` fills it in).
        experts: None for a dense model.
        quantization: vLLM's word for how the checkpoint is quantised (`awq`, `gptq`, `fp8`, `compressed-tensors`,
            `mxfp4`, `bitsandbytes`, ...); None for 16 bit.
        weight_bits: of the quantised matrices.
        kv_cache_dtype: what `auto` means for this checkpoint when it is not the model's dtype, e.g. `fp8`.
        other_bytes: weights outside the decoder, embedding and head: vision and audio towers, projectors.
        doubt: what is not sure about this reading, for people; None when nothing is.
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
    architecture: str = "LlamaForCausalLM"
    decoder: tuple[LayerShape, ...] = ()
    experts: Experts | None = None
    active_parameters: int | None = None
    quantization: str | None = None
    weight_bits: int = 16
    kv_cache_dtype: str | None = None
    other_bytes: int = 0
    doubt: str | None = None

    @property
    def kv_bytes_per_token(self) -> int:
        """K and V of one token in 16 bit, whole model, before any split; sliding layers count in full."""
        if self.decoder:
            return 2 * sum(layer.attention.kv_values_per_token for layer in self.decoder)
        return 2 * self.layers * self.kv_heads * self.head_dim * 2
