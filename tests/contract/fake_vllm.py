"""A server that looks like vLLM 0.25 from outside and misbehaves on demand. Standard library only.

    fake_vllm.py serve MODEL --host H --port P [vLLM flags, ignored] [--fake-... flags]

It leaves what a killed vLLM leaves: a socket in VLLM_RPC_BASE_PATH, a file and a Python socket's folder in TMPDIR.

Steps of the start are numbered as in STEPS; `--fake-step-s` is the pause before each.

    --fake-exit-at N --fake-text TEXT --fake-status S   print TEXT and end before step N (S below 0: by that signal)
    --fake-gate FILE                                    take no step with a number above the one in FILE
    --fake-hang-at N [--fake-waiting]                   stay silent for ever (or repeat the waiting line) before step N
    --fake-ignore-term                                  TERM does nothing
    --fake-worker same|new                              a worker that ignores TERM; may be given twice
    --fake-die-on-request TEXT                          print TEXT and die by KILL at the first completion, orphans stay
    --fake-engine-dead                                  answer 500 to the first completion and 503 to /health, live on
    --fake-tokenizer                                    answer /tokenize: one token per word
    --fake-restart-on-request                           count from 0 again at the first completion
    --fake-silent-health                                accept connections for /health and never answer
    --fake-version V --fake-model-id ID                 what /version and /v1/models say
    --fake-stall-stream                                 no further token after the first
    --fake-jit N                                        compile a kernel, and say so, in each of the first N completions
    --fake-compile                                      read a graph from VLLM_CACHE_ROOT, or die of a damaged one; else
                                                        write it
    --fake-compile-fails                                die of the compiler, having written to the cache
    --fake-key KEY                                      answer 401 to /v1 without that bearer token
"""

import argparse
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STEPS = (
    "(APIServer pid=1) INFO 11-29 17:25:31 [api_utils.py:339]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.25.1",
    "(APIServer pid=1) INFO 11-29 17:25:31 [api_utils.py:273] non-default args: {'max_model_len': 8192}",
    "(APIServer pid=1) INFO 11-29 17:25:31 [model.py:1776] Using max model len 8192",
    "(EngineCore pid=2) INFO 11-29 17:25:49 [core.py:114] Initializing a V1 LLM engine (v0.25.1) with config: x",
    "(EngineCore pid=2) INFO 11-29 17:25:51 [model_runner.py:302] Model loading took 15.0 GiB and 1.526490 seconds",
    "(EngineCore pid=2) INFO 11-29 17:26:12 [gpu_worker.py:538] Available KV cache memory: 112.28 GiB\n"
    "(EngineCore pid=2) INFO 11-29 17:26:12 [kv_cache_utils.py:2146] GPU KV cache size: 919,824 tokens\n"
    "(EngineCore pid=2) INFO 11-29 17:26:12 [kv_cache_utils.py:2147] "
    "Maximum concurrency for 8,192 tokens per request: 112.28x",
    "(EngineCore pid=2) INFO 11-29 17:26:32 [core.py:337] init engine (profile, create kv cache, warmup model) "
    "took 40.20 s (compilation: 18.13 s)",
)
JIT = (
    "(EngineCore pid=2) WARNING 11-29 17:27:40 [jit_monitor.py:98] Triton kernel JIT compilation during inference: "
    "_fused_moe_kernel. This causes a latency spike; consider extending warmup to cover this shape/config."
)
JIT_S = 0.1
READY = "INFO:     Application startup complete."
WAITING = (
    "(APIServer pid=1) DEBUG 11-29 17:25:59 [utils.py:1] Waiting for 1 local, 0 remote core engine proc(s) to start."
)

