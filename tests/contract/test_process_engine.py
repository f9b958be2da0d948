"""What only processes can do wrong: hang, lie, orphan, ignore TERM, lose the port, keep GPU memory, be interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from autotune.engine import process_server, sampling
from autotune.engine.base import LaunchFailed, LaunchPlan, Milestone, ServerDied, ServerIdentity
from autotune.engine.command import parse_command
from autotune.engine.gpu_memory import GpuGuard
from autotune.engine.holding import NodeHold
from autotune.engine.ports import Ports
from autotune.engine.process import ProcessEngine, ProcessSettings
from autotune.engine.process_server import LoadSettings, ProcessServer
from autotune.errors import StorageError, VllmCommandError
from autotune.load.workloads import Api, load_workload
from autotune.node.gpu_load import ClockLimit, GpuLoad
from autotune.node.leases import NodeLeases, ResourceKind, gpu_resource, this_process
from autotune.node.probe import FakeGpuProbe, ProbedGpu
from autotune.records import Arrivals, Config, FailureClass, Gpu, LevelRole, LoadLevel, LoadPlan, Phase, PlannedRequest
from autotune.trial import TrialOrder, run_trial
from autotune.units import GIB

FAKE_VLLM = Path(__file__).parent / "fake_vllm.py"
FAKE = shlex.join([sys.executable, "-I", "-S", str(FAKE_VLLM), "serve"])
NO_KEY = {name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}
NothingLeft = Callable[..., bool]
Carrying = Callable[[str], list[int]]


HANG_S = 120.0
"""What hangs reaches it, and nothing that is slow."""


class Clock:
    """The engine's time, which a test moves on: what stands still is overdue as soon as it is known to stand still."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


def below(folder: Path) -> list[str]:
    """Everything that is there."""
    return sorted(str(path) for path in folder.rglob("*"))


