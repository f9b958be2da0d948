"""The contract of the engine seam: every adapter passes it. What only processes do wrong: test_process_engine."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from held_up import again_when_held_up

from autotune.engine.base import Engine, LaunchFailed, LaunchPlan, Milestone, Server, ServerDied, ServerIdentity
from autotune.engine.command import parse_command
from autotune.engine.fake import FakeEngine, Script
from autotune.engine.process import ProcessEngine, ProcessSettings
from autotune.engine.process_server import LoadSettings
from autotune.engine.simulated import SimulatedEngine
from autotune.load.arrivals import poisson_schedule
from autotune.load.growing import Waits
from autotune.load.workloads import Api
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.quality.prompts import load_prompts
from autotune.records import (
    Arrivals,
    Config,
    EngineKind,
    Failure,
    FailureClass,
    LevelRole,
    LoadLevel,
    PlannedRequest,
)

FAKE_VLLM = Path(__file__).parent / "fake_vllm.py"
KV_TOO_SMALL = (
    "(EngineCore pid=2) ERROR 11-29 17:26:12 [core.py:1] ValueError: To serve at least one request with the "
    "models's max seq len (131072), (16.0 GiB KV cache is needed, which is larger than the available "
    "KV cache memory (3.18 GiB). Based on the available memory, the estimated maximum model length is 26048."
)
OOM = (
    "(EngineCore pid=2) ERROR 11-29 17:30:00 [core.py:1] Traceback (most recent call last):\n"
    '(EngineCore pid=2) ERROR 11-29 17:30:00 [core.py:1]   File "core.py", line 1, in execute_model\n'
    "(EngineCore pid=2) ERROR 11-29 17:30:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
    "1.16 GiB."
)
GOOD = Config.of({"max-num-seqs": 8})
REFUSED = Config.of({"max-num-seqs": 16})
DYING = Config.of({"max-num-seqs": 32})


@dataclass(frozen=True)
class Adapter:
    """An engine, and the extra arguments that make each config behave as its name says.

    Attributes:
        refused: a config whose KV cache is too small for its model length.
    """

    engine: Engine
    directory: Path
    refused: Config
    extra: Callable[[Config], tuple[str, ...]] = lambda config: ()

    def plan(self, config: Config) -> LaunchPlan:
        return LaunchPlan(
            model="tiny",
            config=config,
            gpu_indices=(),
            extra_args=self.extra(config),
            directory=self.directory,
            start_deadline_s=600.0,
            stall_deadline_s=600.0,
        )

    async def launch(self, config: Config) -> tuple[Server, list[ServerIdentity], list[Milestone]]:
        identities: list[ServerIdentity] = []
        milestones: list[Milestone] = []
        server = await self.engine.launch(
            self.plan(config), on_identity=identities.append, on_milestone=milestones.append
        )
        return server, identities, milestones


def process_adapter(directory: Path) -> Adapter:
    command = parse_command(shlex.join([sys.executable, "-I", "-S", str(FAKE_VLLM), "serve"]), source="test")
    settings = ProcessSettings(command=command, load=LoadSettings(api=Api.COMPLETIONS), grace_s=2.0)
    extra = {
        REFUSED: ("--fake-exit-at", "5", "--fake-text", KV_TOO_SMALL),
        DYING: ("--fake-die-on-request", OOM),
    }
    return Adapter(ProcessEngine(settings), directory, REFUSED, lambda config: extra.get(config, ()))


def fake_adapter(directory: Path) -> Adapter:
    def script(config: Config, _launches: int) -> Script:
        refused = Failure(kind=FailureClass.KV_CACHE_TOO_SMALL, line="ValueError", facts=(("required_tokens", 131072),))
        death = Failure(kind=FailureClass.OOM_UNDER_LOAD, line="torch.OutOfMemoryError", exit_status=-9)
        return Script(
            launch_failure=refused if config == REFUSED else None,
            dies_at=LevelRole.THROUGHPUT if config == DYING else None,
            death=death if config == DYING else None,
        )

    return Adapter(FakeEngine(script), directory, REFUSED)


def simulated_adapter(directory: Path) -> Adapter:
    engine = SimulatedEngine(
        node=parse_node_name("1xH100-80GB"), shape=load_shape("meta-llama/Llama-3.1-8B-Instruct"), seed=1
    )
    refused = Config.of({"max-model-len": 131072, "gpu-memory-utilization": 0.3})
    return Adapter(engine, directory, refused)


@pytest.fixture(params=[process_adapter, fake_adapter, simulated_adapter], ids=["process", "fake", "simulated"])
def adapter(request: pytest.FixtureRequest, tmp_path: Path) -> Adapter:
    return request.param(tmp_path)


def closed_level(requests: int = 6, concurrency: int = 3) -> tuple[LoadLevel, list[PlannedRequest]]:
    level = LoadLevel(
        name="throughput",
        role=LevelRole.THROUGHPUT,
        arrivals=Arrivals.CLOSED,
        requests=requests,
        seed=1,
        concurrency=concurrency,
    )
    planned = [PlannedRequest(index=i, prompt_tokens=20, output_tokens=4, content_seed=i) for i in range(requests)]
    return level, planned


def open_level(requests: int = 5, rate_rps: float = 50.0) -> tuple[LoadLevel, list[PlannedRequest]]:
    level = LoadLevel(
        name="ttft", role=LevelRole.TTFT, arrivals=Arrivals.POISSON, requests=requests, seed=2, rate_rps=rate_rps
    )
    due = poisson_schedule(rate_rps, requests, level.seed)
    planned = [
        PlannedRequest(index=i, prompt_tokens=20, output_tokens=3, content_seed=i, scheduled_s=due[i])
        for i in range(requests)
    ]
    return level, planned


async def test_a_launch_ends_ready_with_facts_and_milestones_in_order(adapter: Adapter) -> None:
    server, identities, milestones = await adapter.launch(GOOD)
    try:
        assert server.facts.simulated is (adapter.engine.kind is EngineKind.SIMULATED)
        assert server.argv
        assert milestones[-1].name == "server ready"
        times = [milestone.at_s for milestone in milestones]
        assert times == sorted(times)
        assert all(time >= 0 for time in times)
        markers = {identity.marker for identity in identities}
        assert len(markers) == 1 if adapter.engine.kind is EngineKind.PROCESS else len(markers) <= 1
    finally:
        assert await server.stop() >= 0.0


async def test_a_closed_loop_gives_one_record_per_request_in_order(adapter: Adapter) -> None:
    server, _, _ = await adapter.launch(GOOD)
    try:
        level, planned = closed_level()
        result = await server.drive(level, planned, deadline_s=600.0)
        assert [record.index for record in result.records] == list(range(6))
        for record in result.records:
            assert record.error is None
            assert record.output_tokens == record.wanted_output_tokens == 4
            assert record.first_token_s is not None
            assert record.done_s is not None
            assert record.scheduled_s <= record.first_token_s <= record.done_s
            assert list(record.token_times_s) == sorted(record.token_times_s)
        assert result.duration_s > 0
    finally:
        await server.stop()


async def test_an_open_loop_keeps_its_schedule(adapter: Adapter) -> None:
    server, _, _ = await adapter.launch(GOOD)
    try:
        level, planned = open_level()
        result = await server.drive(level, planned, deadline_s=600.0)
        due = [request.scheduled_s for request in planned]
        assert [record.scheduled_s for record in result.records] == pytest.approx(due, abs=1e-5)
        assert all(record.error is None for record in result.records)
    finally:
        await server.stop()


@dataclass(frozen=True)
class EnoughAfter:
    """Looks at an open loop that have enough at the second of them."""

    looks: tuple[int, ...] = (2, 4)

    def enough(self, waits: Waits) -> bool:
        assert [due for due, _ in waits] == sorted(due for due, _ in waits)
        assert all(first is None or first > due for due, first in waits)
        return len(waits) >= self.looks[1]


@again_when_held_up
async def test_what_looks_have_no_need_of_is_never_sent(adapter: Adapter) -> None:
    server, _, _ = await adapter.launch(GOOD)
    try:
        level, planned = open_level(12)
        result = await server.drive(level, planned, deadline_s=600.0, looks=EnoughAfter())
        assert [record.index for record in result.records] == [0, 1, 2, 3]
        assert all(record.error is None for record in result.records)
        assert len((await server.drive(level, planned, deadline_s=600.0)).records) == 12
    finally:
        await server.stop()


async def test_several_levels_in_one_launch(adapter: Adapter) -> None:
    server, _, _ = await adapter.launch(GOOD)
    try:
        for level, planned in (closed_level(4, 2), open_level(), closed_level(2, 1)):
            result = await server.drive(level, planned, deadline_s=600.0)
            assert len(result.records) == level.requests
    finally:
        await server.stop()


async def test_a_config_that_cannot_start_fails_with_its_root_cause(adapter: Adapter) -> None:
    with pytest.raises(LaunchFailed) as caught:
        await adapter.launch(adapter.refused)
    failure = caught.value.failure
    assert failure.kind is FailureClass.KV_CACHE_TOO_SMALL
    assert failure.line
    assert caught.value.argv
    assert 131072 in dict(failure.facts).values()


@pytest.mark.parametrize("adapter", [process_adapter, fake_adapter], ids=["process", "fake"], indirect=True)
async def test_a_server_that_dies_under_load_says_why(adapter: Adapter) -> None:
    server, _, _ = await adapter.launch(DYING)
    try:
        level, planned = closed_level()
        with pytest.raises(ServerDied) as caught:
            await asyncio.wait_for(server.drive(level, planned, deadline_s=600.0), 120.0)
        assert caught.value.failure.kind is FailureClass.OOM_UNDER_LOAD
        assert caught.value.failure.exit_status == -9
    finally:
        assert await server.stop() >= 0.0


async def test_an_engine_launches_again_after_failures(adapter: Adapter) -> None:
    with pytest.raises(LaunchFailed):
        await adapter.launch(adapter.refused)
    for _ in range(2):
        server, _, _ = await adapter.launch(GOOD)
        await server.stop()


async def test_a_server_answers_the_quality_guard_or_says_why_not(adapter: Adapter) -> None:
    server, _, _ = await adapter.launch(GOOD)
    try:
        prompts = load_prompts().prompts[:2]
        found = await server.ask(prompts, output_tokens=4, deadline_s=600.0)
        assert bool(found.answers) is (found.problem is None)
        assert len(found.answers) in (0, len(prompts))
        if adapter.engine.kind is EngineKind.SIMULATED:
            assert "computes no tokens" in (found.problem or "")
    finally:
        assert await server.stop() >= 0.0
