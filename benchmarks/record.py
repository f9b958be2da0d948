"""Starts one server, loads it with `vllm bench serve`, and writes rows that `benchmarks.fidelity` reads.

`python -m benchmarks.record --name NAME --model FOLDER --out FILE.jsonl --loads LOADS.json -- SERVER FLAGS`

Run by the interpreter that has vLLM; the client is imported while the server starts. `LOADS.json` maps the name of a
load to the arguments of the client; `{gpus}` in one multiplies the number before it, so that a server of two GPUs is
offered twice of what one is. GPUs are those that `CUDA_VISIBLE_DEVICES` leaves. The load named `warm` warms the server
and is not written down.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.engine.metrics_text import parse_metrics

SERVER = "-m vllm.entrypoints.cli.main serve"
START_S, STOP_S = 300.0, 30.0
WARM = "warm"
"""The load that is not written down."""

KV_TOKENS = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
FIGURES = (
    "duration",
    "completed",
    "total_input_tokens",
    "total_output_tokens",
    "output_throughput",
    *(f"{kind}_{name}_ms" for name in ("ttft", "tpot", "itl") for kind in ("mean", "p50", "p95", "p99")),
)
COUNTERS = (
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "request_queue_time_seconds_sum",
    "iteration_tokens_total_count",
)


def main() -> int:
    """Record; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="of the server, in every row")
    parser.add_argument("--model", required=True, type=Path, help="its folder, also the tokenizer's")
    parser.add_argument("--short-name", default="llama8b", help="of the model, in every row")
    parser.add_argument("--out", required=True, type=Path, help="where rows are appended")
    parser.add_argument("--loads", required=True, type=Path, help="a JSON object: name to arguments")
    parser.add_argument("--server", default=SERVER, help="what this Python runs, before the model")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--gpus", type=int, default=1, help="how many the flags make the server use")
    parser.add_argument("--log", type=Path, help="where the server's log goes; default: beside the rows")
    parser.add_argument("flags", nargs="*", help="after --: the server's")
    args = parser.parse_args()
    log = args.log or args.out.with_name(f"{args.name}.log")
    loads: dict[str, list[str]] = json.loads(args.loads.read_text(encoding="utf-8"))
    words = [*args.server.split(), str(args.model), *args.flags]
    with _serving(words, args.port, log) as (url, process):
        serve = importlib.import_module("vllm.benchmarks.serve")  # seconds, while the server starts
        ready_s = _wait(url, process, log)
        tokens = KV_TOKENS.findall(log.read_text(encoding="utf-8", errors="replace"))
        for name, words in loads.items():
            scaled = [_scaled(word, args.gpus) for word in words]
            before = _counters(url)
            found = _load(serve, url, args.model, scaled)
            after = _counters(url)
            row = {
                "name": args.name,
                "load": name,
                "model": args.short_name,
                "flags": args.flags,
                "bench_args": scaled,
                "kv_tokens": int(tokens[0].replace(",", "")) if tokens else 0,
                "start_s": round(ready_s, 1),
                "bench": {key: round(found[key], 3) for key in FIGURES if key in found},
                "metrics": {key: None if key not in after else after[key] - before.get(key, 0.0) for key in COUNTERS},
            }
            if name == WARM:
                continue
            with args.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
            print(
                args.name, name, {k: row["bench"].get(k) for k in ("output_throughput", "p95_ttft_ms", "p50_tpot_ms")}
            )
    return 0


def _scaled(word: str, gpus: int) -> str:
    """`64{gpus}` is 64 for each GPU."""
    return word if "{gpus}" not in word else f"{float(word.replace('{gpus}', '')) * gpus:g}"


@contextlib.contextmanager
def _serving(words: Sequence[str], port: int, log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    command = [sys.executable, *words, "--port", str(port), "--host", "127.0.0.1"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> float:
    begun = time.monotonic()
    while time.monotonic() - begun < START_S:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            _read(f"{url}/health")
            return time.monotonic() - begun
        time.sleep(0.5)
    raise SystemExit(f"the server did not start:\n{log.read_text(encoding='utf-8', errors='replace')[-3000:]}")


def _load(serve: Any, url: str, model: Path, words: Sequence[str]) -> Mapping[str, Any]:
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    with tempfile.TemporaryDirectory() as folder:
        said = [
            *("--backend", "openai", "--endpoint", "/v1/completions", "--base-url", url, "--model", str(model)),
            *("--dataset-name", "random", "--ignore-eos", "--save-result", "--disable-tqdm", "--temperature", "0"),
            *("--percentile-metrics", "ttft,tpot,itl", "--metric-percentiles", "50,95,99"),
            *("--result-dir", folder, "--result-filename", "found.json", *words),
        ]
        with contextlib.redirect_stdout(sys.stderr):
            asyncio.run(serve.main_async(parser.parse_args(said)))
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text(encoding="utf-8"))
    return found


def _counters(url: str) -> dict[str, float]:
    metrics = parse_metrics(_read(f"{url}/metrics"))
    return {name: sum(one.value for one in metrics.series(name)) for name in COUNTERS if metrics.series(name)}


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own server, over loopback
        text: str = answer.read().decode("utf-8")
    return text


if __name__ == "__main__":
    sys.exit(main())
