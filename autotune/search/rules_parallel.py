"""Rules about how a model is spread over GPUs (rows G1-G5, G12). Pure.

Sources: vLLM 0.32 `config/model.py` (verify_with_parallel_config), `config/parallel.py`, `distributed/utils.py`
(divide), `layers/vocab_parallel_embedding.py`, `layers/fused_moe/config.py` (how TP and DP deal out experts).
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune.node.memory import padded_vocab
from autotune.records import BF16_CAPABILITY, AttentionKind, ModelShape
from autotune.search.rules_base import CHECKPOINT, LAYOUT_FLAGS, Case, Finding, Rule

_EP = "enable-expert-parallel"


def gpu_arithmetic(case: Case) -> Iterator[Finding]:
    """TP x PP x DP within the visible GPUs."""
    settings, there = case.settings, case.node.gpu_count
    if settings.gpus <= max(1, there):
        return
    product = f"{case.layout} = {settings.gpus} GPUs"
    if not there:
        yield Finding(
            reason="TP x PP x DP above 1 needs GPUs, and none is visible",
            text=f"{product}, none is visible",
            remedy="leave the parallel sizes at 1, or check --gpus and CUDA_VISIBLE_DEVICES",
        )
        return
    replica = settings.tensor_parallel * settings.pipeline_parallel
    if replica <= there:
        smaller = f"data-parallel-size {there // replica} at most with these TP and PP"
    else:
        smaller = f"TP x PP of {there} at most"
    yield Finding(
        reason="TP x PP x DP is more GPUs than are visible",
        text=f"{product}, {there} are visible",
        remedy=f"{smaller}; if the node has more, check --gpus and CUDA_VISIBLE_DEVICES",
    )


def attention_heads(case: Case) -> Iterator[Finding]:
    """Every GPU of a TP group takes the same number of query heads."""
    yield from _indivisible(case, "attention heads", case.known_shape.heads, case.settings.tensor_parallel)


def kv_heads(case: Case) -> Iterator[Finding]:
    """KV heads are dealt out evenly, or each is held by the same number of GPUs."""
    tp = case.settings.tensor_parallel
    for count in kv_head_counts(case.known_shape):
        if tp <= count:
            yield from _indivisible(case, "KV heads", count, tp, more=" (nor is it a multiple of them)")
        elif tp % count:
            yield _uneven(case, "KV heads", count, tp, " (nor is it a multiple of them)")


def mlp_columns(case: Case) -> Iterator[Finding]:
    """The dense MLP's columns; models whose every layer is a mixture have none."""
    shape = case.known_shape
    if has_dense_mlp(shape):
        yield from _indivisible(case, "MLP columns", shape.intermediate_size, case.settings.tensor_parallel)


def expert_columns(case: Case) -> Iterator[Finding]:
    """Without expert parallelism each expert is split over TP x DP; MXFP4 kernels pad what does not divide."""
    shape, settings = case.known_shape, case.settings
    if shape.experts is None or settings.expert_parallel or shape.quantization == "mxfp4":
        return
    over = settings.tensor_parallel * settings.data_parallel
    columns = shape.experts.intermediate_size
    if columns % over:
        yield Finding(
            reason="TP x DP does not divide the columns of an expert",
            text=f"{columns} columns of an expert of {shape.name} cannot be split over {case.layout}: {over} GPUs",
            remedy="--enable-expert-parallel, which deals experts out whole, or smaller TP or DP",
        )


def vocabulary(case: Case) -> Iterator[Finding]:
    """The embedding, its rows padded to a multiple of 64."""
    padded = padded_vocab(case.known_shape.vocab_size)
    yield from _indivisible(case, "padded vocabulary", padded, case.settings.tensor_parallel)


def expert_parallel_moe(case: Case) -> Iterator[Finding]:
    """Only a mixture has experts to deal out (vLLM: "Number of experts in the model must be greater than 0")."""
    shape = case.known_shape
    if case.settings.expert_parallel and shape.experts is None:
        yield Finding(
            reason="expert parallelism is for mixture-of-experts models",
            text=f"--enable-expert-parallel, and {shape.name} is dense: vLLM refuses to start",
            remedy="leave --enable-expert-parallel off",
        )


def expert_parallel_group(case: Case) -> Iterator[Finding]:
    """Experts are dealt out within TP x DP; in a group of one the flag changes nothing but the config's name."""
    settings = case.settings
    if settings.expert_parallel and settings.tensor_parallel * settings.data_parallel == 1:
        yield Finding(
            reason="expert parallelism needs TP x DP above 1",
            text=f"--enable-expert-parallel with {case.layout}: there is one GPU to deal experts to",
            remedy="leave --enable-expert-parallel off, or use TP or DP",
        )


