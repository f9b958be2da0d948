"""The shape of a dense decoder, read from a `config.json`: a local folder, the Hugging Face cache, or our catalogue.

Only plain dense decoders with a gated MLP are sized. Everything else (mixture of experts, MLA, quantised weights,
hybrid or sliding-window layers, vision towers) is refused by name: a wrong size would admit configs that run out of
memory. Nothing here touches the network.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.errors import InvalidFile, UnknownName
from autotune.records import ModelShape
from autotune.yaml_input import existing_file

# What sets the parameter count of each architecture apart from the Llama arithmetic: biases on q, k and v, and
# RMS norms of one head each on q and k (vllm/model_executor/models/{llama,qwen2,qwen3,phi3}.py).
_QKV_BIAS = {"Qwen2ForCausalLM"}
_QK_NORM = {"Qwen3ForCausalLM"}
DENSE_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
_MODEL_TYPES = {"llama", "mistral", "phi3", "qwen2", "qwen3"}

# Keys whose presence (with a truthy value) makes a model something else than plain dense, and the word for it.
_NOT_DENSE = (
    ("quantization_config", "quantised weights"),
    ("compression_config", "quantised weights"),
    ("num_experts", "a mixture of experts"),
    ("num_local_experts", "a mixture of experts"),
    ("n_routed_experts", "a mixture of experts"),
    ("kv_lora_rank", "multi-head latent attention"),
    ("full_attention_interval", "hybrid attention"),
    ("attn_layer_indices", "hybrid attention"),
    ("sliding_window_pattern", "sliding-window layers"),
    ("vision_config", "a vision tower"),
    ("audio_config", "an audio tower"),
    ("is_encoder_decoder", "an encoder"),
)


class UnsizedModel(InvalidFile):
    """A readable config.json of a model whose memory we do not compute; a real server may well serve it."""


_MOST = 1 << 30
"""No size of a real model comes near it; products of larger ones leave the range of floats."""


class _ConfigJson(BaseModel):
    """The border: keys of a Hugging Face config.json that decide a dense model's size. Others are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    architectures: list[str] | None = None
    model_type: str | None = None
    num_hidden_layers: int = Field(gt=0, le=_MOST)
    hidden_size: int = Field(gt=0, le=_MOST)
    intermediate_size: int = Field(gt=0, le=_MOST)
    num_attention_heads: int = Field(gt=0, le=_MOST)
    num_key_value_heads: int | None = Field(default=None, gt=0, le=_MOST)
    head_dim: int | None = Field(default=None, gt=0, le=_MOST)
    vocab_size: int = Field(gt=0, le=_MOST)
    max_position_embeddings: int = Field(gt=0, le=_MOST)
    tie_word_embeddings: bool = False
    attention_bias: bool | None = None
    mlp_bias: bool = False
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    layer_types: list[str] | None = None
    torch_dtype: str | None = None
    dtype: str | None = None


def load_shape(name_or_path: str, *, env: Mapping[str, str] | None = None, home: Path | None = None) -> ModelShape:
    """The shape of a model named by a folder, a hub id, or the last part of a hub id (any letter case).

    Looked up in this order: a local folder with config.json, the Hugging Face cache, the shipped catalogue.

    Args:
        env: environment that HF_HUB_CACHE and HF_HOME are read from; the process's own when None.
        home: home folder, for the cache's default place.

    Raises:
        UnknownName: found in none of them; the hint says where we looked.
        InvalidFile: a config.json that cannot be read or lacks a key.
        UnsizedModel: a model that is not a plain dense decoder.
    """
    folder = existing_file(name_or_path)
    if folder is not None and folder.is_dir():
        path = folder / "config.json"
        if not path.is_file():
            raise UnknownName("model", name_or_path, (), hint=f"The folder {folder} has no config.json.")
        return _read(path, name_or_path)
    cache = hub_cache(os.environ if env is None else env, home or Path.home())
    cached = _cached_config(cache, name_or_path)
    if cached is not None:
        return _read(cached, name_or_path)
    entry = _catalogue().get(name_or_path.lower())
    if entry is not None:
        full_name, config = entry
        return shape_from_config(config, name=full_name, file="the shipped catalogue")
    names = catalogue_names()
    raise UnknownName(
        "model",
        name_or_path,
        names,
        hint=f"Looked for a folder of this name, in the Hugging Face cache {cache}, and in the shipped catalogue of "
        f"{len(names)} names. Give a folder with a config.json, or download the model's config.json into the cache.",
    )


