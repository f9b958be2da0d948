"""`autotune bench search` as typed: the JSON's keys, the table, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli import bench
from autotune.errors import AutotuneError, InvalidFile, InvalidOption

SURFACE = str(Path(__file__).parents[2] / "data" / "surfaces" / "three-configs.jsonl")
KEYS = {"launches_to_95", "launches_to_99", "gap_closed_at_20", "gap_closed_at_40", "infeasible_share"}


def run(*arguments: str) -> str:
    app = typer.Typer()
    bench.register(app)
    done = CliRunner().invoke(app, ["bench", "search", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_json_has_the_documented_keys() -> None:
    asked = ("--surface", SURFACE, "--samplers", "grid,random", "--seeds", "2", "--workers", "1", "--json")
    found = json.loads(run(*asked))

    (surface,) = found["surfaces"]
    assert (surface["name"], surface["kind"]) == ("three-configs", "recorded")
    assert list(surface["samplers"]) == ["grid", "random"]
    for figures in (*surface["samplers"].values(), *found["pooled"].values()):
        assert figures.keys() >= KEYS
        assert figures["launches_to_95"].keys() >= {"median", "q1", "q3", "censored_share"}
        # Three configs, the baseline first: 1,024 sequences are found second or third.
        assert figures["launches_to_95"]["median"] in {2, 3}
        assert figures["launches_to_95"]["censored_share"] == 0.0
    assert [one["against"] for one in found["comparisons"]] == ["grid"]


def test_the_table_names_every_sampler() -> None:
    text = run("--surface", SURFACE, "--samplers", "qmc", "--seeds", "1", "--workers", "1")

    assert "three-configs (recorded)" in text
    assert "qmc" in text
    assert "Kaplan-Meier" in text


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--samplers", "magic"), InvalidOption),
        (("--samplers", ""), InvalidOption),
        (("--samplers", "random", "--surface", "/nonexistent.jsonl"), InvalidFile),
        (("--samplers", "random", "--surface", "/"), InvalidFile),
    ],
)
def test_what_cannot_be_used_is_told(arguments: tuple[str, ...], error: type[AutotuneError]) -> None:
    with pytest.raises(error):
        run(*arguments)
