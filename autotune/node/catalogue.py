"""The shipped catalogue of public models: config.json's keys by hub id, and which checkpoints are quantised twins.

It lies in `node/catalogue/*.yaml`. The files are ours: a mistake in them is a bug of ours and is not caught here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Everything in the files.

    Attributes:
        configs: hub id -> config.json.
        by_any_name: lower-case hub id, or its last part, -> hub id.
        variants: hub id of a model -> hub ids of its quantised checkpoints.
        twin_of: hub id of a quantised checkpoint, or of the same weights under another name -> the model's.
    """

    configs: Mapping[str, Mapping[str, Any]]
    by_any_name: Mapping[str, str]
    variants: Mapping[str, tuple[str, ...]]
    twin_of: Mapping[str, str]


def catalogue_names() -> tuple[str, ...]:
    """Hub ids that need neither a folder nor a network."""
    return tuple(_catalogue().configs)


def find(name: str) -> tuple[str, Mapping[str, Any]] | None:
    """Hub id and config of a model named by its hub id or the last part of it, in any letter case."""
    known = _catalogue()
    full_name = known.by_any_name.get(name.lower())
    return None if full_name is None else (full_name, known.configs[full_name])


def variants_of(name: str) -> tuple[str, ...]:
    """Known quantised checkpoints (AWQ, GPTQ, FP8, INT8, INT4, NVFP4) of the same weights, by hub id.

    A quantised checkpoint's own name gives its siblings, without itself. Empty for a model that is not listed: a
    checkpoint of a fine-tune is none of its base model.
    """
    known = _catalogue()
    full_name = known.by_any_name.get(name.lower())
    if full_name is None:
        return ()
    base = known.twin_of.get(full_name, full_name)
    return tuple(other for other in known.variants.get(base, ()) if other != full_name)


@functools.cache
def _catalogue() -> Catalogue:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml parses these files eight times as fast
    folder = files("autotune.node").joinpath("catalogue")
    texts = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    documents = [yaml.load(f.read_text(encoding="utf-8"), Loader=loader) for f in texts]  # noqa: S506 - safe loaders
    configs: dict[str, Mapping[str, Any]] = {}
    for entry in (entry for document in documents for entry in document.get("models", ())):
        config = entry["config"]
        if "like" in entry:
            config = _changed(configs[entry["like"]], config)
        configs.update(dict.fromkeys(entry["names"], config))
    quantizations = next(document["quantizations"] for document in documents if "quantizations" in document)
    variants: dict[str, tuple[str, ...]] = {}
    twin_of: dict[str, str] = {}
    for document in documents:
        twin_of.update(document.get("aliases", {}))
        for base, kinds in document.get("variants", {}).items():
            variants[base] = tuple(name for names in kinds.values() for name in names)
            for kind, names in kinds.items():
                config = {**configs[base], "quantization_config": quantizations[kind]}
                configs.update(dict.fromkeys(names, config))
                twin_of.update(dict.fromkeys(names, base))
    by_any_name = {name.lower(): name for name in configs}
    for name in configs:
        by_any_name.setdefault(name.rsplit("/", 1)[-1].lower(), name)
    return Catalogue(
        configs=MappingProxyType(configs),
        by_any_name=MappingProxyType(by_any_name),
        variants=MappingProxyType(variants),
        twin_of=MappingProxyType(twin_of),
    )


def _changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with keys replaced; nested configs are changed key by key."""
    out = dict(base)
    for key, value in changes.items():
        inner = out.get(key)
        out[key] = _changed(inner, value) if isinstance(value, Mapping) and isinstance(inner, Mapping) else value
    return out
