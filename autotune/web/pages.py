"""The page's own files. Only names that were there when the service began are served, so no name leads elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from aiohttp import web

from autotune.report.page.linking import linked
from autotune.web.problems import Refused

STATIC = Path(__file__).parent / "static"
INDEX, LOGIN = "index.html", "login.html"

VIEWS = (
    *("/", "/studies/{name}", "/studies/{name}/trials/{number}", "/compare"),
    *("/promotions", "/promotions/{name}", "/queue", "/nodes", "/new"),
)
"""Addresses that the page itself tells apart; each is answered with it."""

_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
    ".txt": "text/plain",
    ".map": "application/json",
}


SCRIPT = "page.js"
"""The page's modules as one file: thirty requests took longer than all that is in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    """A file as it is sent.

    Attributes:
        kind: its Content-Type.
        etag: another one as soon as the content is.
    """

    body: bytes
    kind: str
    etag: str

    @classmethod
    def of(cls, body: bytes, suffix: str) -> StaticFile:
        """Of a file whose name ends so."""
        kind = _TYPES[suffix]
        charset = "; charset=utf-8" if kind.startswith(("text/", "application/json")) else ""
        return cls(body=body, kind=f"{kind}{charset}", etag=hashlib.sha256(body).hexdigest()[:16])


def static_files(folder: Path = STATIC) -> Mapping[str, StaticFile]:
    """Everything below the folder, by its name in addresses; other kinds of files are not served."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in _TYPES]
    found = {path.relative_to(folder).as_posix(): StaticFile.of(path.read_bytes(), path.suffix) for path in paths}
    modules = {path.name: path.read_text(encoding="utf-8") for path in paths if path.parent.name == "js"}
    return {**found, SCRIPT: StaticFile.of(linked(modules, "main.js").encode(), ".js")}


def served(files: Mapping[str, StaticFile], name: str, request: web.Request) -> web.Response:
    """One file, whole: a `Range` is not heeded, as RFC 9110 allows, so that none can be wrong.

    Raises:
        Refused: 404.
    """
    file = files.get(name)
    if file is None:
        raise Refused(HTTPStatus.NOT_FOUND, "not-found", "there is no such file of the page")
    headers = {"ETag": f'"{file.etag}"', "Cache-Control": "no-cache"}
    if any(tag.value == file.etag for tag in request.if_none_match or ()):
        return web.Response(status=int(HTTPStatus.NOT_MODIFIED), headers=headers)
    return web.Response(body=file.body, headers={**headers, "Content-Type": file.kind})
