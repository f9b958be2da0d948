"""The start of the simulated server: what it logs, in which order, and how it fails."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from autotune.errors import InvalidFile, InvalidOption, UnknownName
from autotune.node.defaults import ResolvedSettings, resolve
from autotune.node.gpus import parse_node_name
from autotune.node.memory import MemoryEstimate, estimate, kv_tokens_from_bytes
from autotune.node.model_shape import load_shape
from autotune.records import FailureClass, ModelShape, Node
from autotune.simulator import start_checks
from autotune.simulator.server_args import VERSION, ServerOptions
from autotune.simulator.server_faults import Fault, Milestone
from autotune.simulator.server_log import API_SERVER, ServerLog
from autotune.simulator.start_checks import StartProblem
from autotune.units import gib

FAILED = 1
"""Exit status of every start that fails after the command line was accepted."""

FLOOD = (
    "\x00\x1b[2K"
    + "".join(f"Loading: {n / 10:4.1f}%|{'#' * 20}| {n}/1000 [00:01<00:05, 1.20it/s]\r" for n in range(1000)) * 16
)
"""A mebibyte of a bar that is drawn again and again, without a line feed."""

ORPHAN_SECONDS = 900
"""A process left behind on purpose ends by itself after this long."""

_PAUSES = 6


class StartRefused(Exception):
    """The start failed and everything is logged; `status` is what the process ends with."""

    def __init__(self, status: int = FAILED) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What a successful start settled. `kv_tokens` is one replica's."""

    node: Node
    shape: ModelShape
    settings: ResolvedSettings
    kv_tokens: int


