"""Runs the service until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from autotune.errors import InvalidOption
from autotune.web.app import make_app
from autotune.web.door import Door
from autotune.web.problems import shown_text
from autotune.web.queue import make_folder
from autotune.web.settings import ServeSettings

MOST_LOGGED = 1000
"""Characters of a line."""

SHUTDOWN_S = 5.0
"""What requests that are being answered get; event streams end at once."""


class OneLine(logging.Formatter):
    """A line for each record, secrets taken out. A traceback of the HTTP library tells an operator nothing, and whoever
    sends rubbish could fill the disk with them."""

    def format(self, record: logging.LogRecord) -> str:
        """The message, and what was raised."""
        raised = record.exc_info[1] if record.exc_info else None
        why = f": {raised!r}" if raised is not None else ""
        return shown_text(f"autotune: {record.getMessage()}{why}".replace("\n", " "), MOST_LOGGED)


def run_service(settings: ServeSettings, say: Callable[[str], None], *, tls: ssl.SSLContext | None = None) -> None:
    """Listen, tell where, and return once TERM or Ctrl-C came and everything was ended.

    Args:
        say: prints the one line that says where the service is.
        tls: what is spoken; None for plain HTTP.

    Raises:
        InvalidOption: nobody can listen there.
        StorageError: the studies folder cannot be made.
    """
    if not settings.look_only:
        make_folder(settings.folder)
    logging.getLogger("aiohttp.server").addFilter(is_ours)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    asyncio.run(_run(settings, say, tls))


def is_ours(record: logging.LogRecord) -> bool:
    """What is no HTTP is no event of the service, in a head that was answered with 400 or in a body that nobody wanted:
    scanners send it by the thousand."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError | web.RequestPayloadError))


def runner_of(app: web.Application) -> web.AppRunner:
    """What serves the application. Bodies stay as they were sent: encoded ones are refused, and aiohttp would unpack
    gigabytes of zeros to throw them away."""
    return web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S, auto_decompress=False)


async def _run(settings: ServeSettings, say: Callable[[str], None], tls: ssl.SSLContext | None) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stopped.set)
    app, door = make_app(settings), Door()
    app.middlewares.insert(0, door.listen)
    runner = runner_of(app)
    server: asyncio.Server | None = None
    try:
        await runner.setup()
        server = await _listen(runner, door, settings, tls)
        for host, port, *_ in (socket.getsockname() for socket in server.sockets):
            shown = f"[{host}]" if ":" in host else host
            say(f"autotune: http{'' if tls is None else 's'}://{shown}:{port}/")
        await stopped.wait()
    finally:
        if server is not None:
            server.close()
        with suppress(asyncio.CancelledError):
            await runner.cleanup()


async def _listen(
    runner: web.AppRunner, door: Door, settings: ServeSettings, tls: ssl.SSLContext | None
) -> asyncio.Server:
    """Not by a site of aiohttp: connections pass the door first."""
    assert runner.server is not None  # since its setup
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(door.factory(runner.server), settings.host, settings.port, ssl=tls)
    except OSError as error:
        option = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
        value = settings.port if option == "--port" else settings.host
        why = error.strerror or str(error)
        raise InvalidOption(option, value, f"an address of this machine that is free ({why})") from None
