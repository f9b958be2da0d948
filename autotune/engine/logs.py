"""Reads a vLLM server's log as it grows: milestones of the start, resolved facts, throughput, preemptions.

Progress of a start is measured in known milestones, not in output: a hung server goes on printing
`Waiting for 1 local, 0 remote core engine proc(s) to start.` for ever (vllm#18260).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from autotune.engine.log_facts import FactsCollector
from autotune.engine.log_lines import LineSplitter, LogLine, records_of
from autotune.records import ServerFacts


class MilestoneName(StrEnum):
    """Known steps of a server's life, in their usual order."""

    PROCESS_STARTED = "process started"
    ARGS_PARSED = "arguments parsed"
    CONFIG_RESOLVED = "config resolved"
    ENGINE_STARTED = "engine core started"
    DISTRIBUTED_READY = "distributed ready"
    LOADING_WEIGHTS = "loading weights"
    WEIGHTS_LOADED = "weights loaded"
    COMPILING = "compiling"
    PROFILED = "memory profiled"
    KV_SIZED = "KV cache sized"
    GRAPHS_CAPTURED = "graphs captured"
    ENGINE_READY = "engine ready"
    SERVER_READY = "server ready"
    SHUTDOWN = "shutdown"


_M = MilestoneName
# (what must stand in the line, the milestone); plain substrings, because most lines match none.
_MARKS: tuple[tuple[str, MilestoneName], ...] = (
    ("vLLM API server version", _M.PROCESS_STARTED),
    ("non-default args: ", _M.ARGS_PARSED),
    ("args: Namespace(", _M.ARGS_PARSED),
    ("Resolved architecture", _M.CONFIG_RESOLVED),
    ("Using max model len", _M.CONFIG_RESOLVED),
    ("Chunked prefill is enabled with", _M.CONFIG_RESOLVED),
    ("This model supports multiple tasks", _M.CONFIG_RESOLVED),
    ("is assigned as DP rank", _M.DISTRIBUTED_READY),
    ("Loading model from scratch", _M.LOADING_WEIGHTS),
    ("Starting to load model", _M.LOADING_WEIGHTS),
    ("checkpoint shards:", _M.LOADING_WEIGHTS),
    ("Loading weights from", _M.LOADING_WEIGHTS),
    ("Model loading took", _M.WEIGHTS_LOADED),
    ("Loading model weights took", _M.WEIGHTS_LOADED),
    ("Initializing model took", _M.WEIGHTS_LOADED),  # dummy weights on the CPU build print no loading line
    ("for vLLM's torch.compile", _M.COMPILING),
    ("Dynamo bytecode transform time", _M.COMPILING),
    ("Compiling a graph", _M.COMPILING),
    ("Memory profiling takes", _M.PROFILED),
    ("Memory profiling results", _M.PROFILED),
    ("Available KV cache memory:", _M.PROFILED),
    ("GiB for KV cache on node", _M.PROFILED),
    ("KV cache size:", _M.KV_SIZED),
    ("Graph capturing finished", _M.GRAPHS_CAPTURED),
    ("init engine (profile", _M.ENGINE_READY),
    ("Application startup complete", _M.SERVER_READY),
    ("Waiting for application shutdown", _M.SHUTDOWN),
    ("Application shutdown complete", _M.SHUTDOWN),
    ("API server: shutdown triggered", _M.SHUTDOWN),
    ("Shutting down FastAPI HTTP server", _M.SHUTDOWN),
)
_ENGINE_START = re.compile(r"Initializing an? (?:\w+ )?LLM engine \(v")
_BANNER = re.compile(r"█\s+version \d")
_V0_BLOCKS = re.compile(r"# \w+ blocks: \d+")
_STEP = re.compile(
    r"(?P<what>Loading [\w. -]{0,40}checkpoint shards|Capturing [\w ]{0,20}graphs?(?: \([^)]{0,40}\))?)[^:]{0,40}:"
    r"[^/]{0,120}?\b(?P<done>\d{1,9})/(?P<total>\d{1,9})\b"
)
_PART = re.compile(
    r"(?P<key>[A-Za-z][A-Za-z ]{1,40}?): (?P<value>-?\d+(?:\.\d+)?)\s?(?P<unit>tokens/s|reqs|%)?(?=[,.\s]|$)"
)
_CUMULATIVE = re.compile(r"total_num_cumulative_preemption=(\d+)")
_JIT = re.compile(r"JIT compilation during inference: (\S+?)\.?(?:\s|$)")
_ENGINE_NUMBER = re.compile(r"\bEngine (\d+):")
# Lines that quote what users sent; nothing in them may be taken for the server's own words.
_QUOTING = ("Received request", "Dumping input data", "Dumping scheduler", "Generated response")


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """One periodic statistics line. Shares are 0..1; what the version does not print is None.

    Attributes:
        engine: data-parallel engine number; None for a single engine or an aggregate of all.
        prefix_hit_share: over vLLM's rolling window, not over the run (vllm#25780).
        preemptions: within this interval; versions before 0.11.2 never say, which does not mean none.
    """

    engine: int | None = None
    prompt_tok_s: float | None = None
    generation_tok_s: float | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    prefix_hit_share: float | None = None
    preemptions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """One record of the log, and what it says.

    Attributes:
        milestone: set on the record that reached it first.
        progress: e.g. `Loading safetensors checkpoint shards 3/30`, set only when the count went up.
        preemptions: cumulative count so far, on records that mention one.
        jit_kernel: kernel compiled while serving: the warm-up was not finished.
        new_run: this record starts another server in the same log; what was read before belongs to the old one.
    """

    line: LogLine
    milestone: MilestoneName | None = None
    progress: str | None = None
    throughput: Throughput | None = None
    preemptions: int | None = None
    jit_kernel: str | None = None
    new_run: bool = False

    @property
    def advances(self) -> bool:
        """Whether a stalled-start watchdog may be wound up again."""
        return self.milestone is not None or self.progress is not None