@dataclass(slots=True)
class Starter:
    """Walks through the start; `sleep` lets time pass between its steps."""

    options: ServerOptions
    log: ServerLog
    sleep: Callable[[float], None] = time.sleep

    def run(self) -> Started:
        """Log the start up to a ready engine.

        Raises:
            StartRefused: the start failed; the log says why, as vLLM would.
        """
        options, log = self.options, self.log
        self._banner()
        self._reach(Milestone.BANNER)
        node, shape, settings = self._resolve()
        problem = start_checks.config_problem(node, shape, settings)
        if problem is not None:
            self._fail(problem)
        log.info("model.py:619", f"Resolved architecture: {shape.architecture}")
        log.info("model.py:1776", f"Using max model len {settings.max_model_len}")
        if settings.chunked_prefill:
            tokens = settings.max_num_batched_tokens
            log.info("scheduler.py:252", f"Chunked prefill is enabled with max_num_batched_tokens={tokens}.")
        log.info(
            "vllm.py:1042", f"Asynchronous scheduling is {'enabled' if settings.async_scheduling else 'disabled'}."
        )
        self._engine(settings)
        self._reach(Milestone.ENGINE)
        memory = self._memory(node, shape, settings)
        problem = self._environment(node, settings) or start_checks.memory_problem(node, shape, settings, memory)
        if problem is not None and not problem.after_weights:
            self._fail(problem)
        self._weights(memory)
        self._reach(Milestone.WEIGHTS)
        self._profile(node, settings, memory)
        if problem is not None and problem.failure is not FailureClass.OOM_AT_WARMUP:
            self._fail(problem)
        for process in self._engine_names(settings):
            log.info("kv_cache_utils.py:2146", f"GPU KV cache size: {memory.kv_tokens:,} tokens", process)
            log.info(
                "kv_cache_utils.py:2147",
                f"Maximum concurrency for {settings.max_model_len:,} tokens per request: {memory.max_concurrency:.2f}x",
                process,
            )
        self._reach(Milestone.KV)
        if problem is not None:
            self._fail(problem)
        self._graphs(settings)
        self._reach(Milestone.GRAPHS)
        log.info("api_server.py:612", "Supported tasks: ['generate']")
        log.info("api_server.py:616", f"Starting vLLM server on http://{options.host or '*'}:{options.port}")
        self._reach(Milestone.READY)
        return Started(node=node, shape=shape, settings=settings, kv_tokens=memory.kv_tokens)

    def _banner(self) -> None:
        log, options = self.log, self.options
        art = (
            "       █     █     █▄   ▄█",
            " ▄▄ ▄█ █     █     █ ▀▄▀ █",
            "  █▄█▀ █     █     █     █",
            "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
        )
        notes = ("", f"  version {VERSION}", f"  model   {options.model}", "")
        log.info("api_utils.py:339", "\n".join(["", *(a + n for a, n in zip(art, notes, strict=True)), ""]))
        given = {name: _redacted(name, value) for name, value in options.given}
        log.info("api_utils.py:273", f"non-default args: {given}")
        if Fault.GARBAGE_LOG in options.faults:
            log.stream.flush()
            os.write(
                log.stream.fileno(),
                b"\x00\x07\xff\xfe half a \xe2\x82 sign \x1b[36m(RayWorker pid=1)\x1b[0m \x1b]0;t\x07\n",
            )
            log.raw("Loading: 10%|#   | 1/10\rLoading: 50%|#### | 5/10\rLoading: 90%|######## | 9/10")
        for _ in range(options.faults.count(Fault.FLOOD_LOG, 100) or 0):
            log.raw(FLOOD)

    def _resolve(self) -> tuple[Node, ModelShape, ResolvedSettings]:
        options, faults = self.options, self.options.faults
        model = options.model
        if Fault.GATED in faults or Fault.LICENCE in faults:
            status, why = (401, "Unauthorized") if Fault.GATED in faults else (403, "Forbidden")
            self.log.traceback(
                f"huggingface_hub.errors.GatedRepoError: {status} Client Error. (Request ID: Root=1-0)\n\n"
                f"Cannot access gated repo for url https://huggingface.co/{model}/resolve/main/config.json.\n"
                f"{why}: Access to model {model} is restricted."
            )
            raise StartRefused
        try:
            if Fault.MODEL_UNKNOWN in faults:
                raise UnknownName("model", model, ())
            node = parse_node_name(options.node)
            shape = load_shape(model)
            return node, shape, resolve(options.config, node, shape, VERSION)
        except UnknownName as error:
            if error.kind != "model":
                self.log.traceback(f"ValueError: {error.message}")
                raise StartRefused from error
            self.log.traceback(
                f"OSError: {model} is not a local folder and is not a valid model identifier listed on "
                "'https://huggingface.co/models'\nIf this is a private repository, make sure to pass a token having "
                "permission to this repo either by logging in with `hf auth login` or by passing `token=<your_token>`"
            )
            raise StartRefused from error
        except (InvalidFile, InvalidOption) as error:
            self.log.traceback(f"ValueError: {error.message}")
            raise StartRefused from error

    def _memory(self, node: Node, shape: ModelShape, settings: ResolvedSettings) -> MemoryEstimate:
        memory = estimate(shape, node.gpus[0], settings)
        fixed = self.options.kv_cache_memory_bytes
        if fixed is None:
            return memory
        tokens = kv_tokens_from_bytes(shape, settings, fixed)
        per = tokens / settings.max_model_len
        return replace(memory, available_kv_bytes=fixed, kv_tokens=tokens, max_concurrency=per)

    def _environment(self, node: Node, settings: ResolvedSettings) -> StartProblem | None:
        """Problems that were asked for: the machine's, not the config's."""
        faults, gpu = self.options.faults, node.gpus[0]
        if Fault.GPU_BUSY in faults:
            return start_checks.busy_problem(gpu, settings, 0.25 * gpu.memory_bytes)
        if Fault.OOM_AT_LOAD in faults:
            return start_checks.load_problem(gpu, 0)
        if Fault.OOM_AT_WARMUP in faults:
            return start_checks.warmup_problem(settings)
        for fault, (failure, exception, message) in _ENVIRONMENT.items():
            if fault in faults:
                return StartProblem(failure=failure, exception=exception, message=message, in_engine=True)
        return None

    def _engine(self, settings: ResolvedSettings) -> None:
        options = self.options
        text = (
            f"Initializing a V1 LLM engine (v{VERSION}) with config: model={options.model!r}, speculative_config=None, "
            f"tokenizer={options.model!r}, trust_remote_code={options.trust_remote_code}, "
            f"dtype=torch.{settings.dtype}, "
            f"max_seq_len={settings.max_model_len}, load_format={options.load_format}, "
            f"tensor_parallel_size={settings.tensor_parallel}, pipeline_parallel_size={settings.pipeline_parallel}, "
            f"data_parallel_size={settings.data_parallel}, quantization={settings.quantization}, "
            f"enforce_eager={settings.enforce_eager}, "
            f"kv_cache_dtype={settings.kv_cache_dtype}, device_config=cuda, seed={options.seed}, "
            f"served_model_name={options.served_name}, enable_prefix_caching={settings.prefix_caching}, "
            f"enable_chunked_prefill={settings.chunked_prefill}"
        )
        for rank, process in enumerate(self._engine_names(settings)):
            self.log.info("core.py:114", text, process)
            self.log.info(
                "parallel_state.py:1942",
                f"rank 0 in world size {settings.gpus} is assigned as DP rank {rank}, PP rank 0, PCP rank 0, TP rank "
                "0, "
                "EP rank N/A, EPLB rank N/A",
                process,
            )
            self.log.info("model_runner.py:281", "Loading model from scratch...", process)
        if Fault.ORPHAN in options.faults or Fault.ORPHAN_SESSION in options.faults:
            leave_orphan(new_session=Fault.ORPHAN_SESSION in options.faults)
        if Fault.WORKER in options.faults or Fault.WORKER_SESSION in options.faults:
            leave_worker(new_session=Fault.WORKER_SESSION in options.faults)

    def _weights(self, memory: MemoryEstimate) -> None:
        process = "EngineCore"
        self.log.info(
            "cuda.py:476", "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].", process
        )
        took = max(self.options.start_s / _PAUSES, 0.01)
        weights = f"{gib(memory.weights_bytes_per_gpu):.2f}"
        self.log.info("model_runner.py:302", f"Model loading took {weights} GiB and {took:.6f} seconds", process)

    def _profile(self, node: Node, settings: ResolvedSettings, memory: MemoryEstimate) -> None:
        log, process = self.log, "EngineCore"
        if not settings.enforce_eager:
            log.info("backends.py:1148", "Dynamo bytecode transform time: 0.10 s", process)
            log.info("monitor.py:53", "torch.compile took 0.20 s in total", process)
        gpu = node.gpus[0]
        wanted = settings.gpu_memory_utilization * gpu.memory_bytes
        free = gpu.memory_bytes - start_checks.context_bytes(gpu)
        log.info(
            "gpu_worker.py:526",
            f"Initial free memory: {gib(free):.2f} GiB; Requested memory: {settings.gpu_memory_utilization:.6f} "
            "(util), "
            f"{gib(wanted):.2f} GiB",
            process,
        )
        log.info(
            "gpu_worker.py:537",
            f"Memory profiling takes 0.30 seconds. Total non KV cache memory: "
            f"{gib(wanted - memory.available_kv_bytes):.2f}GiB; torch peak memory increase: "
            f"{gib(memory.activation_peak_bytes):.2f}GiB; non-torch forward increase memory: 0.22GiB; weights memory: "
            f"{gib(memory.weights_bytes_per_gpu):.2f}GiB.",
            process,
        )
        log.info("gpu_worker.py:538", f"Available KV cache memory: {gib(memory.available_kv_bytes):.2f} GiB", process)

    def _graphs(self, settings: ResolvedSettings) -> None:
        log, process = self.log, "EngineCore"
        if not settings.enforce_eager:
            bars = "\r".join(f"Capturing CUDA graphs (FULL): {n * 2}%|{'█' * (n // 10)}| {n}/51" for n in (10, 30, 51))
            log.raw(f"({process} pid={log.pid}) {bars}\n")
            log.info("model_runner.py:722", "Graph capturing finished in 1 secs, took 0.98 GiB", process)
        took = max(self.options.start_s, 0.01)
        log.info(
            "core.py:337",
            f"init engine (profile, create kv cache, warmup model) took {took:.2f} s (compilation: 0.20 s)",
            process,
        )

    def _fail(self, problem: StartProblem) -> NoReturn:
        cause = f"{problem.exception}: {problem.message}"
        if problem.in_engine:
            self.log.error_traceback("core.py:1231", "EngineCore failed to start.", cause, "EngineCore")
            self.log.plain("Process EngineCore:", "EngineCore")
            self.log.traceback(cause, "EngineCore")
            cause = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
        self.log.traceback(cause, API_SERVER)
        raise StartRefused

    def _reach(self, milestone: Milestone) -> None:
        """A milestone is passed: let its share of the start's time go by, and do what a fault asks for here."""
        faults = self.options.faults
        self.sleep(self.options.start_s / _PAUSES)
        if faults.at(Fault.EXIT_AT) is milestone:
            raise StartRefused
        if faults.at(Fault.CRASH_AT) is milestone:
            os.kill(os.getpid(), signal.SIGSEGV)
        while faults.at(Fault.HANG_AT) is milestone:
            self.sleep(3600.0)
        while faults.at(Fault.WAITING_AT) is milestone:
            self.log.line("DEBUG", "utils.py:1104", "Waiting for 1 local, 0 remote core engine proc(s) to start.")
            self.sleep(0.2)

    @staticmethod
    def _engine_names(settings: ResolvedSettings) -> list[str]:
        if settings.data_parallel == 1:
            return ["EngineCore"]
        return [f"EngineCore_DP{rank}" for rank in range(settings.data_parallel)]


