"""Logging in and out: a page shows the token once and has a cookie from then on."""

from __future__ import annotations

from http import HTTPStatus
from math import ceil
from typing import Annotated

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from autotune import __version__
from autotune.web import tokens
from autotune.web.problems import Refused
from autotune.web.route import Answer, Call
from autotune.web.service import Service


class Login(BaseModel):
    """The token, as `autotune serve --new-token` printed it."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)
    token: Annotated[str, Field(min_length=1, max_length=tokens.MOST_LENGTH)]


class SessionDocument(BaseModel):
    """Whether the asker may go on, whether a token is asked for at all, and whether anything may be changed."""

    authenticated: bool
    token_required: bool
    look_only: bool
    version: str


async def get_session(service: Service, call: Call) -> Answer:
    """Whether the asker is logged in."""
    demanded = bool(service.settings.token_hashes)
    return Answer(
        document={
            "authenticated": not demanded or is_authenticated(service, call.request),
            "token_required": demanded,
            "look_only": service.settings.look_only,
            "version": __version__,
        }
    )


async def log_in(service: Service, call: Call) -> web.StreamResponse:
    """Begin a session: the answer sets a cookie that scripts cannot read."""
    asked: Login = call.body
    hashes = service.settings.token_hashes
    response = web.Response(status=int(HTTPStatus.NO_CONTENT), headers={"Cache-Control": "no-store"})
    if not hashes:
        return response
    check_tries(service, call.request)
    if not tokens.is_known(asked.token, hashes):
        note_failure(service, call.request)
        raise Refused(HTTPStatus.UNAUTHORIZED, "wrong-token", "this is no token of the service")
    response.set_cookie(
        tokens.COOKIE,
        service.sessions.begin(service.clock()),
        max_age=int(tokens.SESSION_S),
        httponly=True,
        samesite="Strict",
        secure=service.settings.secure_cookie or call.request.secure,
        path="/",
    )
    return response


async def log_out(service: Service, call: Call) -> web.StreamResponse:
    """End the session of the cookie that came with the request."""
    service.sessions.end(call.request.cookies.get(tokens.COOKIE, ""))
    response = web.Response(status=int(HTTPStatus.NO_CONTENT), headers={"Cache-Control": "no-store"})
    response.del_cookie(tokens.COOKIE, path="/")
    return response


def is_authenticated(service: Service, request: web.Request) -> bool:
    """Whether a request carries the token, or the cookie of somebody who showed it."""
    kind, _, word = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer" and word:
        check_tries(service, request)
        if tokens.is_known(word.strip(), service.settings.token_hashes):
            return True
        note_failure(service, request)
        return False
    cookie = request.cookies.get(tokens.COOKIE)
    return cookie is not None and service.sessions.is_open(cookie, service.clock())


def check_tries(service: Service, request: web.Request) -> None:
    """Refuse an address that has tried too many wrong tokens, whatever it brings now.

    Raises:
        Refused: 429.
    """
    wait = service.logins.missing_s(request.remote or "", service.clock())
    if wait:
        raise Refused(
            HTTPStatus.TOO_MANY_REQUESTS,
            "too-many-tries",
            "too many wrong tokens came from this address",
            headers={"Retry-After": str(ceil(wait))},
        )


def note_failure(service: Service, request: web.Request) -> None:
    """Count a wrong token against its address."""
    service.logins.wait_s(request.remote or "", service.clock())
