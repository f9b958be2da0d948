"""Does it fit, and how many KV tokens: the arithmetic of vLLM's start-up profile. Pure.

    available KV = utilisation x GPU memory - weights - peak of the profiling run - memory outside torch [- graphs]

Calibrated on recorded starts of vLLM 0.25.1 (tests/data/memory); docs/memory.md says which terms are measured, read in
the source, or assumed. The terms are sizes of the tensors they stand for, so that they carry over to other shapes:

* weights: of the fullest GPU of a pipeline stage, see `_stage_weight_bytes`;
* activations: the largest of what the profiling run holds at a time, see `node.activations`;
* 0.22 GiB outside torch (recorded, every row of one GPU); with several GPUs `PARALLEL_BYTES` on top (assumed);
* CUDA graphs: part of the budget from 0.21 on where the runner estimates them, otherwise on top of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autotune.node.activations import activation_peak, graph_bytes_in_budget
from autotune.node.defaults import ResolvedSettings, Version
from autotune.node.kv_capacity import (
    ONE_BYTE_KV_DTYPES,
    TWO_BYTE_KV_DTYPES,
    KvLayout,
    kv_layout,
    kv_value_bytes,
)
from autotune.node.layers import (
    BYTES_16BIT,
    embedding_bytes,
    experts_per_rank,
    layer_shapes,
    padded_vocab,
    rest_bytes,
    stage_layers,
    stage_starts,
)
from autotune.records import AttentionKind, Gpu, LayerShape, ModelShape
from autotune.units import GIB

__all__ = [
    "CALIBRATED_VERSION",
    "MemoryEstimate",
    "NON_TORCH_BYTES",
    "ONE_BYTE_KV_DTYPES",
    "PARALLEL_BYTES",
    "TWO_BYTE_KV_DTYPES",
    "activation_peak",
    "embedding_bytes",
    "estimate",
    "kv_layout_of",
    "kv_tokens_from_bytes",
    "longest_request",
    "padded_vocab",
    "stage_layers",
    "stage_weights",
]

CALIBRATED_VERSION: Version = (0, 25, 1)
"""The vLLM that every estimate is for where no version is given."""

NON_TORCH_BYTES = round(0.22 * GIB)
PARALLEL_BYTES = round(0.45 * GIB)
"""Communicators and buffers of NCCL and of the custom all-reduce on a GPU that works with others. Assumed: nothing
recorded states it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """What one GPU holds, predicted; the tightest pipeline stage decides.

    Attributes:
        available_kv_bytes: left for KV; negative when not even weights and activations fit.
        kv_tokens: capacity of one replica, as vLLM logs it; 0 when nothing is left.
        max_concurrency: requests of `max_model_len` tokens that fit at once, as vLLM logs it.
        needed_kv_bytes: what one request of `max_model_len` tokens needs on that GPU.
        non_torch_bytes: context, communicators.
        graph_bytes: CUDA graphs that vLLM counts in the budget; 0 where they come on top of it.
        stage: number of the pipeline stage that decides, 0-based.
    """

    weights_bytes_per_gpu: int
    activation_peak_bytes: int
    available_kv_bytes: int
    kv_tokens: int
    max_concurrency: float
    needed_kv_bytes: int
    non_torch_bytes: int = NON_TORCH_BYTES
    graph_bytes: int = 0
    stage: int = 0

    @property
    def fits(self) -> bool:
        """Whether one request of the full length fits: vLLM refuses to start otherwise."""
        return self.available_kv_bytes >= self.needed_kv_bytes


