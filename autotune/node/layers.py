"""The layers of a decoder, what of their weights one GPU holds, and which pipeline stage has them. Pure."""

from __future__ import annotations

from autotune.records import AttentionKind, LayerAttention, LayerShape, ModelShape

BYTES_16BIT = 2
VOCAB_PADDING = 64


def layer_shapes(shape: ModelShape) -> tuple[LayerShape, ...]:
    """One entry per layer; those of a plain dense decoder are alike and share what its embeddings leave.

    The two norms of a plain layer are replicated; everything else of it is split. What is left over by the division
    (the final norm, some bytes) is held beside the layers, see `rest_bytes`.
    """
    if shape.decoder:
        return shape.decoder
    norms = 2 * shape.hidden_size
    each = max(0, shape.weight_bytes - shape.other_bytes - tables_bytes(shape)) // shape.layers
    tables = shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)
    parameters = max(0, shape.parameters - tables) // shape.layers
    replicated = min(norms * BYTES_16BIT, each)
    layer = LayerShape(
        attention=LayerAttention(kind=AttentionKind.FULL, kv_heads=shape.kv_heads, head_dim=shape.head_dim),
        split_bytes=each - replicated,
        replicated_bytes=replicated,
        expert_bytes=0,
        parameters=parameters,
        active_parameters=parameters,
    )
    return (layer,) * shape.layers


def embedding_bytes(shape: ModelShape) -> int:
    """The embedding table in 16 bit, whole model; quantised checkpoints leave it unquantised."""
    return shape.vocab_size * shape.hidden_size * BYTES_16BIT


def tables_bytes(shape: ModelShape) -> int:
    """Embedding and output head together, whole model; a tied head is the embedding."""
    return embedding_bytes(shape) * (1 if shape.tie_word_embeddings else 2)


def rest_bytes(shape: ModelShape) -> int:
    """Weights in no layer, table or tower: the final norm, and what the layers' sizes do not explain."""
    layers = layer_shapes(shape)
    held = sum(layer.split_bytes + layer.replicated_bytes + layer.expert_bytes for layer in layers)
    return max(0, shape.weight_bytes - shape.other_bytes - tables_bytes(shape) - held)


def padded_vocab(vocab_size: int) -> int:
    """The vocabulary rounded up to a multiple of 64, which is what TP must divide (vocab_parallel_embedding.py)."""
    return -(-vocab_size // VOCAB_PADDING) * VOCAB_PADDING


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each pipeline stage.

    What does not divide goes one each to the stages before the last, backwards, because the ends hold the embeddings
    (vLLM 0.32 `distributed/utils.py` get_pp_indices).
    """
    counts = [layers // stages] * stages
    for back in range(layers % stages):
        counts[-2 - back] += 1
    return tuple(counts)


def stage_starts(layers: int, stages: int) -> tuple[int, ...]:
    """Number of the first layer of each pipeline stage, 0-based."""
    starts, at = [], 0
    for count in stage_layers(layers, stages):
        starts.append(at)
        at += count
    return tuple(starts)


def experts_per_rank(count: int, ranks: int) -> int:
    """Routed experts that the fullest rank holds when EP deals them out whole."""
    return -(-count // ranks)
