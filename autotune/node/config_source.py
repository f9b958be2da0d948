"""Where a model's config.json comes from: a folder, the Hugging Face cache, the shipped catalogue, the hub.

The hub is asked only through the `HubConfig` that a caller hands in (`node.hub` has the real one), so that nothing
reaches for the network on its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import InvalidFile, InvalidOption, UnknownName
from autotune.node import catalogue
from autotune.yaml_input import existing_file

MOST_CONFIG_BYTES = 1 << 24
"""Lists of modules that a quantised checkpoint leaves alone make some configs a megabyte."""


class HubRefused(Exception):
    """The hub did not give a config; the text says why and what to do, for people."""


HubConfig = Callable[[str], Path]
"""Fetches config.json of a hub id into the cache; raises HubRefused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundConfig:
    """A parsed config.json.

    Attributes:
        name: how the model is called from now on: the hub id, or the folder as it was given.
        file: where it was read, for errors.
        weight_file_bytes: of the safetensors beside it; None where there are none.
    """

    name: str
    config: Mapping[str, Any]
    file: str
    weight_file_bytes: int | None = None


def find_config(name_or_path: str, *, env: Mapping[str, str], home: Path, hub: HubConfig | None) -> FoundConfig:
    """The config of a model named by a folder, a hub id, or the last part of a hub id (any letter case).

    Raises:
        UnknownName: found nowhere; the hint says where we looked and what the hub answered.
        InvalidFile: a config.json that cannot be read.
    """
    folder = existing_file(name_or_path)
    if folder is not None and folder.is_dir():
        path = folder / "config.json"
        if not path.is_file():
            raise UnknownName("model", name_or_path, (), hint=f"The folder {folder} has no config.json.")
        return _read(path, name_or_path)
    cache = hub_cache(env, home)
    cached = _cached_config(cache, name_or_path)
    if cached is not None:
        return _read(cached, name_or_path)
    entry = catalogue.find(name_or_path)
    if entry is not None:
        return FoundConfig(name=entry[0], config=entry[1], file="the shipped catalogue")
    answer = ""
    if hub is not None and _is_hub_id(name_or_path):
        try:
            return _read(hub(name_or_path), name_or_path)
        except HubRefused as refused:
            answer = f" {refused}"
    names = catalogue.catalogue_names()
    raise UnknownName(
        "model",
        name_or_path,
        names,
        hint=f"Looked for a folder of this name, in the Hugging Face cache {cache}, and in the shipped catalogue of "
        f"{len(names)} names. Give a folder with a config.json, or download the model's config.json into the cache."
        f"{answer}",
    )


def hub_cache(env: Mapping[str, str], home: Path) -> Path:
    """Where the Hugging Face hub keeps models: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub.

    Raises:
        InvalidOption: the variable names the home of a user that does not exist.
    """
    for name, below in (("HF_HUB_CACHE", ()), ("HF_HOME", ("hub",)), ("XDG_CACHE_HOME", ("huggingface", "hub"))):
        if env.get(name):
            try:
                return Path(env[name]).expanduser().joinpath(*below)
            except RuntimeError:  # `~nobody`
                raise InvalidOption(name, env[name], "a folder, or ~ of a user that exists") from None
    return home / ".cache" / "huggingface" / "hub"


def surroundings(env: Mapping[str, str] | None, home: Path | None) -> tuple[Mapping[str, str], Path]:
    """The process's own environment and home folder where none are given."""
    return (os.environ if env is None else env), (home or Path.home())


def _is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not name.endswith("/")


def _read(path: Path, name: str) -> FoundConfig:
    config = _json_object(path)
    # NVIDIA's older checkpoints say how they are quantised in a file of its own.
    beside = path.parent / "hf_quant_config.json"
    if "quantization_config" not in config and beside.is_file():
        config["quantization_config"] = {"quant_method": "modelopt", **_json_object(beside)}
    return FoundConfig(name=name, config=config, file=str(path), weight_file_bytes=_weight_files(path.parent))


def _json_object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            content = stream.read(MOST_CONFIG_BYTES + 1)
        if len(content) > MOST_CONFIG_BYTES:
            raise InvalidFile(str(path), "", "a larger file", f"at most {MOST_CONFIG_BYTES} bytes")
        config = json.loads(content.decode("utf-8"))
    except RecursionError:
        raise InvalidFile(str(path), "", "nested too deeply", "a readable JSON file") from None
    except (OSError, ValueError) as error:
        raise InvalidFile(str(path), "", str(error), "a readable JSON file") from error
    if not isinstance(config, dict):
        raise InvalidFile(str(path), "", config, "a JSON object")
    return config


def _weight_files(folder: Path) -> int | None:
    """Bytes of the Hugging Face safetensors in a folder; Mistral's `consolidated` ones hold the same again."""
    try:
        sizes = [f.stat().st_size for f in folder.glob("*.safetensors") if not f.name.startswith("consolidated")]
    except OSError:
        return None  # weights that are being written, or links of a cache that was cleaned: only a check is lost
    return sum(sizes) or None


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
    except (OSError, ValueError) as error:
        raise InvalidFile(str(repository), "", str(error), "a readable Hugging Face cache") from error
    return snapshots[-1] if snapshots else None
