"""A whole story: promote, watch production, see it drift, tune anew, promote that, and go back.

What is promoted is run as it was rendered: its script, with a `vllm` in PATH that is the simulated server.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from autotune_command import LIGHT, LLAMA, TINY, Ended, clean_environ, run, wait_for
from loopback import kept_port

from autotune.errors import ExitCode

SIMULATED_VLLM = f"""\
#!/bin/sh
exec {shlex.quote(sys.executable)} -m autotune.simulator.server "$@" --sim-node 1xH100-80GB
"""
SERIAL = itertools.count(1_000)
WATCH = ("--seconds", "4")


@pytest.fixture
def port() -> Iterator[int]:
    """Nobody else is given it meanwhile."""
    with kept_port() as kept:
        yield kept.getsockname()[1]


@contextmanager
def production(folder: Path, script: Path, port: int, **variables: str) -> Iterator[str]:
    """The rendered script, running."""
    shims = folder / "bin"
    shims.mkdir(exist_ok=True)
    (shims / "vllm").write_text(SIMULATED_VLLM)
    (shims / "vllm").chmod(0o755)
    environ = clean_environ(folder)
    log = folder / f"{port}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(script)],
            env={**environ, "PATH": f"{shims}:{environ['PATH']}", **variables},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_for(lambda: b"Application startup complete" in log.read_bytes(), "production")
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


@contextmanager
def users(port: int, *, prompt_tokens: int, output_tokens: int) -> Iterator[None]:
    """Four users who ask, wait for the answer, think for a moment, and ask something new."""
    done = threading.Event()

    def user() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        while not done.wait(0.1):
            prompt = [next(SERIAL), *range(1, prompt_tokens)]  # no prompt opens as another one does
            body = {"model": LLAMA, "prompt": prompt, "max_tokens": output_tokens, "ignore_eos": True}
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            assert connection.getresponse().read()
        connection.close()

    threads = [threading.Thread(target=user) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join(300)


def good(folder: Path, *words: str) -> Any:
    ended = run(folder, *words, "--json")
    assert ended.code == 0, ended.err
    return ended.document


SEQUENCES = "name: sequences\nparameters:\n  max-num-seqs: {choices: [2, 64]}\n"
STUDY = ("study", *TINY[:4], "--space", "sequences.yaml", "--repeats", "0", "--abandon", "off", *LIGHT, "--trials", "3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished simulated study `s` of vLLM's defaults, of 2 sequences at once, and of 64."""
    made = tmp_path_factory.mktemp("production")
    (made / "sequences.yaml").write_text(SEQUENCES)
    ended = run(made, *STUDY, "--name", "s")
    assert ended.code == 0, ended.err
    return made


def of_two_sequences(folder: Path) -> str:
    """The trial of `s` that takes two requests at once, where the load has four."""
    trials = good(folder, "pareto", "s")["trials"]
    return str(next(one["number"] for one in trials if one["flags"].get("max-num-seqs") == 2))


ENOUGH = 20
"""Requests that end while one looks on: with fewer, which is how a busy machine shows, nothing would be known."""


def watched(folder: Path, url: str, *words: str) -> Ended:
    for _ in range(10):
        ended = run(folder, "check", "--url", url, *WATCH, *words, "--json")
        if ended.document["ended"] >= ENOUGH:
            break
    return ended


def kinds(ended: Ended) -> dict[str, str]:
    return {finding["what"]: finding["kind"] for finding in ended.document["findings"]}


