"""The matrices of one decoder layer, and what they add up to: parameters, and bytes under a quantisation. Pure.

A layer is written down as its parts, in the names that checkpoints use, because those names decide what a quantised
checkpoint leaves in 16 bit. Sources: vLLM 0.32 `model_executor/models/`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from autotune.node.config_json import DecoderConfig
from autotune.node.families import Family
from autotune.node.layer_cache import attention_size, mamba_width
from autotune.node.layer_kinds import LayerKind, Mixer, Mlp
from autotune.node.layers import BYTES_16BIT
from autotune.node.quantized import SIXTEEN_BIT, Quantization
from autotune.records import LayerAttention, LayerShape


class Place(StrEnum):
    """Where the GPUs of a tensor-parallel group hold a part."""

    SPLIT = "split"
    REPLICATED = "replicated"
    EXPERT = "expert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A matrix or a vector of one layer.

    Attributes:
        name: within the layer, e.g. `self_attn.q_proj`.
        rows, columns: outputs and inputs; a vector has one column.
        copies: of the same size: one per routed expert.
        active: copies that one token passes.
        plain: always in 16 bit: norms, biases, routers, convolutions.
        hidden_rows: the rows are the hidden size, not the columns (experts are padded by it).
        duplicate: a second copy that vLLM makes while loading: bytes, but no parameters.
    """

    name: str
    rows: int
    columns: int = 1
    place: Place = Place.SPLIT
    copies: int = 1
    active: int = 1
    plain: bool = False
    hidden_rows: bool = False
    duplicate: bool = False

    @property
    def values(self) -> int:
        """Numbers in all copies."""
        return self.copies * self.rows * self.columns

    @property
    def parameters(self) -> int:
        """What counts as the model's."""
        return 0 if self.duplicate else self.values

    @property
    def active_parameters(self) -> int:
        """Those that one token passes."""
        return 0 if self.duplicate else self.active * self.rows * self.columns


def _matrix(name: str, rows: int, columns: int, place: Place = Place.SPLIT) -> Part:
    return Part(name=name, rows=rows, columns=columns, place=place)


def _vector(name: str, size: int, place: Place = Place.REPLICATED) -> Part:
    return Part(name=name, rows=size, place=place, plain=True)


def layer_parts(config: DecoderConfig, family: Family, kind: LayerKind) -> tuple[Part, ...]:
    """Everything that one layer of this kind holds."""
    parts = [_vector("norms", _norms(config, family, kind) * family.norm_values * config.hidden_size)]
    mixer = _MIXERS.get(kind.mixer)
    if mixer is not None:
        parts += mixer(config, family, kind)
    if kind.mlp is Mlp.EXPERTS:
        parts += _experts(config, family)
    elif kind.mlp is Mlp.DENSE:
        parts += _dense_mlp(config, family)
    if config.hidden_size_per_layer_input:
        parts += _layer_input(config.hidden_size, config.hidden_size_per_layer_input)
    return tuple(part for part in parts if part.values)


def _norms(config: DecoderConfig, family: Family, kind: LayerKind) -> int:
    if family.name == "falcon" and config.parallel_attn and not config.new_decoder_architecture:
        return 1
    if family.name == "gemma4_text" and kind.mlp is Mlp.EXPERTS:
        return 7  # the dense MLP and the experts of a layer have norms of their own
    return family.norms


def has(config: DecoderConfig, which: bool | str) -> bool:
    """What a family always or never has, or by the key that it names."""
    return bool(getattr(config, which)) if isinstance(which, str) else which


