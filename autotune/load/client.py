"""Drives one load level at a server: who is sent when, and until when. aiohttp does the wire (exchange.py).

Closed loop: `concurrency` slots, started staggered; a slot's next request is due the moment the slot came free.
Open loop: every request has an absolute due time; a late request is sent at once, recorded as late, and shifts nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from urllib.parse import urlsplit

import aiohttp

from autotune.errors import InvalidOption
from autotune.load.arrivals import IN_FLIGHT_CAP, closed_offsets, default_stagger_s
from autotune.load.exchange import Timeouts, Transport, open_transport
from autotune.load.prompts import Calibration, fit_calibration
from autotune.load.reading import Reading, RequestError
from autotune.load.words import COMMON_WORDS
from autotune.load.workloads import Api
from autotune.records import Arrivals, LoadLevel, PlannedRequest, RequestRecord

__all__ = ["DriveOptions", "RequestError", "Timeouts", "calibrate", "check_url", "drive", "request_body"]

_PATHS = {Api.CHAT: "/v1/chat/completions", Api.COMPLETIONS: "/v1/completions"}

_PIECE_WORDS = 100
"""Words per /tokenize call of a calibration: short enough for any context length."""

_CALIBRATION_DEADLINE_S = 60.0
"""Of all its calls together: a server that counts so slowly is measured with words for tokens."""

_SPARE_FILES = 128
"""Open files left to the rest of the program when sockets are counted against the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveOptions:
    """How requests of a level are written and bounded.

    Attributes:
        render: the prompt of a planned request (datasets.render_prompt with its words bound); called before the clock
            starts, once per request.
        api_key_env: environment variable that holds the bearer token; the token itself is never kept.
        headers: further headers; not kept in any result either.
        deadline_s: of the whole level; requests still open then end with error `deadline`.
        stagger_s: over which a closed loop's slots start; None for arrivals.default_stagger_s.
        max_in_flight: of an open loop.
        ignore_eos: vLLM's extension that makes outputs exactly as long as asked; other servers may refuse it.
        allow_remote: send load to a host that is not this one.
        clock: monotonic seconds; must advance with real time.
        abort: set by the caller when the server is gone; the level ends at once.
        on_record: called with each record as its request ends.
    """

    api: Api
    model: str
    render: Callable[[PlannedRequest], str]
    api_key_env: str | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeouts: Timeouts = field(default_factory=Timeouts)
    deadline_s: float = 600.0
    stagger_s: float | None = None
    max_in_flight: int = IN_FLIGHT_CAP
    ignore_eos: bool = True
    allow_remote: bool = False
    clock: Callable[[], float] = time.perf_counter
    abort: asyncio.Event | None = None
    on_record: Callable[[RequestRecord], None] | None = None


async def drive(
    base_url: str, level: LoadLevel, requests: Sequence[PlannedRequest], *, options: DriveOptions
) -> tuple[tuple[RequestRecord, ...], float]:
    """Send `requests` as `level` says and wait for their end.

    Returns:
        The records by index, and the seconds from the first due request to the last end. A request that never became
        due (the level ended before) has no record; one that was due and not sent has one without `sent_s`.

    Raises:
        InvalidOption: `base_url` is not one that load may go to, or this process may not open enough sockets.
    """
    base = check_url(base_url, allow_remote=options.allow_remote)
    closed = level.arrivals is Arrivals.CLOSED
    in_flight = (level.concurrency or 1) if closed else min(options.max_in_flight, len(requests))
    _ensure_sockets(in_flight)
    bodies = await _bodies(requests, options)
    # The clock's zero is set only when everything is prepared.
    run = _Level(requests, bodies, options)
    async with open_transport(
        base + _PATHS[options.api], headers=_headers(options), timeouts=options.timeouts, now=run.now
    ) as transport:
        await run.run(transport, level, in_flight)
    records = tuple(sorted(run.records, key=lambda record: record.index))
    if not records:
        return (), 0.0
    ends = [r.done_s for r in records if r.done_s is not None]
    return records, max(ends) - min(r.scheduled_s for r in records)


def request_body(request: PlannedRequest, prompt: str, options: DriveOptions) -> bytes:
    """The JSON of one request: greedy, streamed, with usage, exactly `output_tokens` long where the server lets us."""
    body: dict[str, object] = {
        "model": options.model,
        "max_tokens": request.output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if options.ignore_eos:
        body["ignore_eos"] = True
    if options.api is Api.CHAT:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    return json.dumps(body).encode()


async def calibrate(
    base_url: str,
    options: DriveOptions,
    words: Sequence[str] = COMMON_WORDS,
    *,
    deadline_s: float = _CALIBRATION_DEADLINE_S,
) -> Calibration | None:
    """How the server's tokenizer counts `words`, by vLLM's /tokenize; None when the server has none that works in time.

    Raises:
        InvalidOption: `base_url` is not one that load may go to.
    """
    base = check_url(base_url, allow_remote=options.allow_remote)
    texts = [list(words[i : i + _PIECE_WORDS]) for i in range(0, len(words), _PIECE_WORDS)]
    halves = [half for text in texts for half in (text[: len(text) // 2], text[len(text) // 2 :])]
    try:
        async with asyncio.timeout(deadline_s), aiohttp.ClientSession(headers=_headers(options)) as session:
            whole = [await _count_tokens(session, base, " ".join(text), options) for text in texts]
            halved = [await _count_tokens(session, base, " ".join(half), options) for half in halves]
        return fit_calibration(words=len(words), pieces=len(texts), tokens=sum(whole), tokens_halved=sum(halved))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


def check_url(base_url: str, *, allow_remote: bool) -> str:
    """The base URL without its trailing slash, if load may go there: this machine, unless `allow_remote`.

    Raises:
        InvalidOption: not http(s), no host, or another machine.
    """
    parts = urlsplit(base_url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidOption("--url", base_url, "a URL such as http://127.0.0.1:8000")
    if not allow_remote and not _is_loopback(parts.hostname):
        raise InvalidOption(
            "--url",
            base_url,
            "a server on this machine (localhost, 127.0.0.1, ::1)",
            hint="A saturating load on somebody else's server must be allowed explicitly.",
        )
    return base_url.rstrip("/")


class _Level:
    """One level while it runs."""

    def __init__(self, requests: Sequence[PlannedRequest], bodies: Sequence[bytes], options: DriveOptions) -> None:
        self._work = tuple(zip(requests, bodies, strict=True))
        self._options = options
        self._clock = options.clock
        self._start = self._clock()
        self._ending: RequestError | None = None
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
            sending.result()

    async def _closed(self, transport: Transport, concurrency: int) -> None:
        stagger_s = self._options.stagger_s
        spread_s = default_stagger_s(concurrency) if stagger_s is None else stagger_s
        remaining = iter(self._work)
        async with asyncio.TaskGroup() as group:
            for offset in closed_offsets(concurrency, spread_s):
                group.create_task(self._slot(transport, remaining, offset))

    async def _slot(
        self, transport: Transport, remaining: Iterator[tuple[PlannedRequest, bytes]], offset_s: float
    ) -> None:
        await self._sleep_until(offset_s)
        due_s = offset_s
        for request, body in remaining:
            due_s = await self._one(transport, request, body, due_s)

    async def _open(self, transport: Transport, most: int) -> None:
        free = asyncio.Semaphore(max(1, most))
        sent = 0
        try:
            async with asyncio.TaskGroup() as group:
                for request, body in self._work:
                    due_s = _due(request)
                    await self._sleep_until(due_s)
                    await free.acquire()
                    task = group.create_task(self._one(transport, request, body, due_s))
                    task.add_done_callback(lambda _task: free.release())
                    sent += 1
                    # A task cancelled before its first step would leave no record: let it start.
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            for request, _body in self._work[sent:]:
                if self._ending is not None and _due(request) <= self.now():
                    reading = Reading(request, _due(request))
                    reading.fail(self._ending, "due, but never sent", self.now())
                    self._keep(reading)
            raise

    async def _one(self, transport: Transport, request: PlannedRequest, body: bytes, due_s: float) -> float:
        """One request; returns when its slot came free."""
        reading = Reading(request, due_s)
        try:
            await transport.exchange(body, reading)
        except asyncio.CancelledError:
            if self._ending is not None:
                reading.fail(self._ending, "open when the level ended", self.now())
                self._keep(reading)
            raise
        self._keep(reading)
        return self.now() if reading.done_s is None else reading.done_s

    def _keep(self, reading: Reading) -> None:
        record = _without_secret(reading.record(), self._options)
        self.records.append(record)
        if self._options.on_record is not None:
            self._options.on_record(record)

    async def _sleep_until(self, at_s: float) -> None:
        # asyncio.sleep may return a little early by its own clock; a request must never be sent before it is due.
        while (left_s := at_s - self.now()) > 0:  # noqa: ASYNC110 - waits for a time, not for a state
            await asyncio.sleep(left_s)


def _due(request: PlannedRequest) -> float:
    if request.scheduled_s is None:
        raise ValueError(f"request {request.index} of an open loop has no due time")
    return request.scheduled_s


async def _bodies(requests: Sequence[PlannedRequest], options: DriveOptions) -> list[bytes]:
    """Every request's bytes, made before the clock starts: rendering while sending would make requests late."""
    bodies: list[bytes] = []
    for number, request in enumerate(requests):
        bodies.append(request_body(request, options.render(request), options))
        if number % 64 == 63:
            await asyncio.sleep(0)
    return bodies


def _headers(options: DriveOptions) -> dict[str, str]:
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


async def _count_tokens(session: aiohttp.ClientSession, base: str, text: str, options: DriveOptions) -> int:
    body: dict[str, object] = {"model": options.model}
    if options.api is Api.CHAT:
        body["messages"] = [{"role": "user", "content": text}]
    else:
        body["prompt"] = text
    async with session.post(f"{base}/tokenize", json=body, allow_redirects=False) as response:
        response.raise_for_status()
        answer = await response.json()
    count = answer.get("count") if isinstance(answer, dict) else None
    if not isinstance(count, int):
        raise ValueError("/tokenize gave no count")
    return count


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


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
