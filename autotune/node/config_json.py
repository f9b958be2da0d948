"""The border for a Hugging Face `config.json`: one vocabulary for what the families of models spell differently.

A wrapper around a text model (`text_config`, `llm_config`) is followed; the older names (`n_embd`, `n_head_kv`,
`multi_query`, `ffn_config`, ...) are translated; what a config leaves out is filled with what its class in
transformers 5.19 assumes (`node.families`). Everything is bounded, so that arithmetic on a hostile file stays small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.errors import InvalidFile
from autotune.node.families import ASSUMED, ASSUMED_WHEN_NESTED, Family, family_of

MOST = 1 << 30
"""No size of a real model comes near it; products of larger ones leave the range of floats."""
MOST_EXPERTS = 1 << 16
MOST_LAYERS = 1024
"""The deepest published decoders have 126 layers; one record is made for each."""

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
# Our word, and what other families call it. The first that is there and not null wins.
_SYNONYMS: dict[str, tuple[str, ...]] = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "n_embed", "d_model", "model_dim"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "block_ff_dim"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("n_head_kv", "num_kv_heads", "multi_query_group_num", "kv_n_heads"),
    "head_dim": ("attention_head_dim", "kv_channels", "head_size"),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": (
        "n_positions",
        "max_seq_len",
        "seq_length",
        "n_ctx",
        "max_sequence_length",
        "model_max_length",
    ),
    "tie_word_embeddings": ("tie_embedding_weights",),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts"),
    "moe_intermediate_size": ("expert_ffn_hidden_size",),
    "n_shared_experts": ("num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "shared_expert_intermediate_size": ("moe_shared_expert_intermediate_size", "shared_intermediate_size"),
    "mamba_n_heads": ("mamba_num_heads",),
    "mamba_d_head": ("mamba_head_dim",),
    "mamba_d_state": ("ssm_state_size",),
    "mamba_n_groups": ("n_groups",),
    "mamba_d_conv": ("conv_kernel",),
    "mamba_ssm_dtype": ("mamba_ssm_cache_dtype",),
    "conv_l_cache": ("conv_L_cache",),
    "sliding_window_pattern": ("_sliding_window_pattern",),
    "dtype": ("torch_dtype",),
}
_FOUR_TIMES_HIDDEN = (
    "gpt2",
    "gpt_bigcode",
    "falcon",
    "bloom",
    "gptj",
    "mpt",
    "RefinedWeb",
    "RefinedWebModel",
)
_Size = Field(default=None, gt=0, le=MOST)
_Count = Field(default=None, ge=0, le=MOST)


# A list in one of these gives every layer a size of its own; when they are all the same it is one size after all.
_ONE_SIZE = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "n_shared_experts",
    "sliding_window",
)


class UnsizedModel(InvalidFile):
    """A readable config.json of a model whose memory we do not compute; a real server may well serve it."""


def unsized(file: str, key: str, value: object, what: str) -> UnsizedModel:
    """The error for a model that has `what`, seen at `key`."""
    return UnsizedModel(
        file,
        key,
        value,
        "a model that reads as a stack of decoder layers",
        hint=f"This model has {what}, whose memory and speed are not computed, so it cannot be simulated; "
        "a real server can still be tuned.",
    )


class DecoderConfig(BaseModel):
    """Keys that decide a decoder's size, in one vocabulary; others are ignored. None where the config is silent."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    architectures: list[str] | None = None
    model_type: str | None = None
    dtype: str | None = None
    num_hidden_layers: int = Field(gt=0, le=MOST_LAYERS)
    hidden_size: int = Field(gt=0, le=MOST)
    intermediate_size: int = Field(gt=0, le=MOST)
    num_attention_heads: int = Field(gt=0, le=MOST)
    num_key_value_heads: int | None = _Size
    head_dim: int | None = _Size
    v_head_dim: int | None = _Size
    vocab_size: int = Field(gt=0, le=MOST)
    max_position_embeddings: int = Field(gt=0, le=MOST)
    tie_word_embeddings: bool = False
    # Biases and norms
    attention_bias: bool | None = None
    attention_out_bias: bool | None = None
    qkv_bias: bool | None = None
    use_qkv_bias: bool | None = None
    use_bias: bool | None = None
    bias: bool | None = None
    enable_bias: bool | None = None
    mlp_bias: bool | None = None
    lm_head_bias: bool | None = None
    use_qk_norm: bool | None = None
    qk_layernorm: bool | None = None
    add_qkv_bias: bool | None = None
    new_decoder_architecture: bool | None = None
    parallel_attn: bool | None = None
    # Kinds of layers
    layer_types: list[str] | None = Field(default=None, max_length=MOST_LAYERS)
    sliding_window: int | None = Field(default=None, ge=-1, le=MOST)
    use_sliding_window: bool | None = None
    max_window_layers: int | None = _Count
    sliding_window_pattern: int | str | None = None
    attention_chunk_size: int | None = _Size
    no_rope_layers: list[int] | None = Field(default=None, max_length=MOST_LAYERS)
    full_attention_interval: int | None = _Size
    attn_layer_indices: list[int] | None = Field(default=None, max_length=MOST_LAYERS)
    full_attn_idxs: list[int] | None = Field(default=None, max_length=MOST_LAYERS)
    attn_layer_period: int | None = _Size
    attn_layer_offset: int | None = _Count
    attn_type_list: list[int] | None = Field(default=None, max_length=MOST_LAYERS)
    hybrid_override_pattern: str | None = Field(default=None, max_length=MOST_LAYERS)
    layers_block_type: list[str] | None = Field(default=None, max_length=MOST_LAYERS)
    global_head_dim: int | None = _Size
    num_global_key_value_heads: int | None = _Size
    attention_k_eq_v: bool | None = None
    hidden_size_per_layer_input: int | None = _Count
    vocab_size_per_layer_input: int | None = _Count
    # Latent attention
    kv_lora_rank: int | None = _Size
    q_lora_rank: int | None = _Size
    qk_nope_head_dim: int | None = _Size
    qk_rope_head_dim: int | None = _Size
    index_n_heads: int | None = _Size
    index_head_dim: int | None = _Size
    # Experts
    num_experts: int | None = Field(default=None, ge=0, le=MOST_EXPERTS)
    num_experts_per_tok: int | None = Field(default=None, ge=0, le=MOST_EXPERTS)
    moe_intermediate_size: int | None = _Size
    n_shared_experts: int | None = _Count
    shared_expert_intermediate_size: int | None = _Count
    intermediate_size_mlp: int | None = _Size
    decoder_sparse_step: int | None = _Size
    mlp_only_layers: list[int] | None = Field(default=None, max_length=MOST_LAYERS)
    mlp_layer_types: list[str] | None = Field(default=None, max_length=MOST_LAYERS)
    first_k_dense_replace: int | None = _Count
    num_dense_layers: int | None = _Count
    moe_layer_freq: int | Annotated[list[int], Field(max_length=MOST_LAYERS)] | None = None
    interleave_moe_layer_step: int | None = _Count
    moe_layers: list[int] | None = Field(default=None, max_length=MOST_LAYERS)
    moe_layer_start_index: int | None = _Count
    moe_layer_end_index: int | None = Field(default=None, ge=-1, le=MOST)
    moe_layer_interval: int | None = _Size
    expert_layer_period: int | None = _Size
    expert_layer_offset: int | None = _Count
    enable_moe_block: bool | None = None
    # Layers with a state
    linear_num_key_heads: int | None = _Size
    linear_num_value_heads: int | None = _Size
    linear_key_head_dim: int | None = _Size
    linear_value_head_dim: int | None = _Size
    linear_conv_kernel_dim: int | None = _Size
    attn_output_gate: bool | None = None
    mamba_n_heads: int | None = _Size
    mamba_d_head: int | None = _Size
    mamba_d_state: int | None = _Size
    mamba_n_groups: int | None = _Size
    mamba_d_conv: int | None = _Size
    mamba_expand: int | None = _Size
    mamba_dt_rank: int | None = _Size
    mamba_ssm_dtype: str | None = None
    conv_l_cache: int | None = _Size

    @property
    def kv_heads(self) -> int:
        """KV heads of a full-attention layer; a config that names none has one per query head."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def qk_head_dim(self) -> int:
        """Size of a query head; of latent attention the uncompressed one, rotary part included."""
        if self.kv_lora_rank and self.qk_nope_head_dim and self.qk_rope_head_dim:
            return self.qk_nope_head_dim + self.qk_rope_head_dim
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def value_head_dim(self) -> int:
        """Size of a value head; where the config names none, the query head's, or of latent attention the plain one."""
        if self.kv_lora_rank:
            return self.v_head_dim or self.hidden_size // self.num_attention_heads
        return self.v_head_dim or self.qk_head_dim


