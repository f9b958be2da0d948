"""The guard's questions to a server over HTTP: what comes back, and what stands in the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from autotune.engine.asking import ask_server
from autotune.quality.prompts import QualityPrompt

PROMPTS = (
    QualityPrompt(name="001", subject="code", text="def f("),
    QualityPrompt(name="002", subject="code", text="return 1 +"),
)
# As vLLM 0.32 answers: the first prompt token has no probability, the others are keyed by token id.
CHOICE = {
    "index": 0,
    "text": " x):",
    "logprobs": {"tokens": [" x", "):"], "token_logprobs": [-0.1, -0.2], "top_logprobs": None, "text_offset": [0, 2]},
    "finish_reason": "length",
    "prompt_logprobs": [
        None,
        {"282": {"logprob": -3.25, "rank": 7, "decoded_token": " f"}},
        {"7": {"logprob": -0.5, "rank": 1, "decoded_token": "("}},
    ],
}


@asynccontextmanager
async def server(answer: Callable[[dict[str, Any]], web.Response]) -> AsyncIterator[tuple[str, list[Any]]]:
    """Answers every completion so; gives its address and what it was asked."""
    seen: list[Any] = []

    async def completions(request: web.Request) -> web.Response:
        body = await request.json()
        seen.append((body, request.headers.get("Authorization")))
        return answer(body)

    app = web.Application()
    app.add_routes([web.post("/v1/completions", completions)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}", seen
    finally:
        await runner.cleanup()


async def ask(url: str, **changes: Any):
    return await ask_server(url, "m", PROMPTS, **{"output_tokens": 2, "deadline_s": 20.0, **changes})


async def test_probabilities_of_the_prompt_and_greedy_tokens_come_back() -> None:
    async with server(lambda _: web.json_response({"choices": [CHOICE]})) as (url, seen):
        found = await ask(url, api_key="secret")
    assert found.problem is None
    assert [one.name for one in found.answers] == ["001", "002"]
    first = found.answers[0]
    assert (first.prompt_ids, first.logprobs, first.greedy) == ((282, 7), (-3.25, -0.5), (" x", "):"))
    body, authorization = seen[0]
    assert (body["prompt"], body["max_tokens"], body["temperature"]) == ("def f(", 2, 0)
    assert (body["prompt_logprobs"], body["model"], authorization) == (0, "m", "Bearer secret")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda _: web.json_response({"error": "no"}, status=400), "answered 400"),
        (lambda _: web.Response(text="<html>"), "no completion"),
        (lambda _: web.json_response({"choices": []}), "no completion"),
        (lambda _: web.json_response({"choices": [{**CHOICE, "prompt_logprobs": None}]}), "no log-probabilities"),
        (lambda _: web.json_response({"choices": [{**CHOICE, "logprobs": None}]}), "no log-probabilities"),
    ],
)
async def test_a_server_that_gives_no_probabilities_is_told_and_not_raised(answer: Any, problem: str) -> None:
    async with server(answer) as (url, seen):
        found = await ask(url)
    assert problem in (found.problem or "")
    assert (found.answers, len(seen)) == ((), 1)


async def test_a_server_that_is_gone_is_told_and_not_raised() -> None:
    async with server(lambda _: web.json_response({})) as (url, _):
        pass
    assert "no answer" in ((await ask(url)).problem or "")


async def test_no_further_prompt_is_asked_after_the_deadline() -> None:
    async with server(lambda _: web.json_response({"choices": [CHOICE]})) as (url, seen):
        found = await ask(url, deadline_s=-1.0)
    assert found.problem == "0 of 2 prompts were answered in -1 s"
    assert not seen