arguments = argparse.ArgumentParser(allow_abbrev=False)
arguments.add_argument("command")
arguments.add_argument("model")
arguments.add_argument("--host", default="127.0.0.1")
arguments.add_argument("--port", type=int, required=True)
arguments.add_argument("--fake-step-s", type=float, default=0.0)
arguments.add_argument("--fake-exit-at", type=int)
arguments.add_argument("--fake-text", default="")
arguments.add_argument("--fake-status", type=int, default=1)
arguments.add_argument("--fake-gate", type=Path)
arguments.add_argument("--fake-hang-at", type=int)
arguments.add_argument("--fake-waiting", action="store_true")
arguments.add_argument("--fake-ignore-term", action="store_true")
arguments.add_argument("--fake-worker", action="append", choices=["same", "new"], default=[])
arguments.add_argument("--fake-die-on-request")
arguments.add_argument("--fake-engine-dead", action="store_true")
arguments.add_argument("--fake-tokenizer", action="store_true")
arguments.add_argument("--fake-restart-on-request", action="store_true")
arguments.add_argument("--fake-silent-health", action="store_true")
arguments.add_argument("--fake-version", default="0.25.1")
arguments.add_argument("--fake-model-id")
arguments.add_argument("--fake-stall-stream", action="store_true")
arguments.add_argument("--fake-jit", type=int, default=0)
arguments.add_argument("--fake-compile", action="store_true")
arguments.add_argument("--fake-compile-fails", action="store_true")
arguments.add_argument("--fake-key")


class State:
    """What requests change."""

    lock = threading.Lock()
    prompt_tokens = 0
    generation_tokens = 0
    preemptions = 3
    dead = False
    resets = 0
    completions = 0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def start_worker(session: str) -> None:
    ready_in, ready_out = os.pipe()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if session == "new":
            os.setsid()
        os.write(ready_out, b"x")
        time.sleep(600)
        os._exit(0)
    os.read(ready_in, 1)


def leave(status: int) -> None:
    if status < 0:
        os.kill(os.getpid(), -status)
    sys.exit(status)


GRAPH = "a compiled graph"
LOADED = (
    "INFO 11-29 17:25:55 [backends.py:240] Directly load the compiled graph(s) for compile range (1, 8192) from cache"
)
COMPILED = "INFO 11-29 17:25:55 [backends.py:290] Compiling a graph for compile range (1, 8192) takes 8.12 s"
DAMAGED = (
    "ERROR 11-29 17:25:55 [core.py:708] Traceback (most recent call last):\n"
    'ERROR 11-29 17:25:55 [core.py:708]   File "/site/torch/_inductor/standalone_compile.py", line 1, in load\n'
    "ERROR 11-29 17:25:55 [core.py:708] _pickle.UnpicklingError: pickle data was truncated"
)
REFUSED = (
    "ERROR 11-29 17:25:55 [core.py:708] Traceback (most recent call last):\n"
    'ERROR 11-29 17:25:55 [core.py:708]   File "/site/torch/_inductor/graph.py", line 1, in run\n'
    "ERROR 11-29 17:25:55 [core.py:708] torch._inductor.exc.InductorError: RuntimeError: no such lowering"
)


def compile_graph(options: argparse.Namespace) -> None:
    graph = Path(os.environ["VLLM_CACHE_ROOT"]) / "torch_compile_cache" / "ab" / "graph"
    if options.fake_compile and graph.exists():
        if graph.read_text() != GRAPH:
            say(DAMAGED)
            leave(1)
        say(LOADED)
        return
    graph.parent.mkdir(parents=True, exist_ok=True)
    graph.write_text(GRAPH)
    say(COMPILED)
    if options.fake_compile_fails:
        say(REFUSED)
        leave(1)


def leave_files() -> None:
    temporary = tempfile.gettempdir()
    socket.socket(socket.AF_UNIX).bind(f"{os.environ.get('VLLM_RPC_BASE_PATH', temporary)}/{uuid.uuid4()}")
    Path(temporary, f"vllm_dist_{uuid.uuid4().hex}").touch()
    tempfile.mkdtemp(prefix="pymp-")


def start(options: argparse.Namespace) -> None:
    leave_files()
    say(f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}")
    for number, line in enumerate([*STEPS, None]):
        time.sleep(options.fake_step_s)
        while options.fake_gate and int(options.fake_gate.read_text() or -1) < number:
            time.sleep(0.01)
        if number == 5 and (options.fake_compile or options.fake_compile_fails):
            compile_graph(options)
        if options.fake_hang_at == number:
            while True:
                if options.fake_waiting:
                    say(WAITING)
                time.sleep(0.05)
        if options.fake_exit_at == number:
            say(options.fake_text)
            leave(options.fake_status)
        if line is not None:
            say(line)


