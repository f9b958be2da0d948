"""Writes docs/api.md from the service's OpenAPI document: `python docs/generate_api.py [--check]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from in_step import write_or_check

from autotune.web.api import ROUTES
from autotune.web.openapi import openapi_document

TARGET = Path(__file__).with_name("api.md")
HEAD = """\
# API

Written by `python docs/generate_api.py` from the service's own OpenAPI 3.1 document, which it serves at
`/api/v1/openapi.json`; a test keeps it in step. [service.md](service.md) tells how to start it, log in and follow
events.

Answers are JSON objects; figures are in seconds, tokens and bytes, and one that is missing is null, never 0. Keys may
be added by later versions. An error is a problem document (RFC 9457, `application/problem+json`) with the command
line's one-line message in `detail`, its exit code in `exit_code`, and with 422 the keys at fault in `errors`.
"""
TAGS = {
    "session": "Logging in",
    "service": "The service",
    "nodes": "Nodes",
    "events": "Live progress",
    "studies": "Studies",
    "fronts": "Fronts",
    "trials": "Trials",
    "measurements": "Measurements",
    "logs": "Logs",
    "promotions": "Promotions",
    "jobs": "The queue",
}


def render() -> str:
    """The whole page."""
    document = openapi_document(ROUTES, token=True)
    schemas = document["components"]["schemas"]
    found: dict[str, list[str]] = {tag: [] for tag in TAGS}
    used: dict[str, None] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            found[operation["tags"][0]].append("\n".join(_operation(method, path, operation, used)))
    sections = [HEAD]
    for tag, operations in found.items():
        sections += [f"## {TAGS[tag]}\n", *operations]
    return "\n".join([*sections, "## Objects\n", *_objects(schemas, used)]).rstrip() + "\n"


def _operation(method: str, path: str, operation: dict[str, Any], used: dict[str, None]) -> Iterator[str]:
    yield f"### {method.upper()} {path}\n"
    yield f"{operation['description']}\n"
    parameters = [one for one in operation["parameters"] if one["in"] == "query"]
    if parameters:
        yield "| parameter | is | |\n|---|---|---|"
        for one in parameters:
            yield f"| `{one['name']}` | {_kind(one['schema'], used)} | {_cell(one.get('description', ''))} |"
        yield ""
    body = operation.get("requestBody")
    if body is not None:
        schema = body["content"]["application/json"]["schema"]
        yield f"Body{'' if body['required'] else ' (may be left out)'}: {_kind(schema, used)}\n"
    for status, answer in operation["responses"].items():
        if status < "300":
            kinds = [f"{_kind(one['schema'], used)}, `{media}`" for media, one in answer.get("content", {}).items()]
            yield f"Answer: {status}{'' if not kinds else ' ' + kinds[0]}\n"
    others = [status for status in operation["responses"] if status in ("404", "409", "503")]
    if others:
        yield f"Or: {', '.join(others)}\n"


def _objects(schemas: dict[str, Any], used: dict[str, None]) -> Iterator[str]:
    done: set[str] = set()
    while waiting := [name for name in used if name not in done]:
        for name in waiting:
            done.add(name)
            schema = schemas[name]
            yield f"### {name}\n"
            yield f"{_cell(schema.get('description', '')).partition('  ')[0]}\n"
            if "enum" in schema:
                yield ", ".join(f"`{one}`" for one in schema["enum"]) + "\n"
                continue
            yield "| key | is | |\n|---|---|---|"
            for key, one in schema.get("properties", {}).items():
                yield f"| `{key}` | {_kind(one, used)} | {_cell(one.get('description', ''))} |"
            yield ""


def _kind(schema: dict[str, Any], used: dict[str, None]) -> str:
    """What a value is, in few words; objects as links."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        used.setdefault(name)
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(one, used) for one in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}), used)}"
    return kind


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, render(), sys.argv[1:], shows="the service"))