def _attention(config: DecoderConfig, family: Family, kind: LayerKind) -> Iterator[Part]:
    hidden, heads = config.hidden_size, config.num_attention_heads
    kv_heads, head_dim = attention_size(config, kind)
    value_dim = config.v_head_dim or head_dim
    q_rows = heads * head_dim * (2 if config.attn_output_gate else 1)
    yield _matrix("self_attn.q_proj", q_rows, hidden)
    yield _matrix("self_attn.k_proj", kv_heads * head_dim, hidden)
    if not (config.attention_k_eq_v and kind.mixer is Mixer.FULL):
        yield _matrix("self_attn.v_proj", kv_heads * value_dim, hidden)
    yield _matrix("self_attn.o_proj", hidden, heads * value_dim)
    if has(config, family.qkv_bias):
        yield _vector("self_attn.qkv_bias", q_rows + kv_heads * (head_dim + value_dim), Place.SPLIT)
    if has(config, family.o_bias):
        yield _vector("self_attn.o_bias", hidden)
    if family.qk_norm and (family.qk_norm_key is None or getattr(config, family.qk_norm_key)):
        per_head = 2 * head_dim if family.qk_norm == "head" else (heads + kv_heads) * head_dim
        yield _vector("self_attn.qk_norm", per_head)
    if family.sinks:
        yield _vector("self_attn.sinks", heads, Place.SPLIT)


