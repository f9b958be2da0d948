"""`autotune bench search` as typed: the JSON's keys, the table, and what it refuses."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from autotune.bench.document import document
from autotune.bench.jobs import Ran
from autotune.bench.replay import Replay
from autotune.bench.summary import Study
from autotune.bench.surfaces import SurfaceKind
from autotune.bench.tables import tables
from autotune.cli import bench
from autotune.errors import AutotuneError, InvalidFile, InvalidOption, StorageError

SURFACE = str(Path(__file__).parents[2] / "data" / "surfaces" / "three-configs.jsonl")
KEYS = {"launches_to_95", "launches_to_99", "gap_closed_at_20", "gap_closed_at_40", "infeasible_share"}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished studies are kept; not in the cache of whoever runs the tests."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))


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

    assert (found["complete"], found["studies"]) == (True, {"asked": 4, "finished": 4, "taken_over": 0})
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

    again = json.loads(run(*asked))
    assert again.pop("studies") == {"asked": 4, "finished": 4, "taken_over": 4}
    assert again == {key: value for key, value in found.items() if key != "studies"}


def test_a_run_that_was_cut_short_is_marked_before_and_after() -> None:
    replay = Replay(gap=(0.0, 1.0), infeasible=(False, False), minutes=(1.0, 2.0), gave_up=False)
    study = Study(surface="s", kind=SurfaceKind.RECORDED, sampler="random", seed=0, replay=replay)
    ran = Ran(studies=(study,), asked=616, taken_over=0, stopped="stopped by the operator")

    written = io.StringIO()
    Console(width=200, file=written).print(tables(ran))
    lines = written.getvalue().splitlines()
    assert lines[0] == lines[-1]
    assert lines[0].startswith("PARTIAL: 1 of 616 studies (stopped by the operator).")
    assert document(ran)["complete"] is False
    assert document(ran)["studies"] == {"asked": 616, "finished": 1, "taken_over": 0}


def test_studies_are_kept_where_the_operator_says(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    run("--surface", SURFACE, "--samplers", "grid", "--seeds", "3", "--workers", "1", "--replays", str(file))

    assert len(file.read_text(encoding="utf-8").splitlines()) == 3
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_costs_only_that_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")  # a file where the folder would be

    assert "three-configs" in run("--surface", SURFACE, "--samplers", "grid", "--seeds", "1", "--workers", "1")


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
        (("--samplers", "random", "--replays", "/"), StorageError),
        (("--samplers", "random", "--replays", SURFACE), InvalidFile),
    ],
)
def test_what_cannot_be_used_is_told(arguments: tuple[str, ...], error: type[AutotuneError]) -> None:
    with pytest.raises(error):
        run(*arguments)
