"""What is fuzzed: each parser of text from elsewhere, with the samples that its inputs are mutations of.

A parser may refuse what it is given with its own error. Anything else that it raises is a fault, as is a secret that a
log held and the result shows, an answer that depends on how the bytes were cut, and an input that takes seconds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autotune.engine.diagnosis import LogFollower
from autotune.engine.flags import from_argv, parse_help
from autotune.engine.metrics_text import delta, parse_metrics
from autotune.engine.redaction import redact, redact_data
from autotune.errors import AutotuneError
from autotune.load.access_log import read_access_log
from autotune.load.chunks import MalformedChunk, interpret
from autotune.load.records_file import read_records
from autotune.load.sse import FrameTooLarge, SseParser
from autotune.load.token_frames import shape_of
from autotune.load.trace_files import read_trace
from autotune.load.workload_yaml import workload_of
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import shape_from_config
from autotune.node.topology import parse_cpu_list, parse_topo_matrix
from autotune.recipe import compose, read_study_file
from autotune.records import TrialResult
from autotune.retention import parse_age
from autotune.search.space import parse_space
from autotune.slo_text import parse_slo
from autotune.store.archive_file import open_archive
from autotune.store.codec import UndecodableRecord, decode, encode
from autotune.yaml_input import parse_yaml

DATA = Path(__file__).parents[1] / "tests" / "data"
TOKEN = "hf_" + "Zx81kQ0pLm55RtYw72Bv"
"""Planted in every log; no result may show it."""

Refusals = tuple[type[Exception], ...]
Parse = Callable[[bytes, Sequence[int]], object]

MOST_SAMPLE_BYTES = 6000


class Fault(AssertionError):
    """A parser did what none may do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A parser.

    Attributes:
        parse: takes the bytes and the places at which they are cut; raises `refusals` or nothing.
        samples: of what it is meant for; mutated.
    """

    name: str
    parse: Parse
    samples: tuple[bytes, ...]
    refusals: Refusals = ()


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The bytes, cut at those places."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)] or [b""]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _log(data: bytes, cuts: Sequence[int]) -> None:
    """Milestones, facts and the root cause, as the engine follows a server and as `diagnose` reads a file."""
    seen = []
    for chunks in ([data], pieces(data, cuts)):
        follower = LogFollower()
        for chunk in chunks:
            follower.feed(chunk)
        follower.close()
        seen.append(follower.diagnosis(exit_status=1))
    if seen[0] != seen[1]:
        raise Fault(f"the verdict depends on the cuts: {seen}")
    found = seen[0]
    shown = json.dumps({"line": found.line, "facts": dict(found.facts), "server": encode(found.server)})
    if TOKEN in shown:
        raise Fault(f"the secret is shown: {shown}")


def _metrics(data: bytes, _cuts: Sequence[int]) -> None:
    text = _text(data)
    half = parse_metrics(text[: len(text) // 2])
    delta(half, parse_metrics(text), (half,))


def _sse(data: bytes, cuts: Sequence[int]) -> None:
    seen: list[list[Any]] = []
    for chunks in ([data], pieces(data, cuts)):
        parser = SseParser()
        try:
            frames = [frame for chunk in chunks for frame in parser.feed(chunk, 0.0)] + parser.close(0.0)
        except FrameTooLarge:
            continue
        seen.append([frame.data for frame in frames])
        for frame in frames:
            shape_of(frame.data)
            try:
                interpret(frame.data)
            except MalformedChunk:
                continue
    if len(seen) == 2 and seen[0] != seen[1]:
        raise Fault(f"the frames depend on the cuts: {seen}")


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="autotune-fuzz-")


def _file(name: str, data: bytes) -> Path:
    path = Path(_folder().name) / name
    path.write_bytes(data)
    return path


def _study_file(data: bytes, _cuts: Sequence[int]) -> None:
    compose(read_study_file(_file("study.yaml", data)), {})


def _space(data: bytes, _cuts: Sequence[int]) -> None:
    parse_space(_text(data), file="space.yaml")


def _workload(data: bytes, _cuts: Sequence[int]) -> None:
    workload_of(parse_yaml(_text(data), file="w.yaml"), file="w.yaml", name="w")


def _trace(ending: str) -> Parse:
    return lambda data, _cuts: read_trace(_file(f"trace{ending}", data), max_rows=1000)


def _config_json(data: bytes, _cuts: Sequence[int]) -> None:
    try:
        config = json.loads(_text(data))
    except (ValueError, RecursionError):
        return
    if isinstance(config, dict):
        shape_from_config(config, name="m", file="config.json")


def _topology(data: bytes, _cuts: Sequence[int]) -> None:
    parse_topo_matrix(_text(data))
    for word in _text(data).split()[:20]:
        with suppress(ValueError):
            parse_cpu_list(word)


def _words(data: bytes, _cuts: Sequence[int]) -> None:
    """Every little language of the command line and of names."""
    text = _text(data)
    for parse in (parse_slo, parse_age, parse_node_name, lambda words: from_argv(words.split())):
        with suppress(AutotuneError):
            parse(text)
    parse_help(text)


def _record(data: bytes, _cuts: Sequence[int]) -> None:
    try:
        value = json.loads(_text(data))
    except (ValueError, RecursionError):
        return
    again = encode(decode(TrialResult, value))
    if encode(decode(TrialResult, again)) != again:
        raise Fault("a record changes when it is read again")


def _redaction(data: bytes, _cuts: Sequence[int]) -> None:
    text = _text(data)
    shown = redact(text)
    if redact(shown) != shown:
        raise Fault(f"redacting twice changes {shown!r}")
    if TOKEN in redact(f"{text} {TOKEN} {text}"):
        raise Fault("a token stays")
    value: Any = {text: [text, {text: text}], "HF_TOKEN": text or "x"}
    once = redact_data(value)
    if redact_data(once) != once:
        raise Fault(f"redacting twice changes {once!r}")


def _archive(data: bytes, _cuts: Sequence[int]) -> None:
    with open_archive(_file("a.zip", data)) as found:
        for _ in found.documents():
            pass


def _samples(*patterns: str, most: int = 12) -> tuple[bytes, ...]:
    files = [path for pattern in patterns for path in sorted(DATA.glob(pattern)) if path.is_file()]
    found = [path.read_bytes()[:MOST_SAMPLE_BYTES] for path in files[:: max(1, len(files) // most)]]
    return tuple(found) or (b"",)


def _unpacked(pattern: str) -> tuple[bytes, ...]:
    return tuple(gzip.decompress(path.read_bytes())[:MOST_SAMPLE_BYTES] for path in sorted(DATA.glob(pattern)))


_LOG_LINES = (
    f"(EngineCore_DP0 pid=1) INFO 03-01 12:00:00 [gpu.py:1] using {TOKEN}\n"
    "INFO 03-01 12:00:00 [kv_cache_utils.py:1] GPU KV cache size: 919,824 tokens\n"
    "ERROR 03-01 12:00:01 [core.py:1] EngineCore failed to start.\n"
    "Traceback (most recent call last):\n  File 'a.py', line 1\n"
    f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB --api-key {TOKEN}\n"
).encode()
_FRAMES = (
    b'data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}\r\n\r\ndata: [DONE]\n\n: ping\n\n'
)
_STUDY = b"model: a/b\nworkload: chat\ntrials: 5\nslo: ttft_p95<=500ms\nload: {concurrency: 4}\nextra_args: [--x]\n"
_SPACE = b"name: s\nparameters:\n  max-num-seqs: {choices: [32, 64]}\n  dtype: {choices: [auto, half]}\nfixed: {x: 1}\n"
_WORKLOAD = b"prompt_tokens: {mean: 16, p95: 40}\noutput_tokens: {fixed: 8}\n"
_RESULT = (
    b'{"outcome":"infeasible","clock":"wall","simulated":false,'
    b'"failure":{"kind":"hang","line":null,"facts":[["a",1.5]]}}'
)
_WORDS = (b"ttft_p95<=500ms,error_rate<=0.1", b"30d", b"8xH100-80GB-NVLink", b"--max-num-seqs 4 --no-x -tp 2 --a=b")
_CSV = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
    b"2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
_JSONL = (
    b'{"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}\n',
    b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "usage": {"prompt_tokens": 3}}\n',
    b'[{"id": "a", "conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]}]',
)
_ACCESS = b"".join(
    b'1.2.3.4 - - [01/Mar/2026:12:00:%02d +0000] "POST /v1/chat/completions HTTP/1.1" 200 12 "-" "x"\n' % second
    for second in range(0, 50, 3)
)
_CONFIG = (
    b'{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, '
    b'"intermediate_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 128, '
    b'"max_position_embeddings": 4096, "torch_dtype": "bfloat16", "rope_scaling": null, "quantization_config": '
    b'{"quant_method": "fp8"}}'
)


def targets() -> tuple[Target, ...]:
    """All of them."""

    def of(
        name: str, parse: Parse, *samples: bytes, refusals: tuple[type[Exception], ...] = (AutotuneError,)
    ) -> Target:
        return Target(name=name, parse=parse, samples=samples, refusals=refusals)

    return (
        of("log", _log, _LOG_LINES, *_samples("logs/*", "logs/*/*"), refusals=()),
        of("metrics", _metrics, *_unpacked("metrics/*.gz"), refusals=()),
        of("sse", _sse, _FRAMES, refusals=()),
        of("study file", _study_file, _STUDY),
        of("search space", _space, _SPACE),
        of("workload", _workload, _WORKLOAD),
        of("trace csv", _trace(".csv"), _CSV, *_samples("traces/*.csv")),
        of("trace json", _trace(".jsonl"), *_JSONL, *_samples("traces/*.json*")),
        of("access log", lambda data, _: read_access_log(_file("a.log", data)), _ACCESS),
        of("config.json", _config_json, _CONFIG),
        of("topology", _topology, *_samples("node/*.txt"), refusals=()),
        of("words", _words, *_WORDS),
        of("stored record", _record, _RESULT, refusals=(UndecodableRecord,)),
        of("request records", _records, _made_records()),
        of("redaction", _redaction, f"x --api-key {TOKEN} HF_TOKEN=a u://b:c@d".encode(), refusals=()),
        of("archive", _archive, _made_archive()),
    )


def _records(data: bytes, _cuts: Sequence[int]) -> None:
    """As bytes of a file, and as the text inside one."""
    for name, content in (("whole.gz", data), ("inside.gz", gzip.compress(data, 1))):
        with suppress(AutotuneError):
            read_records(_file(name, content))


def _made_records() -> bytes:
    level = {"name": "ttft", "role": "ttft", "arrivals": "poisson", "requests": 1, "seed": 0, "rate_rps": 1.0}
    return (json.dumps({"format": 1, "level": level, "clock": "wall"}) + '\n{"index": 0}\n{"end": {}}\n').encode()


@cache
def _made_archive() -> bytes:
    from autotune.store.archive import export_study
    from autotune.store.repository import Store
    from benchmarks.large_study import STUDY, TEMPLATE

    copy, out = _file("t.db", TEMPLATE.read_bytes()), Path(_folder().name) / "made.zip"
    with Store.open(copy) as store:
        export_study(store, Path(_folder().name), STUDY, out, replace=True)
    return out.read_bytes()
