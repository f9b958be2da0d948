"""A server that somebody else started, as far as it lets itself be known: is it one, which model, how long a context.

Every way in which it is none ends in one `ServerUnusable` that says what was seen and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from autotune.engine.log_facts import SIMULATED_MARK
from autotune.engine.metrics_text import Metrics, parse_metrics
from autotune.engine.server_http import ModelCard, ModelListing, ServerDoor
from autotune.errors import NOT_SHOWN, InvalidOption, ServerUnusable
from autotune.load.address import check_url
from autotune.records import ServerFacts

_ENDPOINTS = ("/chat/completions", "/completions", "/models", "/v1")
"""What people paste behind the address; requests bring their own."""

_MISSING = frozenset({404, 405, 501})


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundServer:
    """A server that answers like OpenAI's.

    Attributes:
        door: to ask it more.
        model: the name that requests carry.
        root: what that name stands for (a path or a name on the hub), where the server tells.
        is_vllm: it takes vLLM's extensions.
        facts: what it says of itself over HTTP.
    """

    door: ServerDoor
    model: str
    root: str | None
    is_vllm: bool
    facts: ServerFacts

    async def metrics(self) -> Metrics | None:
        """Its counters now; None where it has no /metrics."""
        text = await self.door.metrics()
        return None if text is None else parse_metrics(text)


def base_of(url: str) -> str:
    """The address before `/v1`, a path prefix kept.

    Raises:
        InvalidOption: no http(s) address, or one with a password, a query or a fragment; a password is not shown.
    """
    if "@" in url:
        raise InvalidOption(
            "--url",
            NOT_SHOWN,
            "an address without user name and password",
            hint="A key is given by --api-key-env NAME, the environment variable that holds it.",
        )
    # Control characters would be dropped silently, or reach the terminal.
    base = check_url(url.strip() if url.isprintable() else "", allow_remote=True)
    parts = urlsplit(base)
    if parts.query or parts.fragment:
        raise InvalidOption("--url", url, "an address without ? and #, such as http://127.0.0.1:8000")
    for ending in _ENDPOINTS:
        base = base.removesuffix(ending).rstrip("/")
    return base


def key_of(variable: str | None, environ: Mapping[str, str]) -> str | None:
    """The key in an environment variable; None where none is named.

    Raises:
        InvalidOption: no such variable, or it holds what no header can carry. Neither name nor value is shown: a key
            is easily given in place of its variable's name.
    """
    if variable is None:
        return None
    key = environ.get(variable, "")
    if not key or not (key.isascii() and key.isprintable()):
        raise InvalidOption(
            "--api-key-env",
            NOT_SHOWN,
            "the name of an environment variable that holds the key",
            hint="Set the variable first (export NAME=...), and give its name here, not the key.",
        )
    return key


async def find_server(base: str, *, model: str | None = None, key: str | None = None) -> FoundServer:
    """Ask a server who it is. A few questions, each bounded to 10 s.

    Args:
        base: from `base_of`.
        model: the name to ask for; None for the only one that is served.

    Raises:
        ServerUnusable: it cannot be reached, asks for another key, or is no OpenAI server.
        InvalidOption: it serves no model of that name, or several and none was named.
    """
    door = ServerDoor(base, api_key=key)
    listing = await door.listing()
    if listing.cards is None and not (model is not None and listing.status in _MISSING):
        raise _unusable(base, listing, key_given=key is not None)
    card = _chosen(listing.cards, model) if listing.cards is not None else ModelCard(id=model or "")
    version = await door.version()
    text = await door.metrics()
    metrics = parse_metrics(text or "")
    return FoundServer(
        door=door,
        model=card.id,
        root=card.root,
        is_vllm=version is not None or metrics.is_vllm or card.owned_by == "vllm",
        facts=ServerFacts(
            vllm_version=version,
            simulated=SIMULATED_MARK in (version or ""),
            max_model_len=card.max_model_len,
            kv_cache_tokens=metrics.kv_cache_tokens or metrics.kv_cache_block_tokens,
            max_concurrency=metrics.kv_cache_max_concurrency,
        ),
    )


def _chosen(cards: Sequence[ModelCard], model: str | None) -> ModelCard:
    names = ", ".join(card.id for card in cards[:12])
    if model is not None:
        found = next((card for card in cards if model == card.id), None)
        found = found or next((card for card in cards if model == card.root), None)
        if found is None:
            raise InvalidOption("--model", model, names or "nothing: the server serves no model")
        return found
    # Adapters are listed beside the model that they change.
    whole = [card for card in cards if card.parent is None]
    if not whole:
        raise ServerUnusable("the server answers, but serves no model", hint="Load a model on it first.")
    if len(whole) > 1:
        raise InvalidOption("--model", None, names, hint="The server serves several models; say which one.")
    return whole[0]


def key_refused(base: str, *, key_given: bool) -> ServerUnusable:
    """The error of a server that answers 401 or 403."""
    if key_given:
        return ServerUnusable(
            f"{base} does not accept the API key that was sent",
            hint="Check the environment variable named by --api-key-env.",
        )
    return ServerUnusable(
        f"{base} asks for an API key",
        hint="Put the key into an environment variable and name that with --api-key-env NAME.",
    )


def _unusable(base: str, listing: ModelListing, *, key_given: bool) -> ServerUnusable:
    if listing.refused:
        return key_refused(base, key_given=key_given)
    if listing.status is None:
        return ServerUnusable(
            f"{base} cannot be reached: {listing.problem}", hint="Check the address, the port, and http or https."
        )
    if listing.redirect:
        return ServerUnusable(
            f"{base} sends its callers on to {listing.redirect[:200]}", hint="Give that address as --url."
        )
    if listing.status == 200:
        return ServerUnusable(
            f"what answers at {base} is no OpenAI server: its /v1/models is no list of models",
            hint="--url is the address before /v1, with any path prefix.",
        )
    return ServerUnusable(
        f"{base}/v1/models answered HTTP {listing.status}",
        hint="--url is the address before /v1, with any path prefix. A server without /v1/models needs --model."
        if listing.status in _MISSING
        else "Look at the server's log; it may still be starting.",
    )
