"""The first root cause in a server's log, never the wrapper around it.

Python prints the cause of a chain before its consequence, and a worker's traceback stands before the engine's and
the API server's, so the earliest exception that no other process merely reports is the one to show. Lines that a
logger printed as INFO or WARNING are no failures: servers warn of imports they do without, then serve.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from autotune.engine.failure_patterns import DEATH, STANDALONE, WRAPPER, match
from autotune.engine.log_facts import available_kv_bytes_in
from autotune.engine.log_lines import LogLine
from autotune.engine.logs import LogEvent, MilestoneName
from autotune.engine.redaction import redact
from autotune.engine.remedies import remedies_for
from autotune.records import Failure, FailureClass, Value

_LINE_LIMIT = 2000
_EVIDENCE_LIMIT = 100
_QUIET = frozenset({"DEBUG", "INFO", "WARNING"})
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s+File "(?P<path>[^"]*)", line \d+, in (?P<function>[\w<>]+)')
_EXCEPTION = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?::(?:\s(?P<text>.*))?)?$")
_LOOKS_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|Failed)(?::\s|$)")
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_VALIDATION = re.compile(r"\d+ validation errors? for (?P<title>\w+)")
_VALIDATION_TEXT = re.compile(r"\s+(?:Value error, |Assertion failed, )?(?P<text>.*?)(?:\s\[type=(?P<type>\w+).*)?$")
_CACHE_PATH = re.compile(
    r"torch_compile_cache|torch_aot_compile|inductor_cache|torchinductor|\.triton/cache|triton_cache"
)
_CACHE_CODE = re.compile(
    r"triton/runtime/cache\.py|torch/_inductor/(?:codecache|standalone_compile|output_code)\.py"
    r"|torch/_dynamo/(?:aot_compile|package)\.py|vllm/compilation/(?:caching|compiler_interface|backends)\.py"
)
_DAMAGED = re.compile(
    r"(?:\w+\.)*(?:UnpicklingError|EOFError|JSONDecodeError|BadZipFile|UnicodeDecodeError)\b"
    r"|.*(?:file too short|invalid ELF header|malformed node or string|Expected tensors only, but got)"
)
"""What reading a file says that was cut off, and what running a graph says that was made for other inputs."""
_WAITING = re.compile(r"Waiting for \d+ local, \d+ remote core engine|No available shared memory broadcast block found")
_HANGS_AFTER_REPEATS = 3
_LOADING = frozenset({"load_model", "load_weights", "create_weights", "get_model", "initialize_model"})
_WARMING = frozenset(
    {
        "profile_run", "profile_cudagraph_memory", "_dummy_run", "_dummy_sampler_run", "capture_model", "warm_up_model",
        "compile_or_warm_up_model", "initialize_kv_cache", "initialize_kv_caches", "_initialize_kv_caches",
        "initialize_from_config", "determine_available_memory", "determine_num_available_blocks", "kernel_warmup",
        "initialize_cache", "_allocate_kv_cache", "_allocate_kv_cache_tensors",
    }
)  # fmt: skip
_SERVING = frozenset({"execute_model", "step", "run_busy_loop", "_process_engine_step"})
_USAGE_EXIT = 2  # argparse
_CALM_EXITS = frozenset({None, 0, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT})
_M = MilestoneName


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    kind: FailureClass
    line: str
    facts: dict[str, Value]
    chain: int
    certain: bool
    guessed: bool = False
    wrapper: bool = False
    standalone: bool = False


@dataclass(slots=True)
class _Trace:
    """What one process is printing: a traceback in progress, a validation error whose text is still to come."""

    chain: int = 0
    frames: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=200))
    open: bool = False
    chained: bool = False
    ignored: bool = False
    validation: str | None = None
    field_name: str | None = None


class FailureScanner:
    """Push object: sees events in order, says at any time what went wrong. Memory is bounded whatever the log."""

    def __init__(self) -> None:
        self._start_over()

    def _start_over(self) -> None:
        self._traces: dict[str, _Trace] = {}
        self._chains = 0
        self._evidence: list[_Evidence] = []
        self._recent: deque[_Evidence] = deque(maxlen=_EVIDENCE_LIMIT)
        self._reached: dict[MilestoneName, None] = {}
        self._dead = False
        self._waiting = 0
        self._nccl_started = False
        self._available_kv_bytes: int | None = None
        self._last_error: str | None = None

    def see(self, event: LogEvent) -> None:
        """Take in one event of `LogReader`."""
        if event.new_run:
            self._start_over()
        if event.milestone is not None:
            self._reached[event.milestone] = None
            if event.milestone is _M.SERVER_READY:
                # It became ready, so nothing before was fatal.
                self._evidence.clear()
        text = event.line.text
        size = available_kv_bytes_in(text) if "KV" in text or "kv_" in text else None
        if size is not None:
            self._available_kv_bytes = size
        if _WAITING.search(text):
            self._waiting += 1
        elif "vLLM is using nccl" in text:
            self._nccl_started = True
        # What a server that was asked to stop still prints is no failure.
        stopped = _M.SERVER_READY in self._reached and _M.SHUTDOWN in self._reached
        if event.line.level not in _QUIET and not stopped:
            self._see_loud(event.line)

    def _see_loud(self, line: LogLine) -> None:
        text = line.text
        trace = self._traces.setdefault(line.process or "", _Trace())
        if len(self._traces) > _EVIDENCE_LIMIT:  # a log that invents process names must not eat memory
            self._traces = {line.process or "": trace}
        if text.startswith("Exception ignored"):
            trace.ignored = True
        elif any(mark in text for mark in _CHAINED):
            trace.chained = True
        elif text.endswith(_TRACEBACK):
            self._open(trace)
            if text != _TRACEBACK:
                self._judge(text.removesuffix(_TRACEBACK), trace, line)
        elif trace.validation is not None and self._see_validation(text, trace):
            return
        elif trace.open and text[:1].isspace():
            frame = _FRAME.match(text)
            if frame:
                trace.frames.append((frame["path"], frame["function"]))
        elif not text.startswith(("    ", "\t", '  File "')):
            self._see_statement(text, trace, line)

    def _open(self, trace: _Trace) -> None:
        if not trace.chained:
            self._chains += 1
            trace.chain = self._chains
        trace.open, trace.chained = True, False
        trace.frames.clear()

    def _see_statement(self, text: str, trace: _Trace, line: LogLine) -> None:
        raised = _EXCEPTION.match(text) if trace.open else _LOOKS_RAISED.match(text)
        if raised is None and trace.open:
            # Interleaved output of another writer: the traceback goes on after it.
            self._judge(text, trace, line)
            return
        if trace.ignored and trace.open:
            trace.open = trace.ignored = False
            return
        if raised and "ValidationError" in text[:120]:
            title = _VALIDATION.search(text)
            trace.validation = title["title"] if title else ""
        self._judge(text, trace, line, raised=raised is not None)
        trace.open = False

    def _see_validation(self, text: str, trace: _Trace) -> bool:
        """The text under `ValidationError: 1 validation error for X`; False when something else came instead."""
        if not text.startswith("  "):
            if text.strip().replace(".", "_").isidentifier():
                trace.field_name = text.strip()
                return True
            trace.validation = trace.field_name = None
            return False
        found = _VALIDATION_TEXT.match(text)
        words = (found["text"] if found else text).strip()
        by_rule = found is None or found["type"] in (None, "value_error", "assertion_error")
        kind = FailureClass.INVALID_COMBINATION if by_rule else FailureClass.INVALID_FLAG
        facts: dict[str, Value] = {"config": trace.validation or None, "argument": trace.field_name}
        known = match(words)
        if known and known[0].kind is not None:
            kind = known[0].kind
            facts |= known[1]
        self._add(_Evidence(kind=kind, line=words, facts=_given(facts), chain=trace.chain, certain=True))
        trace.validation = trace.field_name = None
        return True

    def _judge(self, text: str, trace: _Trace, line: LogLine, *, raised: bool = False) -> None:
        if line.level in ("ERROR", "CRITICAL") and not WRAPPER.search(text):
            self._last_error = self._last_error or text
        if raised and _DAMAGED.match(text) and any(_CACHE_CODE.search(path) for path, _ in trace.frames):
            # Alone such a text says nothing: which file was read, only the traceback knows.
            kind = FailureClass.COMPILE_CACHE
            self._add(_Evidence(kind=kind, line=text, facts={}, chain=trace.chain, certain=True))
            return
        known = match(text)
        wrapper = WRAPPER.search(text) is not None
        if DEATH.search(text) and _M.SERVER_READY in self._reached:
            self._dead = True
        if known:
            pattern, facts = known
            kind = pattern.kind or self._memory_phase(trace)
            # Nothing yet says in which phase memory ran out; the traceback below may.
            guessed = pattern.kind is None and not trace.open and not self._reached
            standalone = pattern.kind is None or kind in STANDALONE
            self._add(
                _Evidence(
                    kind=kind,
                    line=text,
                    facts=_given(facts),
                    chain=trace.chain,
                    certain=not pattern.weak,
                    guessed=guessed,
                    standalone=standalone,
                )
            )
        elif wrapper or raised:
            cached = raised and not wrapper and any(_CACHE_PATH.search(path) for path, _ in trace.frames)
            kind = FailureClass.COMPILE_CACHE if cached else FailureClass.CRASH
            self._add(_Evidence(kind=kind, line=text, facts={}, chain=trace.chain, certain=False, wrapper=wrapper))

    def _memory_phase(self, trace: _Trace) -> FailureClass:
        """When device memory ran out: the traceback's frames say it best, else the last milestone."""
        functions = {function for _, function in trace.frames} if trace.open else set()
        if functions & _LOADING:
            return FailureClass.OOM_AT_LOAD
        if functions & _WARMING:
            return FailureClass.OOM_AT_WARMUP
        if _M.SERVER_READY in self._reached or (functions & _SERVING and _M.LOADING_WEIGHTS not in self._reached):
            return FailureClass.OOM_UNDER_LOAD
        return FailureClass.OOM_AT_WARMUP if _M.WEIGHTS_LOADED in self._reached else FailureClass.OOM_AT_LOAD

    def _add(self, evidence: _Evidence) -> None:
        serving = _M.SERVER_READY in self._reached
        if serving and not self._dead and not evidence.standalone:
            self._recent.append(evidence)  # perhaps only one request's trouble
        elif len(self._evidence) < _EVIDENCE_LIMIT:
            self._evidence.append(evidence)

    def failure(self, *, exit_status: int | None = None, hung: bool = False) -> Failure:
        """The verdict on what was seen so far.

        Args:
            exit_status: of the server, negative for a signal (as subprocess gives it) or 128+n (as a shell does);
                None while it runs, or when nobody knows.
            hung: the caller's watchdog gave up on it; a cause found in the log is preferred.
        """
        root = self._root(suspect=hung or exit_status not in _CALM_EXITS)
        if root is not None:
            kind, line, facts = root.kind, root.line, dict(root.facts)
        else:
            kind, line, facts = self._by_status(exit_status, hung=hung), None, {}
            if kind is FailureClass.CRASH:
                line = self._last_error
        if kind is FailureClass.KV_CACHE_NONE and self._available_kv_bytes is not None:
            facts.setdefault("available_kv_bytes", self._available_kv_bytes)
        if kind is not FailureClass.HEALTHY:
            facts |= self._circumstances(exit_status)
        return Failure(
            kind=kind,
            line=None if line is None else redact(line.strip())[:_LINE_LIMIT],
            remedies=remedies_for(kind, facts),
            facts=tuple((name, redact(v) if isinstance(v, str) else v) for name, v in facts.items()),
            exit_status=exit_status,
        )

    def _root(self, *, suspect: bool) -> _Evidence | None:
        serving = _M.SERVER_READY in self._reached
        found = _best(self._evidence)
        if found is not None and not found.wrapper:
            return found
        if serving and (self._dead or suspect) and self._recent:
            last = _best([e for e in self._recent if e.chain == self._recent[-1].chain])
            if last is not None and not last.wrapper:
                return last
        return found

    def _by_status(self, exit_status: int | None, *, hung: bool) -> FailureClass:
        number = _signal_of(exit_status)
        if hung:
            return FailureClass.HANG
        if number == signal.SIGBUS:
            return FailureClass.SHARED_MEMORY
        if _M.SERVER_READY in self._reached:
            stopped = exit_status in _CALM_EXITS or _M.SHUTDOWN in self._reached
            return FailureClass.HEALTHY if stopped and not self._dead else FailureClass.CRASH
        if exit_status == _USAGE_EXIT and _M.ENGINE_STARTED not in self._reached:
            return FailureClass.INVALID_FLAG
        if exit_status is None and (self._waiting >= _HANGS_AFTER_REPEATS or self._stuck_in_nccl):
            return FailureClass.HANG
        return FailureClass.CRASH

    @property
    def _stuck_in_nccl(self) -> bool:
        return self._nccl_started and not {_M.DISTRIBUTED_READY, _M.LOADING_WEIGHTS} & self._reached.keys()

    def _circumstances(self, exit_status: int | None) -> dict[str, Value]:
        facts: dict[str, Value] = {}
        reached = [name for name in self._reached if name is not _M.SHUTDOWN]
        if reached:
            facts["last_milestone"] = str(reached[-1])
        number = _signal_of(exit_status)
        if number is not None:
            facts["signal"] = number
        if self._stuck_in_nccl:
            facts["stuck_in"] = "nccl"
        return facts


def classify(events: Iterable[LogEvent], exit_status: int | None = None, *, hung: bool = False) -> Failure:
    """The failure that these events of a `LogReader` tell, HEALTHY when they tell none."""
    scanner = FailureScanner()
    for event in events:
        scanner.see(event)
    return scanner.failure(exit_status=exit_status, hung=hung)


def _best(evidence: Iterable[_Evidence]) -> _Evidence | None:
    """Certain causes before likely ones before wrappers; among equals the first, with the facts its chain adds."""
    seen = list(evidence)
    best = min(seen, key=_rank, default=None)
    if best is None or not best.chain:
        return best
    alike = [one.facts for one in seen if one.chain == best.chain and one.kind is best.kind]
    return replace(best, facts={name: v for facts in (*reversed(alike), best.facts) for name, v in facts.items()})


def _rank(evidence: _Evidence) -> int:
    if evidence.wrapper:
        return 3
    if not evidence.certain:
        return 2
    return int(evidence.guessed)


def _given(facts: dict[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in facts.items() if value is not None}


def _signal_of(exit_status: int | None) -> int | None:
    if exit_status is None:
        return None
    if exit_status < 0:
        return -exit_status
    return exit_status - 128 if 128 < exit_status <= 192 else None