class LogReader:
    """Push parser: bytes in, events out; the same bytes give the same events in any chunking."""

    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self._start_over()

    def feed(self, chunk: bytes) -> list[LogEvent]:
        """The events of the records that this chunk completes."""
        return self._events(self._splitter.feed(chunk))

    def close(self) -> list[LogEvent]:
        """The events of a last line that no newline ended."""
        return self._events(self._splitter.close())

    def facts(self) -> ServerFacts:
        """What the log has settled so far."""
        return self._facts.facts()

    @property
    def milestones(self) -> tuple[MilestoneName, ...]:
        """Milestones reached by this run, in the order they were reached."""
        return tuple(self._reached)

    @property
    def preemptions(self) -> int | None:
        """Preemptions the log admits to; None when it says nothing, which does not mean there were none."""
        return self._preemptions

    def _start_over(self) -> None:
        self._facts = FactsCollector()
        self._reached: dict[MilestoneName, None] = {}
        self._steps: dict[str, int] = {}
        self._preemptions: int | None = None

    def _events(self, lines: list[str]) -> list[LogEvent]:
        return [self._event(record) for line in lines for record in records_of(line)]

    def _event(self, line: LogLine) -> LogEvent:
        text = line.text
        if any(mark in text for mark in _QUOTING):
            return LogEvent(line=line)
        milestone = _milestone(text)
        # A second banner after parsed arguments is a container's restart, not one more API server.
        new_run = milestone is _M.PROCESS_STARTED and _M.ARGS_PARSED in self._reached
        if new_run:
            self._start_over()
        self._facts.see(line)
        if milestone in self._reached:
            milestone = None
        elif milestone is not None:
            self._reached[milestone] = None
        throughput = parse_throughput(text)
        jit = _JIT.search(text)
        return LogEvent(
            line=line,
            milestone=milestone,
            progress=self._progress(text),
            throughput=throughput,
            preemptions=self._count_preemptions(text, throughput),
            jit_kernel=jit[1] if jit else None,
            new_run=new_run,
        )

    def _progress(self, text: str) -> str | None:
        if "/" not in text or not ("shards" in text or "Capturing" in text):
            return None
        best = None
        for step in _STEP.finditer(text):
            what, done = " ".join(step["what"].split()), int(step["done"][:9])
            if done > self._steps.get(what, 0):
                self._steps[what] = done
                best = f"{what} {done}/{step['total'][:9]}"
        return best

    def _count_preemptions(self, text: str, throughput: Throughput | None) -> int | None:
        if "cumulative_preemption" in text and (found := _CUMULATIVE.search(text)):
            self._preemptions = max(int(found[1][:18]), self._preemptions or 0)
        elif throughput and throughput.preemptions is not None:
            self._preemptions = throughput.preemptions + (self._preemptions or 0)
        else:
            return None
        return self._preemptions


def _milestone(text: str) -> MilestoneName | None:
    for mark, name in _MARKS:
        if mark in text:
            return name
    if "version" in text and _BANNER.search(text):
        return _M.PROCESS_STARTED
    if "LLM engine (v" in text and _ENGINE_START.search(text):
        return _M.ENGINE_STARTED
    if " blocks: " in text and _V0_BLOCKS.search(text):
        return _M.KV_SIZED
    return None


def parse_throughput(text: str) -> Throughput | None:
    """A periodic statistics line of any version, V0 and V1: its `key: value` parts in any order and subset."""
    if "generation throughput:" not in text:
        return None
    parts = {part["key"].strip(): float(part["value"]) for part in _PART.finditer(text)}
    engine = _ENGINE_NUMBER.search(text)
    return Throughput(
        engine=int(engine[1][:6]) if engine else None,
        prompt_tok_s=parts.get("Avg prompt throughput"),
        generation_tok_s=parts.get("Avg generation throughput"),
        running=_whole(parts.get("Running")),
        waiting=_whole(parts.get("Waiting", parts.get("Pending"))),
        kv_usage=_share(_kv_usage(parts)),
        prefix_hit_share=_share(parts.get("Prefix cache hit rate")),
        preemptions=_whole(parts.get("Preemptions")),
    )


def _kv_usage(parts: dict[str, float]) -> float | None:
    """V0 prints the swap space as `CPU KV cache usage` after the GPU's; on the CPU build it is the only one."""
    found = [key for key in parts if key.endswith("KV cache usage")]
    return parts[min(found, key=lambda key: "CPU" in key)] if found else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _share(percent: float | None) -> float | None:
    return None if percent is None else round(percent / 100, 6)
