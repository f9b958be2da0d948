"""What an engine asks a server over HTTP, apart from the load itself. Every question has a deadline; none raises.

A server that does not answer is normal here (it is starting, or dying), so each answer may be None.
"""

from __future__ import annotations

import contextlib

import aiohttp
from pydantic import BaseModel, ValidationError

HEALTH_TIMEOUT_S = 2.0
ASK_TIMEOUT_S = 10.0
MOST_BYTES = 16 * 1024 * 1024
"""Longest answer that is read: what listens on the port need not be a vLLM."""


class ModelCard(BaseModel):
    """One entry of /v1/models (OpenAI's list, with vLLM's additions)."""

    id: str
    root: str | None = None
    max_model_len: int | None = None


class _Models(BaseModel):
    data: list[ModelCard]


class _Version(BaseModel):
    version: str


class ServerDoor:
    """One server's HTTP surface at `base_url`.

    Every question opens its own connection: the port's owner may change between two, and nothing needs closing.

    Args:
        api_key: bearer token that /v1/models may ask for; never shown.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None) -> None:
        self.base_url = base_url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._resets = True

    async def health(self) -> int | None:
        """Status of /health: 200 ready, 503 when the engine died behind the API server; None without an answer."""
        status, _ = await self._ask("GET", "/health", HEALTH_TIMEOUT_S)
        return status

    async def version(self) -> str | None:
        """vLLM's version; a simulated server's says `+simulated`."""
        text = await self._text("/version")
        with contextlib.suppress(ValidationError):
            return _Version.model_validate_json(text or "").version
        return None

    async def models(self) -> tuple[ModelCard, ...] | None:
        """The models served; None when this is no OpenAI server."""
        text = await self._text("/v1/models")
        with contextlib.suppress(ValidationError):
            return tuple(_Models.model_validate_json(text or "").data)
        return None

    async def metrics(self) -> str | None:
        """The Prometheus text; a broken /metrics (vllm#49983) is no failure of the server."""
        return await self._text("/metrics")

    async def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; False where the server does not offer it (outside vLLM's development mode)."""
        if not self._resets:
            return False
        status, _ = await self._ask("POST", "/reset_prefix_cache", ASK_TIMEOUT_S)
        if status in (404, 405):
            self._resets = False
        return status == 200

    async def _text(self, path: str) -> str | None:
        status, body = await self._ask("GET", path, ASK_TIMEOUT_S)
        return body.decode("utf-8", "replace") if status == 200 else None

    async def _ask(self, method: str, path: str, timeout_s: float) -> tuple[int | None, bytes]:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session,
                session.request(method, self.base_url + path, allow_redirects=False) as response,
            ):
                body = b""
                while len(body) < MOST_BYTES and (piece := await response.content.readany()):
                    body += piece
                return response.status, body
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None, b""
