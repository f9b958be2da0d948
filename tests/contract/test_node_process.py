"""What performs an attempt on a node, without Ray: the process, and the shim of the Ray task around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from executor_contract import WHOLE, Bench
from test_executor import plan_for

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
from autotune.records import Outcome, Phase


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
