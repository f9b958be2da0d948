"""Which core runs a level, and where compiled code is kept."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from autotune.node.defaults import resolve
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import Arrivals, Config, LevelRole, LoadLevel, PlannedRequest
from autotune.simulator.compiled import compiling
from autotune.simulator.core import COMPILING_S, LOADING_S, TWIN_TOKEN_S, Core, Patience
from autotune.simulator.engine_model import Simulation


def test_a_process_that_simulates_little_never_waits_for_the_compiler() -> None:
    pytest.importorskip("numba")
    patience = Patience()
    few = int(LOADING_S / TWIN_TOKEN_S / 10)
    assert [patience.compiled(Core.AUTO, few) for _ in range(9)] == [False] * 9
    # By then compiling would have paid, whether an earlier process kept something or not.
    assert patience.compiled(Core.AUTO, int(COMPILING_S / TWIN_TOKEN_S))
    assert patience.compiled(Core.AUTO, 1)


def test_a_core_that_is_asked_for_is_taken_at_once() -> None:
    pytest.importorskip("numba")
    assert Patience().compiled(Core.COMPILED, 1)
    assert not Patience(loaded=True).compiled(Core.PYTHON, 10**9)


def test_without_numba_or_with_its_compiler_off_the_twin_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert not Patience().compiled(Core.COMPILED, 10**9)
    assert compiling.compiled(len) is len
    assert compiling.entry(len) is len


def test_compiled_code_is_kept_where_the_user_says() -> None:
    home = Path("~/.cache").expanduser() / "autotune"
    assert compiling.cache_root({"XDG_CACHE_HOME": "/x"}) == Path("/x/autotune")
    assert compiling.cache_root({"XDG_CACHE_HOME": "/x", "AUTOTUNE_CACHE_DIR": "/a"}) == Path("/a")
    assert compiling.cache_root({"AUTOTUNE_CACHE_DIR": "/a", "NUMBA_CACHE_DIR": "/n"}) == Path("/n")
    assert compiling.cache_root({}) == home


@pytest.mark.no_cover
@pytest.mark.parametrize("core", [Core.COMPILED, Core.PYTHON])
def test_500_chat_requests_take_at_most_a_tenth_of_a_second_of_one_core(core: Core) -> None:
    """Far from the measured figures (docs/simulator.md), for slow machines' sake; the compiler's own time apart."""
    node, shape = parse_node_name("1xH200-141GB"), load_shape("meta-llama/Llama-3.1-8B-Instruct")
    settings = resolve(Config.of({}), node, shape)
    rng = np.random.default_rng(1)
    requests = tuple(
        PlannedRequest(
            index=i,
            prompt_tokens=int(rng.integers(256, 769)),
            output_tokens=int(rng.integers(64, 193)),
            content_seed=i,
        )
        for i in range(500)
    )
    level = LoadLevel(name="c", role=LevelRole.EXTRA, arrivals=Arrivals.CLOSED, requests=500, seed=1, concurrency=64)
    took = []
    for _ in range(4):
        begun = time.process_time()
        Simulation(node, shape, settings, 900_000, core=core).run(level, requests)
        took.append(time.process_time() - begun)
    assert min(took) < (0.05 if core is Core.COMPILED else 0.2)
