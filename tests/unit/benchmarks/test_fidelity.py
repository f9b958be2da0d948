"""The fidelity benchmark on rows that were made with other coefficients than it begins with."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import InvalidFile
from autotune.simulator.coefficients import DATASHEET
from autotune.simulator.measured import Repeated
from benchmarks.fidelity import MODELS, Row, judge, read_rows
from benchmarks.fidelity_text import table, verdicts

TRUTH = replace(DATASHEET, weight_read_share=0.65, api_request_s=2e-3, allreduce_latency_s=60e-6, stage_overhead_s=3e-3)
GUESS = {"output_throughput": 1.0, "p50_ttft_ms": 1.0, "p95_ttft_ms": 1.0, "p50_tpot_ms": 1.0, "mean_ttft_ms": 1.0}
SERVERS = {
    "plain": [],
    "few": ["--max-num-seqs", "4"],
    "eager": ["--enforce-eager"],
    "slow": ["--max-num-batched-tokens", "512"],
    "tp": ["--tensor-parallel-size", "2"],
    "pp": ["-pp=2"],
    "dp": ["--data-parallel-size", "2"],
}


def line(name: str, load: str, clients: int, seed: int) -> dict[str, Any]:
    lengths = ["--random-input-len", "200", "--random-output-len", "16", "--random-range-ratio", "0.2"]
    client = ["--seed", str(seed), "--num-prompts", str(2 * clients), "--max-concurrency", str(clients)]
    return {
        "name": name,
        "load": load,
        "model": "llama8b",
        "flags": ["--max-model-len", "4096", *SERVERS[name]],
        "bench_args": [*client, *lengths],
        "kv_tokens": 900_000,
        "bench": {"total_input_tokens": 1, "total_output_tokens": 1, **GUESS},
    }


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = [line(name, load, clients, 7) for name in SERVERS for load, clients in (("wide", 12), ("narrow", 3))]
    file.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    return [
        replace(row, load=replace(row.load, measured=Repeated(row.load).figures(TRUTH, seeds=1)[0]))
        for row in read_rows(file, gpu="H200-141GB", model=MODELS["llama8b"])
    ]


@pytest.fixture(scope="module")
def report(rows: list[Row]) -> dict[str, Any]:
    return judge(rows, seeds=1)


def test_each_row_is_on_as_many_gpus_as_its_flags_ask_for(rows: list[Row]) -> None:
    gpus = {row.recorded.name: row.load.node.gpu_count for row in rows}
    assert gpus == {"plain": 1, "few": 1, "eager": 1, "slow": 1, "tp": 2, "pp": 2, "dp": 2}


@pytest.mark.no_cover
def test_calibration_on_three_of_its_own_choosing_helps_on_the_fourth(report: dict[str, Any]) -> None:
    after, same = report["after"], report["before_on_rows_of_after"]
    assert len(after["calibrated_on"]) == 3
    assert after["rows"] == 2
    assert report["before"]["rows"] == 8
    assert after["tpot_mape"] < 0.5 * same["tpot_mape"]
    assert after["throughput_mape"] < 0.5 * same["throughput_mape"]
    assert len(report["after_one"]["calibrated_on"]) == 1
    assert sum(row["judged_after"] for row in report["rows"]) == 2


def test_several_gpus_are_judged_by_kind_after_one_trial_or_load(report: dict[str, Any]) -> None:
    several = report["multi_gpu"]
    assert several["data_parallel"]["calibrated_on"] == []
    assert several["data_parallel"]["rows"] == 2
    for kind, name in (("tensor_parallel", "tp"), ("pipeline_parallel", "pp")):
        part = several[kind]
        assert part["rows"] == 1  # a single trial: one load of it was calibrated on
        assert part["calibrated_on"][0].startswith(f"{name}/")
        assert part["tpot_mape"] < 0.1
    assert several["rows"] == 4


def test_the_report_is_json_and_a_table_and_names_every_goal(report: dict[str, Any]) -> None:
    assert json.loads(json.dumps(report)) == report
    text = "\n".join(table(report))
    assert "calibrated on" in text
    assert "multi_gpu.pipeline_parallel.tpot_mape" in text
    assert {goal["met"] for goal in verdicts(report)} <= {True, False, None}


@pytest.mark.no_cover
def test_rows_of_one_gpu_alone_have_no_part_for_several(rows: list[Row]) -> None:
    found = judge([row for row in rows if row.recorded.name in ("plain", "few")], seeds=1)
    assert found["multi_gpu"] is None
    assert found["after"]["rows"] == 0  # both are calibrated on: nothing is left to judge
    assert found["after"]["throughput_mape"] is None
    assert "no data" in "\n".join(table(found))


def test_a_file_without_loads_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "none.jsonl"
    empty.write_text('{"kind": "failure"}\n')
    with pytest.raises(InvalidFile, match="no recorded load"):
        read_rows(empty, gpu="H200-141GB", model=MODELS["llama8b"])


def test_what_cannot_be_read_is_one_line_and_status_one(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.fidelity", "--data", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: ")
    assert "Traceback" not in ran.stderr
