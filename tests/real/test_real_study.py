"""The main job against a real vLLM: one small study through the command line, and everything that it left looked at."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import yaml

from autotune.engine.flag_cache import ask_flags, known_flags
from autotune.load.requests import plan_requests
from autotune.load.workloads import load_workload
from autotune.records import Arrivals, LevelRole, LoadLevel
from autotune.store.repository import Store

pytestmark = [pytest.mark.real, pytest.mark.quiet]

SPACE = Path(__file__).parent / "spaces" / "cpu-kv.yaml"
NAME, TRIALS, REQUESTS = "tiny-on-cpu", 5, 110
CANNOT_START, NO_PREFIX, WITH_PREFIX = 1, 2, 3
"""Numbers of the trials that the starting points become; trial 0 is the baseline, the last one the sampler's own."""

KV_BYTES, TOO_FEW_KV_BYTES = 64 << 20, 64 << 10
POINTS = [
    {"max-num-seqs": 8, "max-num-batched-tokens": 512, "enable-prefix-caching": True},
    {"max-num-seqs": 4, "max-num-batched-tokens": 256, "enable-prefix-caching": False},
    {"max-num-seqs": 8, "max-num-batched-tokens": 512, "enable-prefix-caching": True},
]
SPACES_OF_POINTS = [TOO_FEW_KV_BYTES, KV_BYTES, KV_BYTES]

# What the CPU build needs beside the space. It keeps half of the machine's memory: it refuses its default of 0.92 as
# soon as other programs use some.
FIXED = ["--load-format", "dummy", "--enforce-eager", "--dtype", "bfloat16"]
FIXED += ["--max-model-len", "512", "--gpu-memory-utilization", "0.5"]

PARSE = """
import contextlib, json, shlex, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
read = []
with contextlib.redirect_stdout(sys.stderr):
    for line in sys.argv[1:]:
        words = shlex.split(line)
        read.append(vars(make_arg_parser(FlexibleArgumentParser()).parse_args(words)))
print(json.dumps(read, default=str))
"""