@dataclass
class Bench:
    """One engine over the fake server, and everything it told while launching."""

    directory: Path
    command: str = FAKE
    probe: FakeGpuProbe | None = None
    ports: Ports = field(default_factory=Ports)
    hold: NodeHold | None = None
    memory_deadline_s: float = 0.3
    grace_s: float = 0.5
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    api_key_env: str | None = None
    identities: list[ServerIdentity] = field(default_factory=list)
    milestones: list[Milestone] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    after: dict[str, Callable[[], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings = ProcessSettings(
            command=parse_command(self.command, source="test"),
            load=LoadSettings(api=Api.CHAT, api_key_env=self.api_key_env),
            grace_s=self.grace_s,
            memory_deadline_s=self.memory_deadline_s,
            environ=self.environ,
        )
        self.engine = ProcessEngine(
            settings, guard=GpuGuard(self.probe), ports=self.ports, hold=self.hold, now=self.clock
        )

    def told(self, milestone: Milestone) -> None:
        self.milestones.append(milestone)
        if milestone.name in self.after:  # when the engine has taken in what it knows
            asyncio.get_running_loop().call_soon(self.after[milestone.name])

    def leap(self, seconds: float, gate: Path | None = None, step: int = 0) -> Callable[[], None]:
        """For `after`: so much time passes, and then a server's gate is opened up to a step."""

        def leaping() -> None:
            self.clock.ahead_s += seconds
            if gate is not None:
                gate.write_text(str(step))

        return leaping

    async def launch(
        self,
        *extra: str,
        gpus: tuple[int, ...] = (),
        start_s: float = 10 * HANG_S,
        stall_s: float = HANG_S,
        **config: object,
    ) -> ProcessServer:
        plan = LaunchPlan(
            model="tiny",
            config=Config.of(config),
            gpu_indices=gpus,
            extra_args=extra,
            directory=self.directory,
            start_deadline_s=start_s,
            stall_deadline_s=stall_s,
        )
        return await self.engine.launch(plan, on_identity=self.identities.append, on_milestone=self.told)

    @contextlib.asynccontextmanager
    async def server(self, *extra: str, **config: object) -> AsyncIterator[ProcessServer]:
        server = await self.launch(*extra, **config)
        try:
            yield server
        finally:
            await server.stop()

    @property
    def marker(self) -> str:
        return self.identities[-1].marker


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def environ_of(bench: Bench) -> bytes:
    return Path(f"/proc/{bench.identities[-1].pgid}/environ").read_bytes()


def level(requests: int = 4, output_tokens: int = 3) -> tuple[LoadLevel, list[PlannedRequest]]:
    planned = [
        PlannedRequest(index=i, prompt_tokens=20, output_tokens=output_tokens, content_seed=i) for i in range(requests)
    ]
    made = LoadLevel(
        name="x", role=LevelRole.EXTRA, arrivals=Arrivals.CLOSED, requests=requests, seed=0, concurrency=requests
    )
    return made, planned


async def test_identity_comes_before_the_server_and_again_with_its_group(bench: Bench, carrying: Carrying) -> None:
    async with bench.server() as server:
        first, second = bench.identities
        assert first.pgid is None
        assert second == replace(first, pgid=second.pgid, folder=second.folder, grace_s=bench.grace_s)
        assert carrying(bench.marker) == sorted([second.pid, second.pgid])
        assert [m.name for m in bench.milestones][:2] == ["process started", "arguments parsed"]
        assert server.argv[:5] == (*shlex.split(FAKE)[:4], "serve")
    assert carrying(bench.marker) == []


async def test_the_log_of_an_earlier_attempt_says_nothing_about_this_one(bench: Bench) -> None:
    async with bench.server():
        pass
    bench.milestones.clear()
    bench.after["process started"] = bench.leap(2 * HANG_S)
    with pytest.raises(LaunchFailed) as caught:
        await bench.launch("--fake-hang-at", "1")
    assert caught.value.failure.kind is FailureClass.HANG
    assert [milestone.name for milestone in bench.milestones] == ["process started"]


async def test_facts_come_from_log_and_http(bench: Bench) -> None:
    async with bench.server("--fake-version", "0.26.0") as server:
        facts = server.facts
        assert facts.vllm_version == "0.26.0"
        assert facts.kv_cache_tokens == 919_824
        assert facts.max_concurrency == 112.28
        assert facts.max_model_len == 8192
        assert facts.startup_s is not None
        assert not facts.simulated


async def test_a_simulated_server_is_marked(bench: Bench) -> None:
    async with bench.server("--fake-version", "0.25.1+simulated") as server:
        assert server.facts.simulated


async def test_a_tokenizer_that_did_not_answer_is_asked_again(bench: Bench) -> None:
    async with bench.server() as server:
        assert [caveat.code for caveat in server.caveats] == ["uncalibrated"]
    async with bench.server("--fake-tokenizer") as server:
        assert server.caveats == ()
    async with bench.server() as server:  # the study knows by now
        assert server.caveats == ()


async def test_environment_of_the_server(bench: Bench, tmp_path: Path) -> None:
    bench = Bench(tmp_path, environ={**os.environ, "HF_TOKEN": "hf_notarealtokenatall", "CUDA_VISIBLE_DEVICES": "7"})
    config = {"env:VLLM_CPU_KVCACHE_SPACE": 1, "max-num-seqs": 4}
    async with bench.server("--api-key", "sesame", gpus=(1, 3), **config) as server:
        environ = environ_of(bench).decode().split("\0")
        assert {
            "CUDA_VISIBLE_DEVICES=1,3",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
            "VLLM_CPU_KVCACHE_SPACE=1",
            "SPT_NOENV=1",
            "HF_TOKEN=hf_notarealtokenatall",
        } <= set(environ)
        assert server.argv[-4:] == (server.argv[-4], server.argv[-3], "--api-key", "<redacted>")
        assert "--max-num-seqs" in server.argv
    assert "hf_notarealtokenatall" not in (tmp_path / "server.log").read_text()


async def test_without_gpus_nothing_is_hidden(tmp_path: Path) -> None:
    bench = Bench(tmp_path, environ={k: v for k, v in os.environ.items() if not k.startswith("CUDA")})
    async with bench.server():
        environ = environ_of(bench)
        assert b"CUDA_VISIBLE_DEVICES" not in environ


@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.", 1, FailureClass.OOM_AT_LOAD),
        ("vllm: error: unrecognized arguments: --nonsense", 2, FailureClass.INVALID_FLAG),
        ("", -signal.SIGBUS, FailureClass.SHARED_MEMORY),
        ("", 1, FailureClass.CRASH),
        ("", 0, FailureClass.CRASH),
    ],
)
async def test_a_start_that_ends(
    bench: Bench, nothing_left: NothingLeft, text: str, status: int, kind: FailureClass
) -> None:
    words = ("--fake-exit-at", "4", "--fake-text", text, f"--fake-status={status}")
    with pytest.raises(LaunchFailed) as caught:
        await bench.launch(*words, "--fake-worker", "new", "--fake-worker", "same", "--api-key", "sesame")
    assert caught.value.failure.kind is kind
    assert caught.value.failure.exit_status == status
    assert caught.value.argv[-2:] == ("--api-key", "<redacted>")
    assert nothing_left(bench.marker, 0.0)


