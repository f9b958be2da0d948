"""The program as an operator runs it: a process of its own in a folder of its own, nothing replaced inside."""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
SIMULATED_SERVER = f"{sys.executable} -m autotune.simulator.server serve"
TINY = ("--model", LLAMA, "--workload", "tiny", "--space", "scheduler", "--repeats", "0")
LIGHT = ("--load", "concurrency=4,rate=20,requests=24")
PROGRAM = ("-m", "autotune")
TRACE = "Traceback (most recent call last)"
HANG_S = 300.0
"""What is waited for at most where something is sure to come: what hangs reaches it, and nothing that is slow."""


def clean_environ(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """No settings of the machine that runs the tests, no GPU, a home of its own."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return kept | {"HOME": str(home), "CUDA_VISIBLE_DEVICES": ""} | dict(extra or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)


def run(
    folder: Path, *words: str, env: Mapping[str, str] | None = None, timeout_s: float = HANG_S, **popen: Any
) -> Ended:
    """Run `autotune WORDS` in `folder` to its end."""
    environ = clean_environ(folder, env)
    if not popen and _forkable(env):
        return _run_forked(folder, words, environ, timeout_s)
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *words],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
        check=False,
        **popen,
    )
    return Ended(code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())


def _forkable(env: Mapping[str, str] | None) -> bool:
    """Whether nothing is set that Python or a library reads as it starts; coverage is started by `forking.py`."""
    return all(
        name.startswith(("AUTOTUNE_", "COV", "HF_")) or name in ("PATH", "TMPDIR", "MY_KEY") for name in env or ()
    )


def _run_forked(folder: Path, words: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> Ended:
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    process = Forked(folder, words, environ, out_end, err_end)
    os.close(out_end)
    os.close(err_end)
    deadline = time.monotonic() + timeout_s
    said = _read_both(out, err, deadline)
    if said is not None:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(max(0.01, deadline - time.monotonic()))
            return Ended(code=code, out=said[0].decode(), err=said[1].decode())
    process.kill()
    process.wait()
    raise TimeoutError(f"{words} took more than {timeout_s:g} s")


class Forked:
    """`autotune WORDS` as a child of `forking.py`, in a fraction of the time; to be handled as a `subprocess.Popen`."""

    def __init__(
        self,
        folder: Path,
        words: Sequence[str],
        environ: Mapping[str, str],
        out: int,
        err: int,
        start_new_session: bool = False,
    ) -> None:
        order = {"folder": os.path.realpath(folder), "words": words, "environ": environ, "session": start_new_session}
        self._told, told_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with told_end, tempfile.TemporaryFile() as wanted, Path(os.devnull).open("rb") as nothing:
            wanted.write(json.dumps(order).encode())
            wanted.flush()
            socket.send_fds(_forking(), [b"."], [wanted.fileno(), nothing.fileno(), out, err, told_end.fileno()])
        self.pid = int(self._told.recv(32))
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                self.returncode = int(self._told.recv(32))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(["autotune"], timeout or 0.0) from None
            self._told.close()
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _read_both(out: int, err: int, deadline: float) -> tuple[bytes, bytes] | None:
    """All that comes until nobody holds the other ends any more; None if somebody still does at the deadline."""
    said = {out: b"", err: b""}
    with selectors.DefaultSelector() as waiting:
        for file in said:
            waiting.register(file, selectors.EVENT_READ)
        while waiting.get_map() and (ready := waiting.select(max(0.0, deadline - time.monotonic()))):
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                said[key.fd] += chunk
                if not chunk:
                    waiting.unregister(key.fd)
        ended = not waiting.get_map()
    os.close(out)
    os.close(err)
    return (said[out], said[err]) if ended else None


@cache
def _forking() -> socket.socket:
    """Where orders are taken by an interpreter that ends when this one does."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environ = clean_environ(Path.home(), {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    command = [sys.executable, str(Path(__file__).with_name("forking.py")), str(there.fileno())]
    with there:
        # Its own output is a pipe as that of its children: sys.stdout and sys.stderr, which they inherit, know it.
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[there.fileno()],
        )
    atexit.register(process.wait, 10)
    atexit.register(here.close)
    return here


class Running:
    """`autotune WORDS` that is still going on; its standard error is in a file."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self.folder = folder
        self._err = folder / f"stderr-{time.monotonic_ns()}.txt"
        self._out = self._err.with_suffix(".out")
        with self._err.open("wb") as err, self._out.open("wb") as out:
            self.process = self._started(words, env, program, out, err)

    def _started(
        self,
        words: Sequence[str],
        env: Mapping[str, str] | None,
        program: Sequence[str],
        out: IO[bytes],
        err: IO[bytes],
    ) -> subprocess.Popen[bytes] | Forked:
        environ = clean_environ(self.folder, env)
        if tuple(program) == PROGRAM and _forkable(env):
            return Forked(self.folder, words, environ, out.fileno(), err.fileno(), start_new_session=True)
        return subprocess.Popen(
            [sys.executable, *program, *words],
            cwd=self.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def out(self) -> str:
        return self._out.read_text()

    def kill(self) -> None:
        """-9 to the tuner alone: what it started must go by itself."""
        self.process.kill()
        self.process.wait(HANG_S)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, timeout_s: float = HANG_S) -> int:
        return self.process.wait(timeout_s)

    def give_up(self) -> None:
        """For fixtures: nothing of a failed test may stay."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()


def rows(database: Path, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """What our tables hold, read beside the program; empty while there are none."""
    if not database.exists():
        return []
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=60)
    try:
        return connection.execute(query, parameters).fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        connection.close()


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = HANG_S, step_s: float = 0.02) -> Any:
    """The first true answer of `condition`."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"never came within {timeout_s} s: {what}"
        time.sleep(step_s)
    return answer
