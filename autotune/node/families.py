"""What sets one family of decoders apart from the Llama arithmetic, and what its configs leave unsaid.

Sources: the modelling code of vLLM 0.32 (`model_executor/models/*.py`) for matrices, biases and norms; the
configuration classes of transformers 5.19 for what is assumed when a config leaves a key out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family; the defaults are Llama's.

    Attributes:
        name: transformers' `model_type`.
        qkv_bias, o_bias, mlp_bias: always (True), never (False), or the config key that says so.
        qk_norm: `head` (one norm of a head's size each for Q and K), `full` (over all heads), "" for none.
        qk_norm_key: config key that turns the norm on; None when it is always there.
        norms: norms of the hidden size in one layer.
        norm_values: 1 for a scale, 2 for scale and shift, 0 for none.
        gated: the MLP has a gate beside the up projection.
        full_every: with a sliding window, layer i is full when (i + 1) is a multiple of it; None: all slide.
        window_needs_flag: the window only counts when `use_sliding_window` is true.
        learned_positions: rows of the position table beyond max_position_embeddings; None when there is no table.
        head_bias: the output head has a bias: always, never, or the key that says so.
        sinks: one number per head that attention may flow into (gpt-oss).
        expert_bias: experts and router have biases.
        latent_cache: vLLM caches the latent of MLA; other models with MLA weights cache every head's K and V.
        moe_block: what the checkpoint calls the block that holds the experts.
        known: False for the stand-in of an architecture that is not in the table.
    """

    name: str
    qkv_bias: bool | str = "attention_bias"
    o_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = "mlp_bias"
    qk_norm: str = ""
    qk_norm_key: str | None = None
    norms: int = 2
    norm_values: int = 1
    gated: bool = True
    full_every: int | None = None
    window_needs_flag: bool = False
    learned_positions: int | None = None
    embedding_norm: bool = False
    head_bias: bool | str = False
    sinks: bool = False
    expert_bias: bool = False
    router_correction: bool = False
    latent_cache: bool = False
    moe_block: str = "mlp"
    known: bool = True


_LLAMA = Family(name="llama")
_QWEN2 = Family(name="qwen2", qkv_bias=True, o_bias=False, window_needs_flag=True)
_QWEN3 = Family(name="qwen3", qk_norm="head", window_needs_flag=True)
_QWEN3_NEXT = Family(name="qwen3_next", qk_norm="head")
_GEMMA2 = Family(name="gemma2", norms=4, full_every=2)
_GEMMA3 = Family(name="gemma3_text", norms=4, full_every=6, qk_norm="head")
_DEEPSEEK = Family(name="deepseek_v2", latent_cache=True)
_PLAIN_BIAS = Family(name="gpt_neox", qkv_bias=True, o_bias=True, mlp_bias=True, norm_values=2, gated=False)

