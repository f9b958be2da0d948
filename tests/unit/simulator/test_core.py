"""Which core runs a level, and where compiled code is kept."""

from __future__ import annotations

import errno
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


def _added(a: int, b: int) -> int:
    return a + b


def _entry(place: Path) -> compiling._Entry[[int, int], int]:
    return compiling._Entry(_added, place)


def test_compiling_is_said_once_and_what_was_kept_is_loaded_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("numba", reason="there is no numba for this Python yet")
    added = _entry(tmp_path)
    assert [added(1, 2), added(3, 4)] == [3, 7]
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].startswith("autotune: compiling the simulation's core")
    assert str(tmp_path) in told[0]
    assert _entry(tmp_path)(5, 6) == 11
    assert capsys.readouterr().err == ""


def test_a_full_disk_costs_the_next_process_its_time_and_this_one_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    numba = pytest.importorskip("numba", reason="there is no numba for this Python yet")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "save", full)
    added = _entry(tmp_path)
    assert [added(1, 2), added(3, 4)] == [3, 7]
    said = [line for line in capsys.readouterr().err.splitlines() if "cannot be kept" in line]
    assert len(said) == 1
    assert "No space left on device" in said[0]


def test_a_cache_folder_that_cannot_be_written_or_read_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("numba", reason="there is no numba for this Python yet")
    gone = _entry(tmp_path / "gone")  # writable while numba looks, a file by the time it saves
    for path in sorted((tmp_path / "gone").rglob("*"), reverse=True):
        path.rmdir()
    (tmp_path / "gone").rmdir()
    (tmp_path / "gone").write_text("")
    assert gone(1, 2) == 3
    assert "cannot be kept" in capsys.readouterr().err
    kept = tmp_path / "kept"
    _entry(kept)(1, 2)
    for index in kept.rglob("*.nbi"):
        index.write_bytes(index.read_bytes()[:-7])
    assert _entry(kept)(3, 4) == 7
    assert "cannot be kept" in capsys.readouterr().err