_ENVIRONMENT: dict[Fault, tuple[FailureClass, str, str]] = {
    Fault.NCCL: (
        FailureClass.NCCL,
        "torch.distributed.DistBackendError",
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled system error (run with "
        "NCCL_DEBUG=INFO "
        "for details), NCCL version 2.28.9\nncclSystemError: System call (e.g. socket, malloc) or external library "
        "call "
        "failed or device error.",
    ),
    Fault.SHARED_MEMORY: (
        FailureClass.SHARED_MEMORY,
        "torch.distributed.DistBackendError",
        "NCCL error: unhandled system error, NCCL version 2.28.9\nLast error:\nError while creating shared memory "
        "segment "
        "/dev/shm/nccl-Xq1bZd (size 9637888), error: No space left on device (28)",
    ),
    Fault.DRIVER: (
        FailureClass.DRIVER,
        "RuntimeError",
        "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver.",
    ),
    Fault.MISSING_DEPENDENCY: (FailureClass.MISSING_DEPENDENCY, "ModuleNotFoundError", "No module named 'flashinfer'"),
    Fault.COMPILE_CACHE: (
        FailureClass.COMPILE_CACHE,
        "torch._inductor.exc.InductorError",
        "FileNotFoundError: [Errno 2] No such file or directory: '/root/.cache/vllm/torch_compile_cache/5ddd0287ca/"
        "rank_0_0/backbone/vllm_compile_cache.py'",
    ),
}


def leave_orphan(*, new_session: bool) -> int:
    """Start a process that looks like a vLLM worker and that nobody stops; its pid.

    `sleep` under another name: the first word of its command line is what a process list shows.
    """
    program = shutil.which("sleep") or "/bin/sleep"
    argv = ["VLLM::Worker_TP0", str(ORPHAN_SECONDS)]
    return os.posix_spawn(program, argv, os.environ, setsid=new_session)


def leave_worker(*, new_session: bool) -> int:
    """Fork a worker that re-titles itself as vLLM's do and is deaf to TERM; its pid."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if new_session:
            os.setsid()
        retitle("VLLM::Worker_TP0")
        os.write(told, b".")
        time.sleep(ORPHAN_SECONDS)
        os._exit(0)
    os.read(ready, 1)
    os.close(ready)
    os.close(told)
    return pid


def retitle(title: str) -> None:
    """Do to this process what setproctitle does, by which vLLM re-titles its processes.

    The title is written over the memory of arguments and environment, so /proc/PID/environ shows nothing any more;
    with SPT_NOENV in the environment (setproctitle's src/spt_setup.c) the arguments alone are overwritten.
    """
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, arguments_end, _, environment_end = (int(field) for field in fields[45:49])  # proc(5), fields 48 to 51
    end = arguments_end if os.environ.get("SPT_NOENV") else environment_end
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, title.encode(), min(len(title), end - start - 1))


def _redacted(name: str, value: object) -> object:
    return "***" if name == "api_key" else value
