"""What runs in a Ray worker for one attempt: a shim around the node process that performs it.

It needs Ray and the standard library only, and hands frames on as they are. It hears the tuner's wish to end an attempt
from `Wishes`, because cancelling a Ray task either kills its worker at once or, while the task waits, does nothing.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

POLL_S = 0.5
GOES_S = 90.0
"""How long a node process that was told to end may take, beyond the grace of its server, before it is killed: what
runs of the server then is its keeper's."""
END, HURRY = 1, 2
"""How urgent it is that an attempt ends: its server is stopped as any is, or now."""
WORDS = {END: b"end\n", HURRY: b"hurry\n"}
"""What a node process is told of it on its input, after the errand."""


class Wishes:
    """How urgently each attempt is to end: 0 not at all, 1 soon, 2 now. An actor on the tuner's node, of one study."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}

    def wish(self, attempt: str, urgency: int) -> None:
        """Say it."""
        self._of[attempt] = urgency

    def of(self, attempt: str) -> int:
        """Ask it."""
        return self._of.get(attempt, 0)


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Without what Ray puts there for its workers: a server must neither join the cluster nor run on one thread.

    Ray sets OMP_NUM_THREADS to the task's CPUs (1 for none) where nobody else has set it.
    """
    kept = {name: value for name, value in inherited.items() if not name.startswith("RAY_")}
    if kept.get("OMP_NUM_THREADS") == "1":
        del kept["OMP_NUM_THREADS"]
    return kept


def frames(plan: bytes, errand: bytes, urgency: Callable[[], int], *, grace_s: float) -> Iterator[bytes]:
    """Perform an errand and yield what its process tells, frame by frame.

    Args:
        plan, errand: frames (errand.py).
        urgency: of the wish to end it; raises where whoever wishes is gone.
        grace_s: from TERM to KILL of a server.

    Raises:
        RuntimeError: the process ended before it had told all.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune.executor.node_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(os.environ),
    )
    told: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    reading = threading.Thread(target=_read, args=(process, told), daemon=True)
    reading.start()
    try:
        _say(process, plan + errand)
        said = 0
        asked_s = time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                frame = told.get(timeout=POLL_S)
                if frame is None:
                    break
                yield frame
            if time.monotonic() - asked_s >= POLL_S:
                asked_s = time.monotonic()
                wanted = urgency()
                while said < wanted:
                    said += 1
                    _say(process, WORDS[said])
    finally:
        _end(process, grace_s, reading)
    if process.returncode:
        raise RuntimeError(f"the process that performed it ended with status {process.returncode}")


def _read(process: subprocess.Popen[bytes], told: queue.SimpleQueue[bytes | None]) -> None:
    assert process.stdout is not None  # it is a pipe
    stream = process.stdout
    while len(head := stream.read(4)) == 4:
        content = stream.read(int.from_bytes(head, "big"))
        told.put(head + content)
    told.put(None)


def _say(process: subprocess.Popen[bytes], words: bytes) -> None:
    assert process.stdin is not None  # it is a pipe
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(words)
        process.stdin.flush()


def _end(process: subprocess.Popen[bytes], grace_s: float, reading: threading.Thread) -> None:
    """The end of its input makes a process that still performs stop its server and go."""
    assert process.stdin is not None  # it is a pipe
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(grace_s + GOES_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    reading.join(GOES_S)
    if process.stdout is not None and not reading.is_alive():
        process.stdout.close()


def task(plan: bytes, errand: bytes, wishes: Any, attempt: str, grace_s: float) -> Iterator[bytes]:
    """The Ray task: `frames`, ended early where the tuner wishes so or is gone."""
    import ray

    def urgency() -> int:
        try:
            return int(ray.get(wishes.of.remote(attempt), timeout=GOES_S))
        except ray.exceptions.GetTimeoutError:
            return 0

    yield from frames(plan, errand, urgency, grace_s=grace_s)