def _latent_attention(config: DecoderConfig, _family: Family, kind: LayerKind) -> Iterator[Part]:
    """DeepSeek's MLA: the down projections are held whole by every GPU."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    latent, rope = config.kv_lora_rank or 0, config.qk_rope_head_dim or 0
    nope, value_dim = config.qk_nope_head_dim or 0, config.value_head_dim
    q_rows = heads * (nope + rope)
    if config.q_lora_rank:
        yield _matrix("self_attn.q_a_proj", config.q_lora_rank, hidden, Place.REPLICATED)
        yield _vector("self_attn.q_a_layernorm", config.q_lora_rank)
        yield _matrix("self_attn.q_b_proj", q_rows, config.q_lora_rank)
    else:
        yield _matrix("self_attn.q_proj", q_rows, hidden)
    yield _matrix("self_attn.kv_a_proj_with_mqa", latent + rope, hidden, Place.REPLICATED)
    yield _vector("self_attn.kv_a_layernorm", latent)
    yield _matrix("self_attn.kv_b_proj", heads * (nope + value_dim), latent)
    yield _matrix("self_attn.o_proj", hidden, heads * value_dim)
    if kind.mixer is Mixer.LATENT:
        # vLLM keeps W_UK and W_UV in 16 bit for decoding, beside the kv_b_proj that prefill uses (mla_attention.py).
        absorbed = heads * (nope + value_dim)
        yield Part(name="self_attn.absorbed", rows=absorbed, columns=latent, plain=True, duplicate=True)
    if config.attention_bias:
        yield _vector("self_attn.biases", (config.q_lora_rank or 0) + latent + rope + hidden)
    if config.index_n_heads and config.index_head_dim:
        # DeepSeek V3.2's sparse-attention indexer
        size = config.index_head_dim
        columns = config.q_lora_rank or hidden
        yield _matrix("self_attn.indexer.wq_b", config.index_n_heads * size, columns, Place.REPLICATED)
        yield _matrix("self_attn.indexer.wk", size, hidden, Place.REPLICATED)
        yield _vector("self_attn.indexer.k_norm", 2 * size)
        yield _vector("self_attn.indexer.weights_proj", config.index_n_heads * hidden)


def _delta_net(config: DecoderConfig, _family: Family, _kind: LayerKind) -> Iterator[Part]:
    hidden, value_heads = config.hidden_size, config.linear_num_value_heads or 0
    keys = (config.linear_num_key_heads or 0) * (config.linear_key_head_dim or 0)
    values = value_heads * (config.linear_value_head_dim or 0)
    yield _matrix("linear_attn.in_proj_qkvz", 2 * keys + 2 * values, hidden)
    yield _matrix("linear_attn.in_proj_ba", 2 * value_heads, hidden)
    yield _vector("linear_attn.conv1d", (2 * keys + values) * (config.linear_conv_kernel_dim or 4), Place.SPLIT)
    yield _vector("linear_attn.dt_bias", 2 * value_heads, Place.SPLIT)
    yield _vector("linear_attn.norm", config.linear_value_head_dim or 0)
    yield _matrix("linear_attn.out_proj", hidden, values)


def _mamba2(config: DecoderConfig, _family: Family, _kind: LayerKind) -> Iterator[Part]:
    hidden, width, heads = config.hidden_size, mamba_width(config), config.mamba_n_heads or 1
    groups_state = 2 * (config.mamba_n_groups or 1) * (config.mamba_d_state or 128)
    yield _matrix("mamba.in_proj", 2 * width + groups_state + heads, hidden)
    yield _vector("mamba.conv1d", (width + groups_state) * ((config.mamba_d_conv or 4) + 1), Place.SPLIT)
    yield _vector("mamba.heads", 3 * heads, Place.SPLIT)
    yield _vector("mamba.norm", width, Place.SPLIT)
    yield _matrix("mamba.out_proj", hidden, width)


def _mamba1(config: DecoderConfig, _family: Family, _kind: LayerKind) -> Iterator[Part]:
    hidden, width, state = config.hidden_size, mamba_width(config), config.mamba_d_state or 16
    rank = config.mamba_dt_rank or -(-hidden // 16)
    yield _matrix("mamba.in_proj", 2 * width, hidden)
    yield _vector("mamba.conv1d", width * ((config.mamba_d_conv or 4) + 1), Place.SPLIT)
    yield _matrix("mamba.x_proj", rank + 2 * state, width)
    yield _matrix("mamba.dt_proj", width, rank)
    yield _vector("mamba.heads", width * (state + 2), Place.SPLIT)
    yield _vector("mamba.norms", rank + 2 * state)
    yield _matrix("mamba.out_proj", hidden, width)


def _lightning(config: DecoderConfig, _family: Family, _kind: LayerKind) -> Iterator[Part]:
    hidden, width = config.hidden_size, config.num_attention_heads * config.qk_head_dim
    yield _matrix("self_attn.qkv_proj", 3 * width, hidden)
    yield _matrix("self_attn.output_gate", width, hidden)
    yield _matrix("self_attn.out_proj", hidden, width)
    yield _vector("self_attn.norm", width, Place.SPLIT)


def _short_conv(config: DecoderConfig, _family: Family, _kind: LayerKind) -> Iterator[Part]:
    hidden = config.hidden_size
    yield _matrix("conv.in_proj", 3 * hidden, hidden)
    yield _vector("conv.conv", hidden * (config.conv_l_cache or 3), Place.SPLIT)
    yield _matrix("conv.out_proj", hidden, hidden)


_MIXERS: dict[Mixer, Callable[[DecoderConfig, Family, LayerKind], Iterator[Part]]] = {
    Mixer.FULL: _attention,
    Mixer.SLIDING: _attention,
    Mixer.CHUNKED: _attention,
    Mixer.LATENT: _latent_attention,
    Mixer.EXPANDED: _latent_attention,
    Mixer.DELTA_NET: _delta_net,
    Mixer.MAMBA: _mamba1,
    Mixer.MAMBA2: _mamba2,
    Mixer.LIGHTNING: _lightning,
    Mixer.SHORT_CONV: _short_conv,
}


def _dense_mlp(config: DecoderConfig, family: Family) -> Iterator[Part]:
    block, size = family.moe_block, dense_size(config)
    yield from _mlp(f"{block}", config.hidden_size, size, gated=family.gated)
    if has(config, family.mlp_bias):
        yield _vector(f"{block}.bias", (2 if family.gated else 1) * size, Place.SPLIT)
        yield _vector(f"{block}.down_bias", config.hidden_size)


def _mlp(block: str, hidden: int, size: int, *, gated: bool) -> Iterator[Part]:
    if gated:
        yield _matrix(f"{block}.gate_proj", size, hidden)
    yield _matrix(f"{block}.up_proj", size, hidden)
    yield _matrix(f"{block}.down_proj", hidden, size)


def _layer_input(hidden: int, size: int) -> Iterator[Part]:
    """Gemma 4's small models feed a second, narrow embedding into every layer."""
    yield _matrix("per_layer_input_gate", size, hidden, Place.REPLICATED)
    yield _matrix("per_layer_projection", hidden, size, Place.REPLICATED)
    yield _vector("post_per_layer_input_norm", hidden)


def dense_size(config: DecoderConfig) -> int:
    """Intermediate size of a dense layer (Llama 4 names it apart from the experts')."""
    return config.intermediate_size_mlp or config.intermediate_size


