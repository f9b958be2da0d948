"""A hub on loopback, as much of it as huggingface_hub asks for a model."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GATED = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model is restricted."}
UNKNOWN = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}


@dataclass
class StandIn:
    """What it has and how it behaves.

    Attributes:
        cut_off: files of which only half is sent before the connection is closed, the first time.
        silent: files that are begun and never go on.
        lies: bytes of a file as the listing has them, where they are not what is sent.
        sent: files asked for, with what came in the Authorization header.
    """

    files: dict[str, bytes]
    gated: bool = False
    cut_off: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    lies: dict[str, int] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: StandIn

    def log_message(self, *_: object) -> None:
        return

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub = self.hub
        hub.tokens.add(self.headers.get("Authorization"))
        path = unquote(urlsplit(self.path).path)
        if hub.gated:
            self._reply(401, b"", GATED)
        elif path in ("/api/models/acme/small", "/api/models/acme/small/revision/main"):
            files = [{"rfilename": name, "size": self._size(name)} for name in hub.files]
            self._reply(200, json.dumps({"id": "acme/small", "sha": COMMIT, "siblings": files}).encode(), {})
        elif path.startswith("/acme/small/resolve/") and path.split("/")[5] in hub.files:
            self._file(path.split("/")[5], body=body)
        else:
            self._reply(404, b"{}", UNKNOWN)

    def _size(self, name: str) -> int:
        return self.hub.lies.get(name, len(self.hub.files[name]))

    def _file(self, name: str, *, body: bool) -> None:
        hub, content = self.hub, self.hub.files[name]
        etag = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        begin = int(self.headers.get("Range", "bytes=0-").partition("=")[2].partition("-")[0])
        if not body:
            self._reply(200, b"", headers | {"Content-Length": str(len(content))})
            return
        hub.sent.append(name)
        status = 206 if begin else 200
        rest = content[begin:]
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        if name in hub.silent or name in hub.cut_off:
            self.send_response(status)
            for key, value in (headers | {"Content-Length": str(len(rest))}).items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(rest[: len(rest) // 2])
            self.wfile.flush()
            if name in hub.silent:
                time.sleep(600)
            hub.cut_off.discard(name)
            self.close_connection = True
            return
        self._reply(status, rest, headers)

    def _reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        return  # a client that was stopped


@contextlib.contextmanager
def serving(hub: StandIn) -> Iterator[StandIn]:
    """The hub behind `hub.url`, for as long as the block runs."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    with _Server(("127.0.0.1", 0), handler) as server:
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield hub
        finally:
            server.shutdown()