LEAST_MEASURED = 3
TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A study that ran to its end; `command` is what was typed after `autotune`."""

    directory: Path
    environ: dict[str, str]
    command: list[str]
    document: dict[str, Any]

    @property
    def trials(self) -> list[dict[str, Any]]:
        return self.document["trials"]

    @property
    def measured(self) -> list[dict[str, Any]]:
        """Those that count: on a busy machine the load client may have been the limit of others."""
        return [trial for trial in self.trials if trial["outcome"] == "measured" and trial["reason"] is None]

    def autotune(self, *words: str) -> str:
        """Standard output of another command on this study."""
        return autotune(list(words), self.directory, self.environ)

    def show(self, number: int) -> dict[str, Any]:
        return json.loads(self.autotune("show", NAME, str(number), "--json"))


def autotune(words: list[str], directory: Path, environ: dict[str, str], timeout_s: float = 600) -> str:
    """Standard output of the real command line; what it says to people is printed into the test's own output."""
    command = [sys.executable, "-m", "autotune", *words]
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, timeout=timeout_s)
    sys.stdout.write(done.stderr)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def ended(vllm_python: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A study in which the client was not the limit; on a machine that was busy with something else, another one."""
    for _ in range(TRIES - 1):
        try:
            found = _study(vllm_python, tiny_model, tmp_path_factory.mktemp("real-study"))
        except AssertionError:  # nothing that counts was measured, which the study's exit code says
            continue
        if len(found.measured) == sum(trial["outcome"] == "measured" for trial in found.trials):
            return found
    return _study(vllm_python, tiny_model, tmp_path_factory.mktemp("real-study"))


def _study(vllm_python: str, tiny_model: Path, directory: Path) -> Ended:
    points = [{**point, "kv-cache-memory-bytes": size} for point, size in zip(POINTS, SPACES_OF_POINTS, strict=True)]
    study = {"space": str(SPACE), "trials": TRIALS, "repeats": 0, "abandon": 0, "starting_points": points}
    (directory / "study.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    command = [
        "study", "--file", "study.yaml", "--name", NAME, "--engine", "process",
        "--vllm-command", f"{vllm_python} -m vllm.entrypoints.openai.api_server",
        "--model", str(tiny_model), "--workload", "tiny",
        "--load", f"concurrency=4,rate=12,requests={REQUESTS}", "--json", "--", *FIXED,
    ]  # fmt: skip
    environ = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "AUTOTUNE_CACHE_DIR": str(directory / "cache"),
    }
    document = json.loads(autotune(command, directory, environ, timeout_s=3000))
    return Ended(directory=directory, environ=environ, command=command, document=document)


def test_the_study_measures_and_picks(ended: Ended, capsys: pytest.CaptureFixture[str]) -> None:
    document = ended.document
    assert document["study"] == NAME
    assert document["engine"] == "process"
    assert document["simulated"] is False
    assert len(ended.trials) == TRIALS
    assert [trial["origin"] for trial in ended.trials] == ["baseline"] + ["enqueued"] * len(POINTS) + ["sampler"]
    assert len(ended.measured) >= LEAST_MEASURED, [(trial["outcome"], trial["reason"]) for trial in ended.trials]
    for trial in ended.measured:
        assert trial["simulated"] is False
        assert trial["clock"] == "wall"
        for figure in ("output_tok_s", "ttft_p95_s"):
            low, high = trial[f"{figure}_interval"]
            assert 0 < low <= trial[figure] <= high
    assert document["baseline"]["number"] == 0
    assert document["front"]
    assert document["pick"]["number"] in [trial["number"] for trial in document["front"]]
    assert document["pick"]["reason"]
    table = ended.autotune("pareto", NAME)
    with capsys.disabled():
        sys.stdout.write(f"\n{table}")


def test_the_front_is_what_nothing_beats(ended: Ended) -> None:
    figures = {trial["number"]: (trial["output_tok_s_per_gpu"], trial["ttft_p95_s"]) for trial in ended.measured}
    unbeaten = {
        number
        for number, (speed, ttft) in figures.items()
        if not any(a >= speed and b <= ttft and (a, b) != (speed, ttft) for a, b in figures.values())
    }
    assert {trial["number"] for trial in ended.document["front"]} == unbeaten


def test_what_vllm_refuses_is_infeasible_with_its_reason(ended: Ended) -> None:
    # One was planted; should the sampler propose another of its kind, that one fails in the same way.
    refused = [t["number"] for t in ended.trials if t["flags"].get("kv-cache-memory-bytes") == TOO_FEW_KV_BYTES]
    assert CANNOT_START in refused
    assert [trial["number"] for trial in ended.document["infeasible"]] == refused
    trial = ended.trials[CANNOT_START]
    assert trial["outcome"] == "infeasible"
    assert trial["reason"] in {"kv_cache_none", "kv_cache_too_small"}
    assert trial["output_tok_s"] is None
    assert trial["ttft_p95_s"] is None
    failure = ended.show(CANNOT_START)["failure"]
    assert failure["class"] == trial["reason"]
    assert "ValueError" in failure["line"]
    assert "cache" in failure["line"]
    assert failure["remedies"]
    assert failure["exit_status"] not in (None, 0)
    log = ended.directory / "studies" / NAME / f"trial-{CANNOT_START:04}" / "server.log"
    assert "Traceback" in log.read_text(encoding="utf-8", errors="replace")
    assert json.loads(ended.autotune("diagnose", str(log), "--json"))["class"] == trial["reason"]


def test_settings_are_read_back_from_the_server(ended: Ended) -> None:
    for number in (NO_PREFIX, WITH_PREFIX):
        trial = ended.show(number)
        flags, resolved = trial["flags"], trial["resolved"]
        assert resolved["max_num_seqs"] == flags["max-num-seqs"]
        assert resolved["max_num_batched_tokens"] == flags["max-num-batched-tokens"]
        assert resolved["prefix_caching"] is flags["enable-prefix-caching"]
        assert resolved["max_model_len"] == 512
        # Keys and values of 2 layers, 2 KV heads of 32 numbers, 2 bytes each: 512 bytes per token.
        assert resolved["kv_cache_tokens"] == KV_BYTES // 512
        assert resolved["max_concurrency"] == KV_BYTES // 512 / 512
        assert resolved["vllm_version"]
        assert 1 < resolved["startup_s"] < 1200
        assert set(trial["phase_seconds"]) == {"launching", "warming", "measuring", "stopping"}
        assert trial["argv"][-len(FIXED) :] == FIXED


@pytest.mark.parametrize("role", ["throughput", "ttft"])
def test_tokens_are_those_asked_for_and_those_the_server_counted(ended: Ended, role: str) -> None:
    workload = load_workload("tiny")
    for trial in ended.measured:
        number = trial["number"]
        head, *records, tail = level_file(ended, number, role)
        level = LoadLevel(**{**head["level"], "role": LevelRole(role), "arrivals": Arrivals(head["level"]["arrivals"])})
        planned = plan_requests(workload, level, trial_salt=number)
        assert len(records) == len(planned) == REQUESTS
        for record, wanted in zip(sorted(records, key=lambda r: r["index"]), planned, strict=True):
            assert "error" not in record
            assert record["output_tokens"] == wanted.output_tokens
            assert abs(record["prompt_tokens"] - wanted.prompt_tokens) <= max(1, 0.02 * wanted.prompt_tokens)
        asked = sum(wanted.prompt_tokens for wanted in planned)
        assert abs(sum(r["prompt_tokens"] for r in records) - asked) <= 0.02 * asked
        counted = tail["end"]["server"]
        assert counted["generation_tokens"] == sum(r["output_tokens"] for r in records)
        assert counted["prompt_tokens"] == sum(r["prompt_tokens"] for r in records)


def test_the_objectives_can_be_computed_again_from_the_raw_records(ended: Ended) -> None:
    for trial in ended.measured:
        _, *records, _ = level_file(ended, trial["number"], "ttft")
        ttfts = [r["first_token_s"] - r["scheduled_s"] for r in records if "first_token_s" in r]
        assert trial["ttft_p95_s"] == pytest.approx(np.percentile(ttfts, 95), rel=1e-6)
        _, *records, tail = level_file(ended, trial["number"], "throughput")
        whole = sum(r["output_tokens"] for r in records) / tail["end"]["duration_s"]
        # The figure counts the steady window only, without ramp and tail.
        assert 0.8 * whole < trial["output_tok_s"] < 2 * whole


def level_file(ended: Ended, number: int, role: str) -> list[dict[str, Any]]:
    path = ended.directory / "studies" / NAME / f"trial-{number:04}" / f"level-{role}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_optuna_opens_the_database(ended: Ended) -> None:
    study = optuna.load_study(study_name=NAME, storage=f"sqlite:///{ended.directory}/studies/autotune.db")
    assert len(study.trials) == TRIALS
    for ours, theirs in zip(ended.trials, study.trials, strict=True):
        if ours in ended.measured:
            assert theirs.values == pytest.approx([ours["output_tok_s_per_gpu"], ours["ttft_p95_s"]])
    assert {trial.number for trial in study.best_trials} == {trial["number"] for trial in ended.document["front"]}


def test_vllm_reads_what_is_promoted(ended: Ended, vllm_python: str) -> None:
    lines = []
    for number in (NO_PREFIX, WITH_PREFIX):
        words = (
            "--trial",
            str(number),
            "--name",
            f"t{number}",
            "--target",
            "vllm-config",
            "--out",
            "deploy",
            "--skip-gate",
            "--json",
        )
        promotion = json.loads(ended.autotune("promote", NAME, *words))
        assert promotion["trial"] == number
        text = (ended.directory / "deploy" / f"t{number}.vllm.yaml").read_text(encoding="utf-8")
        line = next(line for line in text.splitlines() if " --config " in line and line.startswith("# "))
        # The header's own command line, without the words that start the server.
        lines.append(line.partition("vllm.entrypoints.openai.api_server")[2])
    done = subprocess.run(
        [vllm_python, "-c", PARSE, *lines],
        cwd=ended.directory / "deploy",
        env=ended.environ,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    for number, arguments, line in zip((NO_PREFIX, WITH_PREFIX), read, lines, strict=True):
        for flag, value in ended.trials[number]["flags"].items():
            assert arguments[flag.replace("-", "_")] == value, flag
        assert arguments["model"] == shlex.split(line)[shlex.split(line).index("--model") + 1]
        assert arguments["enforce_eager"] is True
        assert arguments["max_model_len"] == 512
        assert arguments["host"] == "127.0.0.1"


def test_no_process_is_left(ended: Ended, carrying: Callable[[str], list[int]], tiny_model: Path) -> None:
    with Store.open(str(ended.directory / "studies" / "autotune.db"), create=False) as store:
        attempts = [attempt for trial in range(TRIALS) for attempt in store.attempts(NAME, trial)]
    markers = {attempt.identity.marker for attempt in attempts if attempt.identity}
    assert len(markers) == TRIALS
    assert [pid for marker in markers for pid in carrying(marker)] == []
    needle = str(tiny_model).encode()
    naming = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit() and needle in _cmdline(entry)]
    assert naming == []


def _cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_the_same_command_again_launches_nothing(ended: Ended) -> None:
    logs = sorted(ended.directory.rglob("server.log"))
    written = [log.stat().st_mtime_ns for log in logs]
    again = json.loads(autotune(ended.command, ended.directory, ended.environ))
    assert sorted(ended.directory.rglob("server.log")) == logs
    assert [log.stat().st_mtime_ns for log in logs] == written
    # Another test may have promoted a trial, which is marked since.
    assert _unmarked(again) == _unmarked(ended.document)


def _unmarked(found: Any) -> Any:
    """Without what says what runs today."""
    marks = {"running", "runs_today", "against_running"}
    if isinstance(found, dict):
        return {key: _unmarked(value) for key, value in found.items() if key not in marks}
    return [_unmarked(one) for one in found] if isinstance(found, list) else found


def test_the_shipped_flags_are_those_of_this_vllm(ended: Ended, vllm_python: str) -> None:
    command = (vllm_python, "-m", "vllm.entrypoints.openai.api_server")
    installed = ask_flags(command, ended.directory / "cache", env=ended.environ)
    assert installed.version == "0.32.0"
    assert installed.accepted == known_flags()
