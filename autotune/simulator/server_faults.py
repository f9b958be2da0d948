"""Misbehaviour on demand: which fault, where, and how often. Parsing is pure; what a fault does is done by its callers.

| fault | what happens |
|---|---|
| `exit-at:M` | ends without a reason, status 1, at milestone M (banner, engine, weights, kv, graphs, ready) |
| `crash-at:M` | the same by signal SEGV |
| `hang-at:M` | silence for ever at milestone M |
| `waiting-at:M` | the "Waiting for ... core engine proc(s)" line every 0.2 s for ever |
| `oom-at-load`, `oom-at-warmup` | CUDA out of memory while loading, while warming up |
| `oom-under-load:N` | out of memory when request N (1-based) reaches the engine |
| `crash-under-load:N` | the process is gone (status 1) when request N reaches the engine, without a word |
| `gpu-busy` | other processes hold the GPU's memory |
| `nccl`, `shared-memory`, `driver`, `missing-dependency`, `compile-cache` | the start fails for that reason |
| `gated`, `licence`, `model-unknown` | the model cannot be fetched: 401, 403, no such model |
| `ignore-term` | TERM and INT are ignored |
| `orphan`, `orphan-session` | leaves a `VLLM::Worker` process that outlives it, in the same / in a session of its own |
| `worker`, `worker-session` | forks a worker, deaf to TERM, that re-titles itself as vLLM's do; in a new session |
| `port-lost:PATH` | whoever listens on the Unix socket PATH is told the port, and has it first |
| `asks:PATH` | whoever listens on the Unix socket PATH is told `start`, `request`, `stop` before each, and waited for |
| `late-port:S` | says it is ready, listens S seconds later |
| `http-500:N`, `http-503:N` | the first N completions answer with that status (all without N) |
| `stall:N`, `close:N`, `error-frame:N` | after N chunks every stream stops / is cut / gets an error frame |
| `no-usage` | streams never carry usage |
| `no-metrics` | `/metrics` holds only the Python process's own |
| `flood-log:N` | N MiB (100 without N) of control bytes and bars, without one line feed |
| `garbage-log` | control bytes, broken UTF-8 and carriage-return bars between the lines |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Milestone(StrEnum):
    """Points of a start, in order, that a fault can name."""

    BANNER = "banner"
    ENGINE = "engine"
    WEIGHTS = "weights"
    KV = "kv"
    GRAPHS = "graphs"
    READY = "ready"


class Fault(StrEnum):
    """Names for `--sim-fault`."""

    EXIT_AT = "exit-at"
    CRASH_AT = "crash-at"
    HANG_AT = "hang-at"
    WAITING_AT = "waiting-at"
    OOM_AT_LOAD = "oom-at-load"
    OOM_AT_WARMUP = "oom-at-warmup"
    OOM_UNDER_LOAD = "oom-under-load"
    CRASH_UNDER_LOAD = "crash-under-load"
    GPU_BUSY = "gpu-busy"
    NCCL = "nccl"
    SHARED_MEMORY = "shared-memory"
    DRIVER = "driver"
    MISSING_DEPENDENCY = "missing-dependency"
    COMPILE_CACHE = "compile-cache"
    GATED = "gated"
    LICENCE = "licence"
    MODEL_UNKNOWN = "model-unknown"
    IGNORE_TERM = "ignore-term"
    ORPHAN = "orphan"
    ORPHAN_SESSION = "orphan-session"
    WORKER = "worker"
    WORKER_SESSION = "worker-session"
    PORT_LOST = "port-lost"
    ASKS = "asks"
    LATE_PORT = "late-port"
    HTTP_500 = "http-500"
    HTTP_503 = "http-503"
    STALL = "stall"
    CLOSE = "close"
    ERROR_FRAME = "error-frame"
    NO_USAGE = "no-usage"
    NO_METRICS = "no-metrics"
    FLOOD_LOG = "flood-log"
    GARBAGE_LOG = "garbage-log"


_AT_MILESTONE = frozenset({Fault.EXIT_AT, Fault.CRASH_AT, Fault.HANG_AT, Fault.WAITING_AT})
_PATHS = frozenset({Fault.PORT_LOST, Fault.ASKS})
_SECONDS = frozenset({Fault.LATE_PORT})
_COUNTED = frozenset(
    {
        Fault.OOM_UNDER_LOAD, Fault.CRASH_UNDER_LOAD, Fault.HTTP_500, Fault.HTTP_503, Fault.STALL, Fault.CLOSE,
        Fault.ERROR_FRAME, Fault.FLOOD_LOG,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of one server, each with its argument as text ("" when none was given)."""

    arguments: tuple[tuple[Fault, str], ...] = ()

    def __contains__(self, fault: Fault) -> bool:
        return any(fault is given for given, _ in self.arguments)

    def at(self, fault: Fault) -> Milestone | None:
        """The milestone that `fault` names; None when the fault is not there."""
        text = self._text(fault)
        return None if text is None else Milestone(text or Milestone.WEIGHTS)

    def count(self, fault: Fault, default: int) -> int | None:
        """The number that `fault` names, `default` when it names none; None when the fault is not there."""
        text = self._text(fault)
        return None if text is None else int(text or default)

    def seconds(self, fault: Fault, default: float) -> float:
        """The seconds that `fault` names, `default` when it names none; 0 when the fault is not there."""
        text = self._text(fault)
        return 0.0 if text is None else float(text or default)

    def path(self, fault: Fault) -> str | None:
        """The path that `fault` names; None when the fault is not there."""
        return self._text(fault)

    def _text(self, fault: Fault) -> str | None:
        return next((text for given, text in self.arguments if given is fault), None)


def parse_faults(texts: Sequence[str]) -> Faults:
    """Faults from `NAME[:ARG]`; `_` and `-` are the same in names.

    Raises:
        ValueError: an unknown name or an argument that does not fit; the message says what is allowed.
    """
    return Faults(tuple(_parse(text) for text in texts))


def _parse(text: str) -> tuple[Fault, str]:
    name, _, argument = text.partition(":")
    name = name.strip().replace("_", "-")
    if name not in set(Fault):
        raise ValueError(f"invalid choice: {name!r} (choose from {', '.join(map(repr, Fault))})")
    fault, argument = Fault(name), argument.strip()
    if fault in _AT_MILESTONE:
        if argument and argument not in set(Milestone):
            raise ValueError(f"{name} takes one of {', '.join(Milestone)}, not {argument!r}")
    elif fault in _SECONDS:
        if argument and not argument.replace(".", "", 1).isdigit():
            raise ValueError(f"{name} takes seconds, not {argument!r}")
    elif fault in _PATHS:
        if not argument:
            raise ValueError(f"{name} takes a path")
    elif fault in _COUNTED:
        if argument and not argument.isdigit():
            raise ValueError(f"{name} takes a whole number, not {argument!r}")
    elif argument:
        raise ValueError(f"{name} takes no argument, {argument!r} given")
    return fault, argument
