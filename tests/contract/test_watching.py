"""Looking on at a server of somebody else: what it may answer instead of what a vLLM does."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from autotune.engine.watching import Watched, watch
from autotune.errors import ServerUnusable

MODELS = {"object": "list", "data": [{"id": "org/m", "root": "org/m", "max_model_len": 8192}]}
COUNTED = 'vllm:prompt_tokens_total{model_name="m"} 7\n'


@asynccontextmanager
async def serving(metrics: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> AsyncIterator[str]:
    async def models(_: web.Request) -> web.Response:
        return web.json_response(MODELS)

    async def version(_: web.Request) -> web.Response:
        return web.json_response(["no", "object"])

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=metrics, status=status, headers=headers)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_get("/version", version)
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def seen(base: str) -> Watched:
    return await watch(base, 0.0, clock=time.monotonic)


async def test_a_vllm_is_read() -> None:
    async with serving(COUNTED.encode()) as base:
        found = await seen(base)
    assert found.readings[0].text == COUNTED
    assert (found.server.model, found.server.facts.vllm_version) == ("org/m", None)


@pytest.mark.parametrize(
    "metrics", [b"", bytes(range(256)), b"python_info 1\nprocess_start_time_seconds 5\n", b"vllm:x NaN?\n", b"<html>"]
)
async def test_metrics_of_something_else_are_no_good_sign(metrics: bytes) -> None:
    async with serving(metrics) as base:
        with pytest.raises(ServerUnusable, match="no metrics of a vLLM"):
            await seen(base)


@pytest.mark.parametrize(
    ("status", "headers"), [(404, None), (500, None), (302, {"Location": "http://127.0.0.1:9/metrics"})]
)
async def test_what_answers_otherwise_is_not_read(status: int, headers: dict[str, str] | None) -> None:
    async with serving(COUNTED.encode(), status=status, headers=headers) as base:
        with pytest.raises(ServerUnusable, match="does not answer"):
            await seen(base)
