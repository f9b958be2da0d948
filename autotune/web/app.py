"""The service as an aiohttp application: routes, and what every request passes before it reaches one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from http import HTTPStatus
from math import ceil
from urllib.parse import quote

from aiohttp import web

from autotune.engine.redaction import redact
from autotune.errors import AutotuneError
from autotune.web.api import ROUTES
from autotune.web.pages import INDEX, LOGIN, VIEWS, served
from autotune.web.problems import CONTENT_TYPE, Refused, refusal_of, shown_text
from autotune.web.queue import PROGRAM
from autotune.web.route import STATE_CHANGING, Answer, Route, parsed, sent
from autotune.web.security import HEADERS, check_host, check_site
from autotune.web.service import Service, utc_now
from autotune.web.sessions import is_authenticated
from autotune.web.settings import ServeSettings

log = logging.getLogger("autotune.web")

SERVICE = web.AppKey("service", Service)

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]

_OPEN = frozenset({"/healthz", "/login"})
"""Addresses that need no token; what the login page is drawn with lies below /static/."""


def make_app(
    settings: ServeSettings,
    *,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = utc_now,
    program: tuple[str, ...] = PROGRAM,
) -> web.Application:
    """The application; it begins what it needs when it is started, and ends it when it is cleaned up.

    Args:
        clock: seconds for limits and sessions.
        now: aware, UTC.
        program: what jobs are the words of.
    """
    app = web.Application(middlewares=[_answers, _guards], client_max_size=settings.limits.body_bytes)
    service = Service(settings, clock=clock, now=now, program=program)
    app[SERVICE] = service
    for route in ROUTES:
        app.router.add_route(route.method, _digits(route.path), _operation(service, route))
    _add_pages(app, service)
    app.on_response_prepare.append(_add_headers)

    async def begin(_: web.Application) -> None:
        await service.start()

    async def end_streams(_: web.Application) -> None:
        service.feed.close()

    async def end(_: web.Application) -> None:
        await service.close()

    app.on_startup.append(begin)
    app.on_shutdown.append(end_streams)
    app.on_cleanup.append(end)
    return app


def _digits(path: str) -> str:
    """A number in a path is digits, so that `.../rollback` is no version."""
    for name in ("number", "version"):
        path = path.replace(f"{{{name}}}", f"{{{name}:[0-9]+}}")
    return path


def _operation(service: Service, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def perform(request: web.Request) -> web.StreamResponse:
        found = await route.handler(service, await parsed(route, request))
        return sent(found, request) if isinstance(found, Answer) else found

    perform.__name__ = route.operation
    return perform


def _add_pages(app: web.Application, service: Service) -> None:
    async def static(request: web.Request) -> web.StreamResponse:
        return served(service.files, request.match_info["file"], request)

    async def index(request: web.Request) -> web.StreamResponse:
        return served(service.files, INDEX, request)

    async def login(request: web.Request) -> web.StreamResponse:
        return served(service.files, LOGIN, request)

    app.router.add_get("/static/{file:.+}", static)
    app.router.add_get("/login", login)

    for view in VIEWS:
        app.router.add_get(view, index)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    if isinstance(response, web.HTTPException):
        _restate(response)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers["Server"] = "autotune"


def _restate(error: web.HTTPException) -> None:
    """An error that aiohttp answers with before any middleware, for an `Expect` that nobody meets, as a problem."""
    status = HTTPStatus(error.status)
    problem = Refused(status, status.phrase.lower().replace(" ", "-"), error.text or error.reason).response()
    error.body, error.content_type, error.charset = problem.body, CONTENT_TYPE, None
    error.headers["Content-Length"] = str(problem.content_length)


@web.middleware
async def _answers(request: web.Request, handler: Next) -> web.StreamResponse:
    """Whatever is raised becomes one problem document, and never a traceback."""
    try:
        return await handler(request)
    except Refused as refused:
        return refused.response()
    except AutotuneError as error:
        return refusal_of(error).response()
    except web.HTTPRequestEntityTooLarge:
        limit = request.app[SERVICE].settings.limits.body_bytes
        return Refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body-too-large", f"the body is longer than {limit:,} bytes"
        ).response()
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return Refused(
            HTTPStatus.METHOD_NOT_ALLOWED,
            "method-not-allowed",
            f"{shown_text(request.method)} is not accepted here; allowed: {allowed}",
            headers={"Allow": allowed},
        ).response()
    except web.HTTPException as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return Refused(
                HTTPStatus.NOT_FOUND, "not-found", f"there is nothing at {shown_text(request.path)}"
            ).response()
        status = HTTPStatus(error.status)
        return Refused(status, status.phrase.lower().replace(" ", "-"), error.reason).response()
    except asyncio.CancelledError:
        raise
    except Exception as error:  # noqa: BLE001 - the outermost shell of a request: a bug of ours ends this one alone
        log.error("internal error at %s %s: %s", request.method, redact(repr(request.path)), redact(repr(error)))
        return Refused(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "internal",
            f"internal error ({type(error).__name__}); the service's log says more",
        ).response()


@web.middleware
async def _guards(request: web.Request, handler: Next) -> web.StreamResponse:
    service = request.app[SERVICE]
    settings = service.settings
    check_host(request.headers.get("Host", ""), settings.allowed_hosts)
    wait = service.calls.wait_s(request.remote or "", service.clock())
    if wait:
        raise Refused(
            HTTPStatus.TOO_MANY_REQUESTS,
            "too-many-requests",
            "too many requests came from this address",
            headers={"Retry-After": str(ceil(wait))},
        )
    api = request.path.startswith("/api/")
    changes = request.method in STATE_CHANGING
    somewhere = request.match_info.http_exception is None  # what is nowhere is told so, to anybody
    if (api or changes) and somewhere:
        check_site(request.headers, request.headers.get("Host", ""), changes=changes)
    if not settings.token_hashes or _is_open(request) or is_authenticated(service, request):
        if settings.look_only and changes and somewhere and not _is_open(request):
            raise Refused(
                HTTPStatus.FORBIDDEN,
                "look-only",
                "this service shows, and changes nothing",
                hint="It was started with --look-only.",
            )
        return await handler(request)
    if api or request.path == "/metrics":
        raise Refused(
            HTTPStatus.UNAUTHORIZED,
            "no-token",
            "this needs the service's token",
            hint="Send `Authorization: Bearer TOKEN`, or log in at /login.",
            headers={"WWW-Authenticate": 'Bearer realm="autotune"'},
        )
    place = f"/login?next={quote(request.path, safe='/')}"
    return web.Response(status=int(HTTPStatus.SEE_OTHER), headers={"Location": place, "Cache-Control": "no-store"})


def _is_open(request: web.Request) -> bool:
    if request.path in _OPEN or request.path.startswith("/static/"):
        return True
    return request.path == "/api/v1/session"
