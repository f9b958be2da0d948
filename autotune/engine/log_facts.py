"""What the log says about the server's resolved settings and capacities, across vLLM 0.5 to 0.33."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeVar

from autotune.engine.log_lines import LogLine
from autotune.engine.redaction import redact
from autotune.records import CompileStart, ServerFacts, Value
from autotune.units import GIB

_ARGS_LIMIT = 4000
_DEFAULT_BLOCK_TOKENS = 16  # of every vLLM version whose log gives blocks instead of tokens

_N = r"([\d,]+)"
_F = r"(-?[\d.]+)"
SIMULATED_MARK = "+simulated"
"""In the version that our simulated server gives; what it shows must never pass for a measurement."""
_VERSION = re.compile(r"(?:API server version v?|\bversion |LLM engine \(v)(\d+\.\d+[\w.+-]*)", re.ASCII)
_KV_TOKENS = re.compile(rf"KV cache size: {_N} tokens")
_KV_BLOCKS = re.compile(r"# \w+ blocks: (\d+)")
_CONCURRENCY = re.compile(rf"Maximum concurrency for {_N} tokens per request: {_F}x")
_KV_AVAILABLE = (
    re.compile(rf"Available KV cache memory: {_F} ?GiB"),
    re.compile(rf"reserved for KV Cache is {_F} ?GiB"),
    re.compile(rf"\bkv_cache_size={_F} ?GiB"),
    re.compile(rf"(?:Explicitly|Auto) set \({_F}/[\d.]+\) GiB for KV cache"),
)
# "GB" in these lines has always been computed as GiB.
_WEIGHTS = re.compile(
    rf"(?:Model loading took|Loading model weights took|model weights take) {_F} ?Gi?B"
    rf"(?: memory)?(?: and {_F} seconds)?"
)
_CAPACITY_MARKS = ("KV cache", "KV Cache", "kv_cache_size=", " blocks: ", "concurrency")
_MODEL_LEN = re.compile(r"Using max model len (\d+)")
_BATCHED = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
_UTILISATION = (
    re.compile(rf"Requested memory: {_F} \(util\)"),
    re.compile(rf"gpu_memory_utilization \({_F}\)"),
    re.compile(rf"\bgpu_memory_utilization={_F}"),
)
_BACKEND = (
    re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+) attention backend"),
    re.compile(r"Using (Flash ?Attention|Flash ?Infer|Triton Attention|X[Ff]ormers|Torch SDPA|\w+MLA)\b.*\bbackend"),
)
_COMPILE = (
    re.compile(rf"torch\.compile (?:took|takes) {_F} s in total"),
    re.compile(rf"init engine .*\(compilation: {_F} s\)"),
)
# Of vLLM 0.8 to 0.33; the CPU build tells only that it saved something.
_COMPILE_MARKS = (
    ("Directly load ", CompileStart.WARM),
    ("Compiling a graph for ", CompileStart.COLD),
    ("saved AOT compiled function to ", CompileStart.COLD),
    ("Compiling model again due to a load failure", CompileStart.REBUILT),
)
_GRAPHS = re.compile(rf"Graph capturing finished in {_F} secs?")
_ENGINE_CONFIG = re.compile(r"Initializing an? (?:\w+ )?LLM engine \(v[^)]*\) with config: ")
_ARGS = re.compile(r"(?:non-default args: |args: Namespace)(?=[{(])")
_LITERAL = re.compile(r"""-?\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?|True|False|None|'[^'\\]*'|"[^"\\]*\"""")
_ENGINE_NAME = re.compile(r"(?:EngineCore_(?:DP)?|DP)(\d+)")

_T = TypeVar("_T", int, float)