@pytest.mark.parametrize("words", [(), ("--fake-waiting",)], ids=["silent", "waiting for ever"])
async def test_a_hang_is_ended_by_missing_progress_not_by_missing_output(
    bench: Bench, nothing_left: NothingLeft, words: tuple[str, ...]
) -> None:
    bench.after["arguments parsed"] = bench.leap(2 * HANG_S)
    with pytest.raises(LaunchFailed) as caught:
        await bench.launch("--fake-hang-at", "3", "--fake-worker", "new", *words)
    assert caught.value.failure.kind is FailureClass.HANG
    assert "no progress" in str(dict(caught.value.failure.facts)["overdue"])
    assert nothing_left(bench.marker, 0.0)


async def test_progress_does_not_extend_the_start_deadline(bench: Bench, nothing_left: NothingLeft) -> None:
    gate = bench.directory / "gate"
    gate.write_text("1")
    bench.after["arguments parsed"] = bench.leap(0.6 * HANG_S, gate, 3)
    bench.after["engine core started"] = bench.leap(0.6 * HANG_S)
    with pytest.raises(LaunchFailed) as caught:
        await bench.launch("--fake-gate", str(gate), start_s=HANG_S)
    assert caught.value.failure.kind is FailureClass.HANG
    assert "start deadline" in str(dict(caught.value.failure.facts)["overdue"])
    assert nothing_left(bench.marker, 0.0)


async def test_a_slow_start_that_progresses_is_waited_for(bench: Bench) -> None:
    gate = bench.directory / "gate"
    gate.write_text("1")
    bench.after["arguments parsed"] = bench.leap(0.6 * HANG_S, gate, 3)
    bench.after["engine core started"] = bench.leap(0.6 * HANG_S, gate, 99)
    async with bench.server("--fake-gate", str(gate)):
        assert bench.milestones[-1].at_s > HANG_S  # and no single pause was as long


async def test_a_door_that_never_answers_is_a_hang(bench: Bench) -> None:
    bench.after["server ready"] = bench.leap(2 * HANG_S)
    with pytest.raises(LaunchFailed) as caught:
        await bench.launch("--fake-silent-health")
    assert caught.value.failure.kind is FailureClass.HANG


async def test_the_port_taken_by_another_server(tmp_path: Path, nothing_left: NothingLeft) -> None:
    """A stranger of the same kind, serving the same model, answers on our port before our server binds it."""
    first = Bench(tmp_path)
    async with first.server() as stranger:
        port = int(stranger.base_url.rsplit(":", 1)[1])
        (tmp_path / "second").mkdir()
        second = Bench(tmp_path / "second", ports=Ports(choose=lambda: port))
        with pytest.raises(LaunchFailed) as caught:
            await second.launch("--fake-step-s", "0.2")
        assert caught.value.failure.kind is FailureClass.PORT_IN_USE
        assert nothing_left(second.marker, 0.0)
        made, planned = level()
        assert all(r.error is None for r in (await stranger.drive(made, planned, deadline_s=HANG_S)).records)


