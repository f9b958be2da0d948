"""One line of the API: where it is, what it takes, what it answers. Routing and the document are made from the same."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aiohttp import web
from pydantic import BaseModel, ValidationError

from autotune.web.problems import Refused, invalid

if TYPE_CHECKING:
    from autotune.web.service import Service

STATE_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
ROOT = "/api/v1"
NOT_FOUND = (HTTPStatus.NOT_FOUND,)
OR_CONFLICT = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)
QUEUE = (HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE)
"""Problems that operations may have, beside those that all have."""
BODY_S = 30.0
"""A body has a few kilobytes; one that is still not here is held back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request, parsed: `path`, `query` and `body` are instances of the models that its route names."""

    request: web.Request
    path: Any
    query: Any
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is sent: a document, or one that was made into JSON before.

    Attributes:
        etag: of the document; a client that has it gets 304.
    """

    document: Any = None
    raw: bytes | None = None
    status: HTTPStatus = HTTPStatus.OK
    etag: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[["Service", Call], Awaitable["Answer | web.StreamResponse"]]


class Nothing(BaseModel):
    """No parameters: whatever comes is refused."""

    model_config = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation of the API.

    Attributes:
        path: below the root, with `{name}` for parameters, which `parameters` types.
        answer: model of the document; None where it is text, a stream, or nothing.
        media: of the answer.
        problems: statuses beside those that every operation may have.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    tag: str
    answer: type[BaseModel] | None = None
    status: HTTPStatus = HTTPStatus.OK
    media: str = "application/json"
    parameters: type[BaseModel] = Nothing
    query: type[BaseModel] = Nothing
    body: type[BaseModel] | None = None
    body_required: bool = True
    problems: tuple[HTTPStatus, ...] = ()
    open_to_all: bool = False

    @property
    def operation(self) -> str:
        """A name for generated clients: `list_studies`."""
        return getattr(self.handler, "__name__", self.path).strip("_")


async def parsed(route: Route, request: web.Request) -> Call:
    """The request as its route types it.

    Raises:
        Refused: 422 for what is not accepted, 415 and 400 for a body that is no JSON object.
    """
    try:
        path = route.parameters.model_validate(dict(request.match_info))
    except ValidationError:
        raise Refused(HTTPStatus.NOT_FOUND, "not-found", f"there is nothing at {request.path}") from None
    doubled = {key for key in request.query if len(request.query.getall(key)) > 1}
    try:
        query = route.query.model_validate(dict(request.query))
    except ValidationError as error:
        raise invalid(error, dict(request.query), route.query, "the query") from None
    if doubled:
        raise Refused(
            HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-value", f"the query has {sorted(doubled)[0]!r} more than once"
        )
    body = None if route.body is None else await _body(route, route.body, request)
    return Call(request=request, path=path, query=query, body=body)


async def _body(route: Route, model: type[BaseModel], request: web.Request) -> BaseModel:
    raw = await _received(request)
    if not raw and not route.body_required:
        return model()
    if request.content_type != "application/json":
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "unsupported-media-type",
            f"the body is {request.content_type}; allowed: application/json",
        )
    try:
        found = json.loads(raw, object_pairs_hook=_once, parse_float=_number, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        why = "too deep" if isinstance(error, RecursionError) else str(error)
        raise Refused(HTTPStatus.BAD_REQUEST, "not-json", f"the body is not JSON: {why}") from None
    if not isinstance(found, dict):
        raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-value", "the body is not a JSON object")
    try:
        return model.model_validate(found)
    except ValidationError as error:
        raise invalid(error, found, model, "the body") from None


async def _received(request: web.Request) -> bytes:
    if "Content-Encoding" in request.headers:
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", "the body is encoded; allowed: plain JSON"
        )
    if (request.content_length or 0) > request.client_max_size:
        # Who says so beforehand is told before it is sent.
        raise web.HTTPRequestEntityTooLarge(request.client_max_size, request.content_length or 0)
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError:
        raise Refused(
            HTTPStatus.REQUEST_TIMEOUT,
            "request-timeout",
            f"the body took longer than {BODY_S:g} seconds",
            headers={"Connection": "close"},
        ) from None
    except (web.RequestPayloadError, ConnectionError):
        raise Refused(HTTPStatus.BAD_REQUEST, "not-json", "the body ended before its end") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there more than once")
    return found


def _number(text: str) -> int | float:
    """`6.0` is the integer 6 to JSON Schema, and so it is here."""
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{text[:20]} is too large")
    return int(found) if found.is_integer() else found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


def dumped(document: Any) -> bytes:
    """JSON without NaN and infinities, which it does not have: null stands for them."""
    try:
        text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(document), allow_nan=False, separators=(",", ":"))
    return text.encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def sent(answer: Answer, request: web.Request) -> web.Response:
    """An answer as a response; 304 without a body where the client has it."""
    headers = dict(answer.headers)
    if answer.etag is not None:
        headers |= {"ETag": f'"{answer.etag}"', "Cache-Control": "no-cache"}
        known = request.if_none_match or ()
        if request.method in ("GET", "HEAD") and any(tag.value == answer.etag for tag in known):
            return web.Response(status=304, headers=headers)
    else:
        headers.setdefault("Cache-Control", "no-store")
    if answer.document is None and answer.raw is None:
        return web.Response(status=int(answer.status), headers=headers)
    body = answer.raw if answer.raw is not None else dumped(answer.document)
    response = web.Response(
        status=int(answer.status), body=body, content_type="application/json", charset="utf-8", headers=headers
    )
    if len(body) > COMPRESSED_BYTES:
        response.enable_compression()
    return response


COMPRESSED_BYTES = 100_000
"""On loopback compressing takes longer than sending; a study of a thousand trials is worth it elsewhere."""
