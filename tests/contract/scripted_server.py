"""An OpenAI-like server that does exactly what a script says, misbehaviour included.

A script is a status and a sequence of steps; true arrival times and token counts follow from it by hand.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """Be silent for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reset:
    """Drop the connection where it is."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Never say anything again."""


Step = Send | Pause | Reset | Hang


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One answer."""

    steps: Sequence[Step] = ()
    status: int = 200
    content_type: str = "text/event-stream"
    before_head_s: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    waits_for: Callable[[], bool] | None = None
    """Nothing is said before it is so."""


@dataclass(slots=True)
class Seen:
    """What the server saw: every request's path, JSON body and headers, and the most that were open at once."""

    requests: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    open_now: int = 0
    most_open: int = 0
    arrived_s: list[float] = field(default_factory=list)


def frame(body: object) -> Send:
    """One SSE frame with a JSON body (or `[DONE]`)."""
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return Send(f"data: {text}\n\n".encode())


def delta(finish: str | None = None, **fields: object) -> Send:
    """A chat chunk with this delta."""
    return frame({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def text(value: str, finish: str | None = None) -> Send:
    """A completions chunk with this text."""
    return frame({"choices": [{"index": 0, "text": value, "finish_reason": finish}]})


def usage(prompt: int, completion: int) -> Send:
    """The usage chunk, which has no choices."""
    return frame({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


DONE = frame("[DONE]")


@asynccontextmanager
async def serving(answer: Callable[[int, dict[str, Any]], Script], *, tokens_of: Callable[[str], int] | None = None):
    """Serve `answer(number of the request, its body)`; yields (base URL, Seen).

    With `tokens_of` the server has a /tokenize that counts with it, plus 7 tokens of chat template.
    """
    seen = Seen()

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        script = answer(len(seen.requests), body)
        seen.requests.append((request.path, body, dict(request.headers)))
        seen.arrived_s.append(asyncio.get_running_loop().time())
        seen.open_now += 1
        seen.most_open = max(seen.most_open, seen.open_now)
        try:
            return await _perform(request, script)
        finally:
            seen.open_now -= 1

    async def tokenize(request: web.Request) -> web.Response:
        body = await request.json()
        if tokens_of is None:
            raise web.HTTPNotFound
        if "messages" in body:
            return web.json_response({"count": 7 + sum(tokens_of(m["content"]) for m in body["messages"])})
        return web.json_response({"count": tokens_of(body["prompt"])})

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", handle)
    app.router.add_post("/v1/completions", handle)
    app.router.add_post("/tokenize", tokenize)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}", seen
    finally:
        await runner.cleanup()


async def _perform(request: web.Request, script: Script) -> web.StreamResponse:
    await asyncio.sleep(script.before_head_s)
    while script.waits_for is not None and not script.waits_for():
        await asyncio.sleep(0.005)
    response = web.StreamResponse(status=script.status, headers=script.headers)
    response.content_type = script.content_type
    await response.prepare(request)
    for step in script.steps:
        match step:
            case Send(data):
                await response.write(data)
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Reset():
                if request.transport is not None:
                    request.transport.abort()
                return response
            case Hang():
                await asyncio.sleep(3600)
    await response.write_eof()
    return response
