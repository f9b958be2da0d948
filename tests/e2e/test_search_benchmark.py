"""Ctrl-C in a terminal while the search benchmark runs: a table that says it is partial, and nothing lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from autotune_command import TRACE, Running, wait_for

from autotune.errors import ExitCode

SURFACE = str(Path(__file__).parents[1] / "data" / "surfaces" / "three-configs.jsonl")


@pytest.fixture
def benchmark(tmp_path: Path) -> Iterator[Running]:
    """A benchmark of a minute and more."""
    words = ("bench", "search", "--surface", SURFACE, "--samplers", "nsga2", "--seeds", "1000", "--workers", "1")
    found = Running(tmp_path, *words, env={"AUTOTUNE_CACHE_DIR": str(tmp_path / "cache")})
    yield found
    found.give_up()


def kept(folder: Path) -> int:
    """Studies in the file; one that Ctrl-C met as it was written may stand there twice."""
    lines = [line for path in folder.glob("cache/bench/replays-*.jsonl") for line in path.read_bytes().split(b"\n")]
    return len({*lines[:-1]} - {b""})


def is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_ctrl_c_prints_what_is_there(benchmark: Running) -> None:
    wait_for(lambda: kept(benchmark.folder) >= 3, "three finished studies")
    os.killpg(benchmark.process.pid, signal.SIGINT)  # a terminal tells every process of its group

    assert benchmark.end() == ExitCode.INTERRUPTED
    done = kept(benchmark.folder)
    assert benchmark.out.startswith(f"PARTIAL: {done} of 1000 studies (stopped by the operator).")
    assert "three-configs (recorded)" in benchmark.out
    assert f"{done} of 1000 studies; the same command goes on from there" in benchmark.err
    assert TRACE not in benchmark.err
    wait_for(lambda: is_gone(benchmark.process.pid), "the end of every process of it")
