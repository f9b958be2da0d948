"""A study whose objective is the goodput, as an operator runs it: front, pick, what is shown, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from autotune_command import LLAMA, run

from autotune.errors import ExitCode

SLO = "ttft_p95<=300ms,tpot_p95<=50ms,error_rate<=0"
STUDY = (
    "study",
    "--model",
    LLAMA,
    "--workload",
    "tiny",
    "--space",
    "scheduler",
    "--node",
    "1xH100-80GB",
    "--name",
    "g",
)
GOODPUT = ("--objective", "goodput", "--slo", SLO)
SIZE = ("--name", "g", "--trials", "3", "--repeats", "0", "--engine", "simulated")


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("goodput")
    ended = run(folder, *STUDY, *SIZE, *GOODPUT, timeout_s=600)
    assert ended.code == 0, ended.err
    assert f"the highest goodput within {SLO}" in " ".join(ended.out.split())
    assert "goodput/s per GPU" in ended.out
    return folder


def test_the_front_is_of_goodput_and_ttft(studied: Path) -> None:
    document = run(studied, "pareto", "g", "--json").document
    found = {
        trial["number"]: (trial["goodput_rps_per_gpu"], trial["ttft_p95_s"])
        for trial in document["trials"]
        if trial["outcome"] == "measured"
    }
    assert len(found) == 3
    assert all(rate > 0 for rate, _ in found.values())
    # The slow oracle: on the front is what no other one is as good as in both and better in one.
    front = {
        number
        for number, (rate, ttft) in found.items()
        if not any(r >= rate and t <= ttft and (r, t) != (rate, ttft) for r, t in found.values())
    }
    assert {trial["number"] for trial in document["front"]} == front
    # The highest rate, unless a plainer config is tied with it.
    best = max(found, key=lambda number: found[number][0])
    assert best in (document["pick"]["number"], document["pick"]["instead_of"])
    assert document["slo"] == SLO


def test_the_search_is_in_the_evidence(studied: Path) -> None:
    shown = run(studied, "show", "g", "0", "--json").document
    assert shown["goodput"]["slo"] == SLO
    levels = [level for level in shown["levels"] if level["role"] == "goodput"]
    assert len(levels) == shown["goodput"]["levels"] > 0
    assert shown["goodput_rps_per_gpu"] == pytest.approx(shown["goodput"]["rate_rps"])
    assert "goodput" in run(studied, "show", "g", "0").out


def test_another_objective_or_slo_is_another_study(studied: Path) -> None:
    plain = run(studied, *STUDY, *SIZE)
    assert plain.code == ExitCode.STUDY_MISMATCH
    assert "objective" in plain.err
    other = run(studied, *STUDY, *SIZE, "--objective", "goodput", "--slo", "1s")
    assert other.code == ExitCode.STUDY_MISMATCH
    assert run(studied, *STUDY, *SIZE, *GOODPUT).code == 0
    assert run(studied, "pareto", "g", "--slo", "1s").code == ExitCode.INVALID_OPTION


@pytest.mark.parametrize("words", [("--objective", "goodput"), ("--objective", "speed"), ("--slo", "ttft_p42<=1s")])
def test_what_cannot_be_asked(tmp_path: Path, words: tuple[str, ...]) -> None:
    ended = run(tmp_path, *STUDY, *SIZE, *words)
    assert ended.code == ExitCode.INVALID_OPTION
    assert words[0] in ended.err
    assert "Traceback" not in ended.err
