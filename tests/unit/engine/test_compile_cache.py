"""Which cache a server gets, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engine.compile_cache import KEPT_ASIDE_S, REPLACED, CompileCaches, is_cured
from autotune.engine.logs import LogReader
from autotune.records import CompileStart, Failure, FailureClass


def of(directory: Path, **others: str) -> CompileCaches:
    said = {"version": "0.25.1", "command": "/opt/vllm/bin/vllm", "node": "1xH200"} | others
    return CompileCaches.of(directory, environ={}, **said)


def test_every_part_goes_into_the_slot(tmp_path: Path) -> None:
    lease = of(tmp_path).take({})
    assert lease is not None
    folder = of(tmp_path).root / "slot-0"
    assert lease.env == {
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torchinductor"),
        "TRITON_CACHE_DIR": str(folder / "triton_cache"),
        "DG_JIT_CACHE_DIR": str(folder / "vllm" / "deep_gemm"),
    }
    lease.release()
    lease.release()


def test_what_the_operator_or_a_config_says_stays(tmp_path: Path) -> None:
    caches = CompileCaches(tmp_path / "root", {"TRITON_CACHE_DIR": "/mine"})
    lease = caches.take({"TORCHINDUCTOR_CACHE_DIR": "/config"})
    assert lease is not None
    assert sorted(lease.env) == ["DG_JIT_CACHE_DIR", "VLLM_CACHE_ROOT"]
    lease.release()


@pytest.mark.parametrize(
    ("variable", "value", "taken"),
    [
        ("VLLM_CACHE_ROOT", "/mine", False),
        ("VLLM_DISABLE_COMPILE_CACHE", "1", False),
        ("VLLM_DISABLE_COMPILE_CACHE", "0", True),
        ("VLLM_CACHE_ROOT", "", True),
    ],
)
def test_an_operator_who_keeps_the_cache_is_obeyed(tmp_path: Path, variable: str, value: str, taken: bool) -> None:
    for environ, added in (({variable: value}, {}), ({}, {variable: value})):
        lease = CompileCaches(tmp_path / "root", environ).take(added)
        assert (lease is not None) is taken
        if lease is not None:
            lease.release()


@pytest.mark.parametrize(
    "other",
    [{"version": "0.26.0"}, {"command": "/opt/other/bin/vllm"}, {"node": "1xA100"}],
    ids=lambda o: next(iter(o)),
)
def test_another_vllm_or_node_has_another_cache(tmp_path: Path, other: dict[str, str]) -> None:
    assert of(tmp_path).root == of(tmp_path).root
    assert of(tmp_path, **other).root != of(tmp_path).root


@pytest.mark.parametrize("version", ["../../etc", "a/b", "0.1 2\n", "x" * 500, "0.0\0"])
def test_hostile_versions_stay_below_the_cache(tmp_path: Path, version: str) -> None:
    lease = of(tmp_path, version=version).take({})
    assert lease is not None
    assert Path(lease.env["VLLM_CACHE_ROOT"]).resolve().is_relative_to(tmp_path.resolve())
    lease.release()


def test_what_is_remembered_beside_code_is_no_code(tmp_path: Path) -> None:
    folder = of(tmp_path).root / "slot-0" / "vllm"
    (folder / "modelinfos").mkdir(parents=True)
    (folder / "modelinfos" / "llama.json").write_text("{}")
    first = of(tmp_path).take({})
    assert first is not None
    assert first.was_empty
    first.release()
    (folder / "torch_compile_cache" / "x").mkdir(parents=True)
    (folder / "torch_compile_cache" / "x" / "graph").write_text("")
    second = of(tmp_path).take({})
    assert second is not None
    assert not second.was_empty
    second.release()


def test_a_place_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "compile").write_text("a file")
    assert of(tmp_path).take({}) is None


def test_what_was_set_aside_is_deleted_when_its_time_is_over(tmp_path: Path) -> None:
    lease = of(tmp_path).take({})
    assert lease is not None
    lease.condemn()
    lease.release()
    assert lease.aside.is_dir()
    again = of(tmp_path).take({})
    assert again is not None
    assert again.aside.is_dir()
    again.tidy(lease.aside.stat().st_mtime + KEPT_ASIDE_S + 1)
    assert not again.aside.exists()
    again.release()


def test_only_a_replaced_cache_is_cured() -> None:
    fact = ((REPLACED, "/somewhere"),)
    assert is_cured(Failure(kind=FailureClass.COMPILE_CACHE, line=None, facts=fact))
    assert not is_cured(Failure(kind=FailureClass.COMPILE_CACHE, line=None))
    assert not is_cured(Failure(kind=FailureClass.CRASH, line=None, facts=fact))


LOADED = "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 1.3 s"
AOT = "Directly load AOT compilation from path /c/torch_compile_cache/torch_aot_compile/a9/rank_0_0/model"
COMPILED = "Compiling a graph for compile range (1, 8192) takes 8.12 s"
SAVED = "[backbone] saved AOT compiled function to /c/torch_compile_cache/torch_aot_compile/87/rank_0_0/model"
AGAIN = "[backbone] Compiling model again due to a load failure from /c/model, reason: Compile cache file corrupted."


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ((), None),
        ((LOADED, AOT), CompileStart.WARM),
        ((COMPILED, SAVED), CompileStart.COLD),
        ((SAVED,), CompileStart.COLD),
        ((LOADED, COMPILED), CompileStart.PARTLY),
        ((AGAIN, SAVED), CompileStart.REBUILT),
    ],
)
def test_the_log_says_how_warm_a_start_was(lines: tuple[str, ...], found: CompileStart | None) -> None:
    reader = LogReader()
    for line in lines:
        reader.feed(f"(EngineCore pid=2) INFO 11-29 17:25:49 [x.py:1] {line}\n".encode())
    assert reader.facts().compile_start is found
