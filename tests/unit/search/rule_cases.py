"""Shapes made by hand, so that what rules and layouts say can be checked by arithmetic."""

from __future__ import annotations

from dataclasses import replace

from autotune.node.model_shape import load_shape
from autotune.records import (
    AttentionKind,
    Config,
    Experts,
    LayerAttention,
    LayerShape,
    Link,
    ModelShape,
    Node,
    Value,
)

NO_CACHE = {"HF_HUB_CACHE": "/nonexistent"}
LLAMA_8B = load_shape("Llama-3.1-8B", env=NO_CACHE)
LLAMA_70B = load_shape("Llama-3.1-70B", env=NO_CACHE)
QWEN_7B = load_shape("Qwen2.5-7B", env=NO_CACHE)
CPU = Node(name="cpu", gpus=(), link=Link.NONE, simulated=False)

FP8_405B = replace(
    LLAMA_70B,
    name="405B-FP8",
    layers=126,
    hidden_size=16_384,
    intermediate_size=53_248,
    heads=128,
    quantization="fp8",
    weight_bits=8,
    parameters=405_853_388_800,
    weight_bytes=405_853_388_800 + 2 * 128_256 * 16_384,
)
"""Llama 3.1 405B with one byte for each parameter, two for those of embedding and head."""

AWQ_70B = replace(LLAMA_70B, name="70B-AWQ", quantization="awq", weight_bits=4, weight_bytes=39_770_000_000)
"""The size of the files of a 4-bit checkpoint of Llama 70B with groups of 128: 37 GiB."""


def config(**flags: Value) -> Config:
    return Config.of({name.replace("_", "-"): value for name, value in flags.items()})


def mixture(
    name: str,
    layers: int,
    attention: LayerAttention,
    experts: Experts,
    *,
    hidden: int,
    heads: int,
    expert_bytes: int,
    attention_bytes: int,
    vocab: int = 32_000,
    positions: int = 32_768,
    dense_layers: int = 0,
    quantization: str | None = None,
) -> ModelShape:
    """A mixture of experts whose layers are alike, but for the first `dense_layers`; bytes are of one layer."""
    moe = LayerShape(
        attention=attention,
        split_bytes=attention_bytes,
        replicated_bytes=0,
        expert_bytes=expert_bytes,
        parameters=expert_bytes + attention_bytes,
        active_parameters=attention_bytes + expert_bytes * experts.per_token // experts.count,
    )
    dense = replace(moe, expert_bytes=0)
    decoder = (dense,) * dense_layers + (moe,) * (layers - dense_layers)
    tables = 2 * 2 * vocab * hidden
    return ModelShape(
        name=name,
        layers=layers,
        hidden_size=hidden,
        intermediate_size=experts.intermediate_size,
        heads=heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        vocab_size=vocab,
        max_position_embeddings=positions,
        weight_bytes=sum(x.split_bytes + x.expert_bytes for x in decoder) + tables,
        parameters=layers * (expert_bytes + attention_bytes),
        decoder=decoder,
        experts=experts,
        quantization=quantization,
        weight_bits=8 if quantization else 16,
    )


DEEPSEEK_V3 = mixture(
    "DeepSeek-V3",
    61,
    LayerAttention(kind=AttentionKind.LATENT, kv_heads=1, head_dim=576),
    Experts(count=256, per_token=8, intermediate_size=2048, shared=1),
    hidden=7168,
    heads=128,
    expert_bytes=256 * 3 * 7168 * 2048,
    attention_bytes=187_000_000,
    vocab=129_280,
    positions=163_840,
    dense_layers=3,
    quantization="fp8",
)
"""671B parameters at one byte: 58 layers of 256 experts of 44 M each."""

MIXTRAL_8X7B = mixture(
    "Mixtral-8x7B",
    32,
    LayerAttention(kind=AttentionKind.FULL, kv_heads=8, head_dim=128),
    Experts(count=8, per_token=2, intermediate_size=14_336),
    hidden=4096,
    heads=32,
    expert_bytes=8 * 3 * 4096 * 14_336 * 2,
    attention_bytes=2 * 41_943_040,
)
"""46.7B parameters in 16 bit: 87 GiB."""

QWEN3_30B_A3B = mixture(
    "Qwen3-30B-A3B",
    48,
    LayerAttention(kind=AttentionKind.FULL, kv_heads=4, head_dim=128),
    Experts(count=128, per_token=8, intermediate_size=768),
    hidden=2048,
    heads=32,
    expert_bytes=128 * 3 * 2048 * 768 * 2,
    attention_bytes=2 * 18_874_368,
    vocab=151_936,
    positions=40_960,
)
"""30.5B parameters in 16 bit: 57 GiB."""