async def test_the_port_taken_by_something_that_is_no_server(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bench = Bench(tmp_path, ports=Ports(choose=lambda: taken.getsockname()[1]))
        with pytest.raises(LaunchFailed) as caught:
            await bench.launch()
        assert caught.value.failure.kind is FailureClass.PORT_IN_USE
        assert "address already in use" in (caught.value.failure.line or "")


async def test_a_server_of_another_model(bench: Bench, nothing_left: NothingLeft) -> None:
    with pytest.raises(LaunchFailed, match="other-model"):
        await bench.launch("--fake-model-id", "other-model")
    assert nothing_left(bench.marker, 0.0)
    async with bench.server("--fake-model-id", "alias", "--served-model-name", "alias") as server:
        made, planned = level()
        assert (await server.drive(made, planned, deadline_s=HANG_S)).records[0].error is None


async def test_a_command_that_vanished(tmp_path: Path, nothing_left: NothingLeft) -> None:
    bench = Bench(tmp_path, command="/nonexistent/vllm serve")
    with pytest.raises(VllmCommandError, match="No such file"):
        await bench.launch()
    assert nothing_left(bench.marker)


async def test_a_command_that_is_no_openai_server(tmp_path: Path, nothing_left: NothingLeft) -> None:
    code = (
        "import http.server, sys\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200 if self.path == '/health' else 404); self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[2])), Handler).serve_forever()"
    )
    bench = Bench(tmp_path, command=shlex.join([sys.executable, "-I", "-S", "-c", code, "{model}", "{port}"]))
    with pytest.raises(VllmCommandError, match="has no /v1/models"):
        await bench.launch()
    assert nothing_left(bench.marker, 0.0)


async def test_a_key_that_is_missing_is_named(tmp_path: Path, nothing_left: NothingLeft) -> None:
    """A server of /v1/models that answers 401 is an OpenAI server; the remedy is the key, not another command."""
    bench = Bench(tmp_path, command=f"{FAKE} --fake-key sesame", api_key_env="VLLM_API_KEY", environ=NO_KEY)
    with pytest.raises(VllmCommandError, match="asks for an API key") as caught:
        await bench.launch()
    assert "VLLM_API_KEY" in caught.value.hint
    assert nothing_left(bench.marker, 0.0)


async def test_with_its_key_the_server_is_ready(tmp_path: Path) -> None:
    environ = NO_KEY | {"VLLM_API_KEY": "sesame"}
    bench = Bench(tmp_path, command=f"{FAKE} --fake-key sesame", api_key_env="VLLM_API_KEY", environ=environ)
    async with bench.server() as server:
        assert server.facts.max_model_len == 8192


async def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "missing")
    with pytest.raises(StorageError, match=r"server\.log"):
        await bench.launch()
    assert bench.identities == []


async def test_what_ignores_term_is_gone_after_the_grace(bench: Bench, nothing_left: NothingLeft) -> None:
    server = await bench.launch("--fake-ignore-term", "--fake-worker", "same", "--fake-worker", "new")
    took = await server.stop()
    assert 0.5 <= took < HANG_S
    assert nothing_left(bench.marker, 0.0)


async def test_a_server_that_died_leaving_orphans(bench: Bench, nothing_left: NothingLeft) -> None:
    server = await bench.launch("--fake-die-on-request", "Segmentation fault", "--fake-worker", "new")
    made, planned = level()
    with pytest.raises(ServerDied) as caught:
        await asyncio.wait_for(server.drive(made, planned, deadline_s=10 * HANG_S), HANG_S)
    assert caught.value.failure.exit_status == -signal.SIGKILL
    await server.stop()
    assert nothing_left(bench.marker, 0.0)


async def asked(server: ProcessServer, requests: int) -> None:
    """Once so many requests are with the server."""
    name = "vllm:request_prefill_time_seconds_count"
    async with asyncio.timeout(HANG_S):
        while True:
            text = await server._running.door.metrics() or ""
            if sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(name)) >= requests:
                return
            await asyncio.sleep(0.02)


async def test_death_in_mid_stream_ends_the_level_at_once(bench: Bench) -> None:
    server = await bench.launch("--fake-stall-stream")
    made, planned = level()
    driving = asyncio.create_task(server.drive(made, planned, deadline_s=10 * HANG_S))
    await asked(server, len(planned))
    group = bench.identities[-1].pgid
    assert group is not None
    os.kill(group, signal.SIGKILL)
    with pytest.raises(ServerDied) as caught:
        await asyncio.wait_for(driving, HANG_S)
    assert caught.value.failure.kind is FailureClass.CRASH
    assert len(caught.value.records) == 4
    assert all(record.error is not None for record in caught.value.records)
    await server.stop()


async def test_the_status_of_a_dead_server_is_waited_for_though_its_keeper_is_late(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_server, "EXIT_FOLLOWS_S", 0.01)
    server = await bench.launch("--fake-stall-stream")
    made, planned = level()
    driving = asyncio.create_task(server.drive(made, planned, deadline_s=10 * HANG_S))
    await asked(server, len(planned))
    keeper, identity, waits = server._running.keeper, bench.identities[-1], 0
    wait_exit = keeper.wait_exit

    async def waited() -> int | None:
        nonlocal waits
        waits += 1
        if waits == 2:  # the first wait is over, in which the keeper could tell nothing
            os.kill(identity.pid, signal.SIGCONT)
        return await wait_exit()

    monkeypatch.setattr(keeper, "wait_exit", waited)
    assert identity.pgid is not None
    os.kill(identity.pid, signal.SIGSTOP)
    os.kill(identity.pgid, signal.SIGKILL)
    with pytest.raises(ServerDied) as caught:
        await asyncio.wait_for(driving, HANG_S)
    assert (waits, caught.value.failure.exit_status) == (2, -signal.SIGKILL)
    await server.stop()


