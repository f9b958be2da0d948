"""The service on a free port, in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from autotune.web.app import make_app
from autotune.web.settings import ServeSettings

START_S, STOP_S = 120.0, 300.0


@contextmanager
def served(settings: ServeSettings) -> Iterator[str]:
    """Its address, until the block ends; what runs then is ended with it."""
    ready = threading.Event()
    address: list[str] = []
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(make_app(settings), shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        await over.wait()
        await runner.cleanup()

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(serve())
        finally:
            loop.close()
            ready.set()

    thread = threading.Thread(target=run, name="service", daemon=True)
    thread.start()
    assert ready.wait(START_S)
    assert address, "the service did not start"
    yield address[0]
    loop.call_soon_threadsafe(over.set)
    thread.join(STOP_S)
    assert not thread.is_alive()