def estimate(
    shape: ModelShape,
    gpu: Gpu,
    settings: ResolvedSettings,
    *,
    compiled: bool = False,
    version: Version = CALIBRATED_VERSION,
) -> MemoryEstimate:
    """Memory of one GPU under `settings`.

    Args:
        compiled: the graph is already in the compile cache, so the profile does not see the compiler's peak. The
            first start of a config is False, the pessimistic side (0.23 GiB of 112 on the recorded node).
        version: of vLLM; decides the tokens of sliding layers and whether graphs count.

    Raises:
        ValueError: a KV dtype whose size is not known here.
    """
    plan = _plan_of(shape, settings)
    peak = activation_peak(shape, settings, compiled=compiled, version=version)
    graphs = graph_bytes_in_budget(shape, settings, version)
    outside = NON_TORCH_BYTES
    if settings.tensor_parallel > 1 or settings.pipeline_parallel > 1:
        outside += PARALLEL_BYTES
    room = settings.gpu_memory_utilization * gpu.memory_bytes - peak - outside - graphs
    per_request = plan.layout.blocks_per_request(settings, version)
    blocks, margin, stage, available, needed = None, 0, 0, 0, 0
    for number, (weights, block_bytes) in enumerate(
        zip(plan.stage_weights, plan.layout.stage_block_bytes, strict=True)
    ):
        left = int(room - weights)
        holds = max(0, left // block_bytes) if block_bytes else None
        spare = left - block_bytes * per_request
        # Every rank takes the block count of the poorest one; a stage that keeps nothing does not limit it.
        if blocks is None or (holds is not None and (holds, spare) < (blocks, margin)):
            blocks, margin, stage, available, needed = holds or 0, spare, number, left, block_bytes * per_request
    assert blocks is not None  # there is at least one stage
    return MemoryEstimate(
        weights_bytes_per_gpu=plan.stage_weights[stage],
        activation_peak_bytes=peak,
        available_kv_bytes=available,
        kv_tokens=plan.layout.tokens(blocks, per_request, settings, version),
        max_concurrency=blocks / per_request,
        needed_kv_bytes=needed,
        non_torch_bytes=outside,
        graph_bytes=graphs,
        stage=stage,
    )


def kv_tokens_from_bytes(
    shape: ModelShape, settings: ResolvedSettings, available_kv_bytes: int, *, version: Version = CALIBRATED_VERSION
) -> int:
    """Tokens that vLLM makes of a logged "Available KV cache memory": whole blocks of the fullest stage."""
    layout = kv_layout_of(shape, settings)
    blocks = max(0, available_kv_bytes // max(layout.stage_block_bytes))
    return layout.tokens(blocks, layout.blocks_per_request(settings, version), settings, version)


def longest_request(
    shape: ModelShape, settings: ResolvedSettings, available_kv_bytes: int, *, version: Version = CALIBRATED_VERSION
) -> int:
    """Largest max_model_len of which one request fits, in whole blocks where all layers are alike; 0 for none.

    Never above the settings' own max_model_len.
    """
    layout = kv_layout_of(shape, settings)
    blocks = available_kv_bytes // max(layout.stage_block_bytes)
    low, high = 0, settings.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        if layout.blocks_per_request(replace(settings, max_model_len=middle), version) <= blocks:
            low = middle
        else:
            high = middle - 1
    return low


def kv_layout_of(shape: ModelShape, settings: ResolvedSettings) -> KvLayout:
    """How the KV pool is cut under `settings`.

    Raises:
        ValueError: a KV dtype whose size is not known here.
    """
    return _plan_of(shape, settings).layout


def stage_weights(shape: ModelShape, settings: ResolvedSettings, stage: int, layers: int) -> int:
    """Bytes of weights that one GPU of `stage` (0-based) loads, the rotary table included.

    The first stage holds the embedding, the last the output head; tied ones are held once where both meet.

    Args:
        layers: of that stage.
    """
    start = stage_starts(shape.layers, settings.pipeline_parallel)[stage]
    return _stage_weight_bytes(shape, settings, stage, layer_shapes(shape)[start : start + layers])


def _stage_weight_bytes(
    shape: ModelShape, settings: ResolvedSettings, stage: int, layers: tuple[LayerShape, ...]
) -> int:
    tp, last = settings.tensor_parallel, settings.pipeline_parallel - 1
    ends = (stage == 0) + (stage == last)
    if ends == 2 and shape.tie_word_embeddings:
        ends = 1
    split = sum(layer.split_bytes + _kv_copies(shape, layer, tp) for layer in layers) + ends * embedding_bytes(shape)
    whole = sum(layer.replicated_bytes for layer in layers)
    if stage == last:
        whole += rest_bytes(shape)
    if stage == 0:
        whole += shape.other_bytes
    # The table of the rotary positions; MLA turns only the part of the heads that is 64 wide, the rest is no matter.
    rotary = shape.max_position_embeddings * shape.head_dim * BYTES_16BIT
    return split // tp + whole + _expert_bytes(shape, settings, layers) + rotary


def _kv_copies(shape: ModelShape, layer: LayerShape, tp: int) -> int:
    """What copies of the K and V projections add to a layer's split bytes when TP exceeds its KV heads."""
    attention = layer.attention
    if attention.kind not in (AttentionKind.FULL, AttentionKind.SLIDING):
        return 0
    extra = max(0, tp - attention.kv_heads)
    return extra * 2 * attention.head_dim * shape.hidden_size * shape.weight_bits // 8


def _expert_bytes(shape: ModelShape, settings: ResolvedSettings, layers: tuple[LayerShape, ...]) -> int:
    """Routed experts on one GPU: with DP all ranks of the model share them, each expert cut or dealt out whole.

    Source: `FusedMoEParallelConfig.make` (fused_moe/config.py), which flattens DP into the tensor-parallel size.
    """
    total = sum(layer.expert_bytes for layer in layers)
    if not total:
        return 0
    ranks = settings.tensor_parallel * settings.data_parallel
    if settings.expert_parallel and shape.experts is not None:
        return total * experts_per_rank(shape.experts.count, ranks) // shape.experts.count
    return total // ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What estimates of one shape share as long as its split and KV dtype stay the same."""

    stage_weights: tuple[int, ...]
    layout: KvLayout


_PlanKey = tuple[int, int, int, bool, int, int]


@dataclass(slots=True)
class _Plans:
    """Plans already made for a shape. A memory of a pure function, so that a million configs are checked in seconds.

    Attributes:
        shape: kept, so that its id is not given to another one.
    """

    shape: ModelShape
    made: dict[_PlanKey, _Plan] = field(default_factory=dict)


_KNOWN_SHAPES = 64
_plans: dict[int, _Plans] = {}


def _plan_of(shape: ModelShape, settings: ResolvedSettings) -> _Plan:
    # By identity: hashing a shape of a hundred layers takes longer than the whole estimate.
    plans = _plans.get(id(shape))
    if plans is None or plans.shape is not shape:
        if len(_plans) >= _KNOWN_SHAPES:
            _plans.clear()
        plans = _plans[id(shape)] = _Plans(shape)
    key = (
        settings.tensor_parallel,
        settings.pipeline_parallel,
        settings.data_parallel,
        settings.expert_parallel,
        kv_value_bytes(shape, settings),
        settings.block_size,
    )
    found = plans.made.get(key)
    if found is None:
        found = plans.made[key] = _make_plan(shape, settings, key[4])
    return found


def _make_plan(shape: ModelShape, settings: ResolvedSettings, value_bytes: int) -> _Plan:
    stages = settings.pipeline_parallel
    return _Plan(
        stage_weights=tuple(
            stage_weights(shape, settings, stage, count)
            for stage, count in enumerate(stage_layers(shape.layers, stages))
        ),
        layout=kv_layout(
            [layer.attention for layer in layer_shapes(shape)],
            tensor_parallel=settings.tensor_parallel,
            stages=stages,
            value_bytes=value_bytes,
            block_size=settings.block_size,
        ),
    )
