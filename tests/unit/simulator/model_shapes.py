"""Shapes written by hand from public model cards, so that these tests depend on no reader of config.json."""

from __future__ import annotations

from autotune.records import AttentionKind, Experts, LayerAttention, LayerShape, ModelShape


def full(kv_heads: int, head_dim: int) -> LayerAttention:
    return LayerAttention(kind=AttentionKind.FULL, kv_heads=kv_heads, head_dim=head_dim)


def dense_70b(*, quantization: str | None = None, bits: int = 16) -> ModelShape:
    """Llama 3 70B: 80 layers of 8,192; 16-bit tables of 128,256 rows, the rest in `bits`."""
    tables = 2 * 128_256 * 8192
    body = 70_553_706_496 - tables
    return ModelShape(
        name="70B",
        layers=80,
        hidden_size=8192,
        intermediate_size=28672,
        heads=64,
        kv_heads=8,
        head_dim=128,
        vocab_size=128_256,
        max_position_embeddings=131_072,
        weight_bytes=2 * tables + body * bits // 8,
        parameters=tables + body,
        quantization=quantization,
        weight_bits=bits,
    )


def mixtral() -> ModelShape:
    """Mixtral 8x7B in bf16: 32 layers, 8 experts of 14,336, 2 per token."""
    expert = 3 * 4096 * 14336
    attention = 4096 * 4096 * 2 + 2 * 4096 * 1024
    layer = LayerShape(
        attention=full(8, 128),
        split_bytes=2 * attention,
        replicated_bytes=2 * (4096 * 8 + 2 * 4096),
        expert_bytes=8 * 2 * expert,
        parameters=attention + 8 * expert + 4096 * 8 + 2 * 4096,
        active_parameters=attention + 2 * expert + 4096 * 8 + 2 * 4096,
    )
    tables = 2 * 32_000 * 4096
    parameters = 32 * layer.parameters + tables
    return ModelShape(
        name="Mixtral-8x7B",
        layers=32,
        hidden_size=4096,
        intermediate_size=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab_size=32_000,
        max_position_embeddings=32_768,
        weight_bytes=2 * parameters,
        parameters=parameters,
        decoder=(layer,) * 32,
        experts=Experts(count=8, per_token=2, intermediate_size=14336),
        active_parameters=32 * layer.active_parameters + tables,
    )


def deepseek_v3() -> ModelShape:
    """DeepSeek-V3 in fp8: 61 layers, 3 of them dense; 256 experts of 2,048, 8 per token and 1 shared; MLA 512 + 64."""
    hidden = 7168
    expert = 3 * hidden * 2048
    down = hidden * (1536 + 576)
    attention = 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * hidden
    latent = LayerAttention(kind=AttentionKind.LATENT, kv_heads=1, head_dim=576)
    dense = LayerShape(
        attention=latent,
        split_bytes=attention + 3 * hidden * 18432,
        replicated_bytes=down,
        expert_bytes=0,
        parameters=attention + down + 3 * hidden * 18432,
        active_parameters=attention + down + 3 * hidden * 18432,
    )
    routed = LayerShape(
        attention=latent,
        split_bytes=attention + expert,
        replicated_bytes=down,
        expert_bytes=256 * expert,
        parameters=attention + down + 257 * expert,
        active_parameters=attention + down + 9 * expert,
    )
    decoder = (dense,) * 3 + (routed,) * 58
    tables = 2 * 129_280 * hidden
    return ModelShape(
        name="DeepSeek-V3",
        layers=61,
        hidden_size=hidden,
        intermediate_size=18432,
        heads=128,
        kv_heads=128,
        head_dim=192,
        vocab_size=129_280,
        max_position_embeddings=163_840,
        weight_bytes=sum(x.split_bytes + x.replicated_bytes + x.expert_bytes for x in decoder) + 2 * tables,
        parameters=sum(x.parameters for x in decoder) + tables,
        architecture="DeepseekV3ForCausalLM",
        decoder=decoder,
        experts=Experts(count=256, per_token=8, intermediate_size=2048, shared=1),
        active_parameters=sum(x.active_parameters for x in decoder) + tables,
        quantization="fp8",
        weight_bits=8,
    )
