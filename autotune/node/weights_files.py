"""Which files of a checkpoint on the hub a vLLM server loads. Pure.

As `vllm/model_executor/model_loader/default_loader.py` of 0.32 chooses: the first kind of weights that is there, of the
top folder only, and of Mistral's repositories (which hold the same weights twice) either its `consolidated` files or
the others, never both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

SMALL_KINDS = frozenset({".json", ".txt", ".model", ".jinja", ".py", ".tiktoken", ".yaml"})
"""Of config, tokenizer, chat template and code of the model's own."""

NO_WEIGHTS = "dummy"
LOADED_BY_VLLM = frozenset(
    {"auto", "hf", "safetensors", "mistral", "pt", "bitsandbytes", "fastsafetensors", NO_WEIGHTS}
)
"""Load formats that read such files; of others (sharded, streamed, GGUF) the server knows best what it needs."""

MISTRAL_SINCE = (0, 12)
"""Versions from here on take `consolidated` files, where a repository has them, as `--load-format auto`."""

_NOT_LOADED = ("training_args.bin", "optimizer.*", "scheduler.*", "scaler.*", "trainer_state.json", "rng_state*")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of a repository; `size_bytes` is None where the hub does not tell."""

    name: str
    size_bytes: int | None


def loaded_files(files: Iterable[HubFile], *, load_format: str, version: tuple[int, ...] | None) -> tuple[HubFile, ...]:
    """Those of `files` that a server reads, with their weights where the format reads any.

    Args:
        version: of vLLM; None takes both halves of a Mistral repository.
    """
    top = [file for file in files if "/" not in file.name and not _matches(file.name, _NOT_LOADED)]
    small = [file for file in top if PurePosixPath(file.name).suffix in SMALL_KINDS]
    weights = [] if load_format == NO_WEIGHTS else _weights(top, load_format, version)
    return tuple(dict.fromkeys((*small, *weights)))


def _weights(top: Sequence[HubFile], load_format: str, version: tuple[int, ...] | None) -> Sequence[HubFile]:
    tensors = [file for file in top if file.name.endswith(".safetensors")]
    mistral = [file for file in tensors if file.name.startswith("consolidated")]
    plain = [file for file in tensors if not file.name.startswith("consolidated")]
    if load_format == "mistral":
        return mistral
    if load_format == "pt":
        return [file for file in top if file.name.endswith(".pt")]
    if load_format == "auto" and mistral and plain:
        if version is None:
            return tensors
        return mistral if version >= MISTRAL_SINCE else plain
    if tensors:
        return plain or mistral
    for kind in (".bin", ".pt"):
        found = [file for file in top if file.name.endswith(kind)]
        if found:
            return found
    return []


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
