"""The shape of a decoder, read from a `config.json`: a local folder, the Hugging Face cache, the shipped catalogue.

Decoders of all the kinds that `node.layer_kinds` knows are sized: dense, mixtures of experts, latent attention,
sliding windows, layers with a state, quantised checkpoints, and the text model of vision-language ones. An
architecture that is not in the table but reads as a decoder is sized with a doubt that says so. Refused by name is
only what has no such reading (encoders, pure state-space models): a wrong size would admit configs that run out of
memory.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.node.config_json import DecoderConfig, UnsizedModel, read_decoder, text_part, unsized
from autotune.node.config_source import HubConfig, find_config, hub_cache, surroundings
from autotune.node.families import Family
from autotune.node.layer_cache import layer_attention
from autotune.node.layer_kinds import LayerKind, Mlp, layer_kinds
from autotune.node.layers import BYTES_16BIT
from autotune.node.model_doubts import doubt_of, refuse_unread, refuse_without_generation
from autotune.node.quantized import Quantization, UnknownQuantization, read_quantization
from autotune.node.towers import towers_parameters
from autotune.node.weights_count import (
    Part,
    expert_size,
    has,
    layer_parts,
    layer_shape,
    shared_size,
)
from autotune.records import AttentionKind, Experts, LayerAttention, LayerShape, ModelShape
from autotune.units import format_bytes

__all__ = ["UnsizedModel", "hub_cache", "load_shape", "shape_from_config"]

_FILES_TOLERANCE = 0.1
"""Padding of mxfp4 experts and draft layers that are not loaded make up to 9 %."""


def load_shape(
    name_or_path: str,
    *,
    env: Mapping[str, str] | None = None,
    home: Path | None = None,
    hub: HubConfig | None = None,
) -> ModelShape:
    """The shape of a model named by a folder, a hub id, or the last part of a hub id (any letter case).

    Looked up in this order: a local folder with config.json, the Hugging Face cache, the shipped catalogue, the hub.

    Args:
        env: environment that HF_HUB_CACHE and HF_HOME are read from; the process's own when None.
        home: home folder, for the cache's default place.
        hub: asks the hub (`node.hub.hub_config`); None leaves the network alone.

    Raises:
        UnknownName: found in none of them; the hint says where we looked.
        InvalidFile: a config.json that cannot be read or lacks a key.
        UnsizedModel: a model that cannot be sized.
    """
    where, home_folder = surroundings(env, home)
    found = find_config(name_or_path, env=where, home=home_folder, hub=hub)
    shape = shape_from_config(found.config, name=found.name, file=found.file)
    return _checked_against_files(shape, found.weight_file_bytes)


def _checked_against_files(shape: ModelShape, weight_file_bytes: int | None) -> ModelShape:
    """Doubts a size that the files beside the config contradict; weights stored in 32 bit are twice as large."""
    if weight_file_bytes is None:
        return shape
    ratio = shape.weight_bytes / weight_file_bytes
    if any(abs(ratio * factor - 1) <= _FILES_TOLERANCE for factor in (1, 2)):
        return shape
    doubt = (
        f"its files hold {format_bytes(weight_file_bytes)}, its config adds up to {format_bytes(shape.weight_bytes)}"
    )
    return replace(shape, doubt=f"{shape.doubt}; {doubt}" if shape.doubt else doubt)


def shape_from_config(config: Mapping[str, Any], *, name: str, file: str) -> ModelShape:
    """The shape that a parsed config.json describes; `file` is named in errors.

    Raises:
        InvalidFile: a key is missing, has the wrong type, or contradicts another.
        UnsizedModel: a model that cannot be read as a stack of decoder layers.
    """
    refuse_unread(config, file)
    decoder, family = read_decoder(config, file=file)
    refuse_without_generation(config, family, file)
    kinds = layer_kinds(decoder, family, file=file)
    quantization = _quantization(config, file)
    layers = _layers(decoder, family, kinds, quantization, nested=text_part(config)[1])
    tower = towers_parameters(config, decoder.hidden_size, file=file)
    tables = _table_parameters(decoder, family)
    parameters = sum(layer.parameters for layer in layers) + tables + tower
    held = sum(layer.split_bytes + layer.replicated_bytes + layer.expert_bytes for layer in layers)
    experts = _expert_record(decoder, family, kinds)
    plain = _is_plain(decoder, layers, kinds, quantization)
    return ModelShape(
        name=name,
        layers=decoder.num_hidden_layers,
        hidden_size=decoder.hidden_size,
        intermediate_size=decoder.intermediate_size_mlp or decoder.intermediate_size,
        heads=decoder.num_attention_heads,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.qk_head_dim,
        vocab_size=decoder.vocab_size,
        max_position_embeddings=decoder.max_position_embeddings,
        weight_bytes=held + BYTES_16BIT * (tables + tower),
        parameters=parameters,
        tie_word_embeddings=decoder.tie_word_embeddings,
        dtype=_dtype(decoder),
        architecture=_architecture(config, decoder),
        decoder=() if plain else layers,
        experts=experts,
        active_parameters=_active(layers, parameters, tower) if experts else None,
        quantization=quantization.method if quantization else None,
        weight_bits=quantization.weight_bits if quantization else 16,
        kv_cache_dtype=quantization.kv_cache_dtype if quantization else None,
        other_bytes=BYTES_16BIT * tower,
        doubt=doubt_of(decoder, family, kinds, quantization, tower),
    )


def _layers(
    decoder: DecoderConfig,
    family: Family,
    kinds: tuple[LayerKind, ...],
    quantization: Quantization | None,
    *,
    nested: bool,
) -> tuple[LayerShape, ...]:
    """Layers of one kind are computed once, unless the checkpoint leaves some of them in 16 bit."""

    @functools.cache
    def parts_of(kind: LayerKind) -> tuple[Part, ...]:
        return layer_parts(decoder, family, kind)

    @functools.cache
    def shape_of(kind: LayerKind, layer: int) -> LayerShape:
        attention = layer_attention(decoder, kind)
        return layer_shape(attention, parts_of(kind), layer=layer, quantization=quantization, nested=nested)

    return tuple(shape_of(kind, layer if quantization else 0) for layer, kind in enumerate(kinds))


def _is_plain(
    decoder: DecoderConfig,
    layers: tuple[LayerShape, ...],
    kinds: tuple[LayerKind, ...],
    quantization: Quantization | None,
) -> bool:
    """Layers that the sizes of the model alone describe: `ModelShape.decoder` stays empty for them."""
    cache = LayerAttention(kind=AttentionKind.FULL, kv_heads=decoder.kv_heads, head_dim=decoder.qk_head_dim)
    alike = len(set(layers)) == 1 and layers[0].attention == cache
    return alike and kinds[0].mlp is Mlp.DENSE and quantization is None


def _table_parameters(decoder: DecoderConfig, family: Family) -> int:
    """Embedding, output head, positions and the norms around the layers."""
    hidden = decoder.hidden_size
    norms = hidden * family.norm_values * (2 if family.embedding_norm else 1)
    positions = 0
    if family.learned_positions is not None:
        positions = (decoder.max_position_embeddings + family.learned_positions) * hidden
    tables = decoder.vocab_size * hidden * (1 if decoder.tie_word_embeddings else 2)
    bias = decoder.vocab_size if has(decoder, family.head_bias) else 0
    narrow = decoder.num_hidden_layers * (decoder.hidden_size_per_layer_input or 0)
    layer_inputs = narrow * ((decoder.vocab_size_per_layer_input or 0) + hidden)
    layer_inputs += decoder.hidden_size_per_layer_input or 0
    return tables + norms + positions + bias + layer_inputs


def _active(layers: tuple[LayerShape, ...], parameters: int, tower: int) -> int:
    idle = sum(layer.parameters - layer.active_parameters for layer in layers)
    return parameters - tower - idle


def _expert_record(decoder: DecoderConfig, family: Family, kinds: tuple[LayerKind, ...]) -> Experts | None:
    if not any(kind.mlp is Mlp.EXPERTS for kind in kinds) or not decoder.num_experts:
        return None
    shared = decoder.n_shared_experts or (1 if shared_size(decoder, family) else 0)
    return Experts(
        count=decoder.num_experts,
        per_token=min(decoder.num_experts, decoder.num_experts_per_tok or 1),
        intermediate_size=expert_size(decoder),
        shared=shared,
    )


def _dtype(decoder: DecoderConfig) -> str:
    """What vLLM's dtype "auto" makes of the checkpoint's; it loads a float32 one in 16 bit."""
    dtype = (decoder.dtype or "bfloat16").removeprefix("torch.")
    return "float16" if dtype in ("float16", "half") else "bfloat16"


def _architecture(config: Mapping[str, Any], decoder: DecoderConfig) -> str:
    outer = config.get("architectures")
    if isinstance(outer, list) and outer and isinstance(outer[0], str):
        return outer[0]
    return (decoder.architectures or ["LlamaForCausalLM"])[0]


def _quantization(config: Mapping[str, Any], file: str) -> Quantization | None:
    raw, key = config.get("quantization_config"), "quantization_config"
    if raw is None:
        raw, key = config.get("compression_config"), "compression_config"
    text = config.get("text_config")
    if raw is None and isinstance(text, Mapping):
        raw, key = text.get("quantization_config"), "text_config.quantization_config"
    try:
        return read_quantization(raw, file=file, key=key)
    except UnknownQuantization as error:
        method = str(error)
        raise unsized(file, key, method, f"weights quantised by {method!r}") from None
