"""What a candidate is held against: what was promoted, or a file of flags that somebody wrote."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.engine.flags import SECRET_FLAGS
from autotune.errors import InvalidFile, InvalidOption
from autotune.promote.history import Entry
from autotune.promote.parameters import FLAG_NAME, PLACE_FLAGS
from autotune.records import Config, GateSide, Value
from autotune.yaml_input import existing_file, read_yaml

if TYPE_CHECKING:
    from autotune.store.repository import Store

CURRENT, BASELINE = "current", "baseline"
LEFT_OUT = PLACE_FLAGS | SECRET_FLAGS.keys() | {"shutdown-timeout"}
"""Of a `--config` file: where a server listens and how it stops are no part of what is verified, and what is verified
is stored, which no secret is."""

_FLAG = "a flag without dashes in front, and text, a number, true or false"
_SIZES = tuple(f"{kind}-parallel-size" for kind in ("tensor", "pipeline", "data"))


def against_side(text: str | None, store: Store, current: Entry | None, model: str) -> GateSide | None:
    """What the candidate is held against; None for the study's baseline.

    Raises:
        InvalidOption: nothing of this name runs today, or no such file.
        InvalidFile: a file that holds no flags.
    """
    if text == BASELINE or (text is None and current is None):
        return None
    if text in (None, CURRENT):
        if current is None:
            raise InvalidOption(
                "--against", text, f"{BASELINE} or a file of flags: nothing was promoted under this name yet"
            )
        return _promoted(store, current)
    assert text is not None  # the two cases above
    path = file_of(text)
    if path is None:
        raise InvalidOption("--against", text, f"{CURRENT}, {BASELINE}, or a YAML file of flags as `--config` reads it")
    return side_of_file(path, model)


def file_of(text: str | None) -> Path | None:
    """The file that `--against` names; None where it names something else."""
    return None if text in (None, CURRENT, BASELINE) else existing_file(str(text))


def _promoted(store: Store, current: Entry) -> GateSide:
    """A promotion as its study's trial, so that the study's own figures of that config can be found."""
    promotion = current.promotion
    return GateSide(
        label=f"{current.label} (trial {promotion.trial} of study {promotion.study})",
        config=store.trial(promotion.study, promotion.trial).config,
        model=promotion.model,
        gpus=max(1, promotion.gpus),
    )


def side_of_file(path: Path, model: str) -> GateSide:
    """The flags of a vLLM `--config` file, rendered by us or written by hand.

    Raises:
        InvalidFile: it is no mapping of flags to plain values, or says one of them twice.
    """
    found = read_yaml(path)
    if not isinstance(found, dict) or not found:
        raise InvalidFile(str(path), "", found, "flags of vLLM and their values, as `vllm serve --config` reads them")
    values: dict[str, Value] = {}
    for key, value in found.items():
        if not isinstance(key, str) or not FLAG_NAME.fullmatch(key) or not isinstance(value, bool | int | float | str):
            raise InvalidFile(str(path), str(key), value, _FLAG)
        name = key.replace("_", "-")
        if value is True and name.startswith("no-"):
            name, value = name.removeprefix("no-"), False
        if name in values:
            raise InvalidFile(
                str(path), key, value, f"--{name} once: with dashes or underscores, with `no-` or without"
            )
        if name not in LEFT_OUT:
            values[name] = value
    served = _model(path, values.pop("model")) if "model" in values else model
    return GateSide(label=path.name, config=Config.of(values), model=served, gpus=_gpus(path, values))


def _model(path: Path, value: Value) -> str:
    """The model of a file.

    Raises:
        InvalidFile: a word that no server command could take for one.
    """
    if not isinstance(value, str) or not value.strip() or value.startswith("-") or not value.isprintable():
        raise InvalidFile(str(path), "model", value, "a folder, or a model name such as meta-llama/Llama-3.1-8B")
    return value


def _gpus(path: Path, values: dict[str, Value]) -> int:
    """TP x PP x DP.

    Raises:
        InvalidFile: a size that is none; a server of more GPUs than were counted would share them with somebody.
    """
    sizes = []
    for name in _SIZES:
        size = values.get(name, 1)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidFile(str(path), name, size, "a whole number of at least 1")
        sizes.append(size)
    return prod(sizes)
