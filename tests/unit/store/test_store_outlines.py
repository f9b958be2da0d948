"""What is read in brief is what is read in full, with the rest left out."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import store_samples as samples

from autotune.errors import StorageError
from autotune.records import (
    Caveat,
    Config,
    Estimate,
    FailureClass,
    LevelRole,
    Origin,
    Outcome,
    ServerFacts,
    Slo,
    SloMetric,
)
from autotune.report.tables import as_text, study_report
from autotune.review.views import brief_view_of, view_of
from autotune.search.objective import limited, points
from autotune.search.pareto import front_of, pick
from autotune.store.listing import Tally
from autotune.store.places import Places
from autotune.store.repository import Store


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(tmp_path / "a.db") as opened:
        opened.create_or_resume_study(samples.spec())
        samples.add_trial(opened, 0, samples.measured(1000.0, 0.2))
        samples.add_trial(opened, 1, samples.failed(Outcome.INFEASIBLE, FailureClass.KV_CACHE_NONE))
        samples.add_trial(opened, 2, samples.measured(1500.0, 0.4))
        samples.add_trial(opened, 3, samples.measured(800.0, 0.5))
        odd = Config.of({"a": None, "b": True, "c": 1, "d": 1.0, "e": float("inf"), "f": "é\n"})
        samples.add_trial(opened, 4, void(samples.measured(9000.0, 0.1)), params=odd)
        samples.add_trial(opened, 5, samples.measured(1010.0, float("inf")), params=samples.config(x=0), repeat_of=0)
        samples.add_trial(opened, 6, None)
        yield opened


def void(result):
    levels = tuple(
        replace(level, caveats=(*level.caveats, Caveat(code="c", text="t", remedy="r", void=True)))
        for level in result.measurements
    )
    return replace(result, measurements=levels)


def test_front_pick_and_every_figure_are_those_of_the_full_records(store: Store) -> None:
    full, brief = store.trials("s"), store.outlines("s", metrics=SloMetric)
    assert points(brief) == points(full)
    assert (front_of(brief), pick(brief)) == (front_of(full), pick(full))
    slo = Slo.of(ttft_p95=0.45, tpot_p95=0.5)
    assert pick(brief, slo=slo) == pick(full, slo=slo)
    for one, other in zip(brief, full, strict=True):
        assert (one.objectives, one.void, one.counted) == (other.objectives, other.void, other.counted)
        for name in ("number", "config", "origin", "gpus", "attempts", "repeat_of", "why"):
            assert getattr(one, name) == getattr(other, name)
        assert [type(value) for _, value in one.config] == [type(value) for _, value in other.config]
        assert one.config.hash == Config.of(one.config.as_dict()).hash
    for limit in Slo.of(**{metric.value: 0.5 for metric in SloMetric}).limits:
        assert [limited(point, brief, limit) for point in points(brief)] == [
            limited(point, full, limit) for point in points(full)
        ]


@pytest.mark.parametrize("slo", [None, "ttft_p95<=450ms,tpot_p95<=500ms"])
def test_a_report_says_the_same_of_both(store: Store, slo: str | None, tmp_path: Path) -> None:
    places = Places(root=tmp_path)
    views = [make(store, store.study("s"), places, slo=slo) for make in (brief_view_of, view_of)]
    brief, full = (as_text(study_report(view)) for view in views)
    assert brief == full
    assert len(full.splitlines()) > 10


def test_how_plain_a_config_is_counts_against_what_the_baselines_server_said(tmp_path: Path) -> None:
    # Trial 2 names two flags, both of which vLLM's defaults have already; trial 1 changes one. Without the server's own
    # words the pick would be trial 1.
    told = replace(samples.measured(1000.0, 0.4), facts=ServerFacts(max_num_seqs=256, gpu_memory_utilization=0.92))
    same = Config.of({"max-num-seqs": 256, "gpu-memory-utilization": 0.92, "api-server-count": None})
    with Store.open(tmp_path / "a.db") as store:
        store.create_or_resume_study(samples.spec())
        samples.add_trial(store, 0, told, params=Config.of({}))
        samples.add_trial(store, 1, samples.measured(1500.0, 0.2), params=Config.of({"max-num-seqs": 128}))
        samples.add_trial(store, 2, samples.measured(1499.0, 0.2), params=same)
        places = Places(root=tmp_path)
        picks = [make(store, store.study("s"), places).pick for make in (brief_view_of, view_of)]
    assert [pick.number for pick in picks if pick] == [2, 2]


def test_what_was_not_asked_for_is_missing_and_not_zero(store: Store) -> None:
    trial = store.outlines("s", metrics=())[0]
    assert trial.result is not None
    assert trial.ttft_p95_s is None
    assert trial.result.facts is None
    level = trial.result.of_role(LevelRole.THROUGHPUT)
    assert level is not None
    assert (level.tpot_s, level.output_tokens, level.server) == (None, None, None)
    assert level.output_tok_s == Estimate(value=1000.0, low=980.0, high=1020.0)
    assert (trial.argv, trial.directory) == ((), None)


def test_how_long_phases_took_is_there_where_it_is_asked_for(store: Store) -> None:
    full = [trial.result.phase_seconds for trial in store.trials("s") if trial.result]
    asked, unasked = (
        [trial.result.phase_seconds for trial in store.outlines("s", phases=phases) if trial.result]
        for phases in (True, False)
    )
    assert (asked, unasked) == (full, [()] * len(full))
    assert any(full)


def test_a_flag_that_is_no_utf8_is_read_as_it_was_given(store: Store) -> None:
    odd = Config.of({"a": os.fsdecode(b"\xff"), "b": float("nan")})
    samples.add_trial(store, 7, samples.measured(1.0, 0.2), params=odd)
    assert store.outlines("s")[7].config.get("a") == store.trials("s")[7].config.get("a") == "\udcff"


def test_levels_stand_in_the_order_in_which_they_were_driven(store: Store) -> None:
    for one, other in zip(store.outlines("s"), store.trials("s"), strict=True):
        if other.result is not None:
            assert one.result is not None
            assert [level.level for level in one.result.measurements] == [
                level.level for level in other.result.measurements
            ]


def test_tallies_count_what_counts_against_the_target(store: Store) -> None:
    store.create_or_resume_study(samples.spec("empty"))
    store.begin_trial("s", config=samples.config(x=0), origin=Origin.REPEAT, gpus=1, repeat_of=0)
    store.finish_trial("s", 7, samples.measured())
    store.begin_trial("s", config=samples.config(x=0), origin=Origin.VALIDATION, gpus=1, repeat_of=0)
    trials = store.trials("s")
    counted = [trial.result.outcome for trial in trials if trial.counted and trial.result]
    assert store.tallies() == {
        "s": Tally(
            counted=len(counted),
            measured=counted.count(Outcome.MEASURED),
            infeasible=1,
            waiting=6,
            simulated=True,
        ),
        "empty": Tally(),
    }
    assert len(counted) == 6


def test_some_trials_are_those_in_full(store: Store) -> None:
    full = store.trials("s")
    assert store.trials_of("s", [4, 2, 99]) == (full[2], full[4])
    assert store.trials_of("s", []) == ()


def test_a_config_nested_too_deep_is_one_clear_error(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db") as store:
        store.create_or_resume_study(samples.spec())
        samples.add_trial(store, 0, samples.measured())
    with closing(sqlite3.connect(tmp_path / "a.db")) as damaged:
        damaged.execute("update autotune_trials set config = ?", ('{"params": ' + "[" * 9000 + "]" * 9000 + "}",))
        damaged.commit()
    with Store.open(tmp_path / "a.db") as store:
        for read in (store.outlines, store.trials):
            with pytest.raises(StorageError, match="cannot be read"):
                read("s")
