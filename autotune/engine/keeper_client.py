"""The tuner's side of a keeper (keeper.py): start it, give it its order, hear what becomes of the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from autotune.engine import keeper
from autotune.engine.base import ServerIdentity
from autotune.engine.marker import KEEP_ENVIRON, MARKER_NAME
from autotune.engine.private_folders import private_folder
from autotune.engine.reaping import reap

KEEPER_FILE = Path(keeper.__file__).resolve()

EXTRA_WAIT_S = 20.0
"""How much longer than its grace a stop may take before the keeper itself counts as lost."""


class ServerNotStarted(Exception):
    """The command could not be executed; `number` is the errno where there was one."""

    def __init__(self, text: str, number: int | None = None) -> None:
        super().__init__(text)
        self.text, self.number = text, number


class KeeperLost(Exception):
    """The keeper ended without an answer; whatever it had started has been reaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOrder:
    """What a keeper starts.

    Attributes:
        env: added to the environment that the keeper was given; secrets belong in the latter, not here.
        unset: names taken away from it first.
        log: file that the server's output is appended to.
        grace_s: from TERM to KILL, should the tuner die.
        cores: CPUs that it may run on; empty for all that this process has.
    """

    argv: Sequence[str]
    log: Path
    env: Mapping[str, str]
    unset: Sequence[str] = ()
    cwd: Path | None = None
    grace_s: float = 10.0
    cores: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """How a server went.

    Attributes:
        status: of the server as in `subprocess` (negative: a signal); None when nobody saw it.
        killed: processes that did not go by TERM.
        orphans: processes that the server left behind when it ended.
        remaining: pids that nothing could end (a driver holds them); nearly always empty.
    """

    status: int | None
    killed: int
    orphans: int
    remaining: tuple[int, ...] = ()


