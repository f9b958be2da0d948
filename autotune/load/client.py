"""Drives one load level at a server: who is sent when, and until when. The wire is exchange.py's seam.

Closed loop: `concurrency` slots, started staggered; a slot's next request is due the moment the slot came free.
Open loop: every request has an absolute due time; a late request is sent at once, recorded as late, and shifts nothing.
Either way a turn (`PlannedRequest.after`) is neither sent nor due before the one it follows has ended: nobody answers a
text that he has not got.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from autotune.errors import InvalidOption, StorageError
from autotune.load.address import check_url
from autotune.load.arrivals import IN_FLIGHT_CAP, closed_offsets, default_stagger_s
from autotune.load.bodies import BodyStore
from autotune.load.exchange import Timeouts, Transport, TransportKind
from autotune.load.prompts import Conversation, Prompt, Render, TokenIds
from autotune.load.reading import Reading, RequestError
from autotune.load.sending_order import SendingOrder
from autotune.load.timer import Sleeper
from autotune.load.transports import open_transport
from autotune.load.workloads import Api
from autotune.records import Arrivals, LoadLevel, PlannedRequest, RequestRecord

__all__ = [
    "DriveOptions",
    "RequestError",
    "Timeouts",
    "TransportKind",
    "auth_headers",
    "check_url",
    "drive",
    "request_body",
]

_PATHS = {Api.CHAT: "/v1/chat/completions", Api.COMPLETIONS: "/v1/completions"}

_BATCH = 64
"""Bodies made in one go, in a thread: the event loop (a server's health, Ctrl-C) is looked after in between."""

_READY_CONNECTIONS = 64
"""Opened beforehand for an open loop, whose number in flight nobody knows yet."""

_SPARE_FILES = 128
"""Open files left to the rest of the program when sockets are counted against the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveOptions:
    """How requests of a level are written and bounded.

    Attributes:
        render: the prompt of a planned request; called before the clock starts, once per request, in a thread.
        api_key_env: environment variable that holds the bearer token; the token itself is never kept.
        headers: further headers; not kept in any result either.
        deadline_s: of the whole level; requests still open then end with error `deadline`.
        stagger_s: over which a closed loop's slots start; None for arrivals.default_stagger_s.
        max_in_flight: of an open loop.
        ignore_eos: vLLM's extension that makes outputs exactly as long as asked; other servers may refuse it.
        return_token_ids: vLLM's extension for a server without a detokenizer, whose tokens have no text to be seen by.
        before_start: awaited when everything is rendered, right before the clock starts.
        allow_remote: send load to a host that is not this one.
        clock: monotonic seconds; must advance with real time.
        abort: set by the caller when the server is gone; the level ends at once.
        on_record: called with each record as its request ends.
        transport: what carries the requests; None for the quickest that can.
    """

    api: Api
    model: str
    render: Render
    api_key_env: str | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeouts: Timeouts = field(default_factory=Timeouts)
    deadline_s: float = 600.0
    stagger_s: float | None = None
    max_in_flight: int = IN_FLIGHT_CAP
    ignore_eos: bool = True
    return_token_ids: bool = False
    before_start: Callable[[], Awaitable[None]] | None = None
    allow_remote: bool = False
    clock: Callable[[], float] = time.perf_counter
    abort: asyncio.Event | None = None
    on_record: Callable[[RequestRecord], None] | None = None
    transport: TransportKind | None = None


async def drive(
    base_url: str, level: LoadLevel, requests: Sequence[PlannedRequest], *, options: DriveOptions
) -> tuple[tuple[RequestRecord, ...], float]:
    """Send `requests` as `level` says and wait for their end.

    Returns:
        The records by index, and the seconds from the first due request to the last end. A request that never became
        due (the level ended before) has no record; one that was due and not sent has one without `sent_s`.

    Raises:
        InvalidOption: `base_url` is not one that load may go to, or this process may not open enough sockets.
        StorageError: the prompts are more than memory and temporary files hold.
        ValueError: a turn follows a request that is not planned before it.
    """
    base = check_url(base_url, allow_remote=options.allow_remote)
    closed = level.arrivals is Arrivals.CLOSED
    in_flight = (level.concurrency or 1) if closed else min(options.max_in_flight, len(requests))
    _ensure_sockets(in_flight)
    with closing(BodyStore()) as bodies:
        await _fill(bodies, requests, options)
        run = _Level(requests, bodies, options)
        async with open_transport(
            base + _PATHS[options.api],
            headers=auth_headers(options),
            timeouts=options.timeouts,
            now=run.now,
            kind=options.transport,
        ) as transport:
            if options.before_start is not None:
                await options.before_start()
            await transport.prepare(min(in_flight if closed else _READY_CONNECTIONS, in_flight, len(requests)))
            # The clock's zero is set only now that everything is prepared.
            with _young_garbage_only():
                await run.run(transport, level, in_flight)
    records = tuple(sorted(run.records, key=lambda record: record.index))
    if not records:
        return (), 0.0
    ends = [r.done_s for r in records if r.done_s is not None]
    return records, max(ends) - min(r.scheduled_s for r in records)


def request_body(request: PlannedRequest, prompt: Prompt, options: DriveOptions) -> bytes:
    """The JSON of one request: greedy, streamed, with usage, exactly `output_tokens` long where the server lets us.

    Raises:
        ValueError: token ids for the chat API, which takes none.
    """
    body: dict[str, object] = {
        "model": options.model,
        "max_tokens": request.output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if options.ignore_eos:
        body["ignore_eos"] = True
    if options.return_token_ids:
        body["return_token_ids"] = True
    return json.dumps(body | prompt_fields(prompt, options.api)).encode()


def prompt_fields(prompt: Prompt, api: Api) -> dict[str, object]:
    """The part of a body that carries the prompt; a conversation on /v1/completions is its texts, one per line.

    Raises:
        ValueError: token ids for the chat API, which takes none.
    """
    match prompt, api:
        case TokenIds(), Api.CHAT:
            raise ValueError("the chat API takes no token ids")
        case TokenIds(), Api.COMPLETIONS:
            return {"prompt": prompt.ids}
        case Conversation(), Api.CHAT:
            return {"messages": [{"role": one.role, "content": one.content} for one in prompt.messages]}
        case Conversation(), Api.COMPLETIONS:
            return {"prompt": "\n".join(one.content for one in prompt.messages)}
        case str(), Api.CHAT:
            return {"messages": [{"role": "user", "content": prompt}]}
        case str(), Api.COMPLETIONS:
            return {"prompt": prompt}
        case _:
            raise TypeError(f"{type(prompt).__name__} is no prompt")


class _Level:
    """One level while it runs."""

    def __init__(self, requests: Sequence[PlannedRequest], bodies: BodyStore, options: DriveOptions) -> None:
        self._requests = requests
        self._bodies = bodies
        self._options = options
        self._clock = options.clock
        self._start = self._clock()
        self._ending: RequestError | None = None
        self._order = SendingOrder(requests)
        self._freed = asyncio.Event()
        self._ends = {request.after: asyncio.Event() for request in requests if request.after is not None}
        self._ended_s: dict[int, float] = {}
        self._sleeper = Sleeper(self.now)
        self.records: list[RequestRecord] = []

    def now(self) -> float:
        """Seconds after the level's start."""
        return self._clock() - self._start

    async def run(self, transport: Transport, level: LoadLevel, in_flight: int) -> None:
        """Until everything sent has ended, the deadline passes or the caller aborts."""
        self._start = self._clock()
        sending = asyncio.create_task(
            self._closed(transport, in_flight)
            if level.arrivals is Arrivals.CLOSED
            else self._open(transport, in_flight)
        )
        abort = self._options.abort
        aborting = asyncio.create_task(abort.wait()) if abort is not None else None
        waited = {sending, aborting} if aborting is not None else {sending}
        with self._sleeper:
            try:
                await asyncio.wait(waited, timeout=self._options.deadline_s, return_when=asyncio.FIRST_COMPLETED)
                if not sending.done():
                    aborted = aborting is not None and aborting.done()
                    self._ending = RequestError.ABORTED if aborted else RequestError.DEADLINE
            finally:
                # Also when the caller cancels: no request outlives the level.
                for task in waited:
                    task.cancel()
                await asyncio.wait(waited)
        if not sending.cancelled():
            _raise_first(sending)

    async def _closed(self, transport: Transport, concurrency: int) -> None:
        stagger_s = self._options.stagger_s
        spread_s = default_stagger_s(concurrency) if stagger_s is None else stagger_s
        async with asyncio.TaskGroup() as group:
            for offset in closed_offsets(concurrency, spread_s):
                group.create_task(self._slot(transport, offset))

    async def _slot(self, transport: Transport, offset_s: float) -> None:
        await self._sleeper.until(offset_s)
        free_s = offset_s
        while self._order.left:
            taken = self._order.take()
            if taken is None:
                await self._freed.wait()
                continue
            place, earlier_s = taken
            due_s = free_s if earlier_s is None else max(free_s, earlier_s)
            free_s = await self._one(transport, place, due_s)

    async def _open(self, transport: Transport, most: int) -> None:
        free = asyncio.Semaphore(max(1, most))
        sent = 0
        try:
            async with asyncio.TaskGroup() as group:
                for place, request in enumerate(self._requests):
                    await self._sleeper.until(_due(request))
                    if self._able_s(request) is None:
                        group.create_task(self._later(transport, place, free))
                    else:
                        await free.acquire()
                        task = group.create_task(self._one(transport, place, self._able_s(request) or 0.0))
                        task.add_done_callback(lambda _task: free.release())
                    sent += 1
                    # A task cancelled before its first step would leave no record: let it start.
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            for request in self._requests[sent:]:
                self._keep_unsent(request)
            raise

    async def _later(self, transport: Transport, place: int, free: asyncio.Semaphore) -> None:
        """A turn whose predecessor was still open when it was due."""
        request = self._requests[place]
        try:
            if request.after is not None:
                await self._ends[request.after].wait()
            await free.acquire()
        except asyncio.CancelledError:
            self._keep_unsent(request)
            raise
        try:
            await self._one(transport, place, self._able_s(request) or 0.0)
        finally:
            free.release()

    def _able_s(self, request: PlannedRequest) -> float | None:
        """When a request of an open loop is due and its earlier turn has ended; None while that is open."""
        if request.after is None:
            return _due(request)
        ended_s = self._ended_s.get(request.after)
        return None if ended_s is None else max(_due(request), ended_s)

    async def _one(self, transport: Transport, place: int, due_s: float) -> float:
        """One request; returns when its slot came free."""
        reading = Reading(self._requests[place], due_s)
        try:
            await transport.exchange(self._bodies[place], reading)
        except asyncio.CancelledError:
            if self._ending is not None:
                reading.fail(self._ending, "open when the level ended", self.now())
                self._keep(reading)
            raise
        self._keep(reading)
        done_s = self.now() if reading.done_s is None else reading.done_s
        self._let_go(reading.request.index, done_s)
        return done_s

    def _let_go(self, index: int, at_s: float) -> None:
        """A request has ended, well or not: what follows it may be sent."""
        if index not in self._ends:
            return
        self._ended_s[index] = at_s
        self._ends[index].set()
        if self._order.ended(index, at_s):
            self._freed.set()
            self._freed = asyncio.Event()

    def _keep_unsent(self, request: PlannedRequest) -> None:
        """A request that could have been sent and was not; one whose earlier turn is open never could."""
        able_s = self._able_s(request)
        if self._ending is not None and able_s is not None and able_s <= self.now():
            reading = Reading(request, able_s)
            reading.fail(self._ending, "due, but never sent", self.now())
            self._keep(reading)

    def _keep(self, reading: Reading) -> None:
        record = _without_secret(reading.record(), self._options)
        self.records.append(record)
        if self._options.on_record is not None:
            self._options.on_record(record)


def _due(request: PlannedRequest) -> float:
    if request.scheduled_s is None:
        raise ValueError(f"request {request.index} of an open loop has no due time")
    return request.scheduled_s


async def _fill(bodies: BodyStore, requests: Sequence[PlannedRequest], options: DriveOptions) -> None:
    """Every request's bytes, made before the clock starts: rendering while sending would make requests late."""

    def make(batch: Sequence[PlannedRequest]) -> None:
        for request in batch:
            bodies.add(request_body(request, options.render(request), options))

    for start in range(0, len(requests), _BATCH):
        await asyncio.to_thread(make, requests[start : start + _BATCH])


@contextmanager
def _young_garbage_only() -> Iterator[None]:
    """Leave what was there before out of garbage collection: looking through all of it takes tens of milliseconds."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _raise_first(sending: asyncio.Task[None]) -> None:
    """What went wrong on our side while sending, out of the group that asyncio wraps it in."""
    try:
        sending.result()
    except ExceptionGroup as group:
        ours = group.subgroup(StorageError)
        if ours is None:
            raise
        raise ours.exceptions[0] from group


def auth_headers(options: DriveOptions) -> dict[str, str]:
    """The headers that every request carries; they hold the secret."""
    headers = dict(options.headers)
    secret = os.environ.get(options.api_key_env, "") if options.api_key_env else ""
    if secret:
        headers["Authorization"] = f"Bearer {secret}"
    return headers


def _without_secret(record: RequestRecord, options: DriveOptions) -> RequestRecord:
    """A server may echo the key in its complaint; it must not reach a file."""
    secret = os.environ.get(options.api_key_env, "") if options.api_key_env else ""
    if not secret or not record.message or secret not in record.message:
        return record
    return replace(record, message=record.message.replace(secret, "***"))


def _ensure_sockets(needed: int) -> None:
    """Raise this process's soft limit of open files as far as the level needs and the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise InvalidOption(
            "--load",
            f"{needed} requests in flight",
            f"at most {hard - _SPARE_FILES}, as this process may have {hard} open files",
            hint="Raise the limit (ulimit -Hn) or lower the concurrency.",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
