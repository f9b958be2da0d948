"""What performs an attempt on a node, without Ray: the process, and the shim of the Ray task around it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from executor_contract import WHOLE, Bench
from test_executor import plan_for

from autotune.engine.command import parse_command, resolve_command
from autotune.executor.errand import (
    Entered,
    Errand,
    FilePart,
    Performed,
    Placed,
    Withdrawn,
    keep,
    packed,
    travelling,
    unpacked,
)
from autotune.executor.ray_task import frames
from autotune.node.gpus import parse_node_name
from autotune.records import EngineKind, Outcome, Phase


def errand(folder: Path, *, shares_folder: bool, pace: float = 0.0) -> Errand:
    bench = Bench(executor=None, folder=folder / "studies")  # only its orders are of interest
    return Errand(trial=1, order=bench.assignment().order, shares_folder=shares_folder, pace=pace)


def performed(folder: Path, order: Errand, urgency: Callable[[], int]) -> list[Any]:
    plan = packed(travelling(plan_for(folder, 1)))
    return [unpacked(frame) for frame in frames(plan, packed(order), urgency, grace_s=1.0)]


def test_an_attempt_is_told_step_by_step_and_its_files_are_sent(tmp_path: Path) -> None:
    events = performed(tmp_path, errand(tmp_path, shares_folder=False), lambda: 0)
    assert [event.phase for event in events if isinstance(event, Entered)] == WHOLE
    placed, last = events[0], events[-1]
    assert isinstance(placed, Placed)
    assert not Path(placed.directory).exists()
    assert isinstance(last, Performed)
    assert last.run.result.outcome is Outcome.MEASURED
    for event in events:
        if isinstance(event, FilePart):
            keep(event, tmp_path / "kept")
    assert (tmp_path / "kept" / "level-throughput.jsonl.gz").stat().st_size > 100
    assert list((tmp_path / "studies" / "trial-0001").iterdir()) == []


def test_one_that_is_to_end_ends(tmp_path: Path) -> None:
    events = performed(tmp_path, errand(tmp_path, shares_folder=True, pace=1.0), lambda: 1)
    assert isinstance(events[-1], Withdrawn)
    assert [event.phase for event in events if isinstance(event, Entered)][:1] in ([], [Phase.LAUNCHING])


def test_trials_that_share_a_node_have_the_gpus_that_ray_gave_them_with_leases_cores_and_ports_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once on a machine of two GPUs, which are files: no neighbour is taken for a stranger."""
    gpus = tmp_path / "gpus"
    gpus.mkdir()
    for index in range(2):
        (gpus / f"nvidia{index}").touch()
    root = Path(__file__).parents[2]
    monkeypatch.setenv("AUTOTUNE_FAKE_GPUS", str(gpus))
    monkeypatch.setenv("AUTOTUNE_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.setenv("PYTHONPATH", str(root / "benchmarks" / "chaos" / "driver"))
    monkeypatch.setenv("HOME", str(tmp_path))
    server = f"{sys.executable} {root / 'tests' / 'contract' / 'gpu_server.py'} serve"
    simulated = plan_for(tmp_path, 1)
    node = parse_node_name("2xH100-80GB")
    node = replace(
        node, gpus=tuple(replace(gpu, name="NVIDIA H100 80GB HBM3", memory_bytes=80 << 30) for gpu in node.gpus)
    )
    plan = replace(
        simulated,
        engine=EngineKind.PROCESS,
        node=node,
        command=resolve_command(parse_command(server, source="test")),
    )

    def begun(number: int) -> tuple[Any, Iterator[bytes]]:
        order = errand(tmp_path / str(number), shares_folder=True).order
        order = replace(order, launch=replace(order.launch, extra_args=("--sim-start-s", "0.5"), trial=number))
        sent = Errand(trial=number, order=order, shares_folder=True, shared_gpus=1)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(number))
        story = frames(packed(travelling(plan)), packed(sent), lambda: 0, grace_s=1.0)
        return next(story), story

    stories = [begun(0)[1], begun(1)[1]]
    with ThreadPoolExecutor(2) as both:
        ends = [unpacked(heard[-1]) for heard in both.map(list, stories)]
    for last in ends:
        assert isinstance(last, Performed), last
        assert last.run.result.outcome is Outcome.MEASURED, last.run.result
        codes = {caveat.code for caveat in last.run.result.caveats}
        assert not codes & {"stranger_on_node", "stranger_on_gpu"}
    assert not (gpus / "collisions").exists()
    assert list((tmp_path / "leases").glob("*.lock")) == []


def test_one_whose_process_is_killed_is_lost_and_one_whose_worker_goes_ends(tmp_path: Path) -> None:
    plan = packed(travelling(plan_for(tmp_path, 1)))

    def started(folder: Path) -> tuple[Any, psutil.Process]:
        story = frames(plan, packed(errand(folder, shares_folder=True, pace=1.0)), lambda: 0, grace_s=1.0)
        assert isinstance(unpacked(next(story)), Entered)
        (process,) = [
            one for one in psutil.Process().children() if "autotune.executor.node_process" in one.cmdline()
        ]  # fmt: skip
        return story, process

    story, process = started(tmp_path / "first")
    process.kill()
    with pytest.raises(RuntimeError, match="status -9"):
        list(story)

    story, process = started(tmp_path / "second")
    story.close()  # as where Ray ends the worker
    assert not process.is_running()
