"""What ends a trial early, what ends a study, and who is told."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from autotune_command import LIGHT, LLAMA, SIMULATED_SERVER, TINY, Ended, run

from autotune.errors import ExitCode

SECRET = "T0p-S3cret"
NOBODY = f"http://someone:{SECRET}@127.0.0.1:9/hook/{SECRET}?token={SECRET}"
"""Port 9, discard: nobody listens there."""

ONE_AT_A_TIME = """
workload: tiny
repeats: 0
load: {concurrency: 4, rate_rps: 30, requests: 80}
starting_points: [{max-num-seqs: 1}]
"""
SPACE = """
name: narrow
parameters:
  max-num-seqs: {choices: [1, 256], why: one request at a time is far too few}
"""
WRITE = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"


def told(folder: Path, *words: str, **options: Any) -> tuple[Ended, dict[str, Any]]:
    """A study whose end is told to a command; what it was told."""
    out = folder / "told.json"
    command = shlex.join((sys.executable, "-c", WRITE, str(out)))
    ended = run(folder, "study", *words, "--notify-command", command, **options)
    return ended, json.loads(out.read_text()) if out.exists() else {}


def slow_config(folder: Path, *words: str) -> tuple[Ended, dict[str, Any]]:
    """A study of the baseline and of a config that serves one request at a time."""
    (folder / "slow.yaml").write_text(ONE_AT_A_TIME)
    (folder / "space.yaml").write_text(SPACE)
    return told(folder, "--file", "slow.yaml", "--space", "space.yaml", "--model", LLAMA, *words, "--json")


def test_a_config_that_cannot_keep_up_is_abandoned_with_what_it_showed(tmp_path: Path) -> None:
    ended, summary = slow_config(tmp_path, "--engine", "simulated", "--trials", "2", "--name", "s")
    assert ended.code == 0, ended.err
    baseline, slow = ended.document["trials"]
    assert (baseline["outcome"], slow["outcome"], slow["reason"]) == ("measured", "abandoned", "saturated")
    early = slow["early"]
    assert (early["rival"], early["planned"], early["confidence"]) == (0, 80, 0.99)
    assert early["requests"] < 80
    assert slow["ttft_p95_s"] > early["ttft_s"] > baseline["ttft_p95_s"]
    assert slow["output_tok_s"] < baseline["output_tok_s"]
    assert [config["number"] for config in ended.document["front"]] == [0]
    assert ended.document["early"]["trials"] == 1
    assert summary["ended_by"] == "trials"
    assert summary["outcomes"] == {"measured": 1, "infeasible": 0, "faulted": 0, "abandoned": 1}
    assert summary["early"] == ended.document["early"]
    shown = run(tmp_path, "show", "s", "1").out
    assert "trial 0 has more throughput" in " ".join(shown.split())


def test_a_gain_that_nobody_expects_ends_a_study_and_a_secret_stays_one(tmp_path: Path) -> None:
    ended, summary = told(
        tmp_path, *TINY, *LIGHT, "--name", "s", "--trials", "12", "--min-gain", "100%", "--notify-url", NOBODY
    )
    assert ended.code == 0, ended.err
    assert summary["ended_by"] == "gain"
    assert summary["trials"] < 12
    assert "no config left is expected" in ended.err
    assert "the notification to http://127.0.0.1:9 did not arrive" in ended.err
    assert "the study is not affected" in ended.err
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET not in ended.out + ended.err
    assert SECRET.encode() not in written


def test_who_asked_is_told_of_a_failure_and_of_no_study_that_never_began(tmp_path: Path) -> None:
    words = (*TINY, *LIGHT, "--name", "s", "--engine", "process", "--vllm-command", SIMULATED_SERVER, "--trials", "1")
    ended, summary = told(tmp_path, *words, env={"AUTOTUNE_SIM_FAULT": "gated"})
    assert ended.code == ExitCode.STUDY_FATAL
    assert (summary["ended_by"], summary["exit_code"]) == ("failed", int(ExitCode.STUDY_FATAL))
    assert "model_access" in summary["error"]
    (tmp_path / "told.json").unlink()
    wrong, summary = told(tmp_path, *words, "--min-gain", "2", env={"AUTOTUNE_SIM_FAULT": "gated"})
    assert (wrong.code, summary) == (ExitCode.INVALID_OPTION, {})
