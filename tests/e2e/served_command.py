"""`autotune serve` as a process of its own, and somebody who asks it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from autotune_command import LLAMA, Running, wait_for

STUDY = {
    "name": "s", "model": LLAMA, "workload": "tiny", "space": "scheduler", "engine": "simulated", "repeats": 0,
    "trials": 8, "load": {"concurrency": 4, "rate_rps": 20.0, "requests": 24},
}  # fmt: skip


class Service:
    """A running service."""

    def __init__(self, folder: Path, *words: str, env: dict[str, str] | None = None) -> None:
        self.running = Running(folder, "serve", "--port", "0", *words, env=env)
        self.url = wait_for(self._url, "the service's address")

    def _url(self) -> str | None:
        assert self.running.process.poll() is None, self.running.err
        return self.running.out.split()[-1].rstrip("/") if self.running.out.endswith("\n") else None

    def ask(self, path: str, body: Any = None, token: str | None = None, **options: Any) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=120, **options) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def job(self) -> dict[str, Any]:
        return self.ask("/api/v1/jobs")[1]["jobs"][0]
