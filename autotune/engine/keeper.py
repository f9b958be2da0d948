"""Keeps one server and everything it forks: a tiny process between the tuner and the server.

Run as `python -I -S keeper.py`, so it imports the standard library and processes.py only. It exists because a tuner
that is killed with -9 can stop nothing, and because vLLM's workers outlive their API server (its SIGKILL leaves
`VLLM::EngineCore` with the GPU's memory, re-parented to whoever is the subreaper: here, the keeper). A `preexec`-only
answer (PR_SET_PDEATHSIG on the server) was rejected: it reaches one process, not the workers.

Protocol. On stdin first one line of JSON, the order:

    {"argv": [...], "env": {"NAME": "value"}, "unset": ["NAME"], "cwd": null, "log": "/path/server.log",
     "grace_s": 10.0, "owner": 1234, "cores": [4, 5], "folder": "/tmp/autotune-server-0123"}

then any number of lines `stop` or `stop SECONDS` (a later one may shorten the grace). End of input, or another parent
than `owner`, means that the tuner is gone: everything is stopped. On stdout one JSON object a line:

    {"event": "started", "pid": 10, "pgid": 10, "started_ticks": 123}
    {"event": "failed", "errno": 2, "text": "No such file or directory: 'vllm'"}
    {"event": "exited", "status": -9}                      status as in `subprocess`: negative for a signal
    {"event": "stuck", "pids": [11]}                       killed, but still there: uninterruptible in a driver
    {"event": "stopped", "killed": 2, "orphans": 1}        nothing is left; the keeper exits

Only descendants are ever signalled. The server stays an unreaped zombie until the end, which keeps its process group id
from being reused; every other process is signalled through a pidfd after its start time was compared.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))

from autotune.engine.processes import TRACKER_S, ProcStat, descendants, is_tracker, read_stat, signal_exact, snapshot

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ORPHAN_GRACE_S = 3.0
"""What orphans of a server that ended by itself get between TERM and KILL (data-parallel vLLM needs 3 s to leave)."""
STUCK_AFTER_S = 15.0
OWNER_CHECK_S = 1.0
LINUX = sys.platform.startswith("linux")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to start; the line of JSON has exactly these keys. `env` is added last, after `unset` was taken away.

    `cores` are the CPUs that the server may run on; empty for those that the keeper inherited. `folder` is made for the
    server, locked while the keeper lives, and taken away with what is in it when nothing is left; null for none.
    """

    argv: list[str]
    env: dict[str, str]
    unset: list[str]
    cwd: str | None
    log: str
    grace_s: float
    owner: int | None
    cores: list[int]
    folder: str | None


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class _Keeper:
    """The loop: waits for the tuner's word, the server's end, or a deadline, and acts on each."""

    def __init__(self) -> None:
        self._me = os.getpid()
        self._owner: int | None = None
        self._input: int | None = 0
        self._pending = b""
        self._grace_s = 10.0
        self._server: subprocess.Popen[bytes] | None = None
        self._exited = False
        self._kill_at: float | None = None
        self._killing_from: float | None = None
        self._stuck_at: float | None = None
        self._told_stuck = False
        self._terminate_asked = False
        self._last_order = False
        self._children_changed = False
        self._reaped = False
        self._killed: set[tuple[int, int]] = set()
        self._orphans = 0
        self._wake, self._wake_in = os.pipe()
        self._folder: str | None = None
        self._folder_lock: int | None = None

    def shield(self) -> None:
        """Own session, subreaper, deaf to the terminal. Handlers, not SIG_IGN: the server must not inherit deafness."""
        with contextlib.suppress(OSError):
            os.setsid()
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        os.set_blocking(self._wake, False)
        os.set_blocking(self._wake_in, False)
        signal.set_wakeup_fd(self._wake_in, warn_on_full_buffer=False)
        for deaf in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(deaf, lambda *_: None)
        signal.signal(signal.SIGCHLD, self._on_child)
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, *_: object) -> None:
        self._terminate_asked = True

    def _on_child(self, *_: object) -> None:
        self._children_changed = True

    def run(self) -> int:
        """Exit status: 0 when nothing is left, 1 when the server could not be started, 3 without an order."""
        line = self._read_line()
        if line is None or line.startswith(b"stop"):
            self._say(event="stopped", killed=0, orphans=0)
            return 3
        if not self._start(Order(**json.loads(line))):
            return 1
        while not self._step():
            self._wait(self._timeout_s())
        return 0

    def _read_line(self) -> bytes | None:
        while b"\n" not in self._pending:
            self._wait(None)
            if self._input is None or self._terminate_asked:
                return None
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _wait(self, timeout_s: float | None) -> None:
        watched = [self._wake] if self._input is None else [self._wake, self._input]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        if self._input is not None and self._input in ready:
            try:
                data = os.read(self._input, 65536)
            except OSError:
                data = b""  # the tuner's end of a socket pair was reset: the same as its end
            self._pending += data
            if not data:
                self._input = None

    def _start(self, order: Order) -> bool:
        self._grace_s, self._owner = order.grace_s, order.owner
        environment = {name: value for name, value in os.environ.items() if name not in order.unset} | order.env
        libc = ctypes.CDLL(None) if LINUX else None
        if order.cores and LINUX:
            with contextlib.suppress(OSError):  # a core that was taken away meanwhile: slower, but it serves
                os.sched_setaffinity(0, order.cores)

        def die_with_keeper() -> None:
            # Should the keeper itself be killed with -9, the server at least hears TERM and can stop its workers.
            if libc is not None:
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

        try:
            self._make(order.folder)
            with Path(order.log).open("ab") as log:
                self._server = subprocess.Popen(
                    order.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=order.cwd,
                    start_new_session=True,
                    preexec_fn=die_with_keeper,
                )
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in an argument
            number = getattr(error, "errno", None)
            where = getattr(error, "filename", None)
            text = getattr(error, "strerror", None) or str(error)
            self._remove()
            self._say(event="failed", errno=number, text=f"{text}: {where!r}" if where else text)
            return False
        stat = read_stat(self._server.pid)
        ticks = stat.started_ticks if stat else None
        self._say(event="started", pid=self._server.pid, pgid=self._server.pid, started_ticks=ticks)
        return True

    def _make(self, folder: str | None) -> None:
        """The lock tells whoever finds the folder that somebody looks after it."""
        if folder is not None:
            Path(folder).mkdir(mode=0o700)
            self._folder = folder
            self._folder_lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            with contextlib.suppress(OSError):
                fcntl.flock(self._folder_lock, fcntl.LOCK_SH)

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _step(self) -> bool:
        """One look at the world; True when nothing is left."""
        now = time.monotonic()
        self._listen(now)
        if self._kill_at is None and not self._children_changed:
            return False  # reading all of /proc every second would be felt by what is measured
        self._children_changed = False
        status = self._server_status()
        family = self._family()
        if status is not None:
            self._exited = True
            self._say(event="exited", status=status)
            self._stop_orphans(now, family)
        if self._exited and not family and self._finish():
            return True
        if self._kill_at is not None and now >= self._kill_at:
            self._kill(family, now)
        return False

    def _listen(self, now: float) -> None:
        *lines, self._pending = self._pending.split(b"\n")
        for line in lines:
            words = line.split()
            if words[:1] == [b"stop"]:
                self._begin_stop(now, float(words[1]) if len(words) > 1 else self._grace_s)
        alone = self._input is None or (self._owner is not None and os.getppid() != self._owner)
        if (alone or self._terminate_asked) and not self._last_order:
            # Also in the middle of a stop: whoever asked for a long grace is not there to wait for it any more.
            self._last_order = True
            self._begin_stop(now, self._grace_s)

    def _begin_stop(self, now: float, grace_s: float) -> None:
        """TERM to the group, once; a second call may only bring the KILL nearer."""
        if self._kill_at is None:
            self._signal_group(signal.SIGTERM)
        deadline = now + max(0.0, grace_s)
        self._kill_at = deadline if self._kill_at is None else min(self._kill_at, deadline)

    def _stop_orphans(self, now: float, family: list[ProcStat]) -> None:
        """What the server left: its group was or is asked as a whole, those in other sessions one by one."""
        self._orphans = len(family)
        self._begin_stop(now, min(self._grace_s, ORPHAN_GRACE_S))
        for process in family:
            if self._server is not None and process.pgid != self._server.pid:
                signal_exact(process, signal.SIGTERM)

    def _kill(self, family: list[ProcStat], now: float) -> None:
        self._killing_from = now if self._killing_from is None else self._killing_from
        if LINUX and now < self._killing_from + TRACKER_S:
            family = [process for process in family if not is_tracker(process.pid)]
        else:
            self._signal_group(signal.SIGKILL)
        for process in family:
            signal_exact(process, signal.SIGKILL)
            self._killed.add((process.pid, process.started_ticks))
        self._stuck_at = now + STUCK_AFTER_S if self._stuck_at is None else self._stuck_at
        if now >= self._stuck_at and not self._told_stuck:
            self._told_stuck = True
            self._say(event="stuck", pids=sorted(process.pid for process in family))

    def _signal_group(self, signum: int) -> None:
        if self._server is not None and not self._reaped:
            with contextlib.suppress(OSError):  # "already gone" is fine
                os.killpg(self._server.pid, signum)

    def _family(self) -> list[ProcStat]:
        """Live descendants; dead ones that fell to us are reaped on the way, all but the server itself."""
        if not LINUX:
            return []
        family = []
        for process in descendants(self._me, snapshot()):
            if not process.zombie:
                family.append(process)
            elif process.ppid == self._me and (self._server is None or process.pid != self._server.pid):
                with contextlib.suppress(OSError):
                    os.waitpid(process.pid, os.WNOHANG)
        return family

    def _server_status(self) -> int | None:
        """The server's exit status, without reaping it where the system can do that."""
        if self._server is None or self._exited:
            return None
        if not LINUX:
            return self._server.poll()
        info = os.waitid(os.P_PID, self._server.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def _finish(self) -> bool:
        """Whether really nothing is left.

        One walk through /proc can miss a process that was re-parented meanwhile; the kernel's "no child" to a
        subreaper cannot, because every orphan below it becomes its child.
        """
        if not LINUX:
            self._signal_group(signal.SIGKILL)
        if self._server is not None and not self._reaped:
            self._server.wait()
            self._reaped = True
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            self._remove()
            self._say(event="stopped", killed=len(self._killed), orphans=self._orphans)
            return True
        return False

    def _timeout_s(self) -> float:
        if self._kill_at is None:
            return OWNER_CHECK_S
        return 0.5 if self._told_stuck else 0.03

    def _say(self, **fields: object) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more: the work goes on all the same
            os.write(1, json.dumps(fields).encode() + b"\n")


def main() -> int:
    """Run one keeper over stdin and stdout."""
    keeper = _Keeper()
    keeper.shield()
    return keeper.run()


if __name__ == "__main__":
    sys.exit(main())