def test_from_promotion_to_drift_and_back(folder: Path, port: int) -> None:
    place = ("--target", "shell", "--out", "deploy", "--port", str(port), "--allow-simulated", "--name", "prod")
    # Slow, but for what ran before it.
    (folder / "before.yaml").write_text("max-num-seqs: 1\n")
    slow = ("--trial", of_two_sequences(folder), "--against", "before.yaml", "--gate-windows", "2")
    first = good(folder, "promote", "s", *slow, *place, "--reason", "to begin with")
    assert (first["version"], first["gate"]["verdict"]) == (1, "pass")
    script = folder / "deploy" / "prod.sh"
    original = script.read_bytes()

    with production(folder, script, port) as url:
        with users(port, prompt_tokens=32, output_tokens=16):
            fine = watched(folder, url)
        assert fine.code == 0, fine.out + fine.err
        assert fine.document["verdict"] == "as_promoted"
        assert fine.document["promotion"] == "prod@1"
        assert fine.document["ended"] >= ENOUGH
        assert any(text.startswith("mean prompt tokens 32") for text in fine.document["as_promoted"])

        with users(port, prompt_tokens=96, output_tokens=16):
            drifted = watched(folder, url, "--promotion", "prod")
            assert drifted.code == ExitCode.WORKLOAD_DRIFTED
            assert kinds(drifted) == {"mean prompt tokens": "workload_drift"}
            breached = watched(folder, url, "--slo", "ttft_p95<=1ms")
            assert breached.code == ExitCode.SLO_BREACHED
            assert kinds(breached) == {"ttft_p95": "slo_breach", "mean prompt tokens": "workload_drift"}
            assert "not as prod@1: ttft_p95 p95" in breached.err
            capture, study, promote = drifted.document["commands"]
            # As the report says it, but for how long, and for what is different here.
            words = shlex.split(capture.replace("--seconds 600", "--seconds 4"))[1:]
            for _ in range(10):
                captured = good(folder, *words)
                if captured["requests"] >= ENOUGH:
                    break
        assert captured["prompt_tokens"]["mean"] == 96.0
        assert captured["output_tokens"]["mean"] == 16.0
        # So few requests leave the upper end of a 95th percentile open.
        assert captured["prompt_tokens"]["p95_low"] < 96 <= (captured["prompt_tokens"]["p95_high"] or 96)

    again = run(folder, *shlex.split(study)[1:], *STUDY[5:])
    assert again.code == 0, again.err
    front = good(folder, "pareto", "prod-1-retune")
    assert front["running"]["promotion"] == "prod@1"
    # What a promotion would change is what the gate then finds: four requests at once instead of two.
    gain = good(folder, "show", "prod-1-retune", str(front["pick"]["number"]))["against_running"]
    words = shlex.split(promote.replace("--out DIR", "--out deploy"))[1:]
    second = good(folder, *words, "--port", str(port), "--allow-simulated", "--gate-windows", "2")
    assert (second["version"], second["study"]) == (2, "prod-1-retune")
    gate = second["gate"]
    assert (gate["verdict"], gate["against"]["label"].partition(" ")[0]) == ("pass", "prod@1")
    (found,) = [one for one in gate["criteria"] if one["name"] == "gain"]
    ratio = found["figures"][0]["estimate"]
    assert ratio["low"] > 1
    low, high = gain["throughput_interval"]
    assert low < ratio["value"] < high
    assert script.read_bytes() != original
    changed = good(folder, "diff", "prod@1", "prod@2")
    assert {"name": "workload", "a": "tiny", "b": "prod-now"} in changed["facts"]

    back = good(folder, "rollback", "prod", "--reason", "the old users are back")
    assert (back["version"], back["restores"]) == (3, 1)
    assert script.read_bytes() == original


def test_a_server_with_other_settings_is_told(folder: Path, port: int) -> None:
    words = ("--target", "shell", "--out", "other", "--port", str(port), "--allow-simulated", "--skip-gate")
    good(folder, "promote", "s", "--trial", of_two_sequences(folder), *words, "--name", "other")
    script = folder / "other" / "other.sh"
    changed = folder / "changed.sh"
    changed.write_text(script.read_text().replace('"$@"', '--max-model-len 1024 --gpu-memory-utilization 0.5 "$@"'))
    changed.chmod(0o755)
    with production(folder, changed, port, VLLM_SERVER_DEV_MODE="1") as url:
        ended = run(folder, "check", "--url", url, "--seconds", "1", "--promotion", "other")
    assert ended.code == ExitCode.CONFIG_DRIFTED
    assert "CONFIG DRIFT: max-model-len 1024" in ended.out
    assert "CONFIG DRIFT: gpu-memory-utilization 0.5" in ended.out
    assert "as promoted: max-num-seqs " in ended.out  # which only the development mode shows
    assert "not seen: mean prompt tokens: 0 requests ended" in ended.out
    assert "autotune promotions other --json" in ended.out
