"""What keeps a config.json from being sized, and what is unsure about a size. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.node.config_json import DecoderConfig, text_part, unsized
from autotune.node.families import Family
from autotune.node.layer_kinds import LayerKind, Mixer
from autotune.node.quantized import Quantization

# Keys whose presence (with a truthy value) gives a model no reading as a plain stack of decoder layers, and why.
_NO_READING = (
    ("is_encoder_decoder", "an encoder beside its decoder"),
    ("num_kv_shared_layers", "layers that share the cache of others"),
    ("altup_num_inputs", "embeddings of its own in every layer"),
    ("linear_attn_config", "delta attention of Kimi's kind"),
    ("ssm_cfg", "no attention at all"),
    ("rwkv_version", "no attention at all"),
    ("mamba_enabled", "memory layers of a kind that is not known here"),
)
_GENERATING = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "ChatModel")
_UNREAD_TYPES = {
    "mamba": "no attention at all",
    "mamba2": "no attention at all",
    "falcon_mamba": "no attention at all",
    "rwkv": "no attention at all",
    "falcon_h1": "attention and a state side by side in each layer",
    "zamba": "attention shared between layers",
    "zamba2": "attention shared between layers",
    "recurrent_gemma": "recurrent layers",
    "longcat_flash": "two attentions in each layer",
    "kimi_linear": "delta attention of Kimi's kind",
    "gemma3n": "embeddings of its own in every layer",
    "gemma3n_text": "embeddings of its own in every layer",
    "t5": "an encoder beside its decoder",
    "bert": "an encoder and no decoder",
    "whisper": "an encoder beside its decoder",
    "deci": "layers of different sizes",
    "nemotron-nas": "layers of different sizes",
    "mllama": "layers that attend to images only",
}


def refuse_unread(config: Mapping[str, Any], file: str) -> None:
    """Raises UnsizedModel for a kind of model that has no reading as a plain stack of decoder layers."""
    inner = text_part(config)[0]
    kinds = (config.get("model_type"), inner.get("model_type"))
    for kind in kinds:
        if isinstance(kind, str) and kind in _UNREAD_TYPES:
            raise unsized(file, "model_type", kind, _UNREAD_TYPES[kind])
    for key, what in _NO_READING:
        if inner.get(key):
            raise unsized(file, key, inner[key], what)


def refuse_without_generation(config: Mapping[str, Any], family: Family, file: str) -> None:
    """Raises UnsizedModel for an unknown architecture that does not call itself a generating one, e.g. an encoder."""
    names = text_part(config)[0].get("architectures") or config.get("architectures")
    if family.known or not isinstance(names, list) or not names:
        return
    if any(isinstance(name, str) and name.endswith(_GENERATING) for name in names):
        return
    raise unsized(file, "architectures", names, "an architecture that is not known to generate text")


def doubt_of(
    decoder: DecoderConfig,
    family: Family,
    kinds: tuple[LayerKind, ...],
    quantization: Quantization | None,
    tower_parameters: int,
) -> str | None:
    """What is not sure about the size, for people; None when nothing is."""
    doubts = []
    if not family.known:
        what = f"the architecture {family.name!r} is not known here" if family.name else "it names no architecture"
        doubts.append(f"{what}; it is read as a decoder of Llama's kind")
    if decoder.index_head_dim:
        doubts.append("its sparse attention is counted with the plain latent cache and the indexer's keys")
    if any(kind.mixer in (Mixer.LIGHTNING, Mixer.SHORT_CONV, Mixer.MAMBA, Mixer.MAMBA2) for kind in kinds):
        doubts.append("the state of its layers is computed, not checked against a recorded start")
    if quantization is not None and quantization.doubt:
        doubts.append(quantization.doubt)
    if tower_parameters:
        doubts.append("the size of its vision or audio tower is an estimate")
    return "; ".join(doubts) or None