async def test_an_engine_dead_behind_its_api_server(bench: Bench, nothing_left: NothingLeft) -> None:
    server = await bench.launch("--fake-engine-dead")
    made, planned = level()
    with pytest.raises(ServerDied, match="stopped answering"):
        await server.drive(made, planned, deadline_s=10 * HANG_S)
    await server.stop()
    assert nothing_left(bench.marker, 0.0)


async def test_a_server_restarted_behind_its_port_is_no_measurement(bench: Bench) -> None:
    server = await bench.launch("--fake-restart-on-request")
    made, planned = level()
    with pytest.raises(ServerDied, match="counters went back") as caught:
        await server.drive(made, planned, deadline_s=HANG_S)
    assert caught.value.failure.kind is FailureClass.CRASH
    assert [record.error for record in caught.value.records] == [None] * 4
    await server.stop()


async def test_deadline_of_a_level_is_no_death(bench: Bench) -> None:
    async with bench.server("--fake-stall-stream") as server:
        made, planned = level()
        result = await server.drive(made, planned, deadline_s=1.0)
        assert {record.error for record in result.records} == {"deadline"}


async def test_counters_over_a_level_and_the_gauges_during_it(bench: Bench) -> None:
    async with bench.server() as server:
        made, planned = level()
        first = (await server.drive(made, planned, deadline_s=HANG_S)).server
        second = (await server.drive(made, planned, deadline_s=HANG_S)).server
    for seen in (first, second):
        assert seen is not None
        assert seen.generation_tokens == 4 * 3
        assert seen.preemptions == 0  # the counter stands at 3 all the time
        assert seen.prefix_hits is None  # this server does not say


async def test_cancelling_a_launch_stops_what_it_started(bench: Bench, nothing_left: NothingLeft) -> None:
    launching = asyncio.create_task(bench.launch("--fake-hang-at", "2", "--fake-ignore-term", "--fake-worker", "new"))
    while len(bench.milestones) < 2:
        await asyncio.sleep(0.02)
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    assert nothing_left(bench.marker, 0.0)


async def test_an_identity_that_cannot_be_stored_starts_nothing(bench: Bench, nothing_left: NothingLeft) -> None:
    seen: list[ServerIdentity] = []

    def refuse(identity: ServerIdentity) -> None:
        seen.append(identity)
        raise StorageError("disk full")

    plan = LaunchPlan(
        model="tiny", config=Config.of({}), gpu_indices=(), extra_args=(), directory=bench.directory,
        start_deadline_s=HANG_S, stall_deadline_s=HANG_S,
    )  # fmt: skip
    with pytest.raises(StorageError, match="disk full"):
        await bench.engine.launch(plan, on_identity=refuse, on_milestone=bench.milestones.append)
    assert len(seen) == 1
    assert (bench.directory / "server.log").read_text() == ""
    assert nothing_left(seen[0].marker, 0.0)


async def test_cancelling_a_level_ends_its_requests_and_leaves_the_server(bench: Bench) -> None:
    async with bench.server("--fake-stall-stream") as server:
        made, planned = level()
        driving = asyncio.create_task(server.drive(made, planned, deadline_s=10 * HANG_S))
        await asked(server, len(planned))
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
        assert await server._running.door.health() == 200


async def test_a_second_interrupt_hurries_the_stop(tmp_path: Path, nothing_left: NothingLeft) -> None:
    bench = Bench(tmp_path, grace_s=10 * HANG_S)
    server = await bench.launch("--fake-ignore-term")
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0.2)
    stopping.cancel()
    await asyncio.wait({stopping}, timeout=HANG_S)
    assert stopping.cancelled()
    assert nothing_left(bench.marker, 0.0)


async def test_a_keeper_killed_under_a_running_server(bench: Bench, nothing_left: NothingLeft) -> None:
    server = await bench.launch("--fake-ignore-term", "--fake-worker", "new")
    os.kill(bench.identities[-1].pid, signal.SIGKILL)
    made, planned = level()
    with pytest.raises(ServerDied):
        await server.drive(made, planned, deadline_s=HANG_S)
    await server.stop()
    assert nothing_left(bench.marker, 0.0)


