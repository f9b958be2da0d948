"""`autotune measure` as an operator runs it, against servers that somebody else started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from autotune_command import HANG_S, LLAMA, TRACE, Running, clean_environ, run, wait_for
from door import Door
from loopback import kept_port

from autotune.errors import ExitCode
from autotune.load.records_file import read_records

KEY = "s3same-open"
QUICK = ("--workload", "tiny", "--requests", "20")


class Simulated:
    """A simulated server in a process of its own."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.log = folder / "server.log"
        self._kept = kept_port()
        port = self._kept.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "autotune.simulator.server", "serve", LLAMA, "--sim-node", "1xH100-80GB"]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port), *flags],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=clean_environ(folder),
            )

    def ready(self) -> Simulated:
        wait_for(lambda: b"Application startup complete" in self.log.read_bytes(), "a simulated server")
        return self

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(HANG_S)
        self._kept.close()


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Simulated(tmp_path_factory.mktemp("server"), "--max-model-len", "2048")
    try:
        yield server.ready().url
    finally:
        server.kill()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[object]:
    """Servers with flags of their own."""
    servers: list[Simulated] = []

    def begin(*flags: str) -> str:
        servers.append(Simulated(tmp_path, *flags))
        return servers[-1].ready().url

    yield begin
    for server in servers:
        server.kill()


@contextlib.contextmanager
def answering(status: int, body: bytes = b"{}", **headers: str) -> Iterator[str]:
    """A server that says the same to everybody; yields its URL."""

    class Same(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Same) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_several_loads_in_one_call(simulated: str, tmp_path: Path) -> None:
    ended = run(
        tmp_path, "measure", "--url", f"{simulated}/v1", *QUICK, "--concurrency", "4,2", "--rate", "40",
        "--gpus", "2", "--slo", "ttft_p95<=500s", "--seed", "5", "--out", "raw", "--json",
    )  # fmt: skip
    assert ended.code == ExitCode.OK, ended.err
    document = ended.document
    assert (document["schema"], document["model"], document["simulated"], document["complete"]) == (
        1,
        LLAMA,
        True,
        True,
    )
    assert document["seed"] == 5
    assert [level["name"] for level in document["levels"]] == ["concurrency-4", "concurrency-2", "rate-40"]
    for level in document["levels"]:
        assert (level["completed"], level["failed"], level["meets_slo"]) == (20, 0, True)
        assert level["output_tok_s_per_gpu"] == pytest.approx(level["output_tok_s"] / 2)
        # Client and server count the same tokens.
        assert level["server"]["generation_tokens"] == level["output_tokens"]
        assert level["server"]["prompt_tokens"] == level["prompt_tokens"]
        stored = read_records(tmp_path / "raw" / f"level-{level['name']}.jsonl.gz")
        assert sum(record.output_tokens or 0 for record in stored.records) == level["output_tokens"]
        bench = json.loads((tmp_path / "raw" / f"bench-{level['name']}.json").read_text(encoding="utf-8"))
        assert (bench["completed"], bench["total_output_tokens"]) == (20, level["output_tokens"])
        # Without a tokenizer prompts went to /v1/completions as ids (caveat completions_instead).
        assert (bench["backend"], bench["model_id"], bench["simulated"]) == ("openai", LLAMA, "true")
        assert bench["max_concurrency"] == level["concurrency"]
    assert "60 requests" in ended.err
    assert simulated in ended.err
    assert "not this machine" not in ended.err
    assert not (tmp_path / "studies").exists()
    again = run(tmp_path, "measure", "--url", simulated, *QUICK, "--concurrency", "2", "--out", "raw")
    assert again.code == ExitCode.INVALID_OPTION
    assert "earlier run" in again.err


def test_prompts_are_new_to_the_server_each_time(simulated: str, tmp_path: Path) -> None:
    words = ("measure", "--url", simulated, *QUICK, "--concurrency", "2", "--json")
    first, second = run(tmp_path, *words).document, run(tmp_path, *words).document
    assert first["seed"] != second["seed"]
    assert second["levels"][0]["server"]["prefix_hit_share"] < 0.05
    repeated = run(tmp_path, *words, "--seed", str(first["seed"])).document["levels"][0]
    assert repeated["server"]["prefix_hit_share"] > 0.3
    assert repeated["prompt_tokens"] == first["levels"][0]["prompt_tokens"]