class Keeper:
    """One keeper process. `spawn`, then `order`, then `stop` exactly once; `wait_exit` whenever wanted."""

    def __init__(
        self, process: asyncio.subprocess.Process, identity: ServerIdentity, environ: Mapping[str, str]
    ) -> None:
        self._process = process
        self._identity = identity
        self._environ = environ
        loop = asyncio.get_running_loop()
        self._answered: asyncio.Future[ServerNotStarted | None] = loop.create_future()
        self._exited: asyncio.Future[int | None] = loop.create_future()
        self._gone: asyncio.Future[StopReport | None] = loop.create_future()
        self._noise: list[str] = []
        self._reader = asyncio.create_task(self._listen())

    @classmethod
    async def spawn(cls, environ: Mapping[str, str] | None = None, *, held: Sequence[int] = ()) -> Keeper:
        """Start a keeper that does nothing yet, so that its identity can be stored before there is a server.

        Args:
            environ: what the server will inherit; the process's own environment by default.
            held: descriptors of locks that must outlive a killed tuner; the server does not get them.
        """
        marker = secrets.token_hex(16)
        inherited = dict(os.environ if environ is None else environ)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(KEEPER_FILE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=inherited | {MARKER_NAME: marker, KEEP_ENVIRON: "1"},
            start_new_session=True,
            pass_fds=tuple(held),
        )
        try:
            started = psutil.Process(process.pid).create_time()
        except psutil.NoSuchProcess:
            started = 0.0  # it ended at once; the order will say so
        identity = ServerIdentity(pid=process.pid, started=started, pgid=None, marker=marker)
        return cls(process, identity, inherited)

    @property
    def identity(self) -> ServerIdentity:
        """Store it before `order`, and again after it, when the server's process group is known."""
        return self._identity

    async def order(self, what: ServerOrder) -> ServerIdentity:
        """Have the server started, with a folder to itself (private_folders.py).

        Raises:
            ServerNotStarted: the command could not be executed; nothing runs.
            KeeperLost: the keeper ended; nothing runs.
        """
        inherited = {name: value for name, value in self._environ.items() if name not in what.unset}
        private = private_folder(self._identity.marker, inherited, what.env)
        folder = "" if private.path is None else str(private.path)
        self._identity = replace(self._identity, folder=folder, grace_s=what.grace_s)
        line = keeper.Order(
            argv=list(what.argv),
            env={**private.env, **what.env} | {MARKER_NAME: self._identity.marker, KEEP_ENVIRON: "1"},
            unset=list(what.unset),
            cwd=None if what.cwd is None else str(what.cwd),
            log=str(what.log.resolve()),
            grace_s=what.grace_s,
            owner=os.getpid(),
            cores=list(what.cores),
            folder=None if private.path is None else str(private.path),
        )
        await self._send(json.dumps({name: getattr(line, name) for name in keeper.Order.__slots__}))
        answer = await asyncio.shield(self._answered)
        if isinstance(answer, ServerNotStarted):
            await self._close()
            raise answer
        if self._identity.pgid is None:
            await asyncio.to_thread(reap, self._identity, grace_s=1.0)
            await self._close()
            raise KeeperLost(f"the keeper ended before it started the server: {' / '.join(self._noise) or 'no word'}")
        return self._identity

    async def wait_exit(self) -> int | None:
        """Wait for the server's end (its workers may still be there): its status, None when the keeper was lost."""
        return await asyncio.shield(self._exited)

    @property
    def exited(self) -> bool:
        """Whether the server has ended."""
        return self._exited.done()

    async def stop(self, grace_s: float) -> StopReport:
        """TERM, wait `grace_s`, KILL all, wait until nothing is left. Fine for a server that is already gone.

        Not to be interrupted: callers shield it. At most `grace_s` + EXTRA_WAIT_S seconds.
        """
        await self._send(f"stop {grace_s:.3f}")
        report = None
        with contextlib.suppress(TimeoutError):
            report = await asyncio.wait_for(asyncio.shield(self._gone), grace_s + EXTRA_WAIT_S)
        if report is None:
            reaped = await asyncio.to_thread(reap, self._identity, grace_s=1.0)
            status = self._exited.result() if self._exited.done() else None
            report = StopReport(
                status=status,
                killed=reaped.killed,
                orphans=len(reaped.found),
                remaining=reaped.remaining,
            )
        if self._identity.pid not in report.remaining:
            await self._close()
        return report

    async def hurry(self) -> None:
        """KILL now what a running `stop` still waits for."""
        await self._send("stop 0")

    async def _send(self, line: str) -> None:
        stdin = self._process.stdin
        if stdin is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):  # the keeper, or its pipe, is already gone
                stdin.write(line.encode() + b"\n")
                await stdin.drain()

    async def _listen(self) -> None:
        stdout = self._process.stdout
        while stdout is not None and (line := await stdout.readline()):
            if line.startswith(b"{"):
                event = json.loads(line)
                self._heard(event["event"], event)
            else:  # a traceback of the keeper
                self._noise = [*self._noise[-19:], line.decode(errors="replace").strip()]
        for future in (self._exited, self._gone):
            if not future.done():
                future.set_result(None)
        if not self._answered.done():
            self._answered.set_result(None)

    def _heard(self, name: str, event: Mapping[str, object]) -> None:
        if name == "started":
            pgid = int(str(event["pgid"]))
            self._identity = replace(self._identity, pgid=pgid)
            self._answered.set_result(None)
        elif name == "failed":
            number = event.get("errno")
            self._answered.set_result(ServerNotStarted(str(event["text"]), int(str(number)) if number else None))
        elif name == "exited":
            self._exited.set_result(int(str(event["status"])))
        elif name == "stopped":
            status = self._exited.result() if self._exited.done() else None
            killed, orphans = int(str(event["killed"])), int(str(event["orphans"]))
            self._gone.set_result(StopReport(status=status, killed=killed, orphans=orphans))

    async def _close(self) -> None:
        """Let go of the keeper, which is ending or has ended, and of its pipes."""
        if self._process.stdin is not None:
            self._process.stdin.close()
            with contextlib.suppress(ConnectionError):
                await self._process.stdin.wait_closed()
        await self._process.wait()
        await self._reader
