"""What an engine asks a server over HTTP, apart from the load itself. Every question has a deadline; none raises.

A server that does not answer is normal here (it is starting, or dying), so each answer may be None.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import BaseModel, ValidationError, field_validator

HEALTH_TIMEOUT_S = 2.0
ASK_TIMEOUT_S = 10.0
INFO_TIMEOUT_S = 90.0
"""For /server_info: before its first answer a vLLM 0.32 looks over the whole machine (`vllm.collect_env`, which runs
pip and nvidia-smi), and took 20 s on a busy one. Where there is no such path it says so at once."""
MOST_BYTES = 16 * 1024 * 1024
"""Longest answer that is read: what listens on the port need not be a vLLM."""


class ModelCard(BaseModel):
    """One entry of /v1/models (OpenAI's list, with vLLM's additions)."""

    id: str
    root: str | None = None
    max_model_len: int | None = None
    parent: str | None = None
    owned_by: str | None = None

    @field_validator("max_model_len")
    @classmethod
    def _length(cls, value: int | None) -> int | None:
        return value if value is not None and value > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelListing:
    """What /v1/models said.

    Attributes:
        status: HTTP status; None without an answer.
        cards: None where the answer is no list of models.
        problem: why there was no answer, in the words of the HTTP client; empty when there was one.
        redirect: where the server sends its callers instead.
    """

    status: int | None
    cards: tuple[ModelCard, ...] | None = None
    problem: str = ""
    redirect: str = ""

    @property
    def refused(self) -> bool:
        """The server asks for a key, or for another one."""
        return self.status in (401, 403)


class _Models(BaseModel):
    data: list[ModelCard]


class _Version(BaseModel):
    version: str


class _ServerInfo(BaseModel):
    vllm_config: str | dict[str, Any]


_SETTINGS = ("model_config", "cache_config", "parallel_config", "scheduler_config", "load_config")


def _settings_text(config: dict[str, Any]) -> str:
    """Plain values of the parts that flags stand for; the first part that has a name wins."""
    found: dict[str, str] = {}
    for part in _SETTINGS:
        values = config.get(part)
        for name, value in values.items() if isinstance(values, dict) else ():
            if value is None or isinstance(value, bool | int | float | str):
                found.setdefault(name, repr(value))
    return ", ".join(f"{name}={value}" for name, value in found.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int | None = None
    body: bytes = b""
    problem: str = ""
    redirect: str = ""


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
        return (await self._ask("GET", "/health", HEALTH_TIMEOUT_S)).status

    async def version(self) -> str | None:
        """vLLM's version; a simulated server's says `+simulated`."""
        text = await self._text("/version")
        with contextlib.suppress(ValidationError):
            return _Version.model_validate_json(text or "").version
        return None

    async def models(self) -> tuple[ModelCard, ...] | None:
        """The models served; None when this is no OpenAI server."""
        return (await self.listing()).cards

    async def listing(self) -> ModelListing:
        """The models served, or what came instead of them."""
        answer = await self._ask("GET", "/v1/models", ASK_TIMEOUT_S)
        cards = None
        if answer.status == 200:
            with contextlib.suppress(ValidationError):
                cards = tuple(_Models.model_validate_json(answer.body).data)
        return ModelListing(status=answer.status, cards=cards, problem=answer.problem, redirect=answer.redirect)

    async def metrics(self) -> str | None:
        """The Prometheus text; a broken /metrics (vllm#49983) is no failure of the server."""
        return await self._text("/metrics")

    async def server_info(self) -> str | None:
        """The resolved configuration as `name=value, ...`; None outside of vLLM's development mode.

        Newer versions give it as JSON, with all of the scheduler's settings; others as the text that they log.
        """
        text = await self._text("/server_info?config_format=json", INFO_TIMEOUT_S)
        with contextlib.suppress(ValidationError):
            found = _ServerInfo.model_validate_json(text or "").vllm_config
            return found if isinstance(found, str) else _settings_text(found)
        return None

    async def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; False where the server does not offer it (outside vLLM's development mode)."""
        if not self._resets:
            return False
        status = (await self._ask("POST", "/reset_prefix_cache", ASK_TIMEOUT_S)).status
        if status in (404, 405):
            self._resets = False
        return status == 200

    async def _text(self, path: str, timeout_s: float = ASK_TIMEOUT_S) -> str | None:
        answer = await self._ask("GET", path, timeout_s)
        return answer.body.decode("utf-8", "replace") if answer.status == 200 else None

    async def _ask(self, method: str, path: str, timeout_s: float) -> _Answer:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session,
                session.request(method, self.base_url + path, allow_redirects=False) as response,
            ):
                body = b""
                while len(body) < MOST_BYTES and (piece := await response.content.readany()):
                    body += piece
                redirect = response.headers.get("Location", "") if 300 <= response.status < 400 else ""
                return _Answer(status=response.status, body=body, redirect=redirect)
        except TimeoutError:
            return _Answer(problem=f"no answer within {timeout_s:g} s")
        except aiohttp.ClientConnectorError as error:  # its text names TLS's settings, also where there is no TLS
            known = error.errno is not None and error.errno > 0
            return _Answer(problem=os.strerror(error.errno or 0) if known else str(error.strerror or error))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return _Answer(problem=str(error) or type(error).__name__)