_TABLE = (
    _LLAMA,
    *(replace(_LLAMA, name=name) for name in ("mistral", "ministral", "ministral3", "phi3", "granite", "smollm3")),
    replace(_LLAMA, name="gemma"),
    replace(_LLAMA, name="mixtral", moe_block="block_sparse_moe"),
    replace(_LLAMA, name="granitemoe", moe_block="block_sparse_moe"),
    replace(_LLAMA, name="granitemoeshared", moe_block="block_sparse_moe"),
    replace(_LLAMA, name="granitemoehybrid", moe_block="block_sparse_moe"),
    Family(name="phimoe", norm_values=2, head_bias="lm_head_bias", moe_block="block_sparse_moe"),
    Family(name="llama4_text", moe_block="feed_forward"),
    _QWEN2,
    replace(_QWEN2, name="qwen2_moe"),
    _QWEN3,
    replace(_QWEN3, name="qwen3_moe"),
    _QWEN3_NEXT,
    replace(_QWEN3_NEXT, name="qwen3_5_text"),
    replace(_QWEN3_NEXT, name="qwen3_5_moe_text"),
    _GEMMA2,
    _GEMMA3,
    replace(_GEMMA3, name="gemma4_text"),
    _DEEPSEEK,
    replace(_DEEPSEEK, name="deepseek_v3", router_correction=True),
    replace(_DEEPSEEK, name="deepseek_v32", router_correction=True),
    replace(_DEEPSEEK, name="glm_moe_dsa", router_correction=True),
    replace(_DEEPSEEK, name="glm4_moe_lite", router_correction=True),
    replace(_DEEPSEEK, name="mistral4"),
    Family(name="glm", o_bias=False),
    Family(name="glm4", o_bias=False, norms=4),
    Family(name="glm4_moe", o_bias=False, qk_norm="head", qk_norm_key="use_qk_norm", router_correction=True),
    Family(
        name="gpt_oss", full_every=2, sinks=True, expert_bias=True, qkv_bias=True, o_bias=True, window_needs_flag=False
    ),
    Family(name="minimax_m2", qk_norm="full", router_correction=True, moe_block="block_sparse_moe"),
    Family(name="minimax_text_01", moe_block="block_sparse_moe"),
    Family(name="hunyuan_v1_moe", qk_norm="head", qk_norm_key="use_qk_norm"),
    Family(name="hunyuan_v1_dense", qk_norm="head", qk_norm_key="use_qk_norm"),
    Family(name="olmo", norm_values=0),
    Family(name="olmo2", qk_norm="full"),
    Family(name="olmo3", qk_norm="full", full_every=4),
    Family(name="olmoe", qk_norm="full"),
    Family(name="exaone4", qk_norm="head", full_every=4),
    Family(name="seed_oss", o_bias="attention_out_bias"),
    Family(name="ernie4_5", qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias"),
    Family(name="ernie4_5_moe", qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", router_correction=True),
    Family(name="cohere", norms=1, qk_norm="full", qk_norm_key="use_qk_norm"),
    Family(name="cohere2", norms=1, full_every=4),
    Family(name="stablelm", norm_values=2, qkv_bias="use_qkv_bias", o_bias=False),
    Family(name="starcoder2", norm_values=2, gated=False, qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias"),
    Family(name="nemotron", norm_values=2, gated=False),
    Family(name="apertus", gated=False, qk_norm="head"),
    Family(name="arcee", gated=False),
    Family(name="phi", qkv_bias=True, o_bias=True, mlp_bias=True, gated=False, norms=1, norm_values=2, head_bias=True),
    _PLAIN_BIAS,
    replace(_PLAIN_BIAS, name="gpt2", learned_positions=0),
    replace(_PLAIN_BIAS, name="gpt_bigcode", learned_positions=0),
    replace(_PLAIN_BIAS, name="bloom", embedding_norm=True),
    replace(_PLAIN_BIAS, name="gptj", qkv_bias=False, o_bias=False, norms=1, head_bias=True),
    replace(_PLAIN_BIAS, name="opt", learned_positions=2, qkv_bias="enable_bias", o_bias="enable_bias"),
    replace(_PLAIN_BIAS, name="falcon", qkv_bias="bias", o_bias="bias", mlp_bias="bias"),
    Family(name="dbrx"),
    Family(name="chatglm", qkv_bias="add_qkv_bias", o_bias=False),
    replace(_QWEN2, name="qwen"),
    Family(name="mpt", gated=False, norm_values=1),
    Family(name="jamba", moe_block="feed_forward"),
    Family(name="bamba", moe_block="feed_forward"),
    Family(name="nemotron_h", gated=False, norms=1, router_correction=True),
    Family(name="lfm2", qk_norm="head", moe_block="feed_forward"),
    Family(name="lfm2_moe", qk_norm="head", moe_block="feed_forward"),
)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _TABLE}

# Other names of the same decoder: wrappers, older spellings, and kinds that differ in nothing that is counted here.
_SAME_AS = {
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "glm4v_text": "glm4",
    "glm4v_moe_text": "glm4_moe",
    "kimi_k2": "deepseek_v3",
    "axk1": "deepseek_v3",
    "pangu_ultra_moe": "deepseek_v3",
    "minimax": "minimax_text_01",
    "deepseek": "llama",
    "refinedweb": "falcon",
    "refinedwebmodel": "falcon",
    "internlm2": "llama",
    "internlm3": "llama",
    "baichuan": "llama",
    "exaone": "llama",
    "minicpm": "llama",
    "solar": "llama",
    "cwm": "llama",
    "yi": "llama",
    "aquila": "llama",
}


def family_of(model_type: str | None, architectures: tuple[str, ...]) -> Family:
    """The family by `model_type`, else by the architecture's name; an unknown one is read as Llama, `known` False."""
    names = [model_type.lower()] if model_type else []
    names += [_type_of_architecture(name) for name in architectures]
    for name in names:
        found = FAMILIES.get(_SAME_AS.get(name, name))
        if found is not None:
            return found
    return replace(_LLAMA, name=names[0] if names else "", known=False)


def _type_of_architecture(architecture: str) -> str:
    """`Qwen3MoeForCausalLM` -> `qwen3_moe`: the table's name whose letters and digits are the same."""
    stem = architecture.removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration").removesuffix("LMHeadModel")
    letters = stem.lower()
    for name in (*FAMILIES, *_SAME_AS):
        if name.replace("_", "") == letters or name.replace("_", "") == f"{letters}text":
            return name
    return letters


# What the class assumes for a key that the config leaves out, whether nested or not.
ASSUMED: Mapping[str, Mapping[str, Any]] = {
    "gemma": {"head_dim": 256, "tie_word_embeddings": True},
    "gemma2": {"head_dim": 256, "tie_word_embeddings": True, "sliding_window": 4096},
    "gemma3_text": {
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    "gemma4_text": {
        "head_dim": 256,
        "global_head_dim": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "vocab_size": 262144,
        "max_position_embeddings": 131072,
        "sliding_window": 512,
        "tie_word_embeddings": True,
    },
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {"tie_word_embeddings": True, "sliding_window": 4096, "head_dim": 128},
    "smollm3": {"tie_word_embeddings": True},
    "starcoder2": {"tie_word_embeddings": True, "use_bias": True},
    "mpt": {"tie_word_embeddings": True},
    "nemotron_h": {"mamba_ssm_dtype": "float32"},
    "gpt2": {"tie_word_embeddings": True, "max_position_embeddings": 1024},
    "gpt_bigcode": {"tie_word_embeddings": True, "multi_query": True, "max_position_embeddings": 1024},
    "bloom": {"tie_word_embeddings": True, "max_position_embeddings": 2048},
    "opt": {"tie_word_embeddings": True, "enable_bias": True},
    "falcon": {
        "tie_word_embeddings": True,
        "multi_query": True,
        "parallel_attn": True,
        "max_position_embeddings": 2048,
    },
    "lfm2": {"tie_word_embeddings": True, "conv_l_cache": 3, "block_auto_adjust_ff_dim": True},
    "lfm2_moe": {"tie_word_embeddings": True, "conv_l_cache": 3},
    "ernie4_5": {"tie_word_embeddings": True},
    "ernie4_5_moe": {"tie_word_embeddings": True},
    "glm": {"head_dim": 128, "attention_bias": True},
    "glm4": {"head_dim": 128, "attention_bias": True},
    "gpt_oss": {"head_dim": 64, "sliding_window": 128, "max_position_embeddings": 131072},
    "llama4_text": {"attention_chunk_size": 8192, "interleave_moe_layer_step": 1},
    "qwen2_moe": {"decoder_sparse_step": 1},
    "qwen3": {"head_dim": 128},
    "qwen3_moe": {"decoder_sparse_step": 1},
    "qwen3_next": {"full_attention_interval": 4, "head_dim": 256, "attn_output_gate": True},
    "qwen3_5_text": {"full_attention_interval": 4, "head_dim": 256, "attn_output_gate": True},
    "qwen3_5_moe_text": {"full_attention_interval": 4, "head_dim": 256, "attn_output_gate": True},
    "bamba": {"attn_layer_indices": []},
    "deepseek_v3": {"first_k_dense_replace": 3},
    "deepseek_v32": {"first_k_dense_replace": 3},
    "glm_moe_dsa": {"first_k_dense_replace": 3},
    "glm4_moe_lite": {"first_k_dense_replace": 1},
    "glm4_moe": {"first_k_dense_replace": 1},
    "seed_oss": {"attention_bias": True, "attention_out_bias": False},
    "exaone4": {"sliding_window_pattern": 4},
    "jamba": {
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "max_position_embeddings": 262144,
    },
}

# transformers writes into a nested text_config only what differs from the class; a whole config.json always names
# its sizes, and one that does not is broken.
ASSUMED_WHEN_NESTED: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    "mistral": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    "qwen2": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
    },
    "gemma2": {
        "vocab_size": 256000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
    },
    "gemma": {
        "vocab_size": 256000,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 8192,
    },
    "gemma3_text": {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26},
    "llama4_text": {
        "vocab_size": 202048,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_experts": 16,
        "num_experts_per_tok": 1,
        "max_position_embeddings": 131072,
    },
}
