"""Errors as RFC 9457 problem details, with the one-line messages that the command line prints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ValidationError

from autotune.complaints import complaints
from autotune.engine.redaction import redact_prose
from autotune.errors import AutotuneError, BadInput, ExitCode, InvalidFile, InvalidOption, StudyMismatch, UnknownName

CONTENT_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:autotune:problem:"

_IN_PATHS = frozenset({"study", "trial", "promotion"})
_STATUS = {
    ExitCode.STUDY_BUSY: HTTPStatus.CONFLICT,
    ExitCode.NODE_BUSY: HTTPStatus.CONFLICT,
    ExitCode.CLUSTER_UNUSABLE: HTTPStatus.CONFLICT,
    ExitCode.NOT_PROMOTABLE: HTTPStatus.CONFLICT,
    ExitCode.NOTHING_MEASURED: HTTPStatus.CONFLICT,
    ExitCode.STORAGE_LOCKED: HTTPStatus.SERVICE_UNAVAILABLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One key of a request that cannot be used."""

    key: str
    value: str | None
    allowed: str


class Refused(Exception):
    """A request that is not carried out.

    Attributes:
        kind: the end of the problem's type, e.g. `unknown-study`.
        detail: one line.
        hint: what to do next; empty when the detail says it.
    """

    def __init__(
        self,
        status: HTTPStatus,
        kind: str,
        detail: str,
        *,
        hint: str = "",
        exit_code: ExitCode | None = None,
        faults: Sequence[Fault] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail, self.hint = status, kind, detail, hint
        self.exit_code, self.faults, self.headers = exit_code, tuple(faults), dict(headers or {})

    def document(self) -> dict[str, Any]:
        """The members of RFC 9457, ours after them."""
        return {
            "type": TYPE_PREFIX + self.kind,
            "title": self.kind.replace("-", " ").capitalize(),
            "status": int(self.status),
            "detail": one_line(self.detail),
            "hint": one_line(self.hint) or None,
            "exit_code": None if self.exit_code is None else int(self.exit_code),
            "errors": [{"key": one.key, "value": one.value, "allowed": one.allowed} for one in self.faults],
        }

    def response(self) -> web.Response:
        """As it is sent."""
        return web.Response(
            status=int(self.status),
            body=json.dumps(self.document()).encode(),
            content_type=CONTENT_TYPE,
            headers=self.headers,
        )


def refusal_of(error: AutotuneError) -> Refused:
    """An error of the program as an answer: what the operator wrote is 4xx, what the machine did is 5xx."""
    if isinstance(error, UnknownName):
        status = HTTPStatus.NOT_FOUND if error.kind in _IN_PATHS else HTTPStatus.UNPROCESSABLE_ENTITY
        kind = f"unknown-{error.kind.replace(' ', '-')}"
    elif isinstance(error, StudyMismatch):
        status, kind = HTTPStatus.CONFLICT, "study-mismatch"
    elif isinstance(error, BadInput):
        status, kind = HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-value"
    else:
        status = _STATUS.get(error.exit_code, HTTPStatus.INTERNAL_SERVER_ERROR)
        kind = error.exit_code.name.lower().replace("_", "-")
    faults: tuple[Fault, ...] = ()
    if isinstance(error, InvalidOption | InvalidFile):
        key = error.option if isinstance(error, InvalidOption) else error.key
        seen = error.value if isinstance(error.value, str) else repr(error.value)
        name = shown_text(key.removeprefix("--").replace("-", "_"))
        faults = (Fault(key=name, value=shown_text(seen), allowed=error.allowed),)
    headers = {"Retry-After": "5"} if status is HTTPStatus.SERVICE_UNAVAILABLE else None
    return Refused(
        status, kind, error.message, hint=error.hint, exit_code=error.exit_code, faults=faults, headers=headers
    )


MOST_FAULTS = 20


def invalid(error: ValidationError, raw: object, model: type[BaseModel], where: str) -> Refused:
    """A query or body that is not what the document says.

    Args:
        raw: the query or body.
        model: by which it was validated.
        where: `the query` or `the body`, for the message.
    """
    faults = []
    for one in complaints(error, raw, model)[:MOST_FAULTS]:
        secret = one.key.partition(".")[0] in ("token", "notify_command", "notify_url")
        seen = None if secret or one.kind == "missing" else shown(one.seen)
        faults.append(Fault(key=shown_text(one.key), value=seen, allowed=one.allowed))
    first = faults[0]
    value = f" {first.value}" if first.value is not None else ""
    return Refused(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid-value",
        f"{where} at {first.key or 'its top'}:{value} is not accepted; allowed: {first.allowed}",
        exit_code=ExitCode.INVALID_OPTION,
        faults=faults,
    )


def shown(value: object, limit: int = 120) -> str:
    """A value of a request, short enough for a message."""
    return shown_text(repr(value), limit)


def shown_text(text: str, limit: int = 120) -> str:
    """The same of a text as it is."""
    text = one_line(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def one_line(text: str) -> str:
    """Without secrets and control characters: a message must not move anybody's cursor."""
    plain = (c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return redact_prose("".join(plain).encode("utf-8", "backslashreplace").decode())
