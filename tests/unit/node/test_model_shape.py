"""Model shapes from folders, the Hugging Face cache and the catalogue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import ExitCode, InvalidFile, UnknownName
from autotune.node.catalogue import catalogue_names
from autotune.node.model_shape import UnsizedModel, hub_cache, load_shape, shape_from_config

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}

# Parameter counts as published with the checkpoints (safetensors metadata or model card).
PUBLISHED = {
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "mistralai/Mistral-7B-Instruct-v0.2": 7_241_732_096,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "microsoft/Phi-3-mini-128k-instruct": 3_821_079_552,
}
# Whole-model bytes of KV per token in 16 bit, from publicly logged capacities.
KV_BYTES = {
    "meta-llama/Llama-3.1-8B": 131072,
    "meta-llama/Llama-3.1-70B": 327680,
    "meta-llama/Llama-2-7b-hf": 524288,
    "Qwen/Qwen2.5-7B": 57344,
    "Qwen/Qwen2.5-32B": 262144,
    "Qwen/Qwen2.5-72B": 327680,
    "Qwen/Qwen3-8B": 147456,
    "Qwen/Qwen3-32B": 262144,
    "microsoft/Phi-3-mini-128k-instruct": 393216,
}


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    return {"HF_HUB_CACHE": str(tmp_path / "no-cache")}


def write_model(folder: Path, config: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_catalogue_parameters_are_the_published_ones(name: str, parameters: int, nowhere: dict[str, str]) -> None:
    shape = load_shape(name, env=nowhere)
    assert shape.parameters == parameters
    assert shape.weight_bytes == 2 * parameters


@pytest.mark.parametrize(("name", "kv_bytes"), KV_BYTES.items())
def test_catalogue_kv_bytes_are_the_published_ones(name: str, kv_bytes: int, nowhere: dict[str, str]) -> None:
    assert load_shape(name, env=nowhere).kv_bytes_per_token == kv_bytes


@pytest.mark.no_cover
def test_every_catalogue_name_loads(nowhere: dict[str, str]) -> None:
    names = catalogue_names()
    assert len(names) > 30
    assert all(load_shape(name, env=nowhere).name == name for name in names)


def test_short_names_and_any_case_are_accepted(nowhere: dict[str, str]) -> None:
    assert load_shape("llama-3.1-8b-instruct", env=nowhere).name == "meta-llama/Llama-3.1-8B-Instruct"


def test_a_folder(tmp_path: Path, nowhere: dict[str, str]) -> None:
    shape = load_shape(str(write_model(tmp_path / "m", LLAMA_8B)), env=nowhere)
    assert (shape.head_dim, shape.kv_heads, shape.parameters) == (128, 8, 8_030_261_248)


def test_the_cache_wins_over_the_catalogue_and_main_over_other_snapshots(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    repository = hub / "models--Qwen--Qwen3-8B"
    write_model(repository / "snapshots" / "aaa", {**LLAMA_8B, "num_hidden_layers": 3})
    write_model(repository / "snapshots" / "zzz", {**LLAMA_8B, "num_hidden_layers": 5})
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("aaa\n")
    env = {"HF_HOME": str(tmp_path)}
    assert load_shape("Qwen/Qwen3-8B", env=env).layers == 3
    (repository / "refs" / "main").unlink()
    assert load_shape("Qwen/Qwen3-8B", env=env).layers in {3, 5}


def test_where_the_cache_is() -> None:
    home = Path("/home/u")
    assert hub_cache({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}, home) == Path("/c")
    assert hub_cache({"HF_HOME": "/h"}, home) == Path("/h/hub")
    assert hub_cache({}, home) == Path("/home/u/.cache/huggingface/hub")


def test_unknown_model_says_where_it_was_sought(nowhere: dict[str, str]) -> None:
    with pytest.raises(UnknownName) as caught:
        load_shape("meta-llama/Llama-9.9-8B", env=nowhere)
    assert caught.value.exit_code is ExitCode.UNKNOWN_MODEL
    text = str(caught.value)
    assert nowhere["HF_HUB_CACHE"] in text
    assert "catalogue" in text
    assert "did you mean" in text


def test_a_folder_without_config(tmp_path: Path, nowhere: dict[str, str]) -> None:
    with pytest.raises(UnknownName, match=r"has no config\.json"):
        load_shape(str(tmp_path), env=nowhere)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{not json", "readable JSON"),
        ("[1, 2]", "a JSON object"),
        ({**LLAMA_8B, "hidden_size": "4096"}, "hidden_size"),
        ({k: v for k, v in LLAMA_8B.items() if k != "vocab_size"}, "vocab_size"),
        ({**LLAMA_8B, "num_hidden_layers": 0}, "num_hidden_layers"),
        ({**LLAMA_8B, "num_key_value_heads": 5}, "num_key_value_heads"),
    ],
)
def test_broken_config_files(content: object, says: str, tmp_path: Path, nowhere: dict[str, str]) -> None:
    with pytest.raises(InvalidFile, match=says) as caught:
        load_shape(str(write_model(tmp_path / "m", content)), env=nowhere)
    assert not isinstance(caught.value, UnsizedModel)
    assert "config.json" in caught.value.file


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"is_encoder_decoder": True}, "an encoder"),
        ({"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"]}, "no attention"),
        ({"model_type": "falcon_h1"}, "side by side"),
        ({"quantization_config": {"quant_method": "holographic"}}, "holographic"),
    ],
)
def test_models_without_a_reading_are_refused_and_the_message_says_why(extra: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsizedModel) as caught:
        shape_from_config({**LLAMA_8B, **extra}, name="m", file="config.json")
    assert says in str(caught.value)


def test_traps() -> None:
    missing_kv = {k: v for k, v in LLAMA_8B.items() if k != "num_key_value_heads"}
    assert shape_from_config(missing_kv, name="m", file="f").kv_heads == 32
    explicit = shape_from_config({**LLAMA_8B, "head_dim": 64}, name="m", file="f")
    assert explicit.kv_bytes_per_token == 2 * 32 * 8 * 64 * 2
    inactive = {**LLAMA_8B, "sliding_window": 131072, "use_sliding_window": False}
    assert shape_from_config(inactive, name="m", file="f").layers == 32
    nested = {
        "architectures": ["SomeForConditionalGeneration"],
        "text_config": {**{k: v for k, v in LLAMA_8B.items() if k != "architectures"}, "model_type": "llama"},
        "tie_word_embeddings": True,
    }
    tied = shape_from_config(nested, name="m", file="f")
    assert tied.parameters == 8_030_261_248 - 128256 * 4096
    assert shape_from_config({**LLAMA_8B, "torch_dtype": "float32"}, name="m", file="f").dtype == "bfloat16"
