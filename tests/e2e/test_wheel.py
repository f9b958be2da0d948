"""What README's first command installs: a wheel, run from an empty folder with nothing of the source tree beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "autotune", "search_spaces", "studies")
MODEL = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a source tree in which studies were run already."""
    source = tmp_path_factory.mktemp("source")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(
                ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__", "*.db*", "trial-*")
            )
        else:
            shutil.copy(ROOT / part, source / part)
    (source / "studies" / "autotune.db").write_text("results")
    (source / "studies" / "mine").mkdir()
    (source / "studies" / "mine" / "server.log").write_text("results")
    out = tmp_path_factory.mktemp("wheel")
    _pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(out), str(source))
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    _pip("install", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    return target


def _pip(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "-q", *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_the_wheel_holds_every_data_file_and_no_results(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "autotune").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    shipped = {
        f"autotune/_shipped/{folder}/{path.name}"
        for folder in ("search_spaces", "studies")
        for path in (ROOT / folder).glob("*.yaml")
    }
    assert any(name.endswith(".mako") for name in package)
    assert any(name.endswith(".j2") for name in package)
    assert len(shipped) >= 6
    assert names == package | shipped


def test_a_study_runs_from_the_installed_wheel_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    environ = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    environ |= {"PYTHONPATH": str(installed), "HOME": str(tmp_path / "home"), "CUDA_VISIBLE_DEVICES": ""}
    (tmp_path / "home").mkdir()
    (tmp_path / "empty").mkdir()

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path / "empty", env=environ, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-c", "import autotune; print(autotune.__file__)").startswith(str(installed))
    words = (
        "study",
        "--file",
        "r7-llama-8b-4gpu",
        "--engine",
        "simulated",
        "--trials",
        "3",
        "--repeats",
        "0",
        "--json",
    )
    document = json.loads(run("-m", "autotune", *words))
    assert document["study"] == "r7-llama-8b-4gpu"
    assert len(document["trials"]) == 3
    assert document["simulated"] is True
    assert document["front"]
    assert (tmp_path / "empty" / "studies" / "autotune.db").stat().st_size > 0
    picture = tmp_path / "front.html"
    run("-m", "autotune", "pareto", "r7-llama-8b-4gpu", "--picture", str(picture))
    assert MODEL in picture.read_text(encoding="utf-8")
