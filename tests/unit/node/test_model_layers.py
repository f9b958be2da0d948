"""Traps of config.json: what each layer keeps and holds. Expected numbers are arithmetic by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from autotune.errors import InvalidFile
from autotune.node.model_shape import UnsizedModel, shape_from_config
from autotune.records import AttentionKind, ModelShape

PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
}


def read(changes: Mapping[str, Any] | None = None, **more: Any) -> ModelShape:
    return shape_from_config({**PLAIN, **(changes or {}), **more}, name="m", file="config.json")


def windows(shape: ModelShape) -> list[int | None]:
    return [layer.attention.window for layer in shape.decoder]


def kinds(shape: ModelShape) -> str:
    return "".join(layer.attention.kind.value[0] for layer in shape.decoder)


def test_a_plain_decoder_needs_no_list_of_layers() -> None:
    shape = read()
    assert shape.decoder == ()
    assert shape.kv_bytes_per_token == 4 * 2 * 4 * 64 * 2
    assert shape.doubt is None


def test_explicit_head_dim_wins_over_hidden_by_heads() -> None:
    assert read(head_dim=128).kv_bytes_per_token == 4 * 2 * 4 * 128 * 2


def test_missing_kv_heads_mean_one_for_each_head() -> None:
    config = {key: value for key, value in PLAIN.items() if key != "num_key_value_heads"}
    assert shape_from_config(config, name="m", file="f").kv_heads == 16


@pytest.mark.parametrize(
    ("extra", "kv_heads"),
    [
        ({"multi_query": True, "new_decoder_architecture": False}, 1),
        ({"multi_query": False, "new_decoder_architecture": False}, 16),
        ({"multi_query": True, "new_decoder_architecture": True, "n_head_kv": 8}, 8),
        ({"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 2}, 2),
    ],
)
def test_falcon_names_its_kv_heads_in_three_ways(extra: dict[str, Any], kv_heads: int) -> None:
    config = {
        "architectures": ["FalconForCausalLM"],
        "model_type": "falcon",
        "n_layer": 4,
        "hidden_size": 1024,
        "n_head": 16,
        "vocab_size": 32000,
        **extra,
    }
    assert shape_from_config(config, name="m", file="f").kv_heads == kv_heads


def test_a_nested_text_config_brings_the_defaults_of_its_class() -> None:
    """Gemma 3 leaves out what equals its class: 8 heads, 4 KV heads, a head of 256, a vocabulary of 262,208."""
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
    }
    shape = shape_from_config(config, name="m", file="f")
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.vocab_size) == (8, 4, 256, 262208)
    assert shape.tie_word_embeddings
    assert windows(shape)[:7] == [1024] * 5 + [None, 1024]
    assert shape.architecture == "Gemma3ForConditionalGeneration"


def test_a_whole_config_brings_no_defaults_for_its_sizes() -> None:
    config = {key: value for key, value in PLAIN.items() if key != "hidden_size"}
    with pytest.raises(InvalidFile, match="hidden_size"):
        shape_from_config(config, name="m", file="f")


@pytest.mark.parametrize("key", ["llm_config", "language_config"])
def test_other_names_of_a_nested_text_model(key: str) -> None:
    shape = shape_from_config({"architectures": ["InternVLChatModel"], key: PLAIN}, name="m", file="f")
    assert shape.parameters == read().parameters


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 512}, "sfsf"),
        ({"sliding_window": 512}, "ssss"),
        ({"sliding_window": 512, "sliding_window_pattern": 2}, "sfsf"),
        ({"sliding_window": 512, "sliding_window_pattern": "LLG"}, "ssff"),
        ({"model_type": "gemma2", "sliding_window": 512}, "sfsf"),
        ({"model_type": "cohere2", "sliding_window": 512}, "sssf"),
        ({"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2}, "sfsf"),
        ({"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": True, "max_window_layers": 3}, "fffs"),
    ],
)
def test_which_layers_have_a_window(extra: dict[str, Any], expected: str) -> None:
    assert kinds(read(extra)) == expected


@pytest.mark.parametrize(
    "extra",
    [
        {"sliding_window": None},
        {"sliding_window": 0},
        {"sliding_window": 8192},
        {"model_type": "mistral", "sliding_window": 262144},
        {"model_type": "qwen2", "sliding_window": 512},
        {"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": False},
        {"model_type": "qwen3", "sliding_window": 512, "max_window_layers": 2},
        {"layer_types": ["full_attention"] * 4, "sliding_window": 512},
    ],
)
def test_windows_that_are_none(extra: dict[str, Any]) -> None:
    assert read(extra).kv_bytes_per_token == read(extra, sliding_window=None).kv_bytes_per_token
    assert set(kinds(read(extra))) <= {"f"}


def test_llama_4_has_chunks_in_three_of_four_layers_and_experts_in_every_second() -> None:
    shape = read(
        model_type="llama4_text",
        num_local_experts=4,
        num_experts_per_tok=1,
        interleave_moe_layer_step=2,
        intermediate_size_mlp=4096,
        attention_chunk_size=1024,
        no_rope_layers=[],
    )
    assert windows(shape) == [1024, 1024, 1024, None]
    assert [layer.expert_bytes > 0 for layer in shape.decoder] == [False, True, False, True]
    assert shape.decoder[1].expert_bytes == 2 * 4 * 3 * 1024 * 2048
    assert shape.intermediate_size == 4096


@pytest.mark.parametrize(
    ("extra", "moe_layers"),
    [
        ({}, [0, 1, 2, 3]),
        ({"decoder_sparse_step": 2}, [1, 3]),
        ({"mlp_only_layers": [0, 3]}, [1, 2]),
        ({"first_k_dense_replace": 3}, [3]),
        ({"moe_layer_freq": 2}, [0, 2]),
        ({"moe_layer_freq": [0, 0, 1, 1]}, [2, 3]),
        ({"mlp_layer_types": ["dense", "sparse", "dense", "sparse"]}, [1, 3]),
        ({"moe_layers": [2]}, [2]),
        ({"expert_layer_period": 2, "expert_layer_offset": 1}, [1, 3]),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 2}, [1, 2]),
    ],
)
def test_which_layers_have_experts(extra: dict[str, Any], moe_layers: list[int]) -> None:
    shape = read(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=512, **extra)
    assert [i for i, layer in enumerate(shape.decoder) if layer.expert_bytes] == moe_layers
    assert shape.experts is not None
    assert (shape.experts.count, shape.experts.per_token, shape.experts.intermediate_size) == (8, 2, 512)
    # Six of eight experts, three matrices of 1024 x 512 each, rest in every MoE layer.
    assert shape.active_parameters == shape.parameters - len(moe_layers) * 6 * 3 * 1024 * 512


@pytest.mark.parametrize("count", [0, 1])
def test_one_expert_is_no_mixture(count: int) -> None:
    shape = read(num_local_experts=count, num_experts_per_tok=1)
    assert shape.experts is None
    assert shape.active_parameters is None
    assert shape.decoder == ()


def test_shared_experts_are_split_and_routed_ones_dealt_out() -> None:
    shape = read(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=512, n_shared_experts=2)
    plain = read(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=512)
    assert shape.decoder[0].split_bytes - plain.decoder[0].split_bytes == 2 * 3 * 1024 * (2 * 512)
    assert shape.decoder[0].expert_bytes == plain.decoder[0].expert_bytes
    assert shape.decoder[0].replicated_bytes == 2 * (2 * 1024 + 8 * 1024), "two norms and the router"


def test_latent_attention_caches_one_vector_for_all_heads() -> None:
    shape = read(
        model_type="deepseek_v2",
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        num_key_value_heads=16,
    )
    attention = shape.decoder[0].attention
    assert (attention.kind, attention.kv_heads, attention.head_dim) == (AttentionKind.LATENT, 1, 576)
    assert shape.kv_bytes_per_token == 4 * 576 * 2
    # The down projection and three norms are on every GPU of a TP group.
    assert shape.decoder[0].replicated_bytes == 2 * (576 * 1024 + 512 + 2 * 1024)
    # q, kv_b, o, MLP, and the second copy of kv_b that vLLM makes for decoding.
    kv_b = 16 * 256 * 512
    split = 16 * 192 * 1024 + kv_b + 16 * 128 * 1024 + 3 * 1024 * 2048
    assert shape.decoder[0].split_bytes == 2 * (split + kv_b)
    assert shape.decoder[0].parameters == split + 576 * 1024 + 512 + 2 * 1024


def test_latent_weights_of_a_model_whose_cache_vllm_does_not_compress() -> None:
    shape = read(
        model_type="minicpm3",
        architectures=["MiniCPM3ForCausalLM"],
        kv_lora_rank=256,
        q_lora_rank=768,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
    )
    assert shape.kv_bytes_per_token == 4 * 2 * 16 * 96 * 2
    assert shape.doubt is not None


def test_latent_attention_without_its_sizes_is_a_broken_file() -> None:
    with pytest.raises(InvalidFile, match="qk_nope_head_dim"):
        read(model_type="deepseek_v3", kv_lora_rank=512)


DELTA_NET = {
    "model_type": "qwen3_next",
    "head_dim": 128,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"full_attention_interval": 4},
        {"layer_types": ["linear_attention"] * 3 + ["full_attention"]},
    ],
)
def test_gated_delta_net_layers_keep_a_state(extra: dict[str, Any]) -> None:
    shape = read({**DELTA_NET, **extra})
    assert kinds(shape) == "sssf"
    assert [layer.attention.kind for layer in shape.decoder[:3]] == [AttentionKind.STATE] * 3
    # Conv: (2 x 4 x 64 + 8 x 64) x 3 numbers; recurrent: 8 heads of 64 x 64; both in 16 bit.
    assert shape.decoder[0].attention.state_bytes == 2 * ((512 + 512) * 3 + 8 * 64 * 64)
    assert shape.kv_bytes_per_token == 2 * 4 * 128 * 2


def test_the_state_is_in_32_bit_where_the_config_says_so() -> None:
    shape = read({**DELTA_NET, "mamba_ssm_dtype": "float32"})
    assert shape.decoder[0].attention.state_bytes == 2 * (512 + 512) * 3 + 4 * 8 * 64 * 64


@pytest.mark.parametrize(
    "extra",
    [
        {"model_type": "bamba", "attn_layer_indices": [1]},
        {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention", "mamba", "mamba"]},
        {"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 1},
        {"model_type": "lfm2", "full_attn_idxs": [1]},
        {"model_type": "minimax_text_01", "attn_type_list": [0, 1, 0, 0]},
        {"model_type": "nemotron_h", "hybrid_override_pattern": "M*-M"},
    ],
)
def test_hybrids_name_their_attention_layers_in_many_ways(extra: dict[str, Any]) -> None:
    shape = read(extra, mamba_n_heads=16, mamba_d_head=128, mamba_d_state=16)
    assert [i for i, layer in enumerate(shape.decoder) if layer.attention.kind is AttentionKind.FULL] == [1]
    assert shape.decoder[0].attention.state_bytes > 0
    assert shape.kv_bytes_per_token == 2 * 4 * 64 * 2


def test_mamba_2_state() -> None:
    """8 heads of 64, state 16, 2 groups, convolution over 4."""
    shape = read(
        model_type="bamba",
        attn_layer_indices=[3],
        mamba_n_heads=8,
        mamba_d_head=64,
        mamba_d_state=16,
        mamba_n_groups=2,
        mamba_d_conv=4,
    )
    assert shape.decoder[0].attention.state_bytes == 2 * ((512 + 2 * 2 * 16) * 3 + 8 * 64 * 16)


def test_gemma_4_has_other_kv_heads_in_its_full_layers() -> None:
    shape = read(
        model_type="gemma4_text",
        head_dim=64,
        global_head_dim=128,
        num_global_key_value_heads=2,
        sliding_window=512,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
    )
    found = [(layer.attention.kv_heads, layer.attention.head_dim) for layer in shape.decoder]
    assert found == [(4, 64)] * 3 + [(2, 128)]


@pytest.mark.parametrize(
    "extra",
    [
        {"num_key_value_heads": [4, 4, 4, 4]},
        {"intermediate_size": [2048] * 4, "num_experts_per_tok": [1, 1]},
    ],
)
def test_a_list_of_one_and_the_same_size_is_that_size(extra: dict[str, Any]) -> None:
    assert read(extra).parameters == read().parameters


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"num_key_value_heads": [4, 4, 2, 2]}, "layers of different sizes"),
        ({"model_type": "gemma3n_text"}, "embeddings of its own"),
        ({"linear_attn_config": {"kda_layers": [1]}}, "delta attention"),
        ({"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta"}, "not known to generate text"),
    ],
)
def test_what_cannot_be_sized_says_why(extra: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsizedModel) as caught:
        read(extra)
    assert says in str(caught.value)


def test_an_unknown_architecture_is_sized_with_a_doubt_and_refused_where_keys_are_missing() -> None:
    unknown: dict[str, Any] = {"architectures": ["NovaForCausalLM"], "model_type": "nova"}
    shape = read(unknown)
    assert shape.parameters == read().parameters
    assert shape.doubt is not None
    assert "'nova' is not known" in shape.doubt
    with pytest.raises(UnsizedModel, match="not known here, and its config has no num_hidden_layers"):
        shape_from_config({**unknown, "depth": 3}, name="m", file="f")


def test_towers_are_counted_beside_the_decoder() -> None:
    tower = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2, "patch_size": 14}
    shape = read(vision_config=tower)
    # Two layers of 4 h^2 + 2 h i + 9 h + i, the patches, and a projector h -> 1024 -> 1024.
    expected = 2 * (4 * 256**2 + 2 * 256 * 1024 + 9 * 256 + 1024) + 3 * 14 * 14 * 256 + 256 * 1024 + 1024 * 1024
    assert shape.other_bytes == 2 * expected
    assert shape.weight_bytes == read().weight_bytes + 2 * expected
    assert shape.doubt is not None


@pytest.mark.parametrize(
    ("extra", "key"),
    [
        ({"num_hidden_layers": 1025}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers"),
        ({"hidden_size": float("nan")}, "hidden_size"),
        ({"vocab_size": float("inf")}, "vocab_size"),
        ({"num_attention_heads": True}, "num_attention_heads"),
        ({"head_dim": "128"}, "head_dim"),
        ({"num_attention_heads": 2048, "num_key_value_heads": 2048}, "hidden_size"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"layer_types": ["telepathy"] * 4}, "layer_types"),
        ({"num_experts": 1 << 30, "num_experts_per_tok": 2}, "num_experts"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"sliding_window": 512, "sliding_window_pattern": 0}, "sliding_window_pattern"),
        ({"sliding_window": 512, "sliding_window_pattern": "LQ"}, "sliding_window_pattern"),
        ({"sliding_window": -5}, "sliding_window"),
        ({"hybrid_override_pattern": "M?M*"}, "hybrid_override_pattern"),
        ({"architectures": [7]}, "architectures"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"vision_config": {"depth": -3}}, "vision_config.depth"),
        ({"dtype": ["bfloat16"]}, "dtype"),
    ],
)
def test_contradictions_and_hostile_values_are_broken_files(extra: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        read(extra)
    assert not isinstance(caught.value, UnsizedModel)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("stored", "loaded"),
    [("float32", "bfloat16"), ("torch.float16", "float16"), ("half", "float16"), ("float8_e4m3fn", "bfloat16")],
)
def test_the_dtype_that_auto_means(stored: str, loaded: str) -> None:
    assert read(torch_dtype=stored).dtype == loaded