def expert_size(config: DecoderConfig) -> int:
    """Intermediate size of one routed expert."""
    return config.moe_intermediate_size or config.intermediate_size


def shared_size(config: DecoderConfig, family: Family) -> int:
    """Intermediate size of what every token passes beside the routed experts; 0 where there is nothing."""
    if config.shared_expert_intermediate_size is not None:
        return config.shared_expert_intermediate_size
    if family.name == "llama4_text":
        return config.intermediate_size
    if family.name == "gemma4_text":
        return dense_size(config)  # the dense MLP runs beside the experts
    return (config.n_shared_experts or 0) * expert_size(config)


def _experts(config: DecoderConfig, family: Family) -> Iterator[Part]:
    block, hidden, size = family.moe_block, config.hidden_size, expert_size(config)
    count = config.num_experts or 0
    active = min(count, config.num_experts_per_tok or 1)
    make = functools.partial(Part, place=Place.EXPERT, copies=count, active=active)
    for name in ("gate_proj", "up_proj") if family.gated else ("up_proj",):
        yield make(name=f"{block}.experts.0.{name}", rows=size, columns=hidden)
    yield make(name=f"{block}.experts.0.down_proj", rows=hidden, columns=size, hidden_rows=True)
    if family.expert_bias:
        yield make(name=f"{block}.experts.0.bias", rows=2 * size + hidden, plain=True)
        yield _vector(f"{block}.router.bias", count)
    yield Part(name=f"{block}.gate", rows=count, columns=hidden, place=Place.REPLICATED, plain=True)
    if family.router_correction:
        yield _vector(f"{block}.gate.correction", count)
    shared = shared_size(config, family)
    if shared:
        yield from _mlp(f"{block}.shared_experts", hidden, shared, gated=family.gated)
        if family.name in ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text"):
            yield _vector(f"{block}.shared_expert_gate", hidden)


def layer_shape(
    attention: LayerAttention, parts: tuple[Part, ...], *, layer: int, quantization: Quantization | None, nested: bool
) -> LayerShape:
    """Adds the parts of the 0-based `layer` up."""
    held = dict.fromkeys(Place, 0)
    for part in parts:
        held[part.place] += part_bytes(part, layer=layer, quantization=quantization, nested=nested)
    return LayerShape(
        attention=attention,
        split_bytes=held[Place.SPLIT],
        replicated_bytes=held[Place.REPLICATED],
        expert_bytes=held[Place.EXPERT],
        parameters=sum(part.parameters for part in parts),
        active_parameters=sum(part.active_parameters for part in parts),
    )


def part_bytes(part: Part, *, layer: int, quantization: Quantization | None, nested: bool) -> int:
    """Bytes of all copies of a part."""
    if quantization is None or part.plain:
        return BYTES_16BIT * part.values
    expert = part.place is Place.EXPERT
    scheme = quantization.scheme_of(_full_names(part.name, layer, nested), expert=expert)
    rows, columns = part.rows, part.columns
    if expert and scheme is not SIXTEEN_BIT:
        hidden, size = quantization.expert_hidden_multiple, quantization.expert_size_multiple
        rows = _rounded(rows, hidden if part.hidden_rows else size)
        columns = _rounded(columns, size if part.hidden_rows else hidden)
    return part.copies * scheme.size_bytes(rows, columns)


_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
_OTHER_WORDS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def _full_names(name: str, layer: int, nested: bool) -> tuple[str, ...]:
    """The spellings under which a list of exceptions may name this part."""
    stem, _, last = name.rpartition(".")
    names = [name]
    for table in (_FUSED, _OTHER_WORDS):
        if last in table:
            names.append(f"{stem}.{table[last]}")
    if ".shared_experts." in name:
        names += [other.replace(".shared_experts.", ".shared_expert.") for other in names]
    if name.startswith("linear_attn.in_proj_qkvz"):
        names.append("linear_attn.in_proj_qkv")
    prefixes = ("model.layers", *(("language_model.model.layers", "model.language_model.layers") if nested else ()))
    return tuple(f"{prefix}.{layer}.{other}" for prefix in prefixes for other in names)


def _rounded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
