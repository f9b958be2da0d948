"""A level carried by several processes, each stamping its own on one clock: for more chunks than one core can stamp.

Who calls: client.drive, with the prompts rendered. Owned here: the processes, from their start to their end; they end
with this call, however it ends, and by themselves when this process is gone.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

from autotune.errors import LoadWorkerLost, StorageError
from autotune.load.exchange import Timeouts, TransportKind
from autotune.load.level_run import Bodies
from autotune.load.workers_split import Share
from autotune.load.workers_wire import (
    Abort,
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
from autotune.records import LoadLevel, PlannedRequest, RequestRecord

clock = time.perf_counter
"""Of Linux CLOCK_MONOTONIC, of macOS mach_absolute_time: the same in every process since the machine's start."""

START_AHEAD_S = 0.05
"""How far ahead the level's zero is set, so that every worker hears of it before."""

START_LIMIT_S = 60.0
"""For starting Python and connecting, on a machine that is busy loading a model."""

END_LIMIT_S = 30.0
"""Beyond the level's deadline, for the records."""

EXIT_LIMIT_S = 2.0

STATUS_LIMIT_S = 30.0
"""Until the status of a worker is known that closed its output: it is ending, however busy the machine."""

_MODULE = "autotune.load.workers_child"
_SOURCE = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLevel:
    """A level that is to be split, and everything that workers need for it."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    timeouts: Timeouts
    transport: TransportKind | None
    level: LoadLevel
    requests: Sequence[PlannedRequest]
    bodies: Bodies
    offsets_s: Sequence[float]
    deadline_s: float
    connections: int
    spare: int

    def order(self, share: Share, *, tell: bool) -> Order:
        """What one worker is told."""
        part = len(share.places) / len(self.requests)
        connections = min(len(share.places), share.in_flight, ceil(self.connections * part))
        return Order(
            url=self.url,
            headers=dict(self.headers),
            timeouts=self.timeouts,
            transport=self.transport,
            level=self.level,
            requests=tuple(self.requests[place] for place in share.places),
            in_flight=share.in_flight,
            offsets_s=tuple(self.offsets_s[slot] for slot in share.slots),
            deadline_s=self.deadline_s,
            connections=connections,
            spare=self.spare,
            tell=tell,
        )


async def drive_shared(
    shared: SharedLevel,
    shares: Sequence[Share],
    *,
    before_start: Callable[[], Awaitable[None]] | None,
    abort: asyncio.Event | None,
    on_record: Callable[[RequestRecord], None] | None,
    on_worker: Callable[[float], None] | None = None,
) -> list[RequestRecord]:
    """The records of all workers, in no order; their times count from one zero.

    Args:
        on_worker: called with the CPU seconds of each worker as it ends: its process is gone when the level is over.

    Raises:
        LoadWorkerLost: a worker ended before its work was done, or answers no more.
        StorageError: a worker had no room for its prompts.
    """
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(_running(number, len(shares))) for number in range(1, len(shares) + 1)
        ]
        tell = on_record is not None
        async with _limit(START_LIMIT_S, "were not ready"):
            await asyncio.gather(
                *(worker.brief(shared, share, tell) for worker, share in zip(workers, shares, strict=True))
            )
        if before_start is not None:
            await before_start()
        async with _limit(START_LIMIT_S, "were not connected"):
            await asyncio.gather(*(worker.prepare() for worker in workers))
        start = clock() + START_AHEAD_S
        for worker in workers:
            worker.say(Start(start))
        telling = [asyncio.create_task(worker.records(on_record, on_worker)) for worker in workers]
        passing = [asyncio.create_task(_pass_on(abort, workers))] if abort is not None else []
        try:
            # The first that fails ends the level: the others would carry less than was asked.
            _, pending = await asyncio.wait(
                telling, timeout=shared.deadline_s + END_LIMIT_S, return_when=asyncio.FIRST_EXCEPTION
            )
            found = [record for task in telling if task.done() for record in task.result()]
            if pending:
                raise LoadWorkerLost(f"{len(pending)} load workers did not end when the level's time was over")
        finally:
            for task in (*telling, *passing):
                task.cancel()
            await asyncio.wait([*telling, *passing])
        return found


class _Worker:
    """One process, as its owner sees it."""

    def __init__(self, process: asyncio.subprocess.Process, number: int, count: int) -> None:
        self.process = process
        self._name = f"load worker {number} of {count}"
        assert process.stdin is not None  # both were asked for
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout

    def say(self, message: Message) -> None:
        """Send; a worker that is gone is found out by who listens to it."""
        with suppress(ConnectionError, RuntimeError):
            self._in.write(pack(message))

    async def brief(self, shared: SharedLevel, share: Share, tell: bool) -> None:
        """Tell it everything that it needs."""
        self.say(shared.order(share, tell=tell))
        for place in share.places:
            self.say(Body(shared.bodies[place]))
            with suppress(ConnectionError):
                await self._in.drain()

    async def prepare(self) -> None:
        """Have it open its connections."""
        before = clock()
        self.say(Prepare())
        ready = await self._hear()
        if not (isinstance(ready, Ready) and before <= ready.clock <= clock()):
            raise LoadWorkerLost(f"{self._name} has another clock than this process, or said {type(ready).__name__}")

    async def records(
        self, on_record: Callable[[RequestRecord], None] | None, on_worker: Callable[[float], None] | None
    ) -> list[RequestRecord]:
        """Everything that it has to tell."""
        found: list[RequestRecord] = []
        while True:
            message = await self._hear()
            if not isinstance(message, Records):
                raise LoadWorkerLost(f"{self._name} said {type(message).__name__} in place of records")
            found += message.records
            if on_record is not None:
                for record in message.records:
                    on_record(record)
            if message.last:
                if on_worker is not None and message.cpu_s is not None:
                    on_worker(message.cpu_s)
                return found

    async def _hear(self) -> Message:
        message = await receive(self._out)
        if message is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), STATUS_LIMIT_S)
            status = self.process.returncode
            raise LoadWorkerLost(
                f"{self._name} ended before its work was done"
                + (f" (killed by signal {-status})" if status is not None and status < 0 else f" (status {status})"),
                hint="Look whether the machine ran out of memory; or let one process carry the load.",
            )
        if isinstance(message, Failed):
            if message.storage:
                raise StorageError(message.message, hint=message.hint)
            raise LoadWorkerLost(f"{self._name}: {message.message}")
        return message


@asynccontextmanager
async def _running(number: int, count: int) -> AsyncIterator[_Worker]:
    """A worker process, gone when the block is left."""
    path = os.pathsep.join([_SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])])
    # A session of its own: Ctrl-C is the owner's, which then says what is to be done. -P: not what lies in this folder.
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        _MODULE,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    )
    worker = _Worker(process, number, count)
    try:
        yield worker
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), EXIT_LIMIT_S)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@asynccontextmanager
async def _limit(seconds: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise LoadWorkerLost(f"load workers {what} within {seconds:.0f} s") from None


async def _pass_on(abort: asyncio.Event, workers: Sequence[_Worker]) -> None:
    await abort.wait()
    for worker in workers:
        worker.say(Abort())
