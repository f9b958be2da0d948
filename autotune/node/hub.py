"""Fetches one config.json from the Hugging Face hub, with a short time-out and a clear word on what went wrong.

Mirrors (HF_ENDPOINT), proxies and tokens are huggingface_hub's business; no token passes through here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from autotune.node.config_source import HubConfig, HubRefused, hub_cache

TIMEOUT_S = 5.0
_TRUE = {"1", "ON", "YES", "TRUE"}

Download = Callable[[str, Path], str]
"""Fetches config.json of a hub id into a cache folder and returns its path; raises what huggingface_hub raises."""


def hub_config(env: Mapping[str, str], home: Path, *, download: Download | None = None) -> HubConfig:
    """Something that fetches config.json of a hub id into the cache.

    Args:
        env: HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) in it means that the hub is not asked.
        download: stands in for huggingface_hub, which is imported only when the first config is fetched.
    """

    def fetch(name: str) -> Path:
        for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            if env.get(variable, "").upper() in _TRUE:
                raise HubRefused(f"The hub was not asked, because {variable} is set.")
        return _fetched(name, hub_cache(env, home), download or _download)

    return fetch


def _download(name: str, cache: Path) -> str:
    import huggingface_hub

    # Asked first by itself, because the download tries an unreachable hub again and again for 23 s.
    huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(name, "config.json"), timeout=TIMEOUT_S)
    return huggingface_hub.hf_hub_download(name, "config.json", cache_dir=cache, etag_timeout=TIMEOUT_S)


def _fetched(name: str, cache: Path, download: Download) -> Path:
    from huggingface_hub import errors

    # Its HTTP library has changed twice (requests, httpx, httpx2); the base of its own error is that library's.
    unreachable: tuple[type[Exception], ...] = (
        OSError,
        *cast(tuple[type[Exception], ...], errors.HfHubHTTPError.__bases__),
    )
    try:
        return Path(download(name, cache))
    except errors.GatedRepoError:
        why = (
            f"The hub has {name}, but it is gated: accept its terms on its page, and set HF_TOKEN to a token of yours."
        )
    except errors.RepositoryNotFoundError:
        why = f"The hub has no model {name} (or it is private, and HF_TOKEN gives no access to it)."
    except errors.LocalEntryNotFoundError:
        why = "The hub could not be reached."
    except errors.EntryNotFoundError:
        why = f"The hub has {name}, but no config.json in it (a GGUF or adapter repository?)."
    except errors.HFValidationError:
        why = "The hub allows no such name."
    except unreachable as error:
        why = f"The hub could not be reached ({type(error).__name__})."
    raise HubRefused(why)
