"""The simulated server over real HTTP on loopback: every endpoint, every fault, metrics that match what was sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from door import Door
from loopback import kept_port

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
COMMAND = (sys.executable, "-m", "autotune.simulator.server")
HANG_S = 300.0
"""What hangs reaches it, and nothing that is slow."""


@pytest.fixture
def port() -> Iterator[str]:
    """Of a server that ends by itself."""
    with kept_port() as kept:
        yield str(kept.getsockname()[1])


def run(*args: str, env: dict[str, str] | None = None, timeout: float = HANG_S) -> tuple[int, str]:
    """A server that is expected to end by itself: its exit status and everything it printed."""
    done = subprocess.run(
        [*COMMAND, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout,
        env=os.environ | (env or {}),
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class Server:
    """A running server in a session of its own, its log in a file. Its port is kept for it until it is killed."""

    def __init__(self, log: Path, *args: str, env: dict[str, str] | None = None) -> None:
        self._kept = kept_port()
        self.port = self._kept.getsockname()[1]
        self.log = log
        self.url = f"http://127.0.0.1:{self.port}"
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*COMMAND, "serve", MODEL, "--host", "127.0.0.1", "--port", str(self.port), *args],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | (env or {}),
            )

    def text(self) -> str:
        return self.log.read_bytes().decode(errors="replace")

    def wait_for(self, text: str, timeout: float = HANG_S) -> None:
        end = time.monotonic() + timeout
        while text not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < end, f"{text!r} never came:\n{self.text()}"
            time.sleep(0.02)

    def ready(self) -> None:
        self.wait_for("Application startup complete.")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(HANG_S)
        self._kept.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    servers: list[Server] = []

    def begin(*args: str, env: dict[str, str] | None = None) -> Server:
        server = Server(tmp_path / f"server-{len(servers)}.log", *args, env=env)
        servers.append(server)
        return server

    yield begin
    for server in servers:
        server.kill()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("shared") / "server.log", "--max-model-len", "2048", "--sim-speed", "4")
    try:
        server.ready()
        yield server
    finally:
        server.kill()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HANG_S)) as session:
        yield session


async def post(http: aiohttp.ClientSession, url: str, body: object) -> tuple[int, Any]:
    async with http.post(url, json=body) as response:
        return response.status, await response.json()


async def stream(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> list[Any]:
    """The events of a streamed answer; `[DONE]` as that text."""
    async with http.post(url, json=body | {"stream": True}) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        text = (await response.read()).decode()
    events = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    return [event if event == "[DONE]" else json.loads(event) for event in events]


async def metrics(http: aiohttp.ClientSession, server: Server) -> dict[str, float]:
    async with http.get(f"{server.url}/metrics") as response:
        text = await response.text()
    samples: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            key = name.split("{")[0] + (
                f"[{name.split('finished_reason=')[1][1:-2]}]" if "finished_reason" in name else ""
            )
            if "_bucket" not in key:
                samples[key] = samples.get(key, 0.0) + float(value)
    return samples


COMPLETION = {"prompt": "one two three four five", "max_tokens": 6, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 6, "ignore_eos": True}


async def test_plain_endpoints(shared: Server, http: aiohttp.ClientSession) -> None:
    for path in ("/health", "/ping"):
        async with http.get(shared.url + path) as response:
            assert (response.status, await response.read()) == (200, b"")
    async with http.get(shared.url + "/version") as response:
        assert await response.json() == {"version": "0.25.1+simulated"}
    async with http.get(shared.url + "/v1/models") as response:
        card = (await response.json())["data"][0]
        assert (card["id"], card["max_model_len"]) == (MODEL, 2048)
    assert await post(http, shared.url + "/tokenize", {"prompt": "a b a"}) == (
        200,
        {"count": 3, "max_model_len": 2048, "tokens": [(t := zlib_token("a")), zlib_token("b"), t], "token_strs": None},
    )
    for path in ("/reset_prefix_cache", "/server_info", "/nowhere"):
        async with http.post(shared.url + path) as response:
            assert response.status == 404


def zlib_token(word: str) -> int:
    import zlib

    return zlib.crc32(word.encode()) % 32_000


async def test_completion_whole_and_streamed_agree(shared: Server, http: aiohttp.ClientSession) -> None:
    status, whole = await post(http, shared.url + "/v1/completions", COMPLETION)
    assert status == 200
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["text"].split() == ["w0", "w1", "w2", "w3", "w4", "w5"]
    assert whole["choices"][0]["finish_reason"] == "length"
    assert {k: whole["usage"][k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        "prompt_tokens": 5,
        "completion_tokens": 6,
        "total_tokens": 11,
    }
    events = await stream(
        http, shared.url + "/v1/completions", COMPLETION | {"stream_options": {"include_usage": True}}
    )
    *chunks, last, done = events
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["choices"][0]["text"]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert (await stream(http, shared.url + "/v1/completions", COMPLETION))[-2].get("usage") is None


async def test_chat_opens_with_a_role_only_chunk(shared: Server, http: aiohttp.ClientSession) -> None:
    status, whole = await post(http, shared.url + "/v1/chat/completions", CHAT)
    assert status == 200
    assert whole["choices"][0]["message"]["content"].split()[-1] == "w5"
    events = await stream(http, shared.url + "/v1/chat/completions", CHAT | {"stream_options": {"include_usage": True}})
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-2])
    assert text == whole["choices"][0]["message"]["content"]
    assert events[-2]["usage"]["completion_tokens"] == 6


async def test_the_role_comes_with_the_first_token(start: Any, shared: Server, http: aiohttp.ClientSession) -> None:
    """As vLLM: a client that takes that frame for a token would read the TTFT of a server that computes nothing."""
    long = CHAT | {"messages": [{"role": "user", "content": " ".join(["word"] * 1900)}], "stream": True}
    role, token = (await stream(http, shared.url + "/v1/chat/completions", long))[:2]
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert token["choices"][0]["delta"]["content"]
    server = start("--max-model-len", "2048", "--sim-speed", "0.0001")  # whose first token comes in minutes
    server.ready()
    async with http.post(server.url + "/v1/chat/completions", json=long) as response:
        while not (await metrics(http, server))["vllm:num_requests_running"]:
            await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.content.readline(), 0.3)


@pytest.mark.parametrize(
    ("prompt", "choices", "tokens"),
    [("a b", 1, 2), ([5, 6, 7], 1, 3), (["a b", "c"], 2, 3), ([[1, 2], [3, 4, 5]], 2, 5)],
)
async def test_prompt_forms(
    shared: Server, http: aiohttp.ClientSession, prompt: object, choices: int, tokens: int
) -> None:
    body = COMPLETION | {"prompt": prompt}
    status, whole = await post(http, shared.url + "/v1/completions", body)
    assert (status, len(whole["choices"]), whole["usage"]["prompt_tokens"]) == (200, choices, tokens)
    events = await stream(http, shared.url + "/v1/completions", body)
    per_choice = {
        i: "".join(e["choices"][0]["text"] for e in events[:-1] if e["choices"][0]["index"] == i)
        for i in range(choices)
    }
    assert all(len(text.split()) == 6 for text in per_choice.values())


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v1/completions", COMPLETION | {"model": "other"}, 404, "The model `other` does not exist."),
        ("/v1/completions", COMPLETION | {"prompt": "x " * 2048}, 400, "maximum context length is 2048 tokens"),
        (
            "/v1/completions",
            COMPLETION | {"prompt": "x " * 2040, "max_tokens": 9},
            400,
            "you requested 9 output tokens",
        ),
        ("/v1/completions", {"max_tokens": 1}, 400, "prompt"),
        ("/v1/completions", COMPLETION | {"prompt": []}, 400, "cannot be empty"),
        ("/v1/completions", COMPLETION | {"max_tokens": "many"}, 400, "max_tokens"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    ],
)
async def test_refusals_have_vllm_form(
    shared: Server, http: aiohttp.ClientSession, path: str, body: object, status: int, text: str
) -> None:
    got, answer = await post(http, shared.url + path, body)
    assert got == status == answer["error"]["code"]
    assert text in answer["error"]["message"]
    async with http.post(shared.url + path, data=b"{not json") as response:
        assert response.status == 400


async def test_without_ignore_eos_the_answer_may_stop_early(shared: Server, http: aiohttp.ClientSession) -> None:
    body = {"prompt": "one two", "max_tokens": 2000}
    _, whole = await post(http, shared.url + "/v1/completions", body)
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert 16 <= whole["usage"]["completion_tokens"] < 256


async def test_metrics_match_the_requests_sent(start: Any, http: aiohttp.ClientSession) -> None:
    server = start(
        "--max-model-len", "2048", "--sim-speed", "4", "--data-parallel-size", "2", "--sim-node", "2xH100-80GB"
    )
    server.ready()
    before = await metrics(http, server)
    prefix = " ".join(f"p{i}" for i in range(64))
    bodies = [COMPLETION | {"prompt": f"{prefix} own{i} tail", "max_tokens": 5 + i} for i in range(12)]
    await asyncio.gather(*(stream(http, server.url + "/v1/completions", body) for body in bodies))
    after = await metrics(http, server)

    def delta(name: str) -> float:
        return after[name] - before[name]

    assert delta("vllm:prompt_tokens_total") == 12 * 66
    assert delta("vllm:generation_tokens_total") == sum(5 + i for i in range(12))
    assert delta("vllm:request_success_total[length]") == 12
    assert delta("vllm:prefix_cache_queries_total") == 12 * 66
    # Two replicas, six requests each: at most ten find the 64 shared tokens, at least none of the first two.
    assert 0 < delta("vllm:prefix_cache_hits_total") <= 10 * 64
    assert delta("vllm:time_to_first_token_seconds_count") == 12
    assert delta("vllm:inter_token_latency_seconds_count") == sum(4 + i for i in range(12))
    assert delta("vllm:request_queue_time_seconds_count") == 12
    assert delta("vllm:num_preemptions_total") == 0
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0
    async with http.get(server.url + "/metrics") as response:
        page = await response.text()
    assert 'engine="0"' in page
    assert 'engine="1"' in page
    assert "vllm:cache_config_info{" in page
    assert 'num_gpu_blocks="' in page


async def test_dev_mode_opens_its_routes(start: Any, http: aiohttp.ClientSession) -> None:
    server = start("--max-model-len", "2048", env={"VLLM_SERVER_DEV_MODE": "1"})
    server.ready()
    body = COMPLETION | {"prompt": " ".join(f"w{i}" for i in range(33)), "max_tokens": 1}
    for expected in (0.0, 32.0, 32.0):
        await post(http, server.url + "/v1/completions", body)
        found = (await metrics(http, server))["vllm:prefix_cache_hits_total"]
        assert found == expected
        if expected:
            async with http.post(server.url + "/reset_prefix_cache") as response:
                assert response.status == 200
    async with http.get(server.url + "/server_info") as response:
        assert "max_model_len=2048" in (await response.json())["vllm_config"]


async def test_api_key_guards_v1_only_and_is_never_printed(start: Any, http: aiohttp.ClientSession) -> None:
    server = start("--api-key", "sesame-4711")
    server.ready()
    async with http.get(server.url + "/health") as response:
        assert response.status == 200
    async with http.get(server.url + "/v1/models") as response:
        assert response.status == 401
    async with http.get(server.url + "/v1/models", headers={"Authorization": "Bearer sesame-4711"}) as response:
        assert response.status == 200
    assert "sesame" not in server.text()


async def test_pace_is_that_of_the_model(start: Any, http: aiohttp.ClientSession) -> None:
    """On an H100 (3.35 TB/s) 15 GB of weights take about 6 ms a token: 50 tokens 0.3 s, less at ten times the speed."""
    for speed, (least, most) in {"1": (0.28, 0.8), "10": (0.028, 0.14)}.items():
        server = start("--sim-speed", speed)
        server.ready()
        await post(http, server.url + "/v1/completions", COMPLETION)
        took: list[float] = []
        while not took or (min(took) >= most and len(took) < 30):  # a busy machine adds to it, and takes nothing away
            begun = time.monotonic()
            await post(http, server.url + "/v1/completions", COMPLETION | {"max_tokens": 50})
            took.append(time.monotonic() - begun)
        assert least < min(took) < most


def test_log_tells_the_start_and_the_stop(start: Any) -> None:
    server = start("--max-model-len", "4096", "--max-num-seqs", "64")
    server.ready()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(HANG_S) == 0
    text = server.text()
    milestones = (
        "version 0.25.1+simulated",
        "non-default args: {",
        "Initializing a V1 LLM engine (v0.25.1+simulated) with config: model='meta-llama/Llama-3.1-8B-Instruct'",
        "Model loading took 14.99 GiB",
        "Available KV cache memory: ",
        "GPU KV cache size: ",
        "Maximum concurrency for 4,096 tokens per request: ",
        "Graph capturing finished in",
        "Application startup complete.",
        "[shutdown] API server: shutdown triggered",
        "Application shutdown complete.",
    )
    places = [text.index(part) for part in milestones]
    assert places == sorted(places)
    assert "'max_num_seqs': 64" in text


def test_statistics_line_is_written_under_load() -> None:
    from autotune.simulator.server_log import IntervalStats

    stats = IntervalStats(
        seconds=10.0,
        prompt_tokens=182223,
        generation_tokens=34417,
        running=126,
        waiting=3,
        kv_usage=0.0784,
        prefix_hit_share=0.007,
        preemptions=2,
    )
    assert stats.text(0) == (
        "Engine 000: Avg prompt throughput: 18222.3 tokens/s, Avg generation throughput: 3441.7 tokens/s, "
        "Running: 126 reqs, Waiting: 3 reqs, Preemptions: 2, GPU KV cache usage: 7.8%, Prefix cache hit rate: 0.7%"
    )


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--gpu-memory-utilization", "0.05"), "ValueError: No available memory for the cache blocks"),
        (
            ("--gpu-memory-utilization", "0.25"),
            "To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed",
        ),
        (("--gpu-memory-utilization", "1.0"), "on startup is less than desired GPU memory utilization (1.0,"),
        (("--gpu-memory-utilization", "0.99"), "CUDA out of memory occurred when warming up sampler with 1024"),
        (("--tensor-parallel-size", "2"), "World size (2) is larger than the number of available GPUs (1)"),
        (("--data-parallel-size", "2"), "DP adjusted local rank 1 is out of bounds"),
        (
            ("-tp", "3", "--sim-node", "4xH100-80GB"),
            "Total number of attention heads (32) must be divisible by tensor parallel size (3)",
        ),
        (
            ("--max-num-batched-tokens", "4096", "--no-enable-chunked-prefill"),
            "max_num_batched_tokens (4096) is smaller than max_model_len (131072)",
        ),
        (
            ("--max-num-batched-tokens", "64", "--max-num-seqs", "128"),
            "max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (128)",
        ),
        (("--max-model-len", "200000"), "is greater than the derived max_model_len"),
        (("--sim-fault", "oom-at-load"), "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
        (("--sim-fault", "oom_at_warmup"), "CUDA out of memory occurred when warming up sampler"),
        (("--sim-fault", "gpu-busy"), "Free memory on device cuda:0 (19.77/79.10 GiB) on startup is less than"),
        (("--sim-fault", "nccl"), "unhandled system error"),
        (("--sim-fault", "shared-memory"), "Error while creating shared memory segment /dev/shm/nccl-"),
        (("--sim-fault", "driver"), "NVIDIA driver on your system is too old"),
        (("--sim-fault", "missing-dependency"), "ModuleNotFoundError: No module named 'flashinfer'"),
        (("--sim-fault", "compile-cache"), "torch_compile_cache"),
        (("--sim-fault", "gated"), "GatedRepoError: 401 Client Error"),
        (("--sim-fault", "licence"), "GatedRepoError: 403 Client Error"),
        (("--sim-fault", "model-unknown"), "is not a local folder and is not a valid model identifier"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_starts_that_fail(args: tuple[str, ...], text: str, port: str) -> None:
    status, output = run("serve", MODEL, "--port", port, "--host", "127.0.0.1", *args)
    assert status == 1
    assert text in output
    assert "Application startup complete" not in output


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--no-such-flag",), "error: unrecognized arguments: --no-such-flag"),
        (("--kv-cache-dtype", "fp9"), "argument --kv-cache-dtype: invalid choice: 'fp9' (choose from"),
        (("--max-num-seqs", "few"), "argument --max-num-seqs: invalid int value: 'few'"),
        (("--sim-fault", "earthquake"), "argument --sim-fault: invalid choice: 'earthquake'"),
        (("--sim-fault", "exit-at:lunch"), "exit-at takes one of banner"),
        (("--config", "/nowhere.yaml"), "Unable to read the config file"),
    ],
)
def test_command_lines_that_are_refused(args: tuple[str, ...], text: str) -> None:
    status, output = run("serve", MODEL, *args)
    assert status == 2
    assert text in output


def test_help_and_version() -> None:
    for flag in ("--help", "--help=all"):
        status, output = run("serve", flag)
        assert status == 0
        assert "--kv-cache-dtype {auto,bfloat16,float16,fp8," in output
        assert "--enable-prefix-caching, --no-enable-prefix-caching" in output
    for flag in ("--version", "-v"):
        assert run(flag) == (0, "0.25.1+simulated\n")


def test_config_file_gives_options_and_the_command_line_wins(tmp_path: Path, port: str) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(f"model: {MODEL}\nmax-num-seqs: 32\ngpu-memory-utilization: 0.05\nenforce-eager: true\n")
    status, output = run("serve", "--config", str(file), "--max_num_seqs=16", "--port", port)
    assert status == 1
    assert "'max_num_seqs': 16" in output
    assert "'enforce_eager': True" in output
    assert "No available memory for the cache blocks" in output


def test_taken_port_ends_the_start() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        status, output = run("serve", MODEL, "--host", "127.0.0.1", "--port", str(holder.getsockname()[1]))
    assert status == 1
    assert "[Errno 98] Address already in use" in output


@pytest.mark.parametrize("milestone", ["banner", "engine", "weights", "kv", "graphs", "ready"])
def test_exit_and_crash_at_milestones(milestone: str, port: str) -> None:
    status, output = run("serve", MODEL, "--port", port, env={"AUTOTUNE_SIM_FAULT": f"exit-at:{milestone}"})
    assert status == 1
    assert ("GPU KV cache size" in output) == (milestone in ("kv", "graphs", "ready"))
    if milestone == "kv":
        status, _ = run("serve", MODEL, "--port", port, "--sim-fault", "crash-at:kv")
        assert status == -signal.SIGSEGV


def test_hangs_are_silent_or_repeat_the_waiting_line(start: Any) -> None:
    silent, waiting = start("--sim-fault", "hang-at:weights"), start("--sim-fault", "waiting-at:engine")
    silent.wait_for("Model loading took")
    waiting.wait_for("core engine proc(s) to start")
    said, lines = silent.text(), waiting.text().count("Waiting for 1 local")
    until(lambda: waiting.text().count("Waiting for 1 local") > lines + 2)
    assert silent.text() == said
    assert silent.process.poll() is waiting.process.poll() is None


def test_term_can_be_ignored(start: Any) -> None:
    server = start("--sim-fault", "ignore-term")
    server.ready()
    server.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(0.7)


async def test_requests_in_flight_end_within_the_shutdown_timeout(start: Any, http: aiohttp.ClientSession) -> None:
    server = start("--shutdown-timeout", "300", "--sim-speed", "0.5")
    server.ready()
    asked = asyncio.ensure_future(post(http, f"{server.url}/v1/completions", COMPLETION | {"max_tokens": 60}))
    while not (await metrics(http, server))["vllm:num_requests_running"]:
        await asyncio.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    status, answer = await asked
    assert (status, answer["usage"]["completion_tokens"]) == (200, 60)
    assert server.process.wait(HANG_S) == 0
    assert "stopping engine client mode=drain timeout=300s" in server.text()


@pytest.mark.parametrize(("fault", "same"), [("orphan", True), ("orphan-session", False)])
def test_orphans_outlive_the_server(start: Any, fault: str, same: bool) -> None:
    server = start("--sim-fault", fault)
    server.ready()
    (child,) = psutil.Process(server.process.pid).children()
    try:
        assert child.cmdline()[0] == "VLLM::Worker_TP0"
        assert (os.getsid(child.pid) == server.process.pid) is same
        server.process.terminate()
        assert server.process.wait(HANG_S) == 0
        assert child.is_running()
        assert child.status() != psutil.STATUS_ZOMBIE
    finally:
        child.kill()


@pytest.mark.parametrize("wipes", [True, False])
def test_workers_re_title_themselves_and_wipe_their_environment_unless_told_not_to(start: Any, wipes: bool) -> None:
    server = start("--sim-fault", "worker-session", env={"MARKER": "seen", **({} if wipes else {"SPT_NOENV": "1"})})
    server.ready()
    (child,) = psutil.Process(server.process.pid).children()
    try:
        assert child.cmdline()[0].startswith("VLLM::Worker_TP0")
        assert (b"MARKER=seen" in Path(f"/proc/{child.pid}/environ").read_bytes()) is not wipes
        assert os.getsid(child.pid) == child.pid
        child.terminate()
        time.sleep(0.2)
        assert child.is_running()
    finally:
        child.kill()


def test_a_port_is_lost_to_whoever_is_told_of_it(tmp_path: Path, port: str) -> None:
    with socket.socket(socket.AF_UNIX) as door, socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as it is kept
        door.bind(str(tmp_path / "door"))
        door.listen()

        def steal() -> None:
            told, _ = door.accept()
            with told:
                thief.bind(("127.0.0.1", int(told.recv(16))))
                thief.listen()
                told.sendall(b".")

        thread = threading.Thread(target=steal)
        thread.start()
        fault = f"port-lost:{tmp_path / 'door'}"
        status, output = run("serve", MODEL, "--host", "127.0.0.1", "--port", port, "--sim-fault", fault)
        thread.join()
    assert status == 1
    assert "[Errno 98] Address already in use" in output


async def test_a_server_waits_for_leave_before_each_step(
    start: Any, http: aiohttp.ClientSession, short_tmp: Path
) -> None:
    door = Door(short_tmp / "door")
    steps = ("start", "request", "stop")
    door.holds = steps.__contains__
    server = start("--sim-fault", door.fault)
    await asyncio.to_thread(until, lambda: door.held == 1)
    assert "Application startup complete" not in server.text()
    door.holds = steps[1:].__contains__
    await asyncio.to_thread(server.ready)
    asked = asyncio.ensure_future(post(http, server.url + "/v1/completions", COMPLETION))
    await asyncio.to_thread(until, lambda: door.held == 1)
    assert (await metrics(http, server))["vllm:num_requests_running"] == 0
    door.holds = steps[2:].__contains__
    assert (await asked)[0] == 200
    server.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(until, lambda: door.held == 1)
    assert "shutdown triggered" not in server.text()
    door.close()  # whom nobody listens to any more goes on
    assert await asyncio.to_thread(server.process.wait, HANG_S) == 0
    assert door.passed[:2] == ["start", "request"]


def test_a_flooded_log_has_no_line_feed(port: str) -> None:
    words = ("--port", port, "--sim-fault", "flood-log:2", "--sim-fault", "exit-at:banner")
    status, output = run("serve", MODEL, *words)
    assert status == 1
    assert max(len(line) for line in output.split("\n")) > 2_000_000


async def test_out_of_memory_under_load(start: Any, http: aiohttp.ClientSession) -> None:
    server = start("--sim-fault", "oom-under-load:3")
    server.ready()
    for _ in range(2):
        assert (await post(http, server.url + "/v1/completions", COMPLETION))[0] == 200
    long = COMPLETION | {"max_tokens": 400}
    running = asyncio.create_task(stream_text(http, server.url, long | {"prompt": "other words"}))
    text = await running
    assert '"code":500' in text
    assert text.rstrip().endswith("[DONE]")
    assert await asyncio.to_thread(server.process.wait, HANG_S) == 1
    assert "torch.OutOfMemoryError: CUDA out of memory" in server.text()
    assert "EngineDeadError" in server.text()


async def stream_text(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> str:
    async with http.post(url + "/v1/completions", json=body | {"stream": True}) as response:
        return (await response.read()).decode()


async def test_crash_under_load(start: Any, http: aiohttp.ClientSession) -> None:
    server = start("--sim-fault", "crash-under-load:1")
    server.ready()
    with pytest.raises(aiohttp.ClientError):
        await stream_text(http, server.url, COMPLETION)
    assert await asyncio.to_thread(server.process.wait, HANG_S) == 1


async def test_bad_answers_and_streams(start: Any, http: aiohttp.ClientSession) -> None:
    refusing = start("--sim-fault", "http-503:2", "--sim-fault", "http-500:1")
    cutting, failing = start("--sim-fault", "close:2"), start("--sim-fault", "error-frame:2")
    stalling, quiet = start("--sim-fault", "stall:2"), start("--sim-fault", "no-usage", "--sim-fault", "no-metrics")
    for server in (refusing, cutting, failing, stalling, quiet):
        server.ready()
    statuses = [(await post(http, refusing.url + "/v1/completions", COMPLETION))[0] for _ in range(4)]
    assert statuses == [500, 503, 503, 200]
    with pytest.raises(aiohttp.ClientError):
        await stream_text(http, cutting.url, COMPLETION)
    events = [e for e in (await stream_text(http, failing.url, COMPLETION)).split("\n\n") if e]
    assert len(events) == 4
    assert json.loads(events[2].removeprefix("data: "))["error"]["code"] == 500
    assert events[3] == "data: [DONE]"
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(stream_text(http, stalling.url, COMPLETION), 1.0)
    answer = await stream_text(http, quiet.url, COMPLETION | {"stream_options": {"include_usage": True}})
    assert "completion_tokens" not in answer
    async with http.get(quiet.url + "/metrics") as response:
        assert "vllm:" not in await response.text()


async def test_late_port(start: Any, http: aiohttp.ClientSession) -> None:
    never, late = start("--sim-fault", "late-port:3600"), start("--sim-fault", "late-port:0.2")
    never.ready()
    with pytest.raises(aiohttp.ClientConnectorError):
        await http.get(never.url + "/health")
    late.ready()
    while True:
        with contextlib.suppress(aiohttp.ClientConnectorError):
            async with http.get(late.url + "/health") as response:
                assert response.status == 200
                return
        await asyncio.sleep(0.02)


def test_garbage_does_not_hide_the_start(start: Any) -> None:
    server = start("--sim-fault", "garbage-log")
    server.ready()
    raw = server.log.read_bytes()
    assert b"\x00\x07\xff\xfe" in raw
    assert b"\r" in raw
    assert b"GPU KV cache size: " in raw


async def test_a_client_that_hangs_up_frees_its_blocks(start: Any, http: aiohttp.ClientSession) -> None:
    server = start("--max-model-len", "2048", "--sim-speed", "0.05")  # all that is asked for takes three minutes
    server.ready()
    body = COMPLETION | {"max_tokens": 1500, "stream": True}
    async with http.post(server.url + "/v1/completions", json=body) as response:
        await response.content.readany()
        assert (await metrics(http, server))["vllm:num_requests_running"] == 1
        response.close()
    async with asyncio.timeout(120):
        while (found := await metrics(http, server))["vllm:num_requests_running"]:
            await asyncio.sleep(0.02)
    assert found["vllm:kv_cache_usage_perc"] == 0
    assert found["vllm:request_success_total[abort]"] == 1
