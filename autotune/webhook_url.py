"""URLs that hold a secret in their path, query or password: what of them may be used, and what shown. Pure."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def parsed(url: str) -> SplitResult | None:
    """The parts of an http or https URL that can be POSTed to; None for anything else."""
    try:
        found = urlsplit(url)
        usable = found.scheme in {"http", "https"} and bool(found.hostname) and found.port != 0
    except ValueError:
        return None
    return found if usable and url.isascii() and url.isprintable() and " " not in url else None


def place(found: SplitResult) -> str:
    """Host and port, without user and password."""
    host = f"[{found.hostname}]" if ":" in (found.hostname or "") else str(found.hostname)
    return host if found.port is None else f"{host}:{found.port}"


def shown(url: str) -> str:
    """A URL as it may be shown: scheme, host and port."""
    found = parsed(url)
    return "its URL" if found is None else f"{found.scheme}://{place(found)}"
