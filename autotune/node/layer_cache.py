"""What a decoder layer keeps of a sequence: K and V, a latent, or a state of fixed size. Pure."""

from __future__ import annotations

from autotune.node.config_json import DecoderConfig
from autotune.node.layer_kinds import LayerKind, Mixer
from autotune.node.layers import BYTES_16BIT
from autotune.records import AttentionKind, LayerAttention


def attention_size(config: DecoderConfig, kind: LayerKind) -> tuple[int, int]:
    """KV heads and head size of a layer with attention; Gemma 4's full layers have their own."""
    if kind.mixer is Mixer.FULL and config.global_head_dim:
        return config.num_global_key_value_heads or config.kv_heads, config.global_head_dim
    return config.kv_heads, config.head_dim or config.hidden_size // config.num_attention_heads


def layer_attention(config: DecoderConfig, kind: LayerKind) -> LayerAttention:
    """What a layer of this kind keeps of a sequence."""
    if kind.mixer is Mixer.LATENT:
        size = (config.kv_lora_rank or 0) + (config.qk_rope_head_dim or 0)
        if config.index_n_heads and config.index_head_dim:
            size += (config.index_head_dim + 4) // 2  # the indexer's key in fp8 with a scale, counted in 16-bit numbers
        return LayerAttention(kind=AttentionKind.LATENT, kv_heads=1, head_dim=size)
    if kind.mixer is Mixer.EXPANDED:
        # V is padded to the size of K (vLLM's minicpm3.py)
        heads, size = config.num_attention_heads, config.qk_head_dim
        return LayerAttention(kind=AttentionKind.FULL, kv_heads=heads, head_dim=size)
    if kind.mixer in (Mixer.FULL, Mixer.SLIDING, Mixer.CHUNKED):
        kv_heads, head_dim = attention_size(config, kind)
        # Where V is smaller than K, the pair takes what two heads of the mean size take.
        mean = (head_dim + (config.v_head_dim or head_dim)) // 2
        is_full = kind.mixer is Mixer.FULL
        return LayerAttention(
            kind=AttentionKind.FULL if is_full else AttentionKind.SLIDING,
            kv_heads=kv_heads,
            head_dim=mean,
            window=None if is_full else kind.window,
        )
    return LayerAttention(kind=AttentionKind.STATE, kv_heads=0, head_dim=0, state_bytes=state_bytes(config, kind.mixer))


def state_bytes(config: DecoderConfig, mixer: Mixer) -> int:
    """State of one sequence in one layer, whole layer (vLLM 0.32 `layers/mamba/mamba_utils.py`).

    The recurrent part is in the model's 16 bit unless the config names `mamba_ssm_dtype`; lightning attention keeps
    32 bit.
    """
    wide = 4 if (config.mamba_ssm_dtype or "").endswith("float32") else BYTES_16BIT
    if mixer is Mixer.DELTA_NET:
        keys = (config.linear_num_key_heads or 0) * (config.linear_key_head_dim or 0)
        values = (config.linear_num_value_heads or 0) * (config.linear_value_head_dim or 0)
        tail = (config.linear_conv_kernel_dim or 4) - 1
        return (2 * keys + values) * tail * BYTES_16BIT + values * (config.linear_key_head_dim or 0) * wide
    if mixer in (Mixer.MAMBA, Mixer.MAMBA2):
        width, state = mamba_width(config), config.mamba_d_state or (16 if mixer is Mixer.MAMBA else 128)
        groups = 2 * (config.mamba_n_groups or 1) * state if mixer is Mixer.MAMBA2 else 0
        return (width + groups) * ((config.mamba_d_conv or 4) - 1) * BYTES_16BIT + width * state * wide
    if mixer is Mixer.LIGHTNING:
        return config.num_attention_heads * config.qk_head_dim**2 * 4
    if mixer is Mixer.SHORT_CONV:
        return config.hidden_size * ((config.conv_l_cache or 3) - 1) * BYTES_16BIT
    return 0


def mamba_width(config: DecoderConfig) -> int:
    """Inner size of a Mamba layer."""
    if config.mamba_n_heads and config.mamba_d_head:
        return config.mamba_n_heads * config.mamba_d_head
    return (config.mamba_expand or 2) * config.hidden_size
