"""The OpenAPI 3.1 document, made from the routes and their models; nothing is written twice."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from autotune import __version__
from autotune.web.document import Problem
from autotune.web.problems import CONTENT_TYPE
from autotune.web.route import STATE_CHANGING, Nothing, Route
from autotune.web.security import OWN_HEADER
from autotune.web.tokens import COOKIE

REFERENCE = "#/components/schemas/{model}"

DESCRIPTION = """\
Studies, fronts, trials and promotions of one studies folder, and the queue of its node.

Documents are those of the command line's `--json`. Figures are in seconds, tokens and bytes; one that is missing is
null, never 0. Errors are problem details (RFC 9457) with the command line's own messages. Where the service was started
with a token, every operation but `/api/v1/session` needs it.
"""

_ALWAYS = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.MISDIRECTED_REQUEST,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
)
_WITH_BODY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)


def openapi_document(routes: Iterable[Route], *, token: bool) -> dict[str, Any]:
    """The document of these operations.

    Args:
        token: the service asks for one.
    """
    routes = tuple(routes)
    answers = {route.answer for route in routes if route.answer is not None} | {Problem}
    bodies = {route.body for route in routes if route.body is not None}
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        *((body, "validation") for body in sorted(bodies, key=_name)),
        *((answer, "serialization") for answer in sorted(answers, key=_name)),
    ]
    keys, found = models_json_schema(models, ref_template=REFERENCE)
    schemas = found.get("$defs", {})
    own = {keys[(body, "validation")]["$ref"].rpartition("/")[2] for body in bodies}
    named = {name: schema if name in own else _open(schema) for name, schema in schemas.items()}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, keys)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "autotune",
            "version": __version__,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"session": []}] if token else [],
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in routes)],
        "paths": paths,
        "components": {
            "schemas": named,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
        },
    }


def _name(model: type[BaseModel]) -> str:
    return model.__name__


def _open(schema: dict[str, Any]) -> dict[str, Any]:
    """Of an answer: a later version may have more keys, which a client of this one is not to refuse."""
    return {key: value for key, value in schema.items() if key != "additionalProperties" or value is not False}


def _operation(route: Route, keys: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "description": (route.handler.__doc__ or "").strip(),
        "tags": [route.tag],
        "parameters": [*_parameters(route.parameters, "path"), *_parameters(route.query, "query")],
        "responses": {
            str(int(route.status)): _answer(route, keys),
            **{str(int(status)): _problem(status, keys) for status in _statuses(route)},
        },
    }
    if route.method in STATE_CHANGING:
        operation["parameters"].append(_own_header())
    if route.open_to_all:
        operation["security"] = []
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.body_required,
            "content": {"application/json": {"schema": keys[(route.body, "validation")]}},
        }
    return operation


def _statuses(route: Route) -> list[HTTPStatus]:
    found = {*_ALWAYS, *route.problems, *(_WITH_BODY if route.body is not None else ())}
    if not route.open_to_all or route.body is not None:
        found.add(HTTPStatus.UNAUTHORIZED)
    if route.parameters is not Nothing:
        found.add(HTTPStatus.NOT_FOUND)
    return sorted(found)


def _answer(route: Route, keys: dict[Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"description": route.status.phrase}
    if route.answer is not None:
        found["content"] = {route.media: {"schema": keys[(route.answer, "serialization")]}}
    elif route.status is not HTTPStatus.NO_CONTENT:
        found["content"] = {route.media: {"schema": {"type": "string"}}}
    return found


def _problem(status: HTTPStatus, keys: dict[Any, Any]) -> dict[str, Any]:
    return {
        "description": status.phrase,
        "content": {CONTENT_TYPE: {"schema": keys[(Problem, "serialization")]}},
    }


def _parameters(model: type[BaseModel], where: str) -> list[dict[str, Any]]:
    schema = model.model_json_schema(ref_template=REFERENCE)
    definitions = schema.get("$defs", {})
    required = schema.get("required", [])
    found = []
    for name, raw in schema.get("properties", {}).items():
        one = _resolved(raw, definitions)
        parameter: dict[str, Any] = {"name": name, "in": where, "required": name in required}
        if "description" in one:
            parameter["description"] = one.pop("description")
        found.append({**parameter, "schema": _without_null(one)})
    return found


def _resolved(schema: Any, definitions: dict[str, Any]) -> Any:
    """With what is referred to in its place: enumerations of a query are short."""
    if isinstance(schema, list):
        return [_resolved(one, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        inner = definitions[schema["$ref"].rpartition("/")[2]]
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        plain = {key: value for key, value in inner.items() if key not in ("title", "description")}
        return _resolved({**plain, **rest}, definitions)
    return {key: _resolved(value, definitions) for key, value in schema.items() if key != "title"}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: what is not said is left out."""
    options = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default") or value is not None}
    if not options:
        return rest
    rest = {key: value for key, value in rest.items() if key != "anyOf"}
    return {**options[0], **rest} if len(options) == 1 else {**rest, "anyOf": options}


def _own_header() -> dict[str, Any]:
    return {
        "name": OWN_HEADER,
        "in": "header",
        "required": False,
        "description": "Any value; needed where there is no JSON body, so that no form of another site sends it.",
        "schema": {"type": "string"},
    }