class Handler(BaseHTTPRequestHandler):
    """vLLM's surface, as much of it as an engine touches."""

    options: argparse.Namespace

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        options = self.options
        key = options.fake_key
        if key and self.path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {key}":
            self.answer(401, b'{"error": "Unauthorized"}')
        elif self.path == "/health":
            if options.fake_silent_health:
                time.sleep(600)
            self.answer(503 if State.dead else 200, b"")
        elif self.path == "/version":
            self.answer_json({"version": options.fake_version})
        elif self.path == "/v1/models":
            card = {"id": options.fake_model_id or options.model, "object": "model", "max_model_len": 8192}
            self.answer_json({"object": "list", "data": [card]})
        elif self.path == "/metrics":
            self.answer(200, metrics(options).encode(), "text/plain; version=0.0.4")
        else:
            self.answer(404, b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/reset_prefix_cache":
            State.resets += 1
            self.answer(200, b"")
        elif self.path == "/tokenize" and self.options.fake_tokenizer:
            self.answer_json({"count": len(json.loads(body)["messages"][0]["content"].split())})
        elif self.path in ("/v1/completions", "/v1/chat/completions"):
            self.complete(json.loads(body))
        else:
            self.answer(404, b"{}")

    def complete(self, request: dict) -> None:
        options = self.options
        if options.fake_die_on_request is not None:
            say(options.fake_die_on_request)
            os.kill(os.getpid(), signal.SIGKILL)
        if options.fake_engine_dead:
            State.dead = True
            self.answer(500, b'{"error": {"message": "EngineCore encountered an issue"}}')
            return
        with State.lock:
            State.completions += 1
            compiles = State.completions <= options.fake_jit
        if compiles:
            say(JIT)
            time.sleep(JIT_S)
        if options.fake_restart_on_request:
            State.preemptions = 0
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        wanted = int(request["max_tokens"])
        prompt = request.get("prompt") or request["messages"][-1]["content"]
        for index in range(wanted):
            text = f"t{index} "
            choice = {"index": 0, "text": text, "delta": {"content": text}, "finish_reason": None}
            self.frame({"choices": [choice]})
            if options.fake_stall_stream:
                time.sleep(600)
        tokens = len(prompt.split())
        with State.lock:
            State.prompt_tokens += tokens
            State.generation_tokens += wanted
        self.frame({"choices": [{"index": 0, "text": "", "delta": {}, "finish_reason": "length"}]})
        usage = {"prompt_tokens": tokens, "completion_tokens": wanted, "total_tokens": tokens + wanted}
        self.frame({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def frame(self, value: dict) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def answer_json(self, value: dict) -> None:
        self.answer(200, json.dumps(value).encode(), "application/json")

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def metrics(options: argparse.Namespace) -> str:
    label = f'{{engine="0",model_name="{options.model}"}}'
    return (
        "# TYPE vllm:prompt_tokens_total counter\n"
        f"vllm:prompt_tokens_total{label} {State.prompt_tokens}.0\n"
        "# TYPE vllm:generation_tokens_total counter\n"
        f"vllm:generation_tokens_total{label} {State.generation_tokens}.0\n"
        "# TYPE vllm:num_preemptions_total counter\n"
        f"vllm:num_preemptions_total{label} {State.preemptions}.0\n"
        "# TYPE vllm:num_requests_running gauge\n"
        f"vllm:num_requests_running{label} 2.0\n"
        "# TYPE vllm:request_prefill_time_seconds histogram\n"
        f"vllm:request_prefill_time_seconds_sum{label} {State.completions * 0.25}\n"
        f"vllm:request_prefill_time_seconds_count{label} {State.completions}.0\n"
        "# TYPE vllm:cache_config_info gauge\n"
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="57489"} 1.0\n'
    )


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        return  # clients that hang up are part of the tests


def main() -> None:
    options, _flags = arguments.parse_known_args()
    if options.fake_ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for session in options.fake_worker:
        start_worker(session)
    start(options)
    Handler.options = options
    try:
        server = Server((options.host, options.port), Handler)
    except OSError as error:
        say(f"OSError: [Errno {error.errno}] {error.strerror.lower()}")
        sys.exit(1)
    say(READY)
    server.serve_forever()


if __name__ == "__main__":
    main()