def pipeline_layers(case: Case) -> Iterator[Finding]:
    """Every pipeline stage needs a layer."""
    shape, stages = case.known_shape, case.settings.pipeline_parallel
    if stages > shape.layers:
        yield Finding(
            reason="more pipeline stages than layers",
            text=f"pipeline-parallel-size {stages} > {shape.layers} layers of {shape.name}",
            remedy=f"pipeline-parallel-size {shape.layers} at most",
        )


def bfloat16(case: Case) -> Iterator[Finding]:
    """bfloat16 units came with compute capability 8.0."""
    for gpu in case.gpus:
        capability = gpu.compute_capability
        if case.settings.dtype == "bfloat16" and capability is not None and capability < BF16_CAPABILITY:
            yield Finding(
                reason="bfloat16 needs compute capability 8.0",
                text=f"dtype bfloat16 on {gpu.name} (compute capability {capability[0]}.{capability[1]})",
                remedy="dtype float16",
            )
            return


def kv_head_counts(shape: ModelShape) -> tuple[int, ...]:
    """Different numbers of KV heads among the layers that TP splits: latents and states are not split by head."""
    if not shape.decoder:
        return (shape.kv_heads,)
    split = (AttentionKind.FULL, AttentionKind.SLIDING)
    counts = {layer.attention.kv_heads for layer in shape.decoder if layer.attention.kind in split}
    return tuple(sorted(count for count in counts if count > 0))


def has_dense_mlp(shape: ModelShape) -> bool:
    """Whether any layer has an MLP of `intermediate_size` columns."""
    return shape.experts is None or any(layer.expert_bytes == 0 for layer in shape.decoder)


def dividing_tensor_sizes(shape: ModelShape, most: int) -> tuple[int, ...]:
    """TP sizes of 1..`most` that the model's heads, MLP and vocabulary can be split by."""
    padded = padded_vocab(shape.vocab_size)
    return tuple(
        tp
        for tp in range(1, most + 1)
        if not shape.heads % tp
        and not padded % tp
        and not (has_dense_mlp(shape) and shape.intermediate_size % tp)
        and all((count % tp if tp <= count else tp % count) == 0 for count in kv_head_counts(shape))
    )


def _indivisible(case: Case, what: str, count: int, over: int, more: str = "") -> Iterator[Finding]:
    if count % over:
        yield _uneven(case, what, count, over, more)


def _uneven(case: Case, what: str, count: int, over: int, more: str) -> Finding:
    shape = case.known_shape
    sizes = ", ".join(str(size) for size in dividing_tensor_sizes(shape, max(1, case.node.gpu_count)))
    return Finding(
        reason=f"tensor-parallel-size does not divide the model's {what}",
        text=f"{count} {what} of {shape.name} cannot be split over {over} GPUs{more}",
        remedy=f"tensor-parallel-size {sizes} divide this model on this node; split further by pipeline-parallel-size",
    )


_TENSOR = frozenset({"tensor-parallel-size", CHECKPOINT})

GPU_RULES = (
    Rule(name="gpu-arithmetic", row="G5", reads=LAYOUT_FLAGS, judge=gpu_arithmetic),
    Rule(name="bfloat16-capability", row="G12", reads=LAYOUT_FLAGS | {"dtype", CHECKPOINT}, judge=bfloat16),
)

SHAPE_RULES = (
    Rule(name="attention-heads", row="G1", reads=_TENSOR, judge=attention_heads, needs_shape=True),
    Rule(name="kv-heads", row="G1", reads=_TENSOR, judge=kv_heads, needs_shape=True),
    Rule(name="mlp-columns", row="G1", reads=_TENSOR, judge=mlp_columns, needs_shape=True),
    Rule(name="vocabulary", row="G1", reads=_TENSOR, judge=vocabulary, needs_shape=True),
    Rule(name="pipeline-layers", row="G2", reads=LAYOUT_FLAGS | _TENSOR, judge=pipeline_layers, needs_shape=True),
    Rule(
        name="expert-parallel-moe",
        row="G4",
        reads=frozenset({_EP, CHECKPOINT}),
        judge=expert_parallel_moe,
        needs_shape=True,
    ),
    Rule(name="expert-parallel-group", row="G4", reads=LAYOUT_FLAGS | {_EP}, judge=expert_parallel_group),
    Rule(
        name="expert-columns", row="G4", reads=LAYOUT_FLAGS | {_EP, CHECKPOINT}, judge=expert_columns, needs_shape=True
    ),
)