def test_the_table_is_for_people(simulated: str, tmp_path: Path) -> None:
    ended = run(tmp_path, "measure", "--url", simulated, *QUICK, "--concurrency", "1,2")
    assert ended.code == ExitCode.OK, ended.err
    assert "Throughput and latency by load (simulated)" in ended.out
    assert [line.split()[:3] for line in ended.out.splitlines() if " in flight  " in line and "(" not in line] == [
        ["1", "in", "flight"],
        ["2", "in", "flight"],
    ]


def test_a_key_is_asked_for_by_name(fresh: object, tmp_path: Path) -> None:
    url = fresh("--api-key", KEY)
    words = ("measure", "--url", url, *QUICK, "--concurrency", "2")
    without = run(tmp_path, *words)
    assert without.code == ExitCode.SERVER_UNUSABLE
    assert "asks for an API key" in without.err
    assert "--api-key-env" in without.err
    wrong = run(tmp_path, *words, "--api-key-env", "MY_KEY", env={"MY_KEY": "wrong-key"})
    assert wrong.code == ExitCode.SERVER_UNUSABLE
    assert "does not accept the API key" in wrong.err
    right = run(tmp_path, *words, "--api-key-env", "MY_KEY", "--out", "raw", "--json", env={"MY_KEY": KEY})
    assert right.code == ExitCode.OK, right.err
    given_away = run(tmp_path, *words, "--api-key-env", KEY)
    assert given_away.code == ExitCode.INVALID_OPTION
    assert "not the key" in given_away.err
    for ended in (without, wrong, right, given_away):
        assert KEY not in ended.out + ended.err
        assert "wrong-key" not in ended.out + ended.err


@pytest.mark.parametrize(
    ("status", "body", "headers", "says"),
    [
        (404, b"nothing here", {}, "HTTP 404"),
        (503, b"starting", {}, "HTTP 503"),
        (200, b"<html>hello</html>", {}, "no OpenAI server"),
        (200, b'{"data": []}', {}, "serves no model"),
        (200, b'{"data": [{"id": 5}]}', {}, "no OpenAI server"),
        (302, b"", {"Location": "https://elsewhere.example/v1/models"}, "https://elsewhere.example"),
        (403, b"{}", {}, "asks for an API key"),
    ],
)
def test_what_is_no_server_for_us(status: int, body: bytes, headers: dict[str, str], says: str, tmp_path: Path) -> None:
    with answering(status, body, **headers) as url:
        ended = run(tmp_path, "measure", "--url", f"{url}/prefix", *QUICK)
    assert ended.code == ExitCode.SERVER_UNUSABLE, ended.err
    assert says in ended.err
    assert TRACE not in ended.err
    assert ended.out == ""
    assert len(ended.err.splitlines()) <= 2


def test_a_dead_address(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, not listening
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for scheme in ("http", "https"):
            ended = run(tmp_path, "measure", "--url", f"{scheme}://127.0.0.1:{port}", *QUICK)
            assert ended.code == ExitCode.SERVER_UNUSABLE
            assert f"{port} cannot be reached: Connection refused\n" in ended.err
            assert len(ended.err.splitlines()) == 2


def test_https_against_a_server_without(simulated: str, tmp_path: Path) -> None:
    ended = run(tmp_path, "measure", "--url", simulated.replace("http:", "https:"), *QUICK)
    assert ended.code == ExitCode.SERVER_UNUSABLE
    assert "cannot be reached" in ended.err


@pytest.mark.parametrize(
    "words",
    [
        ("--url", "localhost:8000"),
        ("--url", "ftp://127.0.0.1"),
        ("--url", "http://127.0.0.1:99999"),
        ("--url", "http://[::1"),
        ("--url", "http://127.0.0.1:1/?a=b"),
        ("--url", "http://user:hunter2@127.0.0.1:1"),
        ("--url", "ftp://user:hunter2@127.0.0.1:1"),
        ("--url", "http://127.0.0.1:1/\x1b[31m"),
        ("--url", "http://127.0.0.1:1", "--concurrency", "8,,16"),
        ("--url", "http://127.0.0.1:1", "--concurrency", "0"),
        ("--url", "http://127.0.0.1:1", "--concurrency", "8,8"),
        ("--url", "http://127.0.0.1:1", "--concurrency", "9" * 400),
        ("--url", "http://127.0.0.1:1", "--rate", "nan"),
        ("--url", "http://127.0.0.1:1", "--rate", "1e999"),
        ("--url", "http://127.0.0.1:1", "--slo", "fast"),
        ("--url", "http://127.0.0.1:1", "--api-key-env", "NOT_SET_ANYWHERE"),
    ],
)
def test_options_that_cannot_be_used(words: tuple[str, ...], tmp_path: Path) -> None:
    ended = run(tmp_path, "measure", *words)
    assert ended.code == ExitCode.INVALID_OPTION, ended.err
    assert TRACE not in ended.err
    assert "hunter2" not in ended.err
    assert "\x1b" not in ended.err


def test_what_does_not_fit_this_server(simulated: str, tmp_path: Path) -> None:
    long = run(tmp_path, "measure", "--url", simulated, "--workload", "rag")
    assert long.code == ExitCode.INVALID_OPTION
    assert "2,048" in long.err
    named = run(tmp_path, "measure", "--url", simulated, *QUICK, "--model", "gpt-2")
    assert named.code == ExitCode.INVALID_OPTION
    assert LLAMA in named.err
    broken = tmp_path / "tokenizer.json"
    broken.write_bytes(b"{}")
    tokenizer = run(tmp_path, "measure", "--url", simulated, *QUICK, "--tokenizer", str(broken))
    assert tokenizer.code == ExitCode.INVALID_OPTION
    assert "cannot be read as a tokenizer" in tokenizer.err


@pytest.fixture
def door(short_tmp: Path) -> Iterator[Door]:
    made = Door(short_tmp / "door")
    yield made
    made.close()


def answers_of(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=HANG_S) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("vllm:request_success_total"))


