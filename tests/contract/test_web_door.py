"""Connections that say nothing, and more of them than there is room for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import web
from held_up import again_when_held_up

from autotune.web.door import Door

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


@asynccontextmanager
async def behind(door: Door) -> AsyncIterator[int]:
    """A small application behind `door`; its port."""

    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application(middlewares=[door.listen])
    app.router.add_get("/", hello)
    runner = web.AppRunner(app)
    await runner.setup()
    assert runner.server is not None
    server = await asyncio.get_running_loop().create_server(door.factory(runner.server), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await runner.cleanup()


async def connect(stack: AsyncExitStack, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    stack.callback(writer.close)
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the other side closes the connection without a word."""
    try:
        return await asyncio.wait_for(reader.read(), 120) == b""
    except ConnectionError:
        return True


@again_when_held_up
async def test_headers_that_do_not_end_are_waited_for_so_long_and_who_was_answered_may_stay() -> None:
    async with behind(Door(head_s=0.3)) as port, AsyncExitStack() as stack:
        reader, writer = await connect(stack, port)
        writer.write(GET + b"\r\n")  # before anything else, which might take longer than it may
        slow_reader, slow = await connect(stack, port)
        silent_reader, _ = await connect(stack, port)
        slow.write(GET)
        for again in (GET + b"\r\n", b""):
            assert b"200 OK" in await reader.readuntil(b"hello")
            assert await ended(slow_reader)
            assert await ended(silent_reader)
            writer.write(again)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nno colon here\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    ],
    ids=["version", "tls", "header", "length"],
)
async def test_what_is_no_http_is_answered_with_a_problem(sent: bytes) -> None:
    async with behind(Door()) as port, AsyncExitStack() as stack:
        reader, writer = await connect(stack, port)
        writer.write(sent)
        head, _, body = (await asyncio.wait_for(reader.read(), 120)).partition(b"\r\n\r\n")
        assert head.split()[1] == b"400"
        assert b"Content-Type: application/problem+json" in head
        assert b"X-Content-Type-Options: nosniff" in head
        assert json.loads(body)["type"] == "urn:autotune:problem:malformed-request"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 20_000 + b"\r\n\r\n",
    ],
    ids=["line", "header"],
)
async def test_a_head_that_is_too_long_is_called_that(sent: bytes) -> None:
    async with behind(Door()) as port, AsyncExitStack() as stack:
        reader, writer = await connect(stack, port)
        writer.write(sent)
        head, _, body = (await asyncio.wait_for(reader.read(), 120)).partition(b"\r\n\r\n")
        assert head.split()[1] == b"431"
        assert json.loads(body)["type"] == "urn:autotune:problem:head-too-large"


async def test_more_connections_than_the_door_lets_in_are_closed_and_room_is_given_back() -> None:
    door = Door(most=2, head_s=600.0)
    async with behind(door) as port, AsyncExitStack() as stack:
        first, second = [await connect(stack, port) for _ in range(2)]
        third_reader, _ = await connect(stack, port)
        assert await ended(third_reader)
        second[1].close()
        await second[1].wait_closed()
        while door.open > 1:
            await asyncio.sleep(0.01)
        reader, writer = await connect(stack, port)
        writer.write(GET + b"\r\n")
        assert b"200 OK" in await reader.readuntil(b"hello")
        first[1].write(GET + b"\r\n")
        assert b"200 OK" in await first[0].readuntil(b"hello")
