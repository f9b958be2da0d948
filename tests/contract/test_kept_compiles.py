"""Compiled code across servers: kept, replaced once when it is damaged, never shared between two that run at once."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_process_engine import level

from autotune.engine.base import LaunchFailed, LaunchPlan, ServerDied
from autotune.engine.command import parse_command
from autotune.engine.compile_cache import CompileCaches, is_cured
from autotune.engine.process import ProcessEngine, ProcessSettings
from autotune.engine.process_server import LoadSettings, ProcessServer
from autotune.load.workloads import Api
from autotune.records import CompileStart, Config, FailureClass

FAKE_VLLM = Path(__file__).parent / "fake_vllm.py"
FAKE = shlex.join([sys.executable, "-I", "-S", str(FAKE_VLLM), "serve"])
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "TRITON_", "TORCH"))}


def caches_in(directory: Path, environ: dict[str, str] = PLAIN) -> CompileCaches:
    return CompileCaches.of(directory, version="0.25.1", command="/bin/vllm", node="1xH200", environ=environ)


class Bench:
    """An engine with a cache of its own."""

    def __init__(self, directory: Path, environ: dict[str, str] | None = None) -> None:
        self.directory, self.environ = directory, PLAIN | (environ or {})
        self.caches = caches_in(directory / "cache", self.environ)
        self.engine = self.make_engine()

    def make_engine(self) -> ProcessEngine:
        settings = ProcessSettings(
            command=parse_command(FAKE, source="test"),
            load=LoadSettings(api=Api.CHAT),
            grace_s=0.5,
            environ=self.environ,
            caches=self.caches,
        )
        return ProcessEngine(settings)

    async def launch(self, *extra: str, seqs: int = 1) -> ProcessServer:
        plan = LaunchPlan(
            model="tiny",
            config=Config.of({"max-num-seqs": seqs}),
            gpu_indices=(),
            extra_args=extra,
            directory=self.directory,
            start_deadline_s=600,
            stall_deadline_s=600,
        )
        return await self.engine.launch(plan, on_identity=lambda _: None, on_milestone=lambda _: None)

    async def start(self, *extra: str, seqs: int = 1) -> CompileStart | None:
        server = await self.launch(*extra, seqs=seqs)
        await server.stop()
        return server.facts.compile_start

    async def fail(self, *extra: str, seqs: int = 1) -> LaunchFailed:
        with pytest.raises(LaunchFailed) as caught:
            await self.launch(*extra, seqs=seqs)
        return caught.value

    def graph(self, slot: str = "slot-0") -> Path:
        return self.caches.root / slot / "vllm" / "torch_compile_cache" / "ab" / "graph"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_the_second_server_finds_what_the_first_compiled(bench: Bench) -> None:
    assert await bench.start("--fake-compile") is CompileStart.COLD
    assert await bench.start("--fake-compile", seqs=2) is CompileStart.WARM
    bench.engine = bench.make_engine()  # another study
    assert await bench.start("--fake-compile") is CompileStart.WARM


async def test_a_damaged_cache_is_replaced_and_kept_for_a_look(bench: Bench) -> None:
    await bench.start("--fake-compile")
    bench.graph().write_text("a comp")
    failure = (await bench.fail("--fake-compile")).failure
    assert failure.kind is FailureClass.COMPILE_CACHE
    assert is_cured(failure)
    assert bench.graph("slot-0.replaced").read_text() == "a comp"
    assert await bench.start("--fake-compile") is CompileStart.COLD
    assert await bench.start("--fake-compile") is CompileStart.WARM


async def test_a_config_has_its_cache_replaced_only_once(bench: Bench) -> None:
    await bench.start("--fake-compile")
    bench.graph().write_text("a comp")
    assert is_cured((await bench.fail("--fake-compile")).failure)
    await bench.start("--fake-compile")
    bench.graph().write_text("again")
    failure = (await bench.fail("--fake-compile")).failure
    assert failure.kind is FailureClass.COMPILE_FAILED
    assert "enforce-eager" in failure.remedies[0]
    assert bench.graph().read_text() == "again", "left alone"
    assert is_cured((await bench.fail("--fake-compile", seqs=2)).failure), "another config has its own chance"
    assert bench.graph("slot-0.replaced").read_text() == "again", "one generation is kept"


async def test_an_empty_cache_cannot_be_at_fault(bench: Bench) -> None:
    failure = (await bench.fail("--fake-compile-fails")).failure
    assert failure.kind is FailureClass.COMPILE_FAILED
    assert "InductorError" in str(failure.line)
    assert not is_cured(failure)


async def test_damage_found_under_load_is_replaced_after_the_stop(bench: Bench) -> None:
    await bench.start("--fake-compile")
    text = (
        "ERROR 08-29 10:00:00 [core.py:1100] Traceback (most recent call last):\n"
        'ERROR 08-29 10:00:00 [core.py:1100]   File "/site-packages/triton/runtime/cache.py", line 69, in get_group\n'
        "ERROR 08-29 10:00:00 [core.py:1100] json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n"
        "ERROR 08-29 10:00:00 [core.py:1100] EngineCore encountered a fatal error."
    )
    server = await bench.launch("--fake-die-on-request", text)
    made, planned = level()
    try:
        with pytest.raises(ServerDied) as caught:
            await server.drive(made, planned, deadline_s=300)
        assert is_cured(caught.value.failure)
        assert bench.graph().exists(), "not while something may still run"
    finally:
        await server.stop()
    assert not bench.graph().exists()
    assert bench.graph("slot-0.replaced").exists()


async def test_two_servers_at_once_have_a_cache_each(bench: Bench) -> None:
    first = await bench.launch("--fake-compile")
    try:
        assert await bench.start("--fake-compile") is CompileStart.COLD
        assert bench.graph("slot-1").exists()
    finally:
        await first.stop()
    assert await bench.start("--fake-compile") is CompileStart.WARM
    assert not (bench.caches.root / "slot-2").exists()


async def test_the_operators_cache_is_used_and_never_touched(tmp_path: Path) -> None:
    own = tmp_path / "own"
    bench = Bench(tmp_path, {"VLLM_CACHE_ROOT": str(own)})
    graph = own / "torch_compile_cache" / "ab" / "graph"
    assert await bench.start("--fake-compile") is CompileStart.COLD
    graph.write_text("damaged")
    failure = (await bench.fail("--fake-compile")).failure
    assert failure.kind is FailureClass.COMPILE_CACHE
    assert not is_cured(failure)
    assert graph.read_text() == "damaged"
    assert not bench.caches.root.exists()


HOLD = """
import os, sys, time
from pathlib import Path
from autotune.engine.compile_cache import CompileCaches
lease = CompileCaches(Path(sys.argv[1]), {}).take({})
if os.fork() == 0:
    time.sleep(600)
print(lease.env["VLLM_CACHE_ROOT"], flush=True)
time.sleep(600)
"""


def test_a_slot_is_held_as_long_as_the_keeper_of_a_killed_tuner_runs(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as tuner:
        try:
            assert tuner.stdout is not None
            assert "slot-0" in tuner.stdout.readline()
            tuner.kill()
            tuner.wait()
            lease = CompileCaches(root, {}).take({})
            assert lease is not None
            assert "slot-1" in lease.env["VLLM_CACHE_ROOT"]
            lease.release()
        finally:
            os.killpg(tuner.pid, signal.SIGKILL)
    until = time.monotonic() + 120
    while "slot-1" in (taken := _slot_of(root)) and time.monotonic() < until:
        time.sleep(0.02)
    assert "slot-0" in taken


def _slot_of(root: Path) -> str:
    lease = CompileCaches(root, {}).take({})
    assert lease is not None
    found = lease.env["VLLM_CACHE_ROOT"]
    lease.release()
    return found
