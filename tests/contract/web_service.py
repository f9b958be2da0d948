"""A service over one small simulated study and its promotion, made once, that tests ask by HTTP."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from autotune.store.places import Places
from autotune.web.app import SERVICE, make_app
from autotune.web.service import Service
from autotune.web.settings import ServeSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from autotune_command import LIGHT, TINY
from autotune_command import run as command

STUDY, DEPLOYMENT = "small", "prod"


@cache
def template() -> Path:
    """A studies folder with one finished study of four trials and a promotion of it; not to be changed.

    Made once for all workers of a run of the tests.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    home = Path(gettempdir()) / f"autotune-web-{run}"
    home.mkdir(exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "made").exists():
            _clear_old(home)
            _make(home)
            (home / "made").touch()
    return home / "studies"


def _make(home: Path) -> None:
    words = ("--engine", "simulated", "--trials", "4", "--name", STUDY)
    assert command(home, "study", *TINY, *LIGHT, *words).code == 0
    promoted = command(
        home, "promote", STUDY, "--target", "compose,vllm-config", "--out", "out", "--name", DEPLOYMENT, "--trial", "0",
        "--skip-gate", "--allow-simulated",
    )  # fmt: skip
    assert promoted.code == 0, promoted.err


def _clear_old(home: Path) -> None:
    """Of runs that are over: no worker knows that it is the last one."""
    for other in home.parent.glob("autotune-web-*"):
        if other != home and time.time() - other.stat().st_mtime > 3600:
            shutil.rmtree(other, ignore_errors=True)


def studies_in(folder: Path) -> Places:
    """A copy of it that a test may change."""
    return Places(root=Path(shutil.copytree(template(), folder / "studies")))


class Client:
    """A browser or a program: sends what a test says and nothing else."""

    def __init__(self, client: TestClient[Any, Any], service: Service) -> None:
        self.client, self.service = client, service

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        """Status and document."""
        return await self.send("GET", path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        """The same of a JSON body."""
        return await self.send("POST", path, json={} if body is None else body, **options)

    async def send(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """The same of any request; a document that is no JSON comes as text."""
        async with self.client.request(method, path, **options) as answer:
            kind = answer.content_type
            return answer.status, (await answer.json() if kind.endswith("json") else await answer.text())


@asynccontextmanager
async def serving(settings: ServeSettings, **options: Any) -> AsyncIterator[Client]:
    """A running service, and somebody who asks it."""
    app = make_app(settings, **options)
    async with TestClient(TestServer(app)) as client:
        yield Client(client, app[SERVICE])
