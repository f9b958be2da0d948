"""One worker process of a level: `python -m autotune.load.workers_child`, started by workers.py alone.

Order and prompts come by standard input, records leave by what was standard output. It ends when its work is done, or
when standard input ends: then whoever has started it is gone, however that came.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TypeVar

from autotune.errors import StorageError
from autotune.load.bodies import BodyStore
from autotune.load.level_run import LevelRun, no_garbage_collection
from autotune.load.loops import new_loop
from autotune.load.priority import ahead_of_others
from autotune.load.reading import Reading
from autotune.load.transports import open_transport
from autotune.load.workers_wire import (
    Body,
    Failed,
    Message,
    Order,
    Prepare,
    Ready,
    Records,
    Start,
    pack,
    receive,
)

_M = TypeVar("_M", bound=Message)


class _OwnerGone(Exception):
    """Nobody waits for what this process does."""


def main() -> int:
    """Do what is ordered; the exit code, which nobody needs."""
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no message
    with suppress(_OwnerGone, BrokenPipeError), asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_work(out))
    return 0


async def _work(out: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    with os.fdopen(out, "wb", buffering=0) as pipe:
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
        writer = asyncio.StreamWriter(transport, protocol, None, loop)

        def say(message: Message) -> None:
            writer.write(pack(message))

        try:
            await _level(reader, say)
        except StorageError as error:
            say(Failed(error.message, error.hint, storage=True))
        except (OSError, ValueError) as error:
            say(Failed(f"{type(error).__name__}: {error}"))
        await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _level(reader: asyncio.StreamReader, say: Callable[[Message], None]) -> None:
    order = await _expect(reader, Order)
    with closing(BodyStore()) as bodies:
        for _ in order.requests:
            bodies.add((await _expect(reader, Body)).data)
        readings: list[Reading] = []

        def keep(reading: Reading) -> None:
            if order.tell:
                say(Records((reading.record(),), last=False))
            else:
                readings.append(reading)

        run = LevelRun(order.requests, bodies, clock=time.perf_counter, keep=keep)
        async with open_transport(
            order.url, headers=order.headers, timeouts=order.timeouts, now=run.now, kind=order.transport
        ) as transport:
            await _expect(reader, Prepare)
            await transport.prepare(order.connections, order.spare)
            say(Ready(time.perf_counter()))
            start = (await _expect(reader, Start)).clock
            abort = asyncio.Event()
            before_s = time.process_time()
            watching = asyncio.create_task(_watch(reader, abort))
            running = asyncio.create_task(
                run.run(
                    transport,
                    order.level,
                    order.in_flight,
                    deadline_s=order.deadline_s,
                    abort=abort,
                    offsets_s=order.offsets_s,
                    start=start,
                )
            )
            try:
                with no_garbage_collection(), ahead_of_others():
                    await asyncio.wait({watching, running}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                watching.cancel()
                if not running.done():
                    running.cancel()
                await asyncio.wait({watching, running})
            cpu_s = time.process_time() - before_s
        if running.cancelled():
            raise _OwnerGone
        running.result()
        say(Records(tuple(reading.record() for reading in readings), last=True, cpu_s=cpu_s))


async def _watch(reader: asyncio.StreamReader, abort: asyncio.Event) -> None:
    """Until the owner has gone."""
    while await receive(reader) is not None:
        abort.set()  # nothing else is said now


async def _expect(reader: asyncio.StreamReader, kind: type[_M]) -> _M:
    message = await receive(reader)
    if not isinstance(message, kind):
        raise _OwnerGone
    return message


if __name__ == "__main__":
    sys.exit(main())