@pytest.mark.parametrize("phase", ["launching", "measuring", "stopping"])
def test_killing_the_tuner_in_any_phase_leaves_nothing(
    tmp_path: Path, short_tmp: Path, nothing_left: NothingLeft, carrying: Carrying, phase: str
) -> None:
    script = Path(__file__).parent / "tuner_process.py"
    with subprocess.Popen(
        [sys.executable, str(script), phase, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(short_tmp)},
    ) as tuner:
        assert tuner.stdout is not None
        marker = tuner.stdout.readline().strip()
        assert len(carrying(marker)) == 4  # keeper, server and two workers that ignore TERM
        assert len(below(short_tmp)) == 4  # the server's folder with a socket, a file and a folder
        tuner.kill()
    assert nothing_left(marker)
    assert below(short_tmp) == []


@pytest.mark.parametrize("words", [(), ("--fake-exit-at", "3"), ("--fake-hang-at", "3", "--fake-ignore-term")])
async def test_no_file_of_a_server_stays_in_the_temporary_directory(
    tmp_path: Path, short_tmp: Path, words: tuple[str, ...]
) -> None:
    bench = Bench(tmp_path, environ={**os.environ, "TMPDIR": str(short_tmp)}, grace_s=0.1)
    if "--fake-hang-at" in words:
        bench.after["arguments parsed"] = bench.leap(2 * HANG_S)
    try:
        server = await bench.launch(*words)
    except LaunchFailed:
        assert words
    else:
        assert len(below(short_tmp)) == 4
        await server.stop()
    assert below(short_tmp) == []


# --- energy --------------------------------------------------------------------------------------------------------


class Burning(FakeGpuProbe):
    """Every reading of a GPU finds 100 J more than the one before."""

    def energy_j(self, index: int) -> float | None:
        if index in self.energies_j:
            self.energies_j[index] += 100.0
        return super().energy_j(index)


async def test_energy_of_a_level_is_that_of_the_leased_gpus(tmp_path: Path) -> None:
    probe = Burning(energies_j={0: 5e6, 1: 10.0, 2: 0.0})
    async with Bench(tmp_path, probe=probe).server("--fake-tokenizer", gpus=(0, 2)) as server:
        result = await server.drive(*level(), deadline_s=HANG_S)
        assert result.energy_j == pytest.approx(200.0)
    assert probe.energies_j[1] == 10.0


async def test_energy_that_nobody_counts_is_none(tmp_path: Path) -> None:
    async with Bench(tmp_path, probe=FakeGpuProbe()).server(gpus=(0,)) as server:
        assert (await server.drive(*level(), deadline_s=HANG_S)).energy_j is None


# --- what goes on beside a level -----------------------------------------------------------------------------------


async def test_a_level_is_watched_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SAMPLE_S", 0.02)  # several within each request, whatever holds the others up
    at_work = GpuLoad(busy_share=0.5, limits=frozenset({ClockLimit.HEAT}), nvlink_tx_bytes=0)
    probe = FakeGpuProbe(loads={2: [at_work, replace(at_work, busy_share=1.0, limits=frozenset(), nvlink_tx_bytes=9)]})
    async with Bench(tmp_path, probe=probe).server("--fake-jit", "4", gpus=(2,), **{"max-num-seqs": 8}) as server:
        made, planned = level(output_tokens=2)
        slow = [replace(request, scheduled_s=0.4 * i) for i, request in enumerate(planned)]
        poisson = replace(made, arrivals=Arrivals.POISSON, concurrency=None, rate_rps=2.5)
        begun = time.monotonic()
        result = await server.drive(poisson, slow, deadline_s=HANG_S)
        took_s = time.monotonic() - begun
        again = await server.drive(*level(), deadline_s=HANG_S)
    assert result.use is not None
    (gpu,) = result.use.gpus
    assert gpu.index == 2
    assert gpu.samples >= 2
    # Every sample after the first says 1.0, and no heat.
    assert gpu.busy_share == pytest.approx(1 - 0.5 / gpu.samples)
    assert (gpu.slowed_share, gpu.power_mean_w) == (pytest.approx(1 / gpu.samples), None)
    assert gpu.nvlink_tx_bytes_per_s is not None
    assert 9 / took_s < gpu.nvlink_tx_bytes_per_s < 9 / (0.019 * (gpu.samples - 1))
    cpu = result.use.cpu
    assert cpu is not None
    assert cpu.client_share is not None
    assert 0 < cpu.client_share < 1
    assert cpu.api_server_share is not None
    assert cpu.server_cores == pytest.approx(cpu.api_server_share, abs=0.05)
    assert cpu.loop_lag_p99_s is not None
    assert result.server is not None
    assert (result.server.running_mean, result.server.prefill_time_mean_s) == (2.0, 0.25)
    assert (result.use.jit_compiles, again.use and again.use.jit_compiles) == (4, 0)


