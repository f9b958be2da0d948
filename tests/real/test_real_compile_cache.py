"""Compiled code of a real vLLM is kept between trials; damaged on disk it is replaced once and the trial served.

Figures are not asked for: beside other tests a load is soon too much, and the trial is abandoned.
The AOT artefacts of newer versions are left out (VLLM_USE_AOT_COMPILE=0): of those vLLM notices damage itself, and
compiles again. What PyTorch keeps beside them it trusts: libraries that are cut off make the start fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.errors import ExitCode

pytestmark = pytest.mark.real

SPACE = Path(__file__).parent / "spaces" / "cpu-kv.yaml"
KV_BYTES = 64 << 20
FIXED = ["--load-format", "dummy", "--dtype", "bfloat16", "--max-model-len", "512", "--gpu-memory-utilization", "0.5"]
SERVED = ("measured", "abandoned")
"""Outcomes of a trial whose server started and answered."""
POINT = {
    "max-num-seqs": 8, "max-num-batched-tokens": 512, "enable-prefix-caching": True, "kv-cache-memory-bytes": KV_BYTES,
}  # fmt: skip


class Study:
    """One study on the CPU build, compiled and not eager."""

    def __init__(self, directory: Path, vllm_python: str, model: Path) -> None:
        self.directory = directory
        study = {"space": str(SPACE), "repeats": 0, "starting_points": [POINT]}
        (directory / "study.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
        self.command = [
            "study", "--file", "study.yaml", "--name", "kept", "--engine", "process",
            "--vllm-command", f"{vllm_python} -m vllm.entrypoints.openai.api_server",
            "--model", str(model), "--workload", "tiny", "--load", "concurrency=4,rate=12,requests=110", "--json",
        ]  # fmt: skip
        plain = {
            name: value for name, value in os.environ.items() if name not in ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR")
        }
        self.environ = plain | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_USE_AOT_COMPILE": "0",
            "AUTOTUNE_CACHE_DIR": str(directory / "cache"),
        }

    def run(self, trials: int) -> None:
        self.autotune(*self.command, "--trials", str(trials), "--", *FIXED)

    def show(self, number: int) -> dict[str, Any]:
        return json.loads(self.autotune("show", "kept", str(number), "--json"))

    def autotune(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", *words],
            cwd=self.directory,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=3000,
        )
        sys.stdout.write(done.stderr)
        # On a busy machine nothing that counts is measured, which says nothing about caches.
        assert done.returncode in (0, ExitCode.NOTHING_MEASURED), done.stderr
        return done.stdout


def test_a_damaged_cache_is_replaced_once_and_the_trial_served(
    vllm_python: str, tiny_model: Path, tmp_path: Path
) -> None:
    study = Study(tmp_path, vllm_python, tiny_model)
    study.run(1)
    assert study.show(0)["outcome"] in SERVED, study.show(0)
    (slot,) = (tmp_path / "cache" / "compile").glob("vllm-*/slot-0")
    libraries = list(slot.rglob("*.so"))
    assert libraries
    for path in libraries:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    study.run(2)
    trial = study.show(1)
    assert trial["outcome"] in SERVED, trial
    assert trial["attempts"] == 2
    log = (tmp_path / "studies" / "kept" / "trial-0001" / "server.log").read_text(encoding="utf-8", errors="replace")
    assert "Traceback" in log
    aside = slot.with_name("slot-0.replaced")
    assert sum(1 for _ in aside.rglob("*.so")) >= len(libraries)
    assert list(slot.rglob("*.so")), "the second attempt filled a cache of its own"