def catalogue_names() -> tuple[str, ...]:
    """Hub ids that need neither a folder nor a network."""
    return tuple(dict.fromkeys(full for full, _ in _catalogue().values()))


def hub_cache(env: Mapping[str, str], home: Path) -> Path:
    """Where the Hugging Face hub keeps models: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub."""
    if env.get("HF_HUB_CACHE"):
        return Path(env["HF_HUB_CACHE"]).expanduser()
    if env.get("HF_HOME"):
        return Path(env["HF_HOME"]).expanduser() / "hub"
    base = Path(env["XDG_CACHE_HOME"]).expanduser() if env.get("XDG_CACHE_HOME") else home / ".cache"
    return base / "huggingface" / "hub"


def shape_from_config(config: Mapping[str, Any], *, name: str, file: str) -> ModelShape:
    """The shape that a parsed config.json describes; `file` is named in errors.

    A nested `text_config` is followed. Missing KV heads mean one per head; a missing `head_dim` is hidden / heads.

    Raises:
        InvalidFile: a key is missing or has the wrong type.
        UnsizedModel: not a plain dense decoder.
    """
    text = config.get("text_config")
    inner = {**config, **text} if isinstance(text, Mapping) else config
    _refuse_unsized(config, inner, file)
    try:
        parsed = _ConfigJson.model_validate(dict(inner))
    except ValidationError as error:
        raise _as_invalid_file(error, inner, file) from None
    _refuse_sliding_windows(parsed, file)
    kv_heads = parsed.num_key_value_heads or parsed.num_attention_heads
    if parsed.num_attention_heads % kv_heads:
        raise InvalidFile(
            file, "num_key_value_heads", kv_heads, f"a divisor of num_attention_heads ({parsed.num_attention_heads})"
        )
    if _head_dim(parsed) < 1:
        raise InvalidFile(file, "hidden_size", parsed.hidden_size, f"at least the {parsed.num_attention_heads} heads")
    parameters = _count_parameters(parsed, kv_heads)
    # vLLM's dtype "auto" loads a float32 checkpoint in 16 bit.
    dtype = (parsed.dtype or parsed.torch_dtype or "bfloat16").removeprefix("torch.")
    return ModelShape(
        name=name,
        layers=parsed.num_hidden_layers,
        hidden_size=parsed.hidden_size,
        intermediate_size=parsed.intermediate_size,
        heads=parsed.num_attention_heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(parsed),
        vocab_size=parsed.vocab_size,
        max_position_embeddings=parsed.max_position_embeddings,
        weight_bytes=2 * parameters,
        parameters=parameters,
        tie_word_embeddings=parsed.tie_word_embeddings,
        dtype="bfloat16" if dtype == "float32" else dtype,
    )


def _head_dim(config: _ConfigJson) -> int:
    return config.head_dim or config.hidden_size // config.num_attention_heads


def _count_parameters(config: _ConfigJson, kv_heads: int) -> int:
    """Parameters of a decoder with gated MLP, RMS norms and rotary positions, biases and head norms included."""
    arch = _architecture(config)
    head_dim, hidden = _head_dim(config), config.hidden_size
    q_size, kv_size = config.num_attention_heads * head_dim, kv_heads * head_dim
    attention = hidden * (q_size + 2 * kv_size) + q_size * hidden
    if arch in _QKV_BIAS:
        attention += q_size + 2 * kv_size
    elif config.attention_bias:
        attention += q_size + 2 * kv_size + hidden
    if arch in _QK_NORM:
        attention += 2 * head_dim
    mlp = 3 * hidden * config.intermediate_size
    if config.mlp_bias:
        mlp += 2 * config.intermediate_size + hidden
    embeddings = config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2)
    return config.num_hidden_layers * (attention + mlp + 2 * hidden) + hidden + embeddings