class Names:
    """An observer that remembers which levels were driven."""

    def __init__(self) -> None:
        self.levels: list[str] = []

    def phase(self, phase: Phase, elapsed_s: float) -> None: ...

    def identity(self, identity: ServerIdentity) -> None: ...

    def milestone(self, milestone: Milestone) -> None: ...

    def level(self, level: LoadLevel) -> None:
        self.levels.append(level.name)


async def test_kernels_are_compiled_before_anything_is_measured(bench: Bench, tmp_path: Path) -> None:
    seen = Names()
    load = LoadPlan(
        concurrency_per_gpu=4,
        rate_rps_per_gpu=40.0,
        throughput_requests_per_gpu=24,
        ttft_requests_per_gpu=20,
        warmup_requests_per_gpu=4,
    )
    order = TrialOrder(
        number=1,
        launch=LaunchPlan(
            model="tiny",
            config=Config.of({}),
            gpu_indices=(),
            extra_args=("--fake-tokenizer", "--fake-jit", "6"),  # all four of the first pass, two of the second
            directory=tmp_path,
            start_deadline_s=HANG_S,
            stall_deadline_s=HANG_S,
        ),
        workload=load_workload("tiny"),
        load=load,
        gpus=1,
        seed=1,
        level_deadline_s=10 * HANG_S,
    )
    run = await run_trial(bench.engine, order, clock=time.monotonic, observer=seen)
    assert run.result.failure is None
    assert seen.levels[:3] == ["warmup", "warmup-2", "warmup-3"]
    assert seen.levels[-2:] == ["throughput", "ttft"]
    assert [measured.use and measured.use.jit_compiles for measured in run.result.measurements] == [0, 0]


# --- leases -------------------------------------------------------------------------------------------------------


async def test_a_server_holds_its_port_and_its_gpus_as_long_as_it_lives(tmp_path: Path) -> None:
    leases = NodeLeases(tmp_path / "leases", this_process("s"))
    gpus = [Gpu(index=index, name="x", memory_bytes=GIB) for index in range(2)]
    hold = NodeHold(gpus, leases)
    await hold.take()
    bench = Bench(tmp_path, ports=Ports(leases=leases), hold=hold)
    async with bench.server(gpus=(1,)) as server:
        port = server.base_url.rpartition(":")[2]
        assert [held.file for held in leases.held(ResourceKind.PORT)] == [f"port-{port}.lock"]
        idle, used = (leases.holder(gpu_resource(gpu)) for gpu in gpus)
        assert idle is not None
        assert used is not None
        assert (idle.record and idle.record.marker, used.record and used.record.marker) == (
            "",
            bench.identities[-1].marker,
        )
        open_files = {one.path for one in psutil.Process(bench.identities[-1].pid).open_files()}
        files = [str(leases.folder / gpu_resource(gpu).file) for gpu in gpus]
        assert open_files & set(files) == {files[1]}
    assert leases.held(ResourceKind.PORT) == ()
    after = leases.holder(gpu_resource(gpus[1]))
    assert after is not None
    assert after.record is not None
    assert after.record.marker == ""
    hold.close()
    assert leases.held() == ()


async def test_a_launch_that_fails_gives_its_port_back(tmp_path: Path) -> None:
    leases = NodeLeases(tmp_path / "leases", this_process("s"))
    with pytest.raises(LaunchFailed):
        await Bench(tmp_path, ports=Ports(leases=leases)).launch("--fake-exit-at", "1")
    assert leases.held() == ()