class FactsCollector:
    """Sees every line, remembers what it settles. Lines of several ranks and engines are put together:
    the smallest rank bounds its engine, data-parallel engines add up."""

    def __init__(self) -> None:
        self._known: dict[str, Value] = {}
        self._kv_tokens: dict[str, int] = {}
        self._kv_blocks: dict[str, int] = {}
        self._concurrency: dict[str, float] = {}
        self._available: int | None = None
        self._weights: int | None = None
        self._compiled: set[CompileStart] = set()

    def see(self, line: LogLine) -> None:
        """Take in one record; lines that settle nothing are ignored."""
        text = line.text
        if any(mark in text for mark in _CAPACITY_MARKS):
            self._see_capacity(line)
        if "took" in text or "takes" in text or "weights take" in text or "finished in" in text:
            self._see_durations(text)
        if "ompil" in text:
            self._compiled.update(what for mark, what in _COMPILE_MARKS if mark in text)
        if "args: " in text:
            self._see_args(text)
        if "LLM engine (v" in text:
            self._see_engine_config(text)
        if "ersion " in text or "LLM engine (v" in text:
            self._first("vllm_version", _VERSION.search(text))
        self._see_settings(text)

    def facts(self) -> ServerFacts:
        """What is known now. `weights_bytes` and `available_kv_bytes` are per GPU (largest and smallest rank)."""
        known = self._known
        version = _text(known.get("vllm_version"))
        return ServerFacts(
            vllm_version=version,
            simulated=SIMULATED_MARK in (version or ""),
            kv_cache_tokens=self._tokens(),
            max_concurrency=round(sum(self._concurrency.values()), 4) if self._concurrency else None,
            available_kv_bytes=self._available,
            weights_bytes=self._weights,
            max_model_len=_whole(known.get("max_model_len")),
            max_num_batched_tokens=_whole(known.get("max_num_batched_tokens")),
            max_num_seqs=_whole(known.get("max_num_seqs")),
            gpu_memory_utilization=_real(known.get("gpu_memory_utilization")),
            kv_cache_dtype=_text(known.get("kv_cache_dtype")),
            dtype=_text(known.get("dtype")),
            attention_backend=_text(known.get("attention_backend")),
            prefix_caching=_flag(known.get("enable_prefix_caching")),
            chunked_prefill=_flag(known.get("enable_chunked_prefill")),
            load_s=_real(known.get("load_s")),
            compile_s=_real(known.get("compile_s")),
            compile_start=_compile_start(self._compiled),
            graph_capture_s=_real(known.get("graph_capture_s")),
            non_default_args=_text(known.get("non_default_args")),
        )

    def _tokens(self) -> int | None:
        if self._kv_tokens:
            return sum(self._kv_tokens.values())
        if not self._kv_blocks:
            return None
        block = _whole(self._known.get("block_size")) or _DEFAULT_BLOCK_TOKENS
        return block * sum(self._kv_blocks.values())

    def _see_capacity(self, line: LogLine) -> None:
        text, engine = line.text, _engine_of(line.process)
        if tokens := _KV_TOKENS.search(text):
            _keep_least(self._kv_tokens, engine, _count(tokens[1]))
        if blocks := _KV_BLOCKS.search(text):
            _keep_least(self._kv_blocks, engine, _count(blocks[1]))
        if found := _CONCURRENCY.search(text):
            self._known["max_model_len"] = _count(found[1])
            times = _number(found[2])
            if times is not None:
                _keep_least(self._concurrency, engine, times)
        size = available_kv_bytes_in(text)
        if size is not None:
            self._available = size if self._available is None else min(self._available, size)

    def _see_durations(self, text: str) -> None:
        if weights := _WEIGHTS.search(text):
            size = _gib(weights)
            if size is not None:
                self._weights = size if self._weights is None else max(self._weights, size)
            self._most("load_s", weights[2])
        for pattern in _COMPILE:
            if found := pattern.search(text):
                self._most("compile_s", found[1])
        if graphs := _GRAPHS.search(text):
            self._most("graph_capture_s", graphs[1])

    def _see_settings(self, text: str) -> None:
        if found := _MODEL_LEN.search(text):
            self._known["max_model_len"] = int(found[1])
        if found := _BATCHED.search(text):
            self._known["max_num_batched_tokens"] = int(found[1])
            self._known["enable_chunked_prefill"] = True
        if "util" in text:
            for pattern in _UTILISATION:
                if found := pattern.search(text):
                    self._known.setdefault("gpu_memory_utilization", _number(found[1]))
        if "backend" in text and "attention_backend" not in self._known:
            for pattern in _BACKEND:
                self._first("attention_backend", pattern.search(text))

    def _see_args(self, text: str) -> None:
        start = _ARGS.search(text)
        if start is None:
            return
        body = text[start.end() :]
        whole = f"Namespace{body}" if body.startswith("(") else body
        self._known.setdefault("non_default_args", redact(whole)[:_ARGS_LIMIT])
        for key, value in _pairs(body):
            if key in _ARG_KEYS and value is not None and value != "auto":
                self._known.setdefault(key, value)

    def _see_engine_config(self, text: str) -> None:
        start = _ENGINE_CONFIG.search(text)
        if start is None:
            return
        for key, value in _pairs(text[start.end() :]):
            name = _CONFIG_KEYS.get(key)
            if name and value is not None:
                self._known[name] = value.removeprefix("torch.") if isinstance(value, str) else value

    def _first(self, key: str, found: re.Match[str] | None) -> None:
        if found:
            self._known.setdefault(key, found[1])

    def _most(self, key: str, seen: str | None) -> None:
        value = None if seen is None else _number(seen)
        if value is not None:
            self._known[key] = max(value, _real(self._known.get(key)) or value)


