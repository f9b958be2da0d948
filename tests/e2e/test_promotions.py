"""The history of a deployment as an operator meets it: promote, look, compare, go back."""

from __future__ import annotations

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

    listed = document(studied, "promotions")["promotions"]
    assert [(one["label"], one["current"], one["trial"]) for one in listed] == [
        ("prod-chat@1", False, 0),
        ("prod-chat@2", True, 1),
    ]
    table = good(studied, "promotions", "prod-chat").out
    assert "runs today" in table
    assert "to begin with" in table

    front = document(studied, "pareto", "s")
    assert front["running"] == {
        **{"promotion": "prod-chat@2", "study": "s", "trial": 1, "others": [], "differing": []},
        "config_hash": front["trials"][1]["config_hash"],
    }
    shown = document(studied, "show", "s", "0")
    low, high = shown["against_running"]["throughput_interval"]
    assert low < shown["against_running"]["throughput_ratio"] < high
    assert document(studied, "show", "s", "1")["runs_today"] is True
    assert "runs today (prod-chat@2)" in good(studied, "pareto", "s").out

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
    assert document(studied, "promotions", "prod-chat")["promotions"][-1]["current"] is True
    log = subprocess.run(
        ["git", "-C", str(studied / "repo"), "log", "--format=%s"], capture_output=True, text=True, check=True
    )
    assert [line.partition(":")[0] for line in log.stdout.splitlines()] == ["prod-chat@3", "prod-chat@2", "prod-chat@1"]

    nothing = run(studied, "rollback", "prod-chat")
    assert nothing.code == ExitCode.NOT_PROMOTABLE
    assert "no earlier one" in nothing.err
    forth = document(studied, "rollback", "prod-chat", "--to", "2")
    assert (forth["version"], forth["restores"], forth["trial"]) == (4, 2, 1)
    assert "nothing that was not there" not in good(studied, "promotions", "prod-chat", "--git", "repo").out
    assert "nothing that was not there" in good(studied, "promotions", "prod-chat", "--git", "repo").out


def test_no_promotion_yet(tmp_path: Path) -> None:
    ended = run(tmp_path, "promotions", "prod-chat")
    assert ended.code == ExitCode.UNKNOWN_PROMOTION
    assert "no database" in ended.err
