"""The size of what stands beside the decoder: vision and audio towers, projectors. An estimate. Pure.

A tower is counted as a plain transformer encoder of the sizes its config names, with its patch embedding, its
positions and a projector of two layers. That meets the published sizes within about 10 % (SigLIP of Gemma 3: 0.42 B);
towers are 1-3 % of the models they belong to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.errors import InvalidFile

_MOST = 1 << 24
_TOWERS = ("vision_config", "audio_config", "vision_encoder_config", "sam_config")
_WORDS = {
    "layers": ("num_hidden_layers", "depth", "encoder_layers", "layers"),
    "hidden": ("embed_dim", "d_model", "width", "hidden_size"),
    "intermediate": ("intermediate_size", "encoder_ffn_dim"),
    "patch": ("patch_size",),
    "image": ("image_size",),
    "out": ("out_hidden_size", "vision_output_dim", "projection_dim"),
}
# SigLIP-So400m, what Gemma 3 assumes where its vision_config is empty.
_ASSUMED = {"layers": 27, "hidden": 1152, "intermediate": 4304, "patch": 14}


def towers_parameters(config: Mapping[str, Any], text_hidden: int, *, file: str) -> int:
    """Parameters of all towers of a config.json; 0 for a text model.

    Raises:
        InvalidFile: a tower's size is no whole number, or out of all bounds.
    """
    holder = config.get("thinker_config") if isinstance(config.get("thinker_config"), Mapping) else config
    assert isinstance(holder, Mapping)
    total = 0
    for key in _TOWERS:
        tower = holder.get(key)
        if isinstance(tower, Mapping) and tower:
            total += _one(tower, text_hidden, file, key)
    return total


def _one(tower: Mapping[str, Any], text_hidden: int, file: str, key: str) -> int:
    layers = _size(tower, "layers", file, key)
    hidden = _size(tower, "hidden", file, key)
    assert layers is not None and hidden is not None  # noqa: PT018 - both have an assumed value
    ratio = tower.get("mlp_ratio")
    by_ratio = round(ratio * hidden) if isinstance(ratio, (int, float)) and 0 < ratio < 100 else 4 * hidden
    intermediate = _size(tower, "intermediate", file, key, by_ratio) or by_ratio
    patch = _size(tower, "patch", file, key) or 14
    image = _size(tower, "image", file, key, 0) or 0
    gated = "silu" in str(tower.get("hidden_act", "")) or tower.get("model_type") == "pixtral"
    layer = 4 * hidden * hidden + (3 if gated else 2) * hidden * intermediate + 9 * hidden + intermediate
    positions = (image // patch) ** 2 * hidden if patch <= image < 4096 else 0
    out = _size(tower, "out", file, key, text_hidden) or text_hidden
    projector = hidden * out + out * text_hidden
    return layers * layer + 3 * patch * patch * hidden + positions + projector


def _size(tower: Mapping[str, Any], what: str, file: str, key: str, default: int | None = None) -> int | None:
    for word in _WORDS[what]:
        value = tower.get(word)
        if value is None:
            continue
        if isinstance(value, list):  # some image sizes are [height, width]; ResNet-like depths are not sized
            value = value[0] if value else None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
            raise InvalidFile(file, f"{key}.{word}", value, f"a whole number up to {_MOST}")
        return value
    return _ASSUMED.get(what) if default is None else default
