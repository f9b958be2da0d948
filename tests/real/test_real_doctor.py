"""`autotune doctor --serve` with a real vLLM: one short start, one answer, nothing left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytestmark = pytest.mark.real

# As in the study of this tier: no weights to load, and only a part of the machine's memory, which the CPU build keeps.
FIXED = ("--load-format", "dummy", "--enforce-eager", "--dtype", "bfloat16", "--gpu-memory-utilization", "0.3")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """For TMPDIR: vLLM puts sockets there, whose paths may have 107 characters."""
    with TemporaryDirectory(prefix="doctor-") as folder:
        yield Path(folder)


def test_a_small_server_starts_answers_and_goes(
    vllm_python: str, tiny_model: Path, tmp_path: Path, short_path: Path
) -> None:
    command = f"{vllm_python} -m vllm.entrypoints.openai.api_server"
    words = ("doctor", "--vllm-command", command, "--model", str(tiny_model), "--serve", "--json", "--", *FIXED)
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *words],
        cwd=tmp_path,
        env=os.environ
        | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "AUTOTUNE_CACHE_DIR": str(tmp_path / "cache"),
            "TMPDIR": str(short_path),
        },
        capture_output=True,
        text=True,
        timeout=1500,
    )
    sys.stdout.write(done.stderr)
    assert done.returncode == 0, done.stdout
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["vllm"]["status"] == "ok"
    assert checks["serve"]["status"] == "ok"
    assert f"/v1/models names {tiny_model}" in checks["serve"]["text"]
    assert "a completion of 8 tokens" in checks["serve"]["text"]
    assert "SIMULATED" not in checks["serve"]["text"]
    # The folder with the server's log is kept only when something went wrong.
    assert list(short_path.glob("autotune-doctor-*")) == []
    # Neither do the server's sockets stay, nor the file that its workers met at; compiled code is there to be shared.
    assert [path.name for path in short_path.iterdir() if not path.name.startswith("torchinductor_")] == []
    naming = [e.name for e in Path("/proc").iterdir() if e.name.isdigit() and str(tiny_model).encode() in _cmdline(e)]
    assert naming == []


def _cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
