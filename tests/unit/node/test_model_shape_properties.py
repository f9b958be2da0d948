"""Whatever a config.json says, reading it ends with a shape whose parts add up, or with one clear error."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import InvalidFile
from autotune.node.catalogue import catalogue_names, find
from autotune.node.config_json import DecoderConfig
from autotune.node.model_shape import UnsizedModel, shape_from_config
from autotune.node.quantized import Scheme
from autotune.records import AttentionKind, ModelShape

CONFIGS = {name: entry[1] for name in catalogue_names() if (entry := find(name)) is not None}
KEYS = sorted(
    {*DecoderConfig.model_fields, *(key for config in CONFIGS.values() for key in config), "linear_attn_config"}
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([0, 1, 2**31, 2**63, 10**30, -1]),
    st.floats(),
    st.sampled_from(["", "full_attention", "fp8", "awq", "re:(a|b)+", "auto", "LLLG", "\x00", "llama", "deepseek_v3"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.dictionaries(st.sampled_from([*KEYS, "weights", "bits"]), inner, max_size=4)
    ),
    max_leaves=12,
)


def check(shape: ModelShape) -> None:
    """What holds of every shape."""
    assert shape.parameters > 0
    assert shape.weight_bytes > 0
    assert shape.kv_bytes_per_token >= 0
    assert math.isfinite(float(shape.weight_bytes))
    assert len(shape.decoder) in (0, shape.layers)
    held = sum(layer.split_bytes + layer.replicated_bytes + layer.expert_bytes for layer in shape.decoder)
    assert held + shape.other_bytes <= shape.weight_bytes
    for layer in shape.decoder:
        assert 0 <= layer.active_parameters <= layer.parameters
        assert (layer.attention.window is not None) is (layer.attention.kind is AttentionKind.SLIDING)
        assert (layer.attention.state_bytes > 0) <= (layer.attention.kind is AttentionKind.STATE)
    if shape.active_parameters is not None:
        assert 0 < shape.active_parameters <= shape.parameters


def read(config: Any) -> ModelShape | None:
    """The shape, or None for a refusal that names the file."""
    refusal: InvalidFile
    try:
        return shape_from_config(config, name="m", file="config.json")
    except InvalidFile as error:
        refusal = error
    assert refusal.file == "config.json"
    assert len(str(refusal)) < 2000
    return None


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(sorted(CONFIGS)),
    changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3),
)
def test_a_known_config_with_strange_values(name: str, changes: dict[str, Any]) -> None:
    shape = read({**CONFIGS[name], **changes})
    if shape is not None:
        check(shape)


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(sorted(CONFIGS)), dropped=st.sets(st.sampled_from(KEYS), min_size=1, max_size=4))
def test_a_known_config_with_keys_missing(name: str, dropped: set[str]) -> None:
    shape = read({key: value for key, value in CONFIGS[name].items() if key not in dropped})
    if shape is not None:
        check(shape)


@settings(max_examples=150, deadline=None)
@given(config=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=12))
def test_a_config_of_anything(config: dict[str, Any]) -> None:
    shape = read(config)
    if shape is not None:
        check(shape)


@given(name=st.sampled_from(sorted(CONFIGS)), section=VALUES)
@settings(max_examples=150, deadline=None)
def test_a_quantisation_of_anything(name: str, section: Any) -> None:
    shape = read({**CONFIGS[name], "quantization_config": section})
    if shape is not None:
        check(shape)


@given(
    bits=st.sampled_from([1, 2, 3, 4, 8]),
    rows=st.integers(1, 3000),
    columns=st.integers(1, 3000),
    group=st.one_of(st.none(), st.integers(1, 4096)),
)
def test_a_scheme_is_never_smaller_than_its_weights_nor_its_scales_forgotten(
    bits: int, rows: int, columns: int, group: int | None
) -> None:
    bare = Scheme(bits=bits).size_bytes(rows, columns)
    scaled = Scheme(bits=bits, block_rows=1, block_columns=group, scale_bytes=2).size_bytes(rows, columns)
    assert bare == -(-rows * columns * bits // 8)
    assert scaled == bare + 2 * rows * (1 if group is None else -(-columns // group))


@given(layers=st.integers(1, 64), every=st.integers(1, 9), window=st.integers(1, 4095))
def test_a_period_of_full_layers(layers: int, every: int, window: int) -> None:
    """Against a slow count: layer i is full when (i + 1) is a multiple of the period."""
    config = {
        **CONFIGS["google/gemma-2-2b"],
        "num_hidden_layers": layers,
        "sliding_window": window,
        "sliding_window_pattern": every,
        "max_position_embeddings": 4096,
    }
    shape = shape_from_config(config, name="m", file="f")
    expected = sum(1 for i in range(1, layers + 1) if i % every == 0)
    full = layers if not shape.decoder else sum(1 for x in shape.decoder if x.attention.kind is AttentionKind.FULL)
    assert full == expected


# Configs of models that no test of the catalogue knows, with the sizes that were published of them.
UNSEEN: dict[str, tuple[dict[str, Any], float]] = {
    "DBRX": (
        {
            "model_type": "dbrx",
            "architectures": ["DbrxForCausalLM"],
            "d_model": 6144,
            "n_heads": 48,
            "n_layers": 40,
            "max_seq_len": 32768,
            "vocab_size": 100352,
            "attn_config": {"kv_n_heads": 8},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        },
        131.6,
    ),
    "GLM-4-9B": (
        {
            "model_type": "chatglm",
            "architectures": ["ChatGLMModel"],
            "num_layers": 40,
            "hidden_size": 4096,
            "ffn_hidden_size": 13696,
            "num_attention_heads": 32,
            "kv_channels": 128,
            "multi_query_group_num": 2,
            "padded_vocab_size": 151552,
            "seq_length": 131072,
            "add_qkv_bias": True,
        },
        9.40,
    ),
    "Qwen-7B": (
        {
            "model_type": "qwen",
            "architectures": ["QWenLMHeadModel"],
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "num_attention_heads": 32,
            "kv_channels": 128,
            "vocab_size": 151936,
            "seq_length": 8192,
        },
        7.72,
    ),
    "MPT-7B": (
        {
            "model_type": "mpt",
            "architectures": ["MPTForCausalLM"],
            "d_model": 4096,
            "n_heads": 32,
            "n_layers": 32,
            "expansion_ratio": 4,
            "max_seq_len": 2048,
            "vocab_size": 50432,
        },
        6.65,
    ),
    "Hunyuan-A13B": (
        {
            "model_type": "hunyuan_v1_moe",
            "architectures": ["HunYuanMoEV1ForCausalLM"],
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "intermediate_size": 3072,
            "moe_intermediate_size": [3072] * 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_experts": 64,
            "moe_topk": [8] * 32,
            "num_shared_expert": [1] * 32,
            "vocab_size": 128167,
            "max_position_embeddings": 32768,
            "use_qk_norm": True,
            "tie_word_embeddings": True,
        },
        80.4,
    ),
    "Jamba-v0.1": (
        {
            "model_type": "jamba",
            "architectures": ["JambaForCausalLM"],
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 65536,
            "num_experts": 16,
            "num_experts_per_tok": 2,
            "mamba_dt_rank": 256,
        },
        51.6,
    ),
    "Nemotron-H-8B": (
        {
            "model_type": "nemotron_h",
            "architectures": ["NemotronHForCausalLM"],
            "num_hidden_layers": 52,
            "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
            "hidden_size": 4096,
            "intermediate_size": 21504,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "attention_head_dim": 128,
            "ssm_state_size": 128,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "conv_kernel": 4,
            "vocab_size": 131072,
            "max_position_embeddings": 8192,
        },
        8.1,
    ),
    "Bamba-9B": (
        {
            "model_type": "bamba",
            "architectures": ["BambaForCausalLM"],
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "attn_layer_indices": [9, 18, 27],
            "mamba_n_heads": 128,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "vocab_size": 128256,
            "max_position_embeddings": 262144,
        },
        9.78,
    ),
    "MiniMax-Text-01": (
        {
            "model_type": "minimax_text_01",
            "architectures": ["MiniMaxText01ForCausalLM"],
            "num_hidden_layers": 80,
            "hidden_size": 6144,
            "intermediate_size": 9216,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "attn_type_list": ([0] * 7 + [1]) * 10,
            "num_local_experts": 32,
            "num_experts_per_tok": 2,
            "vocab_size": 200064,
            "max_position_embeddings": 10240000,
        },
        456.0,
    ),
    "ERNIE-4.5-21B-A3B": (
        {
            "model_type": "ernie4_5_moe",
            "architectures": ["Ernie4_5_MoeForCausalLM"],
            "num_hidden_layers": 28,
            "hidden_size": 2560,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "num_attention_heads": 20,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "moe_num_experts": 64,
            "moe_k": 6,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 27,
            "vocab_size": 103424,
            "max_position_embeddings": 131072,
        },
        21.83,
    ),
    "LFM2-1.2B": (
        {
            "model_type": "lfm2",
            "architectures": ["Lfm2ForCausalLM"],
            "num_hidden_layers": 16,
            "hidden_size": 2048,
            "block_ff_dim": 12288,
            "block_ffn_dim_multiplier": 1.0,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
            "vocab_size": 65536,
            "max_position_embeddings": 128000,
        },
        1.17,
    ),
    "EXAONE-4.0-32B": (
        {
            "model_type": "exaone4",
            "architectures": ["Exaone4ForCausalLM"],
            "num_hidden_layers": 64,
            "hidden_size": 5120,
            "intermediate_size": 27392,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 102400,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
            "sliding_window_pattern": "LLLG",
        },
        32.0,
    ),
    "Command R7B": (
        {
            "model_type": "cohere2",
            "architectures": ["Cohere2ForCausalLM"],
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 256000,
            "max_position_embeddings": 8192,
        },
        8.03,
    ),
    "LLaVA-1.5-7B": (
        {
            "model_type": "llava",
            "architectures": ["LlavaForConditionalGeneration"],
            "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
            "vision_config": {
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "num_hidden_layers": 24,
                "image_size": 336,
                "patch_size": 14,
            },
        },
        7.06,
    ),
    "Qwen2-Audio-7B": (
        {
            "model_type": "qwen2_audio",
            "architectures": ["Qwen2AudioForConditionalGeneration"],
            "text_config": {
                "model_type": "qwen2",
                "intermediate_size": 11008,
                "max_position_embeddings": 8192,
                "vocab_size": 156032,
            },
            "audio_config": {"d_model": 1280, "encoder_layers": 32, "encoder_ffn_dim": 5120},
        },
        8.40,
    ),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_published_sizes_of_models_outside_the_catalogue(name: str) -> None:
    config, billions = UNSEEN[name]
    shape = shape_from_config(config, name=name, file="config.json")
    check(shape)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "openelm", "architectures": ["OpenELMForCausalLM"], "num_query_heads": [12] * 16},
        {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
        {"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "num_hidden_layers": 64},
        {"model_type": "mllama", "text_config": {"model_type": "mllama_text_model", "num_hidden_layers": 40}},
        {"model_type": "falcon_h1", "architectures": ["FalconH1ForCausalLM"]},
    ],
)
def test_kinds_of_models_that_are_refused_by_name(config: dict[str, Any]) -> None:
    with pytest.raises(UnsizedModel):
        shape_from_config(config, name="m", file="config.json")
