"""The server of known truth (truth_server.c): compiled at run time, run on a core of its own, asked for counts."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

SOURCE = Path(__file__).with_name("truth_server.c")
TTFT_S, ITL_S = 0.050, 0.010
OUTPUT_TOKENS = (64, 192)
"""Shortest and longest output, uniform between: equal lengths would make streams march in step."""

MEAN_SERVICE_S = TTFT_S + (sum(OUTPUT_TOKENS) / 2 - 1) * ITL_S


class BenchmarkError(Exception):
    """The benchmark cannot run here; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the server tells of itself. `late_p99_s`: how long after their due time chunks left."""

    requests: int
    open: int
    chunks: int
    late_p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthServer:
    """A running one."""

    url: str

    def counts(self) -> Counts:
        """Since its start."""
        with urllib.request.urlopen(f"{self.url}/counts", timeout=10) as answer:  # noqa: S310 - our own http:// URL
            return _counts(answer.read())


class Watch:
    """Asks a server for its counts again and again, over one connection: a new one each time costs a millisecond, which
    would be taken from those that are measured."""

    def __init__(self, server: TruthServer) -> None:
        port = urlsplit(server.url).port
        self._socket = socket.create_connection(("127.0.0.1", port or 80), timeout=10)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()

    def counts(self) -> Counts:
        """Since the server's start."""
        self._socket.sendall(b"GET /counts HTTP/1.1\r\n\r\n")
        return _counts(self._socket.recv(4096).partition(b"\r\n\r\n")[2])


def _counts(data: bytes) -> Counts:
    raw = json.loads(data)
    return Counts(requests=raw["requests"], open=raw["open"], chunks=raw["chunks"], late_p99_s=raw["late_p99_us"] / 1e6)


def compile_server(folder: Path) -> Path:
    """The program, made in `folder` by the C compiler that is here ($CC, cc, gcc or clang).

    Raises:
        BenchmarkError: there is none, or it refuses.
    """
    names = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
    compiler = next((path for name in names if name and (path := shutil.which(name))), None)
    if compiler is None:
        raise BenchmarkError("no C compiler (cc, gcc, clang) for the server of known truth; install one or set CC")
    program = folder / "truth_server"
    done = subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"{compiler} cannot compile {SOURCE.name}:\n{done.stderr.strip()[-2000:]}")
    return program


@contextmanager
def serving_truth(program: Path, core: int | None) -> Iterator[TruthServer]:
    """Run it on `core` (anywhere for None); it ends with the block, or with this process.

    Raises:
        BenchmarkError: it does not start.
    """
    command = [str(program), f"{TTFT_S * 1e3:g}", f"{ITL_S * 1e3:g}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            pin(process.pid, core)
            put_first(process.pid)
            line = process.stdout.readline() if process.stdout is not None else ""
            if not line.strip().isdigit():
                raise BenchmarkError(f"the server of known truth did not start: {line!r}")
            yield TruthServer(url=f"http://127.0.0.1:{line.strip()}")
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


def pin(pid: int, *cores: int | None) -> None:
    """Keep a process that has just started on these cores; whatever it starts stays there, too."""
    wanted = {core for core in cores if core is not None}
    if wanted:
        os.sched_setaffinity(pid, wanted)


def put_first(pid: int) -> None:
    """Let a process that has just started, with its threads to come, run before ordinary ones, where that is allowed.

    The server of known truth and every client get the same: what else the machine does is in nobody's figures.
    """
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """At one moment: seconds of the clock, chunks sent by the server, CPU seconds used by the client."""

    at_s: float
    chunks: int
    cpu_s: float


def sample(watch: Watch, pid: int) -> Sample:
    """Now. The CPU time is of all threads and of the processes that `pid` has started."""
    cpu_s = sum(_cpu_s(one) for one in (pid, *_children(pid)))
    return Sample(at_s=time.monotonic(), chunks=watch.counts().chunks, cpu_s=cpu_s)


def _cpu_s(pid: int) -> float:
    """User and system time (proc(5), fields 14 and 15 of stat); 0 of one that has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []
