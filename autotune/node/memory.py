"""Does it fit, and how many KV tokens: the arithmetic of vLLM's start-up profile for dense models. Pure.

    available KV = utilisation x GPU memory - weights - peak of the profiling run - memory outside torch

Calibrated on recorded starts of vLLM 0.25.1 (Llama-3.1-8B on one H200, tests/data/memory); the terms are written as
sizes of the tensors they stand for, so that they carry over to other shapes and splits:

* weights: parameters of the largest pipeline stage over TP, plus the rotary table (positions x head size);
* activations: per batched token the MLP's gate-up and its product (3 x intermediate / TP) and about 3.5 rows of the
  hidden size, in 16 bit (recorded: 0.88 GiB at 8,192 tokens with the compile cache warm);
* first compile: the profile of a graph that is compiled now peaks at one embedding shard (0.98 GiB here) plus two
  hidden rows per token, where that is more (recorded: 0.99, 1.01, 1.10 GiB at 512, 2,048, 8,192 tokens). That the
  constant is the embedding is our inference: the sizes agree to 0.01 GiB, no source line says it;
* 0.22 GiB outside torch (recorded, every row of one GPU). NCCL buffers of TP > 1 are not measured and not counted.

CUDA graphs come on top of the requested share and are not part of it (recorded: 0.16 to 0.98 GiB captured).
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.node.defaults import ResolvedSettings
from autotune.records import Gpu, ModelShape
from autotune.units import GIB

BYTES_16BIT = 2
NON_TORCH_BYTES = round(0.22 * GIB)
ACTIVATION_HIDDEN_ROWS = 3.5
COMPILE_HIDDEN_ROWS = 2
VOCAB_PADDING = 64
ONE_BYTE_KV_DTYPES = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
TWO_BYTE_KV_DTYPES = frozenset({"auto", "bfloat16", "float16", "half"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """What one GPU holds, predicted; the tightest pipeline stage decides.

    Attributes:
        available_kv_bytes: left for KV; negative when not even weights and activations fit.
        kv_tokens: capacity of one replica, whole blocks, as vLLM logs it; 0 when nothing is left.
        max_concurrency: requests of `max_model_len` tokens that fit at once, as vLLM logs it.
        needed_kv_bytes: what one request of `max_model_len` tokens needs on that GPU.
    """

    weights_bytes_per_gpu: int
    activation_peak_bytes: int
    available_kv_bytes: int
    kv_tokens: int
    max_concurrency: float
    needed_kv_bytes: int

    @property
    def fits(self) -> bool:
        """Whether one request of the full length fits: vLLM refuses to start otherwise."""
        return self.available_kv_bytes >= self.needed_kv_bytes


def estimate(shape: ModelShape, gpu: Gpu, settings: ResolvedSettings, *, compiled: bool = False) -> MemoryEstimate:
    """Memory of one GPU under `settings`.

    Args:
        compiled: the graph is already in the compile cache, so the profile does not see the compiler's peak. The
            first start of a config is False, the pessimistic side (0.23 GiB of 112 on the recorded node).

    Raises:
        ValueError: a KV dtype whose size is not known here.
    """
    budget = settings.gpu_memory_utilization * gpu.memory_bytes
    peak = activation_peak(shape, settings, compiled=compiled)
    blocks_needed = -(-settings.max_model_len // settings.block_size)
    stages: list[tuple[int, int, int, int]] = []
    for stage, layers in enumerate(stage_layers(shape.layers, settings.pipeline_parallel)):
        weights = stage_weights(shape, settings, stage, layers)
        available = int(budget - weights - peak - NON_TORCH_BYTES)
        block_bytes = settings.block_size * layers * kv_bytes_per_layer(shape, settings)
        stages.append((max(0, available // block_bytes), available, block_bytes * blocks_needed, weights))
    # Every rank takes the block count of the poorest one.
    blocks, available, needed, weights = min(stages, key=lambda s: (s[0], s[1] - s[2]))
    return MemoryEstimate(
        weights_bytes_per_gpu=weights,
        activation_peak_bytes=peak,
        available_kv_bytes=available,
        kv_tokens=blocks * settings.block_size,
        max_concurrency=blocks / blocks_needed,
        needed_kv_bytes=needed,
    )


def kv_tokens_from_bytes(shape: ModelShape, settings: ResolvedSettings, available_kv_bytes: int) -> int:
    """Tokens that vLLM makes of a logged "Available KV cache memory": whole blocks of the deepest stage."""
    layers = max(stage_layers(shape.layers, settings.pipeline_parallel))
    block_bytes = settings.block_size * layers * kv_bytes_per_layer(shape, settings)
    return max(0, available_kv_bytes // block_bytes) * settings.block_size


def kv_bytes_per_layer(shape: ModelShape, settings: ResolvedSettings) -> int:
    """K and V of one token in one layer on one GPU; KV heads are replicated when TP exceeds them.

    Raises:
        ValueError: a KV dtype whose size is not known here.
    """
    if settings.kv_cache_dtype in ONE_BYTE_KV_DTYPES:
        width = 1
    elif settings.kv_cache_dtype in TWO_BYTE_KV_DTYPES:
        width = BYTES_16BIT
    else:
        raise ValueError(f"the size of KV dtype {settings.kv_cache_dtype!r} is not known")
    heads = max(1, shape.kv_heads // settings.tensor_parallel)
    return 2 * heads * shape.head_dim * width


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each pipeline stage.

    What does not divide goes one each to the stages before the last, backwards, because the ends hold the embeddings
    (vLLM 0.32 `distributed/utils.py` get_pp_indices).
    """
    counts = [layers // stages] * stages
    for back in range(layers % stages):
        counts[-2 - back] += 1
    return tuple(counts)


def padded_vocab(vocab_size: int) -> int:
    """The vocabulary rounded up to a multiple of 64, which is what TP must divide (vocab_parallel_embedding.py)."""
    return -(-vocab_size // VOCAB_PADDING) * VOCAB_PADDING


def stage_weights(shape: ModelShape, settings: ResolvedSettings, stage: int, layers: int) -> int:
    """Bytes of weights that one GPU of `stage` (0-based) loads, the rotary table included.

    The first stage holds the embedding, the last the output head; tied ones are held once where both meet.
    """
    tp, last = settings.tensor_parallel, settings.pipeline_parallel - 1
    table = embedding_bytes(shape)
    tables = shape.weight_bytes - table * (1 if shape.tie_word_embeddings else 2)
    body = tables * layers // shape.layers
    ends = (stage == 0) + (stage == last)
    if ends == 2 and shape.tie_word_embeddings:
        ends = 1
    kv_copies = max(0, tp - shape.kv_heads) * 2 * shape.head_dim * shape.hidden_size * BYTES_16BIT * layers
    rotary = shape.max_position_embeddings * shape.head_dim * BYTES_16BIT
    return (body + kv_copies + ends * table) // tp + rotary


def embedding_bytes(shape: ModelShape) -> int:
    """The embedding table in 16 bit, whole model."""
    return shape.vocab_size * shape.hidden_size * BYTES_16BIT


def activation_peak(shape: ModelShape, settings: ResolvedSettings, *, compiled: bool) -> int:
    """Peak that the profiling run adds on one GPU, bytes; see the module's text for where the terms come from."""
    tp, tokens = settings.tensor_parallel, settings.max_num_batched_tokens
    row = shape.hidden_size * BYTES_16BIT
    forward = tokens * (3 * shape.intermediate_size * BYTES_16BIT / tp + ACTIVATION_HIDDEN_ROWS * row)
    if compiled or settings.enforce_eager:
        return round(forward)
    return round(max(forward, embedding_bytes(shape) / tp + tokens * COMPILE_HIDDEN_ROWS * row))
