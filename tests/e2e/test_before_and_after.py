"""What comes before a launch (plan) and after it (limits, remedies, compare), as an operator sees it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from autotune_command import Ended, run

from autotune.simulator.compiled.compiling import cache_root

LOAD = ("--load", "concurrency=32,rate=2,requests=120")
AWQ = "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4"
LARGE = "meta-llama/Llama-3.1-70B-Instruct"


def ok(ended: Ended) -> Ended:
    assert ended.code == 0, ended.err
    return ended


def test_plan_says_what_a_study_would_do_and_launches_nothing(tmp_path: Path) -> None:
    document = ok(run(tmp_path, "plan", "--file", "r6-llama-70b-4x-pcie", "--json")).document
    assert (document["schema"], document["simulated"], document["node"]) == (1, True, "4xL40S-48GB-PCIe")
    space = document["space"]
    assert space["feasible"] == document["rules"][-1]["left"]
    assert space["size"] == space["feasible"] + sum(rule["refused"] for rule in document["rules"])
    assert all(parameter["why"] for parameter in space["parameters"])
    assert sum(layout["configs"] for layout in document["layouts"]) == space["feasible"]
    # Without NVLink pipelines are compared with tensor parallelism (G22).
    sizes = {
        (found["flags"]["tensor-parallel-size"], found["flags"]["pipeline-parallel-size"])
        for found in document["layouts"]
    }
    assert {(4, 1), (1, 4), (2, 2)} <= sizes
    assert document["time"]["total_s"] > 600
    assert not (tmp_path / "studies").exists()
    text = ok(run(tmp_path, "plan", "--file", "r6-llama-70b-4x-pcie")).out
    for part in (
        "Search space auto",
        "Configs left after each rule",
        "Layouts in the order",
        "Tried first",
        "Nothing was",
    ):
        assert part in text


def test_four_numbers_are_a_workload(tmp_path: Path) -> None:
    words = ("--prompt-mean", "900", "--prompt-p95", "2500", "--output-mean", "180", "--concurrency", "64")
    document = ok(run(tmp_path, "plan", "--model", LARGE, "--node", "8xH200-141GB-NVLink", *words, "--json")).document
    assert document["workload"] == "numbers"
    assert document["study"].startswith("llama-3.1-70b-instruct-numbers")
    assert 2700 <= document["needed_len"] <= 20_000


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that searches checkpoints: the 16-bit model needs both GPUs, its 4-bit form one."""
    folder = tmp_path_factory.mktemp("compared")
    words = ("study", "--model", LARGE, "--workload", "chat", "--node", "2xH100-80GB-NVLink", "--name", "s")
    study = {"checkpoints": [AWQ], "starting_points": [{"model": AWQ, "data-parallel-size": 2}]}
    (folder / "mine.yaml").write_text(json.dumps(study), encoding="utf-8")
    # The simulation's code, compiled for a quarter of a minute, is shared with other tests.
    env = {"AUTOTUNE_CACHE_DIR": str(cache_root(os.environ))}
    ok(run(folder, *words, "--file", "mine.yaml", "--trials", "3", "--repeats", "0", *LOAD, env=env, timeout_s=600))
    return folder


def test_a_checkpoint_is_served_in_place_of_the_model(compared: Path) -> None:
    shown = ok(run(compared, "show", "s", "1", "--json")).document
    assert shown["flags"]["model"] == AWQ
    assert shown["outcome"] == "measured"
    assert f"vllm serve {AWQ} " in shown["serve"]
    assert "--model" not in shown["serve"]
    # 36.9 GiB of 4-bit weights against 131.4 GiB over two GPUs.
    weights = [ok(run(compared, "show", "s", n, "--json")).document["resolved"]["weights_bytes"] for n in ("0", "1")]
    assert weights[0] / 2**30 == pytest.approx(65.7, rel=0.02)
    assert weights[1] / 2**30 == pytest.approx(37.0, rel=0.02)


def test_every_measured_trial_says_what_held_it_back(compared: Path) -> None:
    shown = ok(run(compared, "show", "s", "0", "--json")).document
    assert shown["limits"]
    assert shown["limits"][0]["limit"] == shown["limit"]
    assert all(limit["evidence"] for limit in shown["limits"])
    text = ok(run(compared, "show", "s", "0")).out
    assert "What held it back (simulated)" in text
    assert "because " in text
    assert "Held back by (simulated): " in ok(run(compared, "pareto", "s")).out


def test_compare_tells_flags_figures_and_cost(compared: Path) -> None:
    document = ok(run(compared, "compare", "s", "0", "1", "--gpu-hour-price", "3.6", "--json")).document
    assert {"name": "model", "a": LARGE, "b": AWQ} in document["flags"]
    figures = {figure["name"]: figure for figure in document["figures"]}
    throughput, cost = figures["output tok/s per GPU"], figures["cost per 1M output tokens"]
    assert throughput["real"] in (True, False)
    # 3.6 an hour and GPU is 0.001 a second and GPU.
    assert cost["a"] == pytest.approx(1000 / throughput["a"], rel=1e-6)
    assert cost["ratio"] == pytest.approx(1 / throughput["ratio"], rel=1e-6)
    text = ok(run(compared, "compare", "s:baseline", "s:1")).out
    assert "Figures (simulated)" in text
    assert "assumed, because nothing" in text.replace("\n", " ")
