"""Which kind each layer of a decoder is: what its attention keeps, and whether its MLP is a mixture of experts. Pure.

The rules are those of vLLM 0.32's model files and of the configuration classes of transformers 5.19. A list in the
config (`layer_types`, `attn_layer_indices`, `moe_layers`) wins over a rule with a period.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotune.errors import InvalidFile
from autotune.node.config_json import DecoderConfig
from autotune.node.families import Family


class Mixer(StrEnum):
    """What a layer mixes tokens with."""

    FULL = "full attention"
    SLIDING = "sliding-window attention"
    CHUNKED = "chunked attention"
    LATENT = "latent attention"
    EXPANDED = "latent attention whose cache is not latent"
    DELTA_NET = "gated delta net"
    MAMBA = "Mamba 1"
    MAMBA2 = "Mamba 2"
    LIGHTNING = "lightning attention"
    SHORT_CONV = "short convolution"
    NONE = "nothing"


class Mlp(StrEnum):
    """What follows the mixer."""

    DENSE = "dense"
    EXPERTS = "experts"
    NONE = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """One layer; `window` in tokens for SLIDING and CHUNKED, None otherwise."""

    mixer: Mixer
    mlp: Mlp
    window: int | None = None


# The words of `layer_types` and `layers_block_type`.
_WORDS = {
    "full_attention": Mixer.FULL,
    "attention": Mixer.FULL,
    "global_attention": Mixer.FULL,
    "hybrid_attention": Mixer.FULL,
    "indexed_attention": Mixer.FULL,
    "sliding_attention": Mixer.SLIDING,
    "local_attention": Mixer.SLIDING,
    "sliding_window_attention": Mixer.SLIDING,
    "chunked_attention": Mixer.CHUNKED,
    "linear_attention": Mixer.DELTA_NET,
    "mamba": Mixer.MAMBA2,
    "mamba2": Mixer.MAMBA2,
    "conv": Mixer.SHORT_CONV,
    "short_conv": Mixer.SHORT_CONV,
}


def layer_kinds(config: DecoderConfig, family: Family, *, file: str) -> tuple[LayerKind, ...]:
    """One kind per layer.

    Raises:
        InvalidFile: a list of the wrong length, or a word or sign that names no known kind.
    """
    if config.hybrid_override_pattern or (family.name == "nemotron_h" and config.layers_block_type):
        return _one_block_layers(config, file)
    mixers = _mixers(config, family, file)
    window, full_span = _window(config, family), config.max_position_embeddings
    kinds = []
    for layer, mixer in enumerate(mixers):
        span = config.attention_chunk_size if mixer is Mixer.CHUNKED else window
        if mixer in (Mixer.SLIDING, Mixer.CHUNKED) and (span is None or span >= full_span):
            mixer = Mixer.FULL  # a window as long as the longest sequence forgets nothing
        kept = span if mixer in (Mixer.SLIDING, Mixer.CHUNKED) else None
        mlp = Mlp.EXPERTS if _has_experts(config, layer) else Mlp.DENSE
        kinds.append(LayerKind(mixer=mixer, mlp=mlp, window=kept))
    return tuple(kinds)


def _window(config: DecoderConfig, family: Family) -> int | None:
    window = config.sliding_window
    if window is None or window <= 0 or config.use_sliding_window is False:
        return None
    if family.window_needs_flag and not config.use_sliding_window and not config.layer_types:
        return None
    return window


def _mixers(config: DecoderConfig, family: Family, file: str) -> list[Mixer]:
    layers = config.num_hidden_layers
    if config.kv_lora_rank:
        return [Mixer.LATENT if family.latent_cache else Mixer.EXPANDED] * layers
    listed = config.layer_types or config.layers_block_type
    if listed:
        return _listed(config, family, listed, file)
    if config.attn_type_list:
        _check_length("attn_type_list", config.attn_type_list, layers, file)
        return [Mixer.FULL if word else Mixer.LIGHTNING for word in config.attn_type_list]
    if family.name in ("lfm2", "lfm2_moe"):
        full = set(range(layers) if config.full_attn_idxs is None else config.full_attn_idxs)
        return [Mixer.FULL if i in full else Mixer.SHORT_CONV for i in range(layers)]
    if config.attn_layer_indices is not None:
        return [Mixer.FULL if i in set(config.attn_layer_indices) else Mixer.MAMBA2 for i in range(layers)]
    if config.attn_layer_period:
        offset = config.attn_layer_offset or 0
        return [Mixer.FULL if i % config.attn_layer_period == offset else Mixer.MAMBA for i in range(layers)]
    if config.full_attention_interval:
        every = config.full_attention_interval
        return [Mixer.FULL if (i + 1) % every == 0 else Mixer.DELTA_NET for i in range(layers)]
    if family.name == "llama4_text":
        rope = config.no_rope_layers or [int((i + 1) % 4 != 0) for i in range(layers)]
        _check_length("no_rope_layers", rope, layers, file)
        return [Mixer.CHUNKED if uses_rope else Mixer.FULL for uses_rope in rope]
    return _windowed(config, family, file)


def _listed(config: DecoderConfig, family: Family, listed: list[str], file: str) -> list[Mixer]:
    key = "layer_types" if config.layer_types else "layers_block_type"
    _check_length(key, listed, config.num_hidden_layers, file)
    found = []
    for word in listed:
        mixer = _WORDS.get(word)
        if mixer is None:
            raise InvalidFile(file, key, word, f"one of {', '.join(_WORDS)}")
        if mixer is Mixer.DELTA_NET and config.linear_num_value_heads is None:
            mixer = Mixer.MAMBA2 if config.mamba_n_heads else Mixer.LIGHTNING
        elif mixer is Mixer.MAMBA2 and family.name == "jamba":
            mixer = Mixer.MAMBA
        found.append(mixer)
    return found


def _windowed(config: DecoderConfig, family: Family, file: str) -> list[Mixer]:
    layers = config.num_hidden_layers
    if _window(config, family) is None:
        return [Mixer.FULL] * layers
    pattern = config.sliding_window_pattern
    if isinstance(pattern, str):  # EXAONE 4: "LLLG", repeated; the last layer is always full
        if not pattern or set(pattern) - {"L", "G"}:
            raise InvalidFile(file, "sliding_window_pattern", pattern, "a number, or a text of L and G")
        signs = [pattern[i % len(pattern)] for i in range(layers)]
        return [Mixer.SLIDING if sign == "L" and i < layers - 1 else Mixer.FULL for i, sign in enumerate(signs)]
    every = pattern if pattern is not None else family.full_every
    if every is not None and every < 1:
        raise InvalidFile(file, "sliding_window_pattern", every, "a number above 0")
    if every is not None:
        last_is_full = family.name == "gemma4_text"
        full = {i for i in range(layers) if (i + 1) % every == 0 or (last_is_full and i == layers - 1)}
        return [Mixer.FULL if i in full else Mixer.SLIDING for i in range(layers)]
    first = config.max_window_layers if config.max_window_layers is not None and family.window_needs_flag else 0
    return [Mixer.SLIDING if i >= first else Mixer.FULL for i in range(layers)]


def _has_experts(config: DecoderConfig, layer: int) -> bool:
    """Whether the MLP of this 0-based layer is a mixture; 0 or 1 expert makes none."""
    if (config.num_experts or 0) <= 1 or config.enable_moe_block is False:
        return False
    if config.mlp_layer_types is not None:
        return layer < len(config.mlp_layer_types) and config.mlp_layer_types[layer] == "sparse"
    if config.moe_layers is not None:
        return layer in config.moe_layers
    if isinstance(config.moe_layer_freq, list):
        return layer < len(config.moe_layer_freq) and config.moe_layer_freq[layer] != 0
    if layer in (config.mlp_only_layers or ()):
        return False
    if layer < (config.first_k_dense_replace or config.num_dense_layers or 0):
        return False
    return _in_step(config, layer)


def _in_step(config: DecoderConfig, layer: int) -> bool:
    if config.expert_layer_period:
        return layer % config.expert_layer_period == (config.expert_layer_offset or 0)
    if config.interleave_moe_layer_step is not None:
        return config.interleave_moe_layer_step > 0 and (layer + 1) % config.interleave_moe_layer_step == 0
    if config.decoder_sparse_step:
        return (layer + 1) % config.decoder_sparse_step == 0
    if config.moe_layer_start_index is not None:  # ERNIE 4.5
        end = config.moe_layer_end_index
        last = config.num_hidden_layers - 1 if end is None or end < 0 else end
        step = config.moe_layer_interval or 1
        return config.moe_layer_start_index <= layer <= last and (layer + 1) % step == 0
    if isinstance(config.moe_layer_freq, int) and config.moe_layer_freq > 0:
        return layer % config.moe_layer_freq == 0
    return True


def _one_block_layers(config: DecoderConfig, file: str) -> tuple[LayerKind, ...]:
    """Nemotron-H: every layer is one block, a mixer or an MLP (`M`, `*`, `-`, `E`)."""
    words: list[str] = list(config.hybrid_override_pattern or "") or list(config.layers_block_type or [])
    _check_length("hybrid_override_pattern", words, config.num_hidden_layers, file)
    table = {
        "M": LayerKind(mixer=Mixer.MAMBA2, mlp=Mlp.NONE),
        "*": LayerKind(mixer=Mixer.FULL, mlp=Mlp.NONE),
        "-": LayerKind(mixer=Mixer.NONE, mlp=Mlp.DENSE),
        "E": LayerKind(mixer=Mixer.NONE, mlp=Mlp.EXPERTS),
    }
    spelled = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}
    kinds = []
    for word in words:
        kind = table.get(spelled.get(word, word))
        if kind is None:
            raise InvalidFile(file, "hybrid_override_pattern", word, "M, *, - or E for each layer")
        kinds.append(kind)
    return tuple(kinds)


def _check_length(key: str, listed: list[str] | list[int], layers: int, file: str) -> None:
    if len(listed) != layers:
        raise InvalidFile(file, key, f"{len(listed)} entries", f"one for each of the {layers} layers")
