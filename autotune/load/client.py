"""Drives one load level at a server: who is sent when, and until when. The wire is exchange.py's seam.

Closed loop: `concurrency` slots, started staggered; a slot's next request is due the moment the slot came free.
Open loop: every request has an absolute due time; a late request is sent at once, recorded as late, and shifts nothing.
A level that may grow (growing.py) is looked at after each of its steps, and what it then has no need of is never sent.
Either way a turn (`PlannedRequest.after`) is neither sent nor due before the one it follows has ended: nobody answers a
text that he has not got.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from autotune.errors import InvalidOption
from autotune.load.address import check_url
from autotune.load.arrivals import IN_FLIGHT_CAP, closed_offsets, default_stagger_s
from autotune.load.bodies import BodyStore
from autotune.load.exchange import Timeouts, TransportKind
from autotune.load.growing import Looks, growth_of
from autotune.load.level_run import LevelRun, no_garbage_collection
from autotune.load.priority import ahead_of_others
from autotune.load.prompts import Conversation, Prompt, Render, TokenIds
from autotune.load.reading import Reading, RequestError
from autotune.load.sending_order import SendingOrder
from autotune.load.transports import check_headers, open_transport
from autotune.load.workers import SharedLevel, drive_shared
from autotune.load.workers_split import STREAM_CHUNKS_S, deal, expected_chunks_s, workers_for
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

_READY_S, _FEWEST_READY, _MOST_READY = 2.0, 64, 512
"""Connections opened beforehand for an open loop, whose number in flight nobody knows yet: the arrivals of so long."""

_SPARE = 8
"""Connections that an open loop keeps ready from then on: to open one takes a request longer than to be sent."""

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
        on_worker: called with the CPU seconds of each worker process as it ends; never where this process sends alone.
        transport: what carries the requests; None for the quickest that can.
        workers: processes that carry the level, each on a core of its own; None for as many as its chunks need and
            cores are free. With more than one, the prompts of a level are copied to them.
        looks: end an open loop; None for those of a level that may grow. None are taken at a level that needs several
            processes: carrying it is worth more than ending it early.
        stream_chunks_s: chunks per second that one stream of a closed loop is expected to bring; decides `workers`.
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
    on_worker: Callable[[float], None] | None = None
    transport: TransportKind | None = None
    workers: int | None = None
    stream_chunks_s: float = STREAM_CHUNKS_S
    looks: Looks | None = None


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
        LoadWorkerLost: one of several processes was killed.
        ValueError: a turn follows a request that is not planned before it.
    """
    base = check_url(base_url, allow_remote=options.allow_remote)
    closed = level.arrivals is Arrivals.CLOSED
    in_flight = (level.concurrency or 1) if closed else min(options.max_in_flight, len(requests))
    _ensure_sockets(in_flight)
    offsets_s: tuple[float, ...] = ()
    if closed:
        stagger_s = default_stagger_s(in_flight) if options.stagger_s is None else options.stagger_s
        offsets_s = closed_offsets(in_flight, stagger_s)
    with closing(BodyStore()) as bodies:
        prepared = SharedLevel(
            url=base + _PATHS[options.api],
            headers=auth_headers(options),
            timeouts=options.timeouts,
            transport=options.transport,
            level=level,
            requests=requests,
            bodies=bodies,
            offsets_s=offsets_s,
            deadline_s=options.deadline_s,
            connections=ready_connections(level, in_flight, len(requests)),
            spare=0 if closed else _SPARE,
        )
        workers = _workers(level, requests, options)
        check_headers(prepared.headers)
        shares = deal(level, requests, in_flight, workers) if workers > 1 else ()
        if len(shares) < 2:
            return await _drive_here(prepared, bodies, in_flight, options)
        SendingOrder(requests)  # the same refusal as if they were sent here
        await _fill(bodies, requests, options)
        found = await drive_shared(
            prepared,
            shares,
            before_start=options.before_start,
            abort=options.abort,
            on_record=None if options.on_record is None else lambda record: _tell(record, options),
            on_worker=options.on_worker,
        )
    return in_order([_without_secret(record, options) for record in found])


async def _drive_here(
    prepared: SharedLevel, bodies: BodyStore, in_flight: int, options: DriveOptions
) -> tuple[tuple[RequestRecord, ...], float]:
    """The level in this process."""
    readings: list[Reading] = []
    await _fill(bodies, prepared.requests, options)
    run = LevelRun(
        prepared.requests,
        bodies,
        clock=options.clock,
        keep=lambda reading: _keep(reading, readings, options),
        looks=options.looks or growth_of(prepared.level),
    )
    async with open_transport(
        prepared.url, headers=prepared.headers, timeouts=options.timeouts, now=run.now, kind=options.transport
    ) as transport:
        if options.before_start is not None:
            await options.before_start()
        await transport.prepare(prepared.connections, prepared.spare)
        # The clock's zero is set only now that everything is prepared.
        with no_garbage_collection(), ahead_of_others():
            await run.run(
                transport,
                prepared.level,
                in_flight,
                deadline_s=options.deadline_s,
                abort=options.abort,
                offsets_s=prepared.offsets_s,
            )
    return in_order([_record(reading, options) for reading in readings])


def _workers(level: LoadLevel, requests: Sequence[PlannedRequest], options: DriveOptions) -> int:
    """How many processes carry the level.

    One where its end is decided by what all of it shows (growing.py), and where the clock is the caller's own.
    """
    if growth_of(level) is not None or options.clock is not time.perf_counter:
        return 1
    if options.workers is not None:
        return options.workers
    return workers_for(expected_chunks_s(level, requests, options.stream_chunks_s), free_cores())


def free_cores() -> int:
    """Cores that this process may use and nobody has used in the last minute; at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # Linux alone tells
        cores = os.cpu_count() or 1
    return max(1, cores - math.ceil(os.getloadavg()[0]))


def in_order(found: Sequence[RequestRecord]) -> tuple[tuple[RequestRecord, ...], float]:
    """The records of a level by index, and the seconds from its first due request to its last end."""
    if not found:
        return (), 0.0
    ends = [r.done_s for r in found if r.done_s is not None]
    return tuple(sorted(found, key=lambda r: r.index)), max(ends) - min(r.scheduled_s for r in found)


def ready_connections(level: LoadLevel, in_flight: int, requests: int) -> int:
    """How many connections are opened before the clock starts."""
    most = min(in_flight, requests)
    if level.arrivals is Arrivals.CLOSED:
        return most
    arriving = math.ceil((level.rate_rps or 0.0) * _READY_S)
    return min(most, max(_FEWEST_READY, min(_MOST_READY, arriving)))


def _keep(reading: Reading, readings: list[Reading], options: DriveOptions) -> None:
    """What ended becomes a record after the level, unless somebody wants it now: that costs as much as ten chunks."""
    readings.append(reading)
    if options.on_record is not None:
        options.on_record(_record(reading, options))


def _tell(record: RequestRecord, options: DriveOptions) -> None:
    if options.on_record is not None:
        options.on_record(_without_secret(record, options))


def _record(reading: Reading, options: DriveOptions) -> RequestRecord:
    return _without_secret(reading.record(), options)


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


async def _fill(bodies: BodyStore, requests: Sequence[PlannedRequest], options: DriveOptions) -> None:
    """Every request's bytes, made before the clock starts: rendering while sending would make requests late."""

    def make(batch: Sequence[PlannedRequest]) -> None:
        for request in batch:
            bodies.add(request_body(request, options.render(request), options))

    for start in range(0, len(requests), _BATCH):
        await asyncio.to_thread(make, requests[start : start + _BATCH])


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