def test_ctrl_c_shows_what_was_measured(fresh: object, door: Door, tmp_path: Path) -> None:
    url = fresh("--max-model-len", "2048", "--sim-fault", door.fault)
    words = ("--workload", "tiny", "--concurrency", "2", "--rate", "4", "--requests", "60", "--out", "raw", "--json")
    running = Running(tmp_path, "measure", "--url", url, *words)
    before: list[int] = []

    def holds(_step: str) -> bool:
        """Eight of the second load are answered."""
        if "rate-4:" not in running.err:
            return False
        before[:] = before or [len(door.passed)]
        return len(door.passed) >= before[0] + 8

    door.holds = holds
    try:
        wait_for(lambda: before and door.held and answers_of(url) >= before[0] - 1 + 4, "answers of the second load")
        running.signal(signal.SIGINT)
        assert running.end() == ExitCode.INTERRUPTED
    finally:
        running.give_up()
    assert TRACE not in running.err
    document = json.loads(running.out)
    assert document["complete"] is False
    whole, cut = document["levels"]
    assert whole["completed"] == 60
    assert 1 <= cut["completed"] < 60
    assert "aborted" in {caveat["code"] for caveat in cut["caveats"]}
    stored = read_records(tmp_path / "raw" / "level-rate-4.jsonl.gz")
    assert len(stored.records) == cut["completed"]


def test_ctrl_c_before_any_figure(fresh: object, tmp_path: Path) -> None:
    url = fresh("--sim-fault", "stall:1")
    running = Running(tmp_path, "measure", "--url", url, *QUICK)
    try:
        wait_for(lambda: "warm-up" in running.err, "the warm-up")
        running.signal(signal.SIGTERM)
        assert running.end() == ExitCode.INTERRUPTED
    finally:
        running.give_up()
    assert running.out == ""
    assert TRACE not in running.err


def test_a_server_that_goes_away_leaves_what_was_measured(door: Door, tmp_path: Path) -> None:
    server = Simulated(tmp_path, "--sim-fault", door.fault)
    try:
        url = server.ready().url
        words = ("--workload", "tiny", "--concurrency", "2,3,4", "--requests", "40", "--json")
        running = Running(tmp_path, "measure", "--url", url, *words)
        door.holds = lambda _step: "concurrency-3:" in running.err
        try:
            wait_for(lambda: door.held and "concurrency-3:" in running.err, "the second load")
            server.kill()
            assert running.end() == ExitCode.SERVER_UNUSABLE
        finally:
            running.give_up()
    finally:
        server.kill()
    assert TRACE not in running.err
    document = json.loads(running.out)
    assert document["levels"][0]["completed"] == 40
    assert document["complete"] is False


def test_a_level_is_bounded_in_time(fresh: object, tmp_path: Path) -> None:
    url = fresh("--sim-fault", "stall:1")
    ended = run(tmp_path, "measure", "--url", url, *QUICK, "--concurrency", "2", "--level-deadline", "1", timeout_s=110)
    assert ended.code == ExitCode.SERVER_UNUSABLE, ended.err
    assert "deadline" in ended.err  # and not that they stalled, which is known after two minutes