def read_decoder(config: Mapping[str, Any], *, file: str) -> tuple[DecoderConfig, Family]:
    """The text decoder that a parsed config.json describes, and its family.

    Raises:
        InvalidFile: a key is missing, has the wrong type or lies out of all bounds.
        UnsizedModel: layers of different sizes, or an unknown architecture that lacks a decoder's keys.
    """
    merged, nested = text_part(config)
    family = family_of(_model_type(merged, file), _architectures(merged, file))
    assumed = {**(ASSUMED_WHEN_NESTED.get(family.name, {}) if nested else {}), **ASSUMED.get(family.name, {})}
    translated = _translate(merged, assumed)
    _one_size(translated, file)
    try:
        parsed = DecoderConfig.model_validate(translated)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing" and family.name and not family.known:
            what = f"an architecture ({family.name}) that is not known here, and its config has no {key}"
            raise unsized(file, key, None, what) from None
        raise InvalidFile(file, key, translated.get(str(first["loc"][0])), first["msg"]) from None
    _check_heads(parsed, file)
    return parsed, family


def text_part(config: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The config of the text model, and whether it was nested; keys of the wrapper stand in for missing ones."""
    for key in _NESTED:
        inner = config.get(key)
        if isinstance(inner, Mapping) and inner:
            if key == "thinker_config":
                return text_part({**config, **inner})[0], True
            outer = {name: value for name, value in config.items() if name not in ("model_type", "architectures")}
            # The wrapper's architecture says nothing about the text model when that one names its own kind.
            if "model_type" not in inner and "architectures" not in inner:
                outer = dict(config)
            return {**outer, **inner}, True
    return dict(config), False


def _translate(config: Mapping[str, Any], assumed: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(config)
    for part in ("attn_config", "ffn_config"):  # DBRX keeps a few keys one level down
        inner = config.get(part)
        if isinstance(inner, Mapping):
            out = {**inner, **out}
    for word, others in _SYNONYMS.items():
        if out.get(word) is None:
            out[word] = next((out[name] for name in others if out.get(name) is not None), None)
    if out.get("mamba_dt_rank") == "auto":
        out["mamba_dt_rank"] = None
    for key, value in assumed.items():
        if out.get(key) is None:
            out[key] = value
    if out.get("num_hidden_layers") is None:  # Nemotron-H: the pattern is as long as the model is deep
        blocks = out.get("hybrid_override_pattern") or out.get("layers_block_type")
        out["num_hidden_layers"] = len(blocks) if isinstance(blocks, (str, list)) and blocks else None
    _multi_query(out)
    _assume_mlp(out)
    return {key: value for key, value in out.items() if value is not None}


def _one_size(out: dict[str, Any], file: str) -> None:
    for key in _ONE_SIZE:
        value = out.get(key)
        if not isinstance(value, list) or not value:
            continue
        if any(item != value[0] for item in value):
            raise unsized(file, key, value, "layers of different sizes")
        out[key] = value[0]


def _assume_mlp(out: dict[str, Any]) -> None:
    size, kind = out.get("intermediate_size"), out.get("model_type")
    if isinstance(size, int):
        if kind == "qwen":
            out["intermediate_size"] = size // 2  # the first Qwen counts gate and up together
        elif out.get("block_auto_adjust_ff_dim") is True:
            out["intermediate_size"] = _lfm2_size(out, size)
        return
    if size is not None:
        return
    # GPT-2, Falcon and BLOOM leave it out where it is the classic four times hidden.
    if kind in _FOUR_TIMES_HIDDEN and isinstance(out.get("hidden_size"), int):
        out["intermediate_size"] = 4 * out["hidden_size"]
    elif isinstance(out.get("moe_intermediate_size"), int):
        out["intermediate_size"] = out["moe_intermediate_size"]  # no dense layer: nothing else names the MLP


def _lfm2_size(out: Mapping[str, Any], size: int) -> int:
    """LFM2 takes two thirds of the size that its config names, rounded up to a multiple."""
    factor, multiple = out.get("block_ffn_dim_multiplier"), out.get("block_multiple_of", 256)
    size = 2 * size // 3
    if isinstance(factor, (int, float)) and 0 < factor < 64:
        size = int(factor * size)
    if not isinstance(multiple, int) or not 0 < multiple < MOST:
        return size
    return -(-size // multiple) * multiple


def _multi_query(out: dict[str, Any]) -> None:
    """Falcon's rule: new architecture reads the KV heads, the old one has one KV head (or one per query head)."""
    if out.get("model_type") in ("falcon", "RefinedWeb", "RefinedWebModel"):
        if not out.get("new_decoder_architecture"):
            out["num_key_value_heads"] = 1 if out.get("multi_query") else out.get("num_attention_heads")
    elif out.get("multi_query") is True and out.get("num_key_value_heads") is None:
        out["num_key_value_heads"] = 1


def _check_heads(config: DecoderConfig, file: str) -> None:
    heads, kv_heads = config.num_attention_heads, config.kv_heads
    if heads % kv_heads:
        raise InvalidFile(file, "num_key_value_heads", kv_heads, f"a divisor of num_attention_heads ({heads})")
    if (config.num_experts_per_tok or 0) > (config.num_experts or 0) > 1:
        allowed = f"at most the {config.num_experts} experts"
        raise InvalidFile(file, "num_experts_per_tok", config.num_experts_per_tok, allowed)
    if config.kv_lora_rank:
        for key in ("qk_nope_head_dim", "qk_rope_head_dim"):
            if getattr(config, key) is None:
                raise InvalidFile(file, key, None, "a size, beside kv_lora_rank")
    if config.qk_head_dim < 1:
        raise InvalidFile(file, "hidden_size", config.hidden_size, f"at least the {heads} heads")


def _model_type(config: Mapping[str, Any], file: str) -> str | None:
    kind = config.get("model_type")
    if kind is not None and not isinstance(kind, str):
        raise InvalidFile(file, "model_type", kind, "a text")
    return kind


def _architectures(config: Mapping[str, Any], file: str) -> tuple[str, ...]:
    found = config.get("architectures") or []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise InvalidFile(file, "architectures", found, "a list of texts")
    return tuple(found)
