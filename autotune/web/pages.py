"""The page's own files. Only names that were there when the service began are served, so no name leads elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

from aiohttp import web

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


def static_files(folder: Path = STATIC) -> Mapping[str, Path]:
    """Everything below the folder, by its name in addresses; other kinds of files are not served."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in _TYPES)
    return {path.relative_to(folder).as_posix(): path for path in found}


def served(files: Mapping[str, Path], name: str, request: web.Request) -> web.Response:
    """One file, whole: a `Range` is not heeded, as RFC 9110 allows, so that none can be wrong.

    Raises:
        Refused: 404.
    """
    path = files.get(name)
    if path is None:
        raise Refused(HTTPStatus.NOT_FOUND, "not-found", "there is no such file of the page")
    kind = _TYPES[path.suffix]
    charset = "; charset=utf-8" if kind.startswith(("text/", "application/json")) else ""
    found = path.stat()
    etag = f"{found.st_mtime_ns:x}-{found.st_size:x}"
    headers = {"ETag": f'"{etag}"', "Cache-Control": "no-cache"}
    if any(tag.value == etag for tag in request.if_none_match or ()):
        return web.Response(status=int(HTTPStatus.NOT_MODIFIED), headers=headers)
    return web.Response(body=path.read_bytes(), headers={**headers, "Content-Type": f"{kind}{charset}"})