def _architecture(config: _ConfigJson) -> str:
    for arch in config.architectures or ():
        if arch in DENSE_ARCHITECTURES:
            return arch
    return next((a for a in DENSE_ARCHITECTURES if a.lower().startswith(f"{config.model_type}for")), "LlamaForCausalLM")


def _refuse_unsized(outer: Mapping[str, Any], inner: Mapping[str, Any], file: str) -> None:
    # Some dense configs carry the keys with 0, 1 or null: only more than one expert makes a mixture.
    for key, what in _NOT_DENSE:
        value = outer.get(key) or inner.get(key)
        if value and not (key.startswith(("num_", "n_")) and value == 1):
            raise _unsized(file, key, value, what)
    archs, kind = inner.get("architectures") or [], inner.get("model_type")
    # Wrappers (…ForConditionalGeneration) around a dense text model name the dense kind in text_config.model_type.
    if set(archs) & set(DENSE_ARCHITECTURES) or kind in _MODEL_TYPES:
        return
    raise _unsized(file, "architectures", archs or kind, "an architecture we do not know to be plain dense")


def _refuse_sliding_windows(config: _ConfigJson, file: str) -> None:
    if config.layer_types and set(config.layer_types) != {"full_attention"}:
        raise _unsized(file, "layer_types", sorted(set(config.layer_types)), "layers of several kinds")
    window = config.sliding_window
    if window and config.use_sliding_window is not False and window < config.max_position_embeddings:
        raise _unsized(file, "sliding_window", window, "sliding-window attention")


def _unsized(file: str, key: str, value: object, what: str) -> UnsizedModel:
    return UnsizedModel(
        file,
        key,
        value,
        f"a plain dense decoder ({', '.join(DENSE_ARCHITECTURES)})",
        hint=f"This model has {what}, whose memory and speed are not computed yet, so it cannot be simulated.",
    )


def _as_invalid_file(error: ValidationError, config: Mapping[str, Any], file: str) -> InvalidFile:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    return InvalidFile(file, key, config.get(key), first["msg"])


def _read(path: Path, name: str) -> ModelShape:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise InvalidFile(str(path), "", "nested too deeply", "a readable JSON file") from None
    except (OSError, ValueError) as error:
        raise InvalidFile(str(path), "", str(error), "a readable JSON file") from error
    if not isinstance(config, dict):
        raise InvalidFile(str(path), "", config, "a JSON object")
    return shape_from_config(config, name=name, file=str(path))


def _cached_config(cache: Path, name: str) -> Path | None:
    """config.json of the snapshot that `main` points at, else of the newest one; None when not downloaded."""
    if name.count("/") != 1 or ".." in name:
        return None
    repository = cache / f"models--{name.replace('/', '--')}"
    main = repository / "refs" / "main"
    try:
        if main.is_file():
            path = repository / "snapshots" / main.read_text(encoding="utf-8").strip() / "config.json"
            if path.is_file():
                return path
        snapshots = sorted(repository.glob("snapshots/*/config.json"), key=lambda p: p.parent.stat().st_mtime)
    except OSError as error:
        raise InvalidFile(str(repository), "", str(error), "a readable Hugging Face cache") from error
    return snapshots[-1] if snapshots else None


@functools.cache
def _catalogue() -> Mapping[str, tuple[str, dict[str, Any]]]:
    """Lower-case full and short names to (hub id, config). The file is ours: a mistake in it is a bug of ours."""
    text = files("autotune.node").joinpath("catalogue.yaml").read_text(encoding="utf-8")
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for entry in yaml.safe_load(text)["models"]:
        for full_name in entry["names"]:
            found[full_name.lower()] = (full_name, entry["config"])
            found.setdefault(full_name.rsplit("/", 1)[-1].lower(), (full_name, entry["config"]))
    return found
