"""How many tokens fit into the KV cache: vLLM's blocks, pages and groups. Pure.

The layers of a model that keep the same things of a sequence form *groups* of equally many layers; every block of the
pool has one size and serves one group at a time, so a request takes blocks for each group:

    full, latent   ceil(max_model_len / block tokens)
    sliding        ceil(min(window - 1 + tokens in flight, max_model_len) / block tokens) + 1
    state          1, with prefix caching 2, and one more per speculated token

and the capacity that vLLM logs is blocks / blocks per request x max_model_len. Source: `v1/core/kv_cache_utils.py` and
`v1/kv_cache_interface.py` of vLLM 0.25.1 and 0.32 (get_kv_cache_groups, unify_kv_cache_spec_page_size,
get_max_concurrency_for_kv_cache_config), `platforms/interface.py` for the block size of layers beside a state. Where
all layers are alike this is the plain division by bytes per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.node.defaults import ResolvedSettings, Version
from autotune.node.layers import BYTES_16BIT, stage_layers
from autotune.records import AttentionKind, LayerAttention, ModelShape

ONE_BYTE_KV_DTYPES = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
TWO_BYTE_KV_DTYPES = frozenset({"auto", "bfloat16", "float16", "half"})

UNEVEN_GROUPS = 1.5
"""Up to this ratio of layers the larger kind sets the group size, and the smaller one is padded."""
LATENT_BESIDE_STATE_TOKENS = 128
"""Smallest block of MLA layers in a model that also keeps states."""

CONTEXT_TOKENS_SINCE: Version = (0, 20, 0)
"""From here on the logged size is concurrency x max_model_len; before, blocks over groups x block size. The exact
release is not known to us: 0.10 has the old way, logs of 0.24 and 0.25 agree with the new one to the token."""
IN_FLIGHT_SINCE: Version = (0, 26, 0)
"""Sliding layers keep room for every batch in flight, not for one: read in 0.32, not yet so in 0.25.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroup:
    """Layers whose blocks are handed out together.

    Attributes:
        block_tokens: tokens of one block; of no meaning for STATE.
    """

    kind: AttentionKind
    block_tokens: int
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """How the pool of one replica is cut.

    Attributes:
        stage_block_bytes: size of one block on a GPU of each pipeline stage; 0 for a stage that keeps nothing.
        block_size: tokens of a block as configured.
    """

    groups: tuple[KvGroup, ...]
    stage_block_bytes: tuple[int, ...]
    block_size: int

    def blocks_per_request(self, settings: ResolvedSettings, version: Version) -> int:
        """Blocks that one request of max_model_len tokens takes from the pool."""
        length, total = settings.max_model_len, 0
        for group in self.groups:
            if group.kind is AttentionKind.STATE:
                total += (2 if settings.prefix_caching else 1) + settings.speculative_tokens
            elif group.window is not None:
                tokens = min(group.window - 1 + in_flight_tokens(settings, version), length)
                total += -(-tokens // group.block_tokens) + 1
            else:
                total += -(-length // group.block_tokens)
        return total

    def tokens(self, blocks: int, per_request: int, settings: ResolvedSettings, version: Version) -> int:
        """The "GPU KV cache size" that vLLM logs for `blocks` blocks; 0 where there are none."""
        if version < CONTEXT_TOKENS_SINCE:
            return blocks // len(self.groups) * self.block_size
        return blocks * settings.max_model_len // per_request


def in_flight_tokens(settings: ResolvedSettings, version: Version) -> int:
    """Tokens scheduled whose blocks are not yet given back, at most (`VllmConfig.max_in_flight_tokens`)."""
    if version < IN_FLIGHT_SINCE:
        return settings.max_num_batched_tokens
    batches = settings.pipeline_parallel + (1 if settings.async_scheduling else 0)
    return batches * settings.max_num_batched_tokens


def kv_value_bytes(shape: ModelShape, settings: ResolvedSettings) -> int:
    """Bytes of one stored number; `auto` is the checkpoint's own KV dtype where it has one.

    Raises:
        ValueError: a KV dtype whose size is not known here.
    """
    name = settings.kv_cache_dtype
    if name == "auto" and shape.kv_cache_dtype is not None:
        name = shape.kv_cache_dtype
    if name in ONE_BYTE_KV_DTYPES:
        return 1
    if name in TWO_BYTE_KV_DTYPES:
        return 2 * BYTES_16BIT if name == "auto" and settings.dtype in ("float32", "float") else BYTES_16BIT
    raise ValueError(f"the size of KV dtype {name!r} is not known")


def values_per_token(attention: LayerAttention, tensor_parallel: int) -> int:
    """Numbers that one GPU stores per token of one layer.

    KV heads are replicated when TP exceeds them; the latent of MLA is never split.
    """
    if attention.kind is AttentionKind.STATE:
        return 0
    if attention.kind is AttentionKind.LATENT:
        return attention.kv_values_per_token
    return 2 * _heads(attention, tensor_parallel) * attention.head_dim


def _heads(attention: LayerAttention, tensor_parallel: int) -> int:
    return max(1, attention.kv_heads // tensor_parallel)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spec:
    """What one layer asks of the pool: layers with equal specs may share a group, others of the same size may not."""

    kind: AttentionKind
    window: int | None
    kv_heads: int
    head_dim: int
    block_tokens: int
    page_bytes: int


def kv_layout(
    attentions: Sequence[LayerAttention], *, tensor_parallel: int, stages: int, value_bytes: int, block_size: int
) -> KvLayout:
    """The groups of a model and the size of a block on each stage.

    Args:
        attentions: one per layer, in order.
        value_bytes: of one stored number.
        block_size: `--block-size`; raised where a state needs larger pages.
    """
    specs = _specs(attentions, tensor_parallel, value_bytes, block_size)
    spans, at = [], 0
    for count in stage_layers(len(specs), stages):
        spans.append(range(at, at + count))
        at += count
    if _one_kind(specs):
        groups = [list(range(len(specs)))]
    else:
        specs = _unified(specs)
        groups = _grouped(specs)
    block_bytes = tuple(
        max(sum(specs[layer].page_bytes for layer in group if layer in span) for group in groups) for span in spans
    )
    first = [specs[group[0]] for group in groups]
    return KvLayout(
        groups=tuple(KvGroup(kind=s.kind, block_tokens=s.block_tokens, window=s.window) for s in first),
        stage_block_bytes=block_bytes,
        block_size=block_size,
    )


def _specs(
    attentions: Sequence[LayerAttention], tensor_parallel: int, value_bytes: int, block_size: int
) -> list[_Spec]:
    state_page = max((-(-a.state_bytes // tensor_parallel) for a in attentions), default=0)
    per_token = [values_per_token(a, tensor_parallel) * value_bytes for a in attentions]
    beside = next((i for i, size in enumerate(per_token) if size), None)
    if state_page and beside is not None:
        step = block_size
        if attentions[beside].kind is AttentionKind.LATENT:
            step = max(step, LATENT_BESIDE_STATE_TOKENS)
        block_size = step * max(1, -(-state_page // (step * per_token[beside])))
        state_page = max(state_page, block_size * per_token[beside])
    return [
        _Spec(
            kind=attention.kind,
            window=attention.window if attention.kind is AttentionKind.SLIDING else None,
            kv_heads=_heads(attention, tensor_parallel),
            head_dim=attention.head_dim,
            block_tokens=block_size,
            page_bytes=size * block_size or state_page,
        )
        for attention, size in zip(attentions, per_token, strict=True)
    ]


def _one_kind(specs: Sequence[_Spec]) -> bool:
    """Whether every layer needs the same token slots, whatever its heads: then all are one group."""
    return len({(spec.kind, spec.window) for spec in specs}) == 1


def _unified(specs: Sequence[_Spec]) -> list[_Spec]:
    """All pages of one size: smaller ones take more tokens where that divides, and are padded where it does not."""
    largest = max(spec.page_bytes for spec in specs)
    return [
        replace(
            spec,
            page_bytes=largest,
            block_tokens=spec.block_tokens * (1 if largest % spec.page_bytes else largest // spec.page_bytes),
        )
        for spec in specs
    ]


def _grouped(specs: Sequence[_Spec]) -> list[list[int]]:
    """Layer numbers of each group: as many layers in every group as the rarest kind has."""
    kinds: dict[_Spec, list[int]] = {}
    for layer, spec in enumerate(specs):
        kinds.setdefault(spec, []).append(layer)
    counts = [len(layers) for layers in kinds.values()]
    size = max(counts) if max(counts) < UNEVEN_GROUPS * min(counts) else min(counts)
    groups = []
    for layers in kinds.values():
        # Every n-th layer, so that the stages of a pipeline get equally many of each group.
        parts = -(-len(layers) // size)
        groups += [layers[part::parts] for part in range(parts)]
    return groups
