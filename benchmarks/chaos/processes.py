"""Processes of a round: tuners that are forked from here, strangers that must survive, and whoever is left."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG = 1

DRIVER = Path(__file__).parent / "driver"
"""Its `pynvml` is the one that a tuner finds."""

MARK = "AUTOTUNE_CHAOS"
"""In the environment of everything that a round starts."""


def fork_tuner(folder: Path, words: Sequence[str], environ: Mapping[str, str], output: Path) -> int:
    """`autotune WORDS` in a process of its own, in `folder`; its pid.

    Forked and not executed: half of what a short command takes is importing libraries, which this process has done.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        _end_with_parent(signal.SIGTERM)
        os.setsid()
        os.chdir(folder)
        for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY | os.O_CREAT | os.O_APPEND)):
            file = os.open(os.devnull if number == 0 else output, flags, 0o644)
            os.dup2(file, number)
            os.close(file)
        os.dup2(1, 2)
        os.environ.clear()
        os.environ.update(environ)
        status = _command(words)
    finally:
        os._exit(status)


def _end_with_parent(signum: signal.Signals) -> None:
    """So that a harness that is ended leaves no tuner and no stranger either."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)


def _command(words: Sequence[str]) -> int:
    sys.path.insert(0, str(DRIVER))
    sys.modules.pop("pynvml", None)
    from autotune.cli.main import main

    sys.argv = ["autotune", *words]
    try:
        main()
    except SystemExit as ended:
        code = ended.code
        status = code if isinstance(code, int) else 0 if code is None else 1
    else:
        status = 0
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    return status


def ended(pid: int) -> int | None:
    """Exit status of a child (negative: a signal); None while it runs. Asked for once after its end."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


class Strangers:
    """Two processes that are none of the tuner's business, one of which looks like a vLLM engine.

    The other one is the thief: it takes each port that it is told of, before the server that tells can have it.
    """

    def __init__(self, door: Path) -> None:
        self.door = door
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(door))
        listener.listen(16)
        self.pids = (_forked(lambda: _steal(listener)), _forked(_become_engine))
        listener.close()

    def hit(self) -> int:
        """How many of them are gone, which nobody had the right to end."""
        return sum(os.waitpid(pid, os.WNOHANG)[0] != 0 for pid in self.pids)

    def close(self) -> None:
        """End both."""
        for pid in self.pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


class Computing:
    """A process that computes on a GPU for a while and is none of the tuner's business."""

    def __init__(self, device: Path, seconds: float) -> None:
        descriptor = os.open(device, os.O_RDONLY)
        self.pid = _forked(lambda: _compute(seconds))
        os.close(descriptor)
        self._status: int | None = None

    def running(self) -> bool:
        """Whether it still computes."""
        if self._status is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if found else None
        return self._status is None

    def hit(self) -> bool:
        """Whether somebody ended it."""
        return not self.running() and self._status is not None and os.WIFSIGNALED(self._status)

    def close(self) -> None:
        """End it."""
        if self.running():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._status = 0


def _compute(seconds: float) -> NoReturn:
    time.sleep(seconds)
    os._exit(0)


def _become_engine() -> NoReturn:
    environ = {"PATH": os.environ.get("PATH", os.defpath)}
    os.execve("/bin/sleep", ["VLLM::EngineCore", "900"], environ)  # noqa: S606  # without a shell, as it should be


def _forked(work: Callable[[], NoReturn]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            _end_with_parent(signal.SIGKILL)
            os.setsid()
            os.chdir("/")
            work()
        finally:
            os._exit(0)
    return pid


def _steal(listener: socket.socket) -> NoReturn:
    held: list[socket.socket] = []
    while True:
        told, _ = listener.accept()
        with told:
            port = int(told.recv(16) or b"0")
            taken = socket.socket()
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                taken.bind(("127.0.0.1", port))
                taken.listen()
                held = [*held[-20:], taken]
            told.sendall(b".")


def left_in(folder: Path, mark: str) -> list[int]:
    """Live processes of a round: by their working folder, which no re-titling wipes, or by the mark.

    Independent of how the tuner finds its own.
    """
    found, wanted, here = [], f"{MARK}={mark}".encode(), str(folder)
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X"):
                continue
            there = str(Path(entry.path, "cwd").readlink())
            environ = Path(entry.path, "environ").read_bytes().split(b"\0")
            if there == here or there.startswith(f"{here}/") or wanted in environ:
                found.append(int(entry.name))
    return found


def wait_until_left(folder: Path, mark: str, longest_s: float) -> list[int]:
    """What is still there after at most `longest_s`."""
    until = time.monotonic() + longest_s
    while (left := left_in(folder, mark)) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def end_all(pids: Iterable[int]) -> None:
    """KILL processes that `left_in` has found, so that one round's orphans are not the next one's."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def locked_files(folder: Path) -> list[str]:
    """Names of lock files below a folder that somebody still holds."""
    held = []
    for file in [*folder.rglob("*.lock"), *folder.rglob(".lock")]:
        with contextlib.suppress(OSError):
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(file.name)
            finally:
                os.close(descriptor)
    return held
