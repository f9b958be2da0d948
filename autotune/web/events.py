"""Event streams: what the feed tells, to one reader each."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus

from aiohttp import web

from autotune.web.asked import EventsQuery, StudyPath
from autotune.web.problems import Refused
from autotune.web.route import Call
from autotune.web.service import Service, check_study_name

RESET = b"event: reset\ndata: {}\n\n"
HEARTBEAT = b":\n\n"
SEND_S = 30.0
"""A reader that takes nothing for so long is let go; it comes back by itself."""


async def stream_events(service: Service, call: Call) -> web.StreamResponse:
    """Server-sent events of everything that changes: `study`, `trial`, `phase`, `queue`, `promotion`, `reset`."""
    return await _stream(service, call, None)


async def stream_study_events(service: Service, call: Call) -> web.StreamResponse:
    """The same of one study."""
    path: StudyPath = call.path
    check_study_name(path.name)
    await service.ask(lambda store: store.study(path.name))
    return await _stream(service, call, path.name)


async def _stream(service: Service, call: Call, study: str | None) -> web.StreamResponse:
    feed = service.feed
    if feed.readers >= feed.most_readers:
        raise Refused(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "too-many-readers",
            f"{feed.most_readers} event streams are open already",
            headers={"Retry-After": "10"},
        )
    asked: EventsQuery = call.query
    seen = call.request.headers.get("Last-Event-ID") or asked.last_event_id
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    feed.enter()
    try:
        position = feed.position_of(seen)
        await response.prepare(call.request)
        await response.write(b"retry: 2000\n\n" + (RESET if position is None else b""))
        # A reader that has gone shows when it is written to; it is no error of anybody.
        with suppress(ConnectionError, TimeoutError):
            await _send(service, response, feed.position if position is None else position, study)
    finally:
        feed.leave()
    return response


async def _send(service: Service, response: web.StreamResponse, position: int, study: str | None) -> None:
    feed = service.feed
    text = feed.text_after(position, study) or b""
    while True:
        position = feed.position
        if text:
            async with asyncio.timeout(SEND_S):
                await response.write(text)
        if feed.position == position:
            await feed.news()
        if feed.closed:
            return
        found = feed.text_after(position, study)
        text = RESET if found is None else found or HEARTBEAT
