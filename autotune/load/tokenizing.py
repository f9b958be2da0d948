"""The model's tokenizer, where it can be had: a local folder, the Hugging Face cache, the hub.

Nothing here fails for the operator: whatever keeps a tokenizer away (no such file, offline, gated, broken) is a reason
in a sentence, and prompts are then made another way.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from autotune.load.prompts import MIN_POOL, WordPool, choose_pool, pool_groups, pool_texts
from autotune.load.words import COMMON_WORDS
from autotune.node.config_source import hub_cache
from autotune.units import MIB, format_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE_NAME = "tokenizer.json"
MAX_FILE_BYTES = 256 * MIB
"""The largest public one (Gemma 3) has 33 MB; a file beyond this is something else."""

REACH_S = 3.0
"""To connect to the hub. Its client would try for 23 s to find out that there is no network."""

_TRUE = frozenset({"1", "on", "yes", "true"})


class TextTokenizer:
    """Counts tokens as the model's own tokenizer does. Template and beginning of sequence are not in its counts."""

    def __init__(self, tokenizer: Tokenizer, source: str) -> None:
        # A file may carry the truncation and padding of whoever saved it.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.source = source

    @property
    def vocab_size(self) -> int:
        """Ids it can give, added tokens included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, nothing added. Lone surrogates count as the question marks that a server gets."""
        clean = text.encode("utf-8", "replace").decode("utf-8")
        return list(self._tokenizer.encode(clean, add_special_tokens=False).ids)

    def count(self, text: str) -> int:
        """How many tokens a text is."""
        return len(self.ids(text))

    def pool(self, words: Sequence[str] = COMMON_WORDS) -> WordPool | None:
        """Those of the words that are one token each; None where they are too few, or all the same unknown token."""
        groups = pool_groups(words)
        pool = choose_pool(groups, [(self.count(once), self.count(twice)) for once, twice in pool_texts(groups)])
        if pool is None or len(set(self.ids(" ".join(pool.words)))) < MIN_POOL:
            return None
        return pool


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTokenizer:
    """What a search for a tokenizer came to.

    Attributes:
        reason: why there is none, one clause; empty when there is one.
    """

    tokenizer: TextTokenizer | None = None
    reason: str = ""


def is_offline(environ: Mapping[str, str]) -> bool:
    """Whether the environment forbids asking the hub (HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE)."""
    return any(environ.get(name, "").strip().lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def find_tokenizer(
    model: str, *, environ: Mapping[str, str] = os.environ, cache_dir: Path | None = None
) -> FoundTokenizer:
    """The tokenizer of a model given as a folder, a tokenizer.json, or a name on the hub. May take seconds.

    Args:
        environ: says whether and how the hub may be asked.
        cache_dir: of the hub; None for where its client looks.
    """
    try:
        place = Path(model).expanduser()
        if place.is_dir():
            inside = place / FILE_NAME
            return _read(inside) if inside.is_file() else FoundTokenizer(reason=f"{model} holds no {FILE_NAME}")
        if place.is_file():
            return _read(place)
    except (OSError, ValueError, RuntimeError) as error:  # too long for a file, a NUL in it, nobody's home
        return FoundTokenizer(reason=f"{model[:80]!r} is no place for a tokenizer ({error})")
    if model.count("/") > 1 or model.startswith(("/", ".", "~")):
        return FoundTokenizer(reason=f"there is no {model}")
    return _from_hub(model, environ, cache_dir)


def _from_hub(model: str, environ: Mapping[str, str], cache_dir: Path | None) -> FoundTokenizer:
    if is_offline(environ):
        # Looked up by hand: the hub's library takes a good part of the time that a short measurement has to start.
        found = _cached(model, cache_dir or hub_cache(environ, Path.home()))
        if found is not None:
            return _read(found)
        return FoundTokenizer(reason=f"the tokenizer of {model} is not in the cache, and HF_HUB_OFFLINE is set")
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, HfHubHTTPError, HFValidationError

    def fetch(*, local: bool) -> Path:
        return Path(hf_hub_download(model, FILE_NAME, cache_dir=cache_dir, local_files_only=local))

    try:
        return _read(fetch(local=True))
    except HFValidationError as error:
        return FoundTokenizer(reason=f"{model[:80]!r} is no name of a model ({str(error).splitlines()[0][:120]})")
    except (OSError, EntryNotFoundError):
        pass  # not in the cache
    if not _reachable(constants.ENDPOINT, environ):
        return FoundTokenizer(reason=f"the tokenizer of {model} is not in the cache, and the hub cannot be reached")
    try:
        return _read(fetch(local=False))
    except GatedRepoError:
        return FoundTokenizer(reason=f"{model} is gated: accept its terms and set HF_TOKEN")
    except (HfHubHTTPError, EntryNotFoundError, OSError, ValueError) as error:
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        return FoundTokenizer(reason=f"the hub gave no {FILE_NAME} for {model} ({first[:160]})")


def _cached(model: str, cache_dir: Path) -> Path | None:
    """tokenizer.json of the snapshot that `main` points at."""
    repository = cache_dir / f"models--{model.replace('/', '--')}"
    try:
        commit = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
        path = repository / "snapshots" / commit / FILE_NAME
        return path if commit and path.is_file() else None
    except (OSError, ValueError):  # not there; no text; a NUL in the name
        return None


def _reachable(endpoint: str, environ: Mapping[str, str]) -> bool:
    """Whether a connection to the hub comes about; assumed where a proxy would make it."""
    if any(environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    parts = urlsplit(endpoint)
    try:
        port = parts.port or (80 if parts.scheme == "http" else 443)
        with socket.create_connection((parts.hostname or "", port), timeout=REACH_S):
            return True
    except (OSError, ValueError):
        return False


def _read(path: Path) -> FoundTokenizer:
    from tokenizers import Tokenizer

    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            return FoundTokenizer(reason=f"{path} has {format_bytes(size)}, which no tokenizer has")
        tokenizer = TextTokenizer(Tokenizer.from_file(str(path)), str(path))
        tokenizer.count("a b")  # a broken model shows only when it is used
    except Exception as error:  # noqa: BLE001 - tokenizers raises plain Exception for every kind of bad file
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        return FoundTokenizer(reason=f"{path} cannot be read as a tokenizer ({first[:160]})")
    return FoundTokenizer(tokenizer=tokenizer)
