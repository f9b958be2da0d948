"""The fault `asks`: a server that goes no step further until whoever listens on a Unix socket lets it.

What is to be interrupted in a certain phase cannot leave that phase meanwhile, however slow the interrupter is.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from enum import StrEnum


class Step(StrEnum):
    """What leave is asked for, as it is told: one line."""

    START = "start"
    REQUEST = "request"
    STOP = "stop"


def ask(listener: str | None, step: Step) -> None:
    """Wait for leave, or for the listener's end; None asks nobody."""
    if listener is None:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
        asking.connect(listener)
        asking.sendall(f"{step}\n".encode())
        asking.recv(1)


async def asked(listener: str | None, step: Step) -> None:
    """The same while everything else goes on."""
    if listener is None:
        return
    with suppress(OSError):
        reader, writer = await asyncio.open_unix_connection(listener)
        try:
            writer.write(f"{step}\n".encode())
            await reader.read(1)
        finally:
            writer.close()
