"""What the gate of `promote` is told of what runs today."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.cli.gate import _more, _unlike, overtaken, placed
from autotune.cli.gate_against import side_of_file
from autotune.errors import InvalidFile
from autotune.promote import Entry, Promotion, Target
from autotune.records import (
    Config,
    CriterionState,
    GateCriterion,
    GateLaunch,
    GateLook,
    GateRecord,
    GateSide,
    GateSideName,
    GateVerdict,
)
from autotune.review.promoting import extra_of

AT = datetime(2026, 1, 1, tzinfo=UTC)
SIDE = GateSide(label="trial 1", config=Config.of({}), model="m", gpus=1)
RECORD = GateRecord.skipped("new", SIDE, why="", at=AT)
PROMOTED = Entry(
    version=2,
    directory="/d",
    promotion=Promotion(
        name="prod", created_at=AT, study="old", trial=1, config_hash="h", model="m", vllm_version="0.31.0", targets=(),
        files=(), argv=(), simulated=False, simulated_allowed=False,
    ),
)  # fmt: skip


def test_a_file_of_flags_is_read_as_vllm_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "today.yaml"
    path.write_text(
        "model: org/m\nmax_num_seqs: 64\nno-enable-prefix-caching: true\ntensor-parallel-size: 2\nport: 1\n"
    )
    side = side_of_file(path, "other")
    assert (side.label, side.model, side.gpus) == ("today.yaml", "org/m", 2)
    assert side.config == Config.of({"enable-prefix-caching": False, "max-num-seqs": 64, "tensor-parallel-size": 2})


def test_secrets_and_places_of_a_file_of_flags_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "today.yaml"
    path.write_text("api-key: s3cret\nhf_token: s3cret\nuds: /run/vllm.sock\nhost: 0.0.0.0\nmax-num-seqs: 64\n")
    assert side_of_file(path, "m").config == Config.of({"max-num-seqs": 64})


def test_no_more_launches_are_advised_than_there_may_be_or_than_would_tell() -> None:
    look = GateLook(launches=24, verdict=GateVerdict.INCONCLUSIVE, outlook="24 launches were not enough")
    open_gain = GateCriterion(name="gain", asked="", state=CriterionState.UNDECIDED, found="")
    record = replace(RECORD, looks=(look,), criteria=(open_gain,))
    assert _more(record, 24) == "24 launches were not enough. More launches may tell: --gate-most-launches 48."
    assert "--gate-most-launches 100." in _more(record, 60)
    assert "--gate-most-launches" not in _more(record, 100)
    silent = replace(record, criteria=(open_gain, replace(open_gain, name="memory")))
    assert _more(silent, 24) == "More launches would not tell: see what is undecided."
    failed = replace(record, launches=(GateLaunch(place=1, side=GateSideName.AGAINST, directory="", failure="busy"),))
    assert "try again" in _more(failed, 24)


NO_FLAGS = (
    *("", "- a\n", "a: {b: 1}\n", "a: null\n", "1: 2\n", '"a b;c": 1\n', '"--max-num-seqs": 1\n', "a: 2026-01-01\n"),
    *("max-num-seqs: 4\nmax_num_seqs: 8\n", "no-enforce-eager: true\nenforce-eager: true\n"),
    *('model: "a\\nb"\n', "model: --x\n", "model: 7\n", 'model: ""\n'),
    *('tensor-parallel-size: "2"\n', "data-parallel-size: 0\n", "pipeline-parallel-size: true\n"),
)


@pytest.mark.parametrize("text", NO_FLAGS)
def test_what_is_no_file_of_flags(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(InvalidFile):
        side_of_file(path, "m")


def test_what_runs_today_may_have_been_launched_otherwise() -> None:
    same = replace(RECORD, vllm_version="0.31.0+cu129")
    assert _unlike(PROMOTED, same, held=(), own=()) == ()
    other = replace(RECORD, vllm_version="0.32.0")
    version, flags = _unlike(PROMOTED, other, held=("--trust-remote-code",), own=())
    assert version == "prod@2 runs vLLM 0.31.0, and was launched here with 0.32.0"
    assert flags == "prod@2 was rendered with --trust-remote-code after `--`, and was launched here with nothing"


def test_another_node_than_where_it_will_run_is_a_doubt() -> None:
    verified = replace(RECORD, verdict=GateVerdict.PASSED, node="2xH100-80GB")
    elsewhere = replace(PROMOTED, promotion=replace(PROMOTED.promotion, node="8xA100-80GB"))
    assert _unlike(elsewhere, replace(verified, vllm_version="0.31.0"), held=(), own=()) == (
        "prod@2 was promoted on 8xA100-80GB, and this was verified on 2xH100-80GB",
    )
    assert placed(verified, (Target.SHELL, Target.SYSTEMD)) == verified
    (doubt,) = placed(verified, (Target.SHELL, Target.KUBERNETES, Target.HELM)).doubts
    assert doubt.startswith("verified on 2xH100-80GB; kubernetes and helm may place it on another node")
    assert placed(RECORD, (Target.HELM,)) == RECORD  # skipped: nothing was verified at all


def test_what_a_study_had_after_its_options_is_told_without_secrets() -> None:
    class Studies:
        """As much of a store as is asked."""

        def study(self, name: str) -> Any:
            return SimpleNamespace(spec={"extra_args": ["--trust-remote-code", "--api-key", "s3cret"]})

    assert extra_of(Studies(), "old") == ("--trust-remote-code",)


def test_a_promotion_that_came_in_between_is_a_doubt() -> None:
    passed = replace(RECORD, verdict=GateVerdict.PASSED)
    later = replace(PROMOTED, version=3)
    assert overtaken(passed, None, None) == overtaken(passed, PROMOTED, PROMOTED) == passed
    for before in (None, PROMOTED):
        (doubt,) = overtaken(passed, before, later).doubts
        assert doubt == "prod@3 was promoted meanwhile: nobody verified this config against it"
    assert overtaken(RECORD, None, later) == RECORD  # skipped: nothing was verified at all
