"""The history of a deployment as an operator meets it: promote, look, compare, go back."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from autotune_command import LIGHT, TINY, Ended, run

from autotune.errors import ExitCode

PROMOTE = ("promote", "s", "--target", "shell", "--name", "prod-chat", "--allow-simulated", "--skip-gate")


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished simulated study `s` of two trials that differ."""
    folder = tmp_path_factory.mktemp("studied")
    ended = run(folder, "study", *TINY, *LIGHT, "--trials", "2", "--name", "s")
    assert ended.code == 0, ended.err
    return folder


def good(folder: Path, *words: str) -> Ended:
    ended = run(folder, *words)
    assert ended.code == 0, ended.err
    return ended


def document(folder: Path, *words: str) -> Any:
    return good(folder, *words, "--json").document


def git_log(folder: Path, form: str) -> str:
    words = ["git", "-C", str(folder), "log", f"--format={form}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_the_history_of_a_deployment(studied: Path) -> None:
    first = document(
        studied, *PROMOTE, "--trial", "0", "--out", "deploy", "--reason", "to begin with", "--author", "ada"
    )
    assert (first["version"], first["author"], first["gate"]["verdict"]) == (1, "ada", "skipped")
    script = studied / "deploy" / "prod-chat.sh"
    original = script.read_bytes()
    assert b"!!! GATE SKIPPED" in original
    said = good(studied, *PROMOTE, "--trial", "1", "--out", "deploy", "--git", "repo").out
    assert "GATE SKIPPED: nobody verified" in said
    assert "prod-chat@2" in said
    assert "GATE SKIPPED: nobody verified" in git_log(studied / "repo", "%b")

    listed = document(studied, "promotions")["promotions"]
    assert [(one["label"], one["current"], one["trial"]) for one in listed] == [
        ("prod-chat@1", False, 0),
        ("prod-chat@2", True, 1),
    ]
    table = good(studied, "promotions", "prod-chat").out
    assert "runs today" in table
    assert "to begin with" in table
    assert "GATE SKIPPED" in table

    front = document(studied, "pareto", "s")
    assert front["running"] == {
        **{"promotion": "prod-chat@2", "study": "s", "trial": 1, "others": [], "differing": []},
        "config_hash": front["trials"][1]["config_hash"],
    }
    shown = document(studied, "show", "s", "0")
    low, high = shown["against_running"]["throughput_interval"]
    assert low < shown["against_running"]["throughput_ratio"] < high
    assert (shown["runs_today"], document(studied, "show", "s", "1")["runs_today"]) == (False, True)
    assert {trial["number"]: trial["runs_today"] for trial in front["front"]} == {
        trial["number"]: trial["number"] == 1 for trial in front["front"]
    }

    changed = document(studied, "diff", "prod-chat@1", "prod-chat@2")
    flags = {flag["name"]: (flag["a"], flag["b"]) for flag in changed["flags"]}
    assert flags
    assert {"name": "trial", "a": "0", "b": "1"} in changed["facts"]
    ((path, text),) = [(file["path"], file["diff"]) for file in changed["files"]]
    assert path == "prod-chat.sh"
    assert any(str(new) in text for _, new in flags.values())
    assert document(studied, "diff", "prod-chat") == changed  # what runs today against the one before

    back = document(studied, "rollback", "prod-chat", "--reason", "slower", "--git", "repo")
    assert (back["version"], back["restores"], back["trial"], back["reason"]) == (3, 1, 0, "slower")
    assert script.read_bytes() == original
    titles = [line.partition(":")[0] for line in git_log(studied / "repo", "%s").splitlines()]
    assert titles == ["prod-chat@3", "prod-chat@2", "prod-chat@1"]

    nothing = run(studied, "rollback", "prod-chat")
    assert nothing.code == ExitCode.NOT_PROMOTABLE
    assert "no earlier one" in nothing.err
    forth = document(studied, "rollback", "prod-chat", "--to", "2")
    assert (forth["version"], forth["restores"], forth["trial"]) == (4, 2, 1)
    assert "committed to repo: prod-chat@4" in good(studied, "promotions", "prod-chat", "--git", "repo").out


def test_no_promotion_yet(tmp_path: Path) -> None:
    ended = run(tmp_path, "promotions", "prod-chat")
    assert ended.code == ExitCode.UNKNOWN_PROMOTION
    assert "no database" in ended.err
    assert "Nothing was promoted yet" in good(tmp_path, "promotions").out


GATED = ("promote", "s", "--trial", "1", "--target", "shell", "--out", "gated", "--name", "gated", "--allow-simulated")


def test_a_candidate_that_does_not_pass_is_not_rendered(studied: Path) -> None:
    failed = run(studied, *GATED, "--slo", "ttft_p95<=1ms", "--gate-launches", "2")
    assert failed.code == ExitCode.GATE_FAILED
    assert "nothing was rendered: slo" in failed.err
    kept = json.loads((studied / "studies" / "s" / "gate-0001-1" / "gate.json").read_text())
    assert (kept["verdict"], kept["order"], kept["against"]["label"]) == ("fail", "AB", "the baseline")
    # Trial 1 and the baseline differ by nothing that two launches could show.
    unsure = run(studied, *GATED, "--gate-launches", "2", "--gate-most-launches", "2")
    assert unsure.code == ExitCode.GATE_INCONCLUSIVE
    assert "--gate-most-launches 4" in unsure.err
    assert not (studied / "gated").exists()
    assert run(studied, "promotions", "gated").code == ExitCode.UNKNOWN_PROMOTION


def test_a_candidate_that_passes_is_rendered_with_the_evidence(studied: Path) -> None:
    (studied / "today.yaml").write_text("max-num-seqs: 2\nport: 9000\nno-enable-prefix-caching: true\n")
    found = document(studied, *GATED, "--against", "today.yaml")
    gate = found["gate"]
    assert (gate["verdict"], gate["simulated"], gate["against"]["label"]) == ("pass", True, "today.yaml")
    assert dict(gate["against"]["config"]["params"]) == {"enable-prefix-caching": False, "max-num-seqs": 2}
    head = (studied / "gated" / "gated.sh").read_text()
    assert "# gate        pass (simulated): all" in head
    assert "# gate        held gain: " in head
    # What runs today is what the next one is held against.
    again = run(studied, *GATED[:3], "0", *GATED[4:], "--gate-launches", "2", "--slo", "ttft_p95<=1ms")
    assert "gate: launch 1 of 2, gated@1 (trial 1 of study s)" in again.err


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("nosuch.yaml", ExitCode.INVALID_OPTION, "a YAML file of flags"),
        ("current", ExitCode.INVALID_OPTION, "nothing was promoted"),
        ("nested.yaml", ExitCode.INVALID_FILE, "compilation-config"),
    ],
)
def test_what_cannot_be_compared_with(studied: Path, text: str, code: ExitCode, says: str) -> None:
    (studied / "nested.yaml").write_text("compilation-config: {mode: 3}\n")
    ended = run(studied, *GATED[:-2], "nobody", "--allow-simulated", "--against", text)
    assert ended.code == code
    assert says in ended.err
