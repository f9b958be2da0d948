"""Where a config comes from: folder, cache, catalogue, and a hub that a caller hands in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import errors

from autotune.errors import InvalidFile, UnknownName
from autotune.node.config_source import HubRefused
from autotune.node.hub import hub_config
from autotune.node.model_shape import load_shape

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}


def write(folder: Path, config: object, name: str = "config.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HF_HUB_CACHE": str(tmp_path / "cache")}


def test_the_hub_is_asked_last_and_only_when_handed_in(tmp_path: Path, env: dict[str, str]) -> None:
    asked: list[str] = []

    def hub(name: str) -> Path:
        asked.append(name)
        return write(tmp_path / "fetched", SMALL) / "config.json"

    assert load_shape("acme/small", env=env, hub=hub).layers == 2
    assert load_shape("acme/small", env=env, hub=hub).name == "acme/small"
    assert load_shape("Qwen/Qwen3-8B", env=env, hub=hub).layers == 36, "the catalogue knows it"
    assert asked == ["acme/small", "acme/small"]
    with pytest.raises(UnknownName):
        load_shape("acme/small", env=env)


@pytest.mark.parametrize("name", ["small", "./acme/small", "a/b/c", "~/small", "acme/"])
def test_names_that_are_no_hub_ids_are_not_asked_for(name: str, env: dict[str, str]) -> None:
    def hub(name: str) -> Path:
        raise AssertionError(name)

    with pytest.raises(UnknownName):
        load_shape(name, env=env, hub=hub)


def test_what_the_hub_answered_is_in_the_hint(env: dict[str, str]) -> None:
    def hub(_name: str) -> Path:
        raise HubRefused("It said no.")

    with pytest.raises(UnknownName, match="It said no") as caught:
        load_shape("acme/small", env=env, hub=hub)
    assert "the shipped catalogue" in caught.value.hint


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_means_that_nothing_is_fetched(variable: str, tmp_path: Path) -> None:
    def download(name: str, cache: Path) -> str:
        raise AssertionError(name, cache)

    fetch = hub_config({variable: "1"}, tmp_path, download=download)
    with pytest.raises(HubRefused, match=variable):
        fetch("acme/small")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (errors.GatedRepoError, "gated"),
        (errors.RepositoryNotFoundError, "no model acme/small"),
        (errors.LocalEntryNotFoundError, "could not be reached"),
        (errors.EntryNotFoundError, r"no config\.json"),
        (errors.HFValidationError, "no such name"),
        (TimeoutError, r"could not be reached \(TimeoutError\)"),
        (errors.HfHubHTTPError, r"could not be reached \(HfHubHTTPError\)"),
    ],
)
def test_each_refusal_of_the_hub_has_its_own_words(kind: type[Exception], says: str, tmp_path: Path) -> None:
    def download(_name: str, _cache: Path) -> str:
        if issubclass(kind, errors.HfHubHTTPError):
            raise kind("x", response=SimpleNamespace(headers={}, request=None, status_code=403))
        raise kind("x")

    with pytest.raises(HubRefused, match=says):
        hub_config({}, tmp_path, download=download)("acme/small")


def test_a_download_goes_into_the_cache_that_the_environment_names(tmp_path: Path, env: dict[str, str]) -> None:
    seen: list[Path] = []

    def download(_name: str, cache: Path) -> str:
        seen.append(cache)
        return str(write(cache / "x", SMALL) / "config.json")

    assert load_shape("acme/small", env=env, hub=hub_config(env, tmp_path, download=download)).hidden_size == 256
    assert seen == [Path(env["HF_HUB_CACHE"])]


def test_nvidias_file_beside_the_config_says_how_it_is_quantised(tmp_path: Path, env: dict[str, str]) -> None:
    folder = write(tmp_path / "m", SMALL)
    write(folder, {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}, "hf_quant_config.json")
    shape = load_shape(str(folder), env=env)
    assert (shape.quantization, shape.weight_bits, shape.kv_cache_dtype) == ("modelopt", 4, "fp8")


@pytest.mark.parametrize(("factor", "doubted"), [(1.0, False), (1.05, False), (2.0, False), (0.5, True), (3.0, True)])
def test_files_that_contradict_the_config_are_a_doubt(
    factor: float, doubted: bool, tmp_path: Path, env: dict[str, str]
) -> None:
    folder = write(tmp_path / "m", SMALL)
    size = load_shape(str(folder), env=env).weight_bytes
    with (folder / "model.safetensors").open("wb") as stream:
        stream.truncate(round(size * factor))
    doubt = load_shape(str(folder), env=env).doubt
    assert (doubt is not None) is doubted
    if doubt:
        assert "its files hold" in doubt


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "null",
        "\x00\x01",
        "{" * 100_000,
        '{"a":' * 100_000,
        "[" * 100_000,
        '{"hidden_size": ' + "9" * 5000 + "}",
    ],
)
def test_hostile_files_are_one_clear_error(content: str, tmp_path: Path, env: dict[str, str]) -> None:
    with pytest.raises(InvalidFile):
        load_shape(str(write(tmp_path / "m", content)), env=env)


def test_binary_and_endless_files(tmp_path: Path, env: dict[str, str]) -> None:
    folder = write(tmp_path / "m", "")
    (folder / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidFile):
        load_shape(str(folder), env=env)
    (folder / "config.json").write_bytes(b" " * (1 << 25))
    with pytest.raises(InvalidFile, match="at most"):
        load_shape(str(folder), env=env)


def test_a_pipe_or_a_folder_in_the_place_of_the_config(tmp_path: Path, env: dict[str, str]) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UnknownName, match=r"no config\.json"):
        load_shape(str(tmp_path), env=env)
    snapshot = tmp_path / "cache" / "models--acme--odd" / "snapshots" / "a" / "config.json"
    snapshot.mkdir(parents=True)
    with pytest.raises(InvalidFile):
        load_shape("acme/odd", env=env)


@pytest.mark.parametrize("name", ["a\x00b/c", "x" * 5000, "../..", "a/..", "//", "", " ", "модель/имя"])
def test_hostile_names(name: str, tmp_path: Path, env: dict[str, str]) -> None:
    with pytest.raises((UnknownName, InvalidFile)):
        load_shape(name, env=env, home=tmp_path)
