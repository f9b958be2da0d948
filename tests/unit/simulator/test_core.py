"""Which core runs a level, and where compiled code is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.simulator.compiled import compiling
from autotune.simulator.core import COMPILING_S, LOADING_S, TWIN_TOKEN_S, Core, Patience


def test_a_process_that_simulates_little_never_waits_for_the_compiler() -> None:
    pytest.importorskip("numba", reason="there is no numba for this Python yet")
    patience = Patience()
    few = int(LOADING_S / TWIN_TOKEN_S / 10)
    assert [patience.compiled(Core.AUTO, few) for _ in range(9)] == [False] * 9
    # By then compiling would have paid, whether an earlier process kept something or not.
    assert patience.compiled(Core.AUTO, int(COMPILING_S / TWIN_TOKEN_S))
    assert patience.compiled(Core.AUTO, 1)


def test_a_core_that_is_asked_for_is_taken_at_once() -> None:
    pytest.importorskip("numba", reason="there is no numba for this Python yet")
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