def _compile_start(seen: set[CompileStart]) -> CompileStart | None:
    if CompileStart.REBUILT in seen:
        return CompileStart.REBUILT
    return CompileStart.PARTLY if len(seen) > 1 else next(iter(seen), None)


def available_kv_bytes_in(text: str) -> int | None:
    """The KV memory that this line says profiling left, per GPU; negative when weights and activations took more."""
    for pattern in _KV_AVAILABLE:
        size = _gib(pattern.search(text))
        if size is not None:
            return size
    return None


_ARG_KEYS = frozenset(
    {"max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization", "block_size"}
)
_CONFIG_KEYS = {
    "dtype": "dtype",
    "max_seq_len": "max_model_len",
    "kv_cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "chunked_prefill_enabled": "enable_chunked_prefill",
    "block_size": "block_size",
}


def _pairs(text: str) -> Iterator[tuple[str, Value]]:
    """Top-level `key=value` or `'key': value` pairs of a repr; values that are no simple literal come as their text.

    Written by hand because such reprs hold enum members and objects that no literal parser accepts, and a nested
    `max_model_len` (of a draft model) must not be taken for the server's.
    """
    body = text[1:] if text[:1] in "{(" else text
    for part in _top_level_parts(body):
        key, sep, value = part.partition("=")
        if not key.strip().isidentifier():
            key, sep, value = part.partition(":")
        name = key.strip().strip("'\"")
        if sep and name.isidentifier():
            yield name, _literal(value.strip())


def _top_level_parts(text: str) -> Iterator[str]:
    depth, start, quote, escaped = 0, 0, "", False
    for index, char in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth < 0:  # the bracket that the text began with
                yield text[start:index]
                return
        elif char == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    yield text[start:]


def _literal(text: str) -> Value:
    if len(text) > 200 or not _LITERAL.fullmatch(text):
        return text[:200]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):  # e.g. a number with a leading zero
        return text
    return value if isinstance(value, bool | int | float | str) or value is None else text


def _engine_of(process: str | None) -> str:
    found = _ENGINE_NAME.search(process or "")
    return found[1] if found else "0"


def _keep_least(table: dict[str, _T], engine: str, value: _T) -> None:
    table[engine] = min(value, table.get(engine, value))


def _count(text: str) -> int:
    digits = text.replace(",", "")[:18]
    return int(digits) if digits else 0


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _gib(found: re.Match[str] | None) -> int | None:
    value = _number(found[1]) if found else None
    return None if value is None else round(value * GIB)


def _text(value: Value) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: Value) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _real(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _flag(value: Value) -> bool | None:
    return value if isinstance(value, bool) else None
