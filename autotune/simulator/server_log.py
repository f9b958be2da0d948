"""Log lines as vLLM 0.25 shapes them: `(APIServer pid=7) INFO 11-29 17:25:31 [file.py:39] text`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

API_SERVER = "APIServer"


@dataclass(slots=True)
class ServerLog:
    """Writes lines at once, so that a reader that follows the file sees each step of the start.

    Attributes:
        stream: where lines go; vLLM logs to standard output.
        now: wall-clock seconds, for the stamps.
    """

    stream: TextIO
    pid: int = field(default_factory=os.getpid)
    now: Callable[[], float] = time.time

    def info(self, source: str, text: str, process: str = API_SERVER) -> None:
        """An INFO line; `source` is file and line as vLLM prints them."""
        self.line("INFO", source, text, process)

    def line(self, level: str, source: str, text: str, process: str = API_SERVER) -> None:
        """A line of any level; every line of `text` gets the prefix."""
        stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(self.now()))
        head = f"({process} pid={self.pid}) {level} {stamp} [{source}] "
        self.raw("".join(f"{head}{part}\n" for part in text.split("\n")))

    def plain(self, text: str, process: str = API_SERVER) -> None:
        """Text that no logger wrote (uvicorn, tracebacks), behind the process prefix only."""
        self.raw("".join(f"({process} pid={self.pid}) {part}\n" for part in text.split("\n")))

    def raw(self, text: str) -> None:
        """Text as it is."""
        self.stream.write(text)
        self.stream.flush()

    def traceback(self, cause: str, process: str = API_SERVER) -> None:
        """A short traceback that ends in `cause`, as Python prints an exception nobody caught."""
        frame = '  File "/opt/vllm/v1/engine/core.py", line 1201, in run_engine_core\n    raise'
        self.plain(f"Traceback (most recent call last):\n{frame}\n{cause}", process)

    def error_traceback(self, source: str, title: str, cause: str, process: str) -> None:
        """The same through the logger, every line with its prefix, after a title line."""
        self.line("ERROR", source, title, process)
        self.line("ERROR", source, "Traceback (most recent call last):", process)
        self.line("ERROR", source, f"    raise\n{cause}", process)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalStats:
    """What happened since the last statistics line."""

    seconds: float
    prompt_tokens: int
    generation_tokens: int
    running: int
    waiting: int
    kv_usage: float
    prefix_hit_share: float
    preemptions: int

    def text(self, engine: int) -> str:
        """The line of `loggers.py`; preemptions appear only where there were some."""
        tail = f", Preemptions: {self.preemptions}" if self.preemptions else ""
        return (
            f"Engine {engine:03d}: Avg prompt throughput: {self.prompt_tokens / self.seconds:.1f} tokens/s, "
            f"Avg generation throughput: {self.generation_tokens / self.seconds:.1f} tokens/s, "
            f"Running: {self.running} reqs, Waiting: {self.waiting} reqs{tail}, "
            f"GPU KV cache usage: {100 * self.kv_usage:.1f}%, "
            f"Prefix cache hit rate: {100 * self.prefix_hit_share:.1f}%"
        )
