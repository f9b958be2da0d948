"""vLLM's HTTP surface over the real-time engine (aiohttp)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from autotune.simulator import server_protocol as protocol
from autotune.simulator.server_args import VERSION, ServerOptions
from autotune.simulator.server_asking import Step, asked
from autotune.simulator.server_engine import Generation, RealTimeEngine
from autotune.simulator.server_faults import Fault
from autotune.simulator.server_metrics import render, render_process_only
from autotune.simulator.server_protocol import BadRequest, Wanted

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_MAX_BODY_BYTES = 64 * 2**20


class HttpSurface:
    """The routes. `clock` gives wall seconds for `created`; `dev_mode` opens the routes of VLLM_SERVER_DEV_MODE=1."""

    def __init__(self, options: ServerOptions, engine: RealTimeEngine, *, created: int, dev_mode: bool) -> None:
        self._options = options
        self._engine = engine
        self._created = created
        self._dev_mode = dev_mode
        self._faults = options.faults
        self._to_refuse = {
            500: self._faults.count(Fault.HTTP_500, 2**62) or 0,
            503: self._faults.count(Fault.HTTP_503, 2**62) or 0,
        }
        self._asks = self._faults.path(Fault.ASKS)
        self._stall_after = self._faults.count(Fault.STALL, 2)
        self._close_after = self._faults.count(Fault.CLOSE, 2)
        self._error_after = self._faults.count(Fault.ERROR_FRAME, 2)

    def app(self) -> web.Application:
        """The application, ready to be served."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/ping", self._health),
                web.post("/ping", self._health),
                web.get("/v1/models", self._models),
                web.get("/version", self._version),
                web.get("/metrics", self._metrics),
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat),
                web.post("/tokenize", self._tokenize),
            ]
        )
        if self._dev_mode:
            app.add_routes([web.post("/reset_prefix_cache", self._reset), web.get("/server_info", self._server_info)])
        return app

    def routes(self) -> list[tuple[str, str]]:
        """Path and methods of each route, for the log."""
        found: dict[str, list[str]] = {}
        for route in self.app().router.routes():
            if route.resource is not None:
                found.setdefault(route.resource.canonical, []).append(route.method)
        return [(path, ", ".join(methods)) for path, methods in found.items()]

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """API key on /v1, and errors in vLLM's form."""
        key = self._options.api_key
        if key and request.path.startswith("/v1") and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        try:
            response: web.StreamResponse = await handler(request)
        except BadRequest as error:
            return web.json_response(error.body, status=error.status)
        except web.HTTPNotFound:
            return web.json_response({"detail": "Not Found"}, status=404)
        except web.HTTPMethodNotAllowed:
            return web.json_response({"detail": "Method Not Allowed"}, status=405)
        return response

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self._engine.alive else 503)

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def _models(self, _: web.Request) -> web.Response:
        card = {
            "id": self._options.served_name,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": self._options.model,
            "parent": None,
            "max_model_len": self._engine.settings.max_model_len,
            "permission": [],
        }
        return web.json_response({"object": "list", "data": [card]})

    async def _metrics(self, _: web.Request) -> web.Response:
        if Fault.NO_METRICS in self._faults:
            text = render_process_only()
        else:
            self._engine.refresh()
            text = render(self._engine.metrics, model=self._options.served_name, cache_config=self._cache_config())
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    def _cache_config(self) -> dict[str, object]:
        settings = self._engine.settings
        blocks = self._engine.replicas[0].schedulers[0].pool.blocks
        return {
            "block_size": settings.block_size,
            "cache_dtype": settings.kv_cache_dtype,
            "enable_prefix_caching": settings.prefix_caching,
            "gpu_memory_utilization": settings.gpu_memory_utilization,
            "kv_cache_max_concurrency": blocks * settings.block_size / settings.max_model_len,
            "kv_cache_size_tokens": blocks * settings.block_size,
            "num_gpu_blocks": blocks,
        }

    async def _tokenize(self, request: web.Request) -> web.Response:
        model, tokens = protocol.parse_tokenize(await request.read())
        self._check_model(model)
        length = self._engine.settings.max_model_len
        return web.json_response({"count": len(tokens), "max_model_len": length, "tokens": tokens, "token_strs": None})

    async def _reset(self, _: web.Request) -> web.Response:
        self._engine.reset_prefix_cache()
        return web.Response(status=200)

    async def _server_info(self, _: web.Request) -> web.Response:
        given = ", ".join(f"{name}={value!r}" for name, value in self._options.given if name != "api_key")
        return web.json_response({"vllm_config": given, "vllm_env": {}, "system_env": {}})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        self._refuse_on_demand()
        return await self._answer(request, protocol.parse_completion(await request.read()))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self._refuse_on_demand()
        return await self._answer(request, protocol.parse_chat(await request.read()))

    def _refuse_on_demand(self) -> None:
        for status, left in self._to_refuse.items():
            if left > 0:
                self._to_refuse[status] = left - 1
                raise BadRequest("the server was asked to fail", status=status, kind="InternalServerError")

    def _check_model(self, name: str | None) -> None:
        if name not in (None, "", self._options.served_name):
            raise BadRequest(f"The model `{name}` does not exist.", status=404, kind="NotFoundError", param="model")

    async def _answer(self, http: web.Request, wanted: Wanted) -> web.StreamResponse:
        self._check_model(wanted.model)
        await asked(self._asks, Step.REQUEST)
        if not self._engine.alive:
            raise BadRequest(ENGINE_DEAD, status=500, kind="InternalServerError")
        settings = self._engine.settings
        lengths = [wanted.output_tokens(prompt, settings.max_model_len) for prompt in wanted.prompts]
        generations: list[Generation] = []
        try:
            for prompt, length in zip(wanted.prompts, lengths, strict=True):
                keys = protocol.block_keys(prompt, settings.block_size) if settings.prefix_caching else ()
                generations.append(self._engine.submit(len(prompt), length, keys))
            if wanted.stream:
                return await self._stream(http, wanted, generations)
            return await self._whole(wanted, generations)
        except ValueError as error:
            raise BadRequest(str(error)) from error
        finally:
            for generation in generations:
                if not generation.finished:
                    self._engine.abort(generation)

    async def _whole(self, wanted: Wanted, generations: list[Generation]) -> web.Response:
        for generation in generations:
            while not generation.finished:
                await generation.take()
                if generation.dead:
                    raise BadRequest(ENGINE_DEAD, status=500, kind="InternalServerError")
        head = self._head(wanted, chunk=False)
        choices = []
        for index, generation in enumerate(generations):
            text, reason = protocol.words(0, generation.produced), self._reason(wanted, generation)
            choice: dict[str, object] = {"index": index, "logprobs": None, "finish_reason": reason, "stop_reason": None}
            choices.append(
                choice | ({"message": {"role": "assistant", "content": text}} if wanted.chat else {"text": text})
            )
        prompt_tokens = sum(g.request.prompt_tokens for g in generations)
        total = protocol.usage(prompt_tokens, sum(g.produced for g in generations))
        return web.json_response({**head, "choices": choices, "usage": total})

    async def _stream(self, http: web.Request, wanted: Wanted, generations: list[Generation]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)
        head = self._head(wanted, chunk=True)
        sent = 0
        async for index, start, count in _merge(generations):
            generation = generations[index]
            if wanted.chat and not sent and not generation.dead:
                # Not before the first token, as vLLM 0.32 (openai/chat_completion/serving.py): clients that take this
                # frame for a token read their TTFT by it.
                role = {"role": "assistant", "content": ""}
                first = {"index": 0, "delta": role, "logprobs": None, "finish_reason": None}
                await response.write(protocol.frame({**head, "choices": [first]}))
            if generation.dead:
                await response.write(
                    protocol.frame(BadRequest(ENGINE_DEAD, status=500, kind="InternalServerError").body)
                )
                break
            reason = self._reason(wanted, generation) if generation.finished else None
            text = protocol.words(start, count)
            choice: dict[str, object] = {"index": index}
            choice |= {"delta": {"content": text}} if wanted.chat else {"text": text}
            choice |= {"logprobs": None, "finish_reason": reason, "stop_reason": None}
            chunk = {**head, "choices": [choice]} | ({} if wanted.chat else {"usage": None})
            await response.write(protocol.frame(chunk))
            sent += 1
            if await self._broken(http, response, sent):
                return response
        else:
            if wanted.include_usage and Fault.NO_USAGE not in self._faults:
                prompt_tokens = sum(g.request.prompt_tokens for g in generations)
                total = protocol.usage(prompt_tokens, sum(g.produced for g in generations))
                await response.write(protocol.frame({**head, "choices": [], "usage": total}))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _broken(self, http: web.Request, response: web.StreamResponse, sent: int) -> bool:
        """Misbehave after `sent` chunks where a fault asks for it; True when the stream is over."""
        if sent == self._stall_after:
            await asyncio.sleep(3600)
        if sent == self._close_after and http.transport is not None:
            http.transport.abort()
            return True
        if sent == self._error_after:
            # As vLLM: an error object under HTTP 200, and then [DONE] all the same.
            await response.write(protocol.frame(BadRequest(ENGINE_DEAD, status=500, kind="InternalServerError").body))
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
            return True
        return False

    def _head(self, wanted: Wanted, *, chunk: bool) -> dict[str, object]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if wanted.chat else "text_completion"
        prefix = "chatcmpl" if wanted.chat else "cmpl"
        name = f"{prefix}-{uuid.uuid4().hex}"
        return {"id": name, "object": kind, "created": self._created, "model": self._options.served_name}

    @staticmethod
    def _reason(wanted: Wanted, generation: Generation) -> str:
        full = wanted.max_tokens is None or generation.request.output_tokens >= wanted.max_tokens
        return "length" if full else "stop"


async def _merge(generations: list[Generation]) -> AsyncIterator[tuple[int, int, int]]:
    """Chunks of all choices as they come: choice, number of its first token, how many tokens."""
    if len(generations) == 1:
        generation, start = generations[0], 0
        while not generation.finished:
            count = await generation.take()
            yield 0, start, count
            start += count
        return
    starts = [0] * len(generations)
    waiting = {asyncio.ensure_future(g.take()): i for i, g in enumerate(generations)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = waiting.pop(task)
                count = task.result()
                yield index, starts[index], count
                starts[index] += count
                if not generations[index].finished and not generations[index].dead:
                    waiting[asyncio.ensure_future(generations[index].take())] = index
    finally:
        for task in waiting:
            task.cancel()
