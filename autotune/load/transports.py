"""Which transport carries a level's requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from autotune.errors import NOT_SHOWN, InvalidOption
from autotune.load.exchange import Timeouts, Transport, TransportKind, open_aiohttp
from autotune.load.wire import is_plain, open_raw

_FORBIDDEN = frozenset("\r\n\0")


@asynccontextmanager
async def open_transport(
    url: str,
    *,
    headers: Mapping[str, str],
    timeouts: Timeouts,
    now: Callable[[], float],
    kind: TransportKind | None = None,
) -> AsyncIterator[Transport]:
    """A transport to `url` for the length of one level; the pool has no limit: the driver bounds what is in flight.

    Args:
        kind: None for the quick one where it can reach the URL, else aiohttp.

    Raises:
        InvalidOption: a header that would break the request, or a URL that `kind` cannot reach.
    """
    check_headers(headers)
    if kind is TransportKind.RAW and not is_plain(url):
        raise InvalidOption("--url", url, "a plain http:// URL without credentials, for the raw transport")
    chosen = kind or (TransportKind.RAW if is_plain(url) else TransportKind.AIOHTTP)
    opening = open_raw if chosen is TransportKind.RAW else open_aiohttp
    async with opening(url, headers=headers, timeouts=timeouts, now=now) as transport:
        yield transport


def check_headers(headers: Mapping[str, str]) -> None:
    """That no header breaks the request.

    Raises:
        InvalidOption: one would.
    """
    for name, value in headers.items():
        if not _FORBIDDEN.isdisjoint(name + value):
            # Not shown: it may be the secret.
            raise InvalidOption("--api-key-env", NOT_SHOWN, f"a value of the header {name} without line breaks")