async def test_a_stranger_beside_the_load_is_a_caveat(tmp_path: Path) -> None:
    gpus = tuple(ProbedGpu(index=k, name="H200", uuid=f"GPU-{k}", memory_bytes=2**37) for k in (0, 1))
    probe = FakeGpuProbe(gpus=gpus)
    bench = Bench(tmp_path, probe=probe)
    async with bench.server(gpus=(0,)) as server:
        await server.drive(*level(2), deadline_s=HANG_S)
        assert not any(caveat.code.startswith("stranger") for caveat in server.caveats)
        pgid = bench.identities[-1].pgid
        assert pgid is not None
        probe.pids[0], probe.pids[1] = (pgid, 2**22 - 7), (2**22 - 8,)
        for _ in range(2):
            await server.drive(*level(2), deadline_s=HANG_S)
        probe.pids[0] = probe.pids[1] = ()
    (told,) = [caveat for caveat in server.caveats if caveat.code == "stranger_on_gpu"]
    assert f"process {2**22 - 7} (not visible from here) on GPU 0" in told.text
    (near,) = [caveat for caveat in server.caveats if caveat.code == "stranger_on_node"]
    assert (
        near.text == f"somebody else used other GPUs of the node: process {2**22 - 8} (not visible from here) on GPU 1"
    )


# --- GPU memory ----------------------------------------------------------------------------------------------------


async def test_gpus_held_by_a_stranger_fail_the_launch_before_it_starts(tmp_path: Path) -> None:
    probe = FakeGpuProbe(used_bytes={0: 0, 1: 20 * GIB}, pids={1: (os.getpid(),)})
    bench = Bench(tmp_path, probe=probe)
    with pytest.raises(LaunchFailed) as caught:
        await bench.launch(gpus=(0, 1))
    failure = caught.value.failure
    assert failure.kind is FailureClass.GPU_BUSY
    assert str(os.getpid()) in str(dict(failure.facts)["gpu_1_holders"])
    assert "gpu_0_used_bytes" not in dict(failure.facts)
    assert bench.identities == []


async def test_a_stranger_on_a_gpu_that_is_not_leased_does_not_matter(tmp_path: Path) -> None:
    probe = FakeGpuProbe(used_bytes={1: 20 * GIB}, pids={1: (4242,)})
    async with Bench(tmp_path, probe=probe).server(gpus=(0,)):
        pass


async def test_memory_that_does_not_come_back_is_an_environment_fault(
    tmp_path: Path, nothing_left: NothingLeft
) -> None:
    probe = FakeGpuProbe()
    bench = Bench(tmp_path, probe=probe)
    server = await bench.launch(gpus=(0,))
    probe.used_bytes[0] = 70 * GIB
    with pytest.raises(LaunchFailed) as caught:
        await server.stop()
    assert caught.value.failure.kind is FailureClass.GPU_BUSY
    assert dict(caught.value.failure.facts)["gpu_0_used_bytes"] == 70 * GIB
    assert nothing_left(bench.marker, 0.0)
    with pytest.raises(LaunchFailed, match="gpu_busy"):
        await bench.launch(gpus=(0,))


@dataclass
class Releasing(FakeGpuProbe):
    """Gives the memory of GPU 0 back when it has been looked at so often."""

    looks_left: int = 0

    def memory_used(self, index: int) -> int:
        used = super().memory_used(index)
        if self.looks_left:
            self.looks_left -= 1
            if not self.looks_left:
                self.used_bytes[0] = GIB + GIB // 4
        return used


async def test_memory_that_comes_back_late_is_waited_for(tmp_path: Path) -> None:
    probe = Releasing(used_bytes={0: GIB})  # the driver's own: no process computes there
    bench = Bench(tmp_path, probe=probe, memory_deadline_s=10 * HANG_S)
    server = await bench.launch(gpus=(0,))
    probe.used_bytes[0], probe.looks_left = 70 * GIB, 9
    await asyncio.wait_for(server.stop(), HANG_S)
    assert probe.looks_left == 0


async def test_a_failed_start_tells_of_memory_that_stayed(tmp_path: Path) -> None:
    probe = FakeGpuProbe()
    bench = Bench(tmp_path, probe=probe)
    gate = bench.directory / "gate"
    gate.write_text("1")

    def used() -> None:
        probe.used_bytes[0] = 9 * GIB
        gate.write_text("99")

    bench.after["arguments parsed"] = used
    with pytest.raises(LaunchFailed) as caught:
        await bench.launch("--fake-gate", str(gate), "--fake-exit-at", "5", gpus=(0,))
    assert caught.value.failure.kind is FailureClass.CRASH
    assert "9 GiB" in str(dict(caught.value.failure.facts)["gpu_memory_held"])
