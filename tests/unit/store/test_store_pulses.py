"""A study's revision is another one after everything that its documents show."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import store_samples as samples

from autotune.store.repository import Store
from autotune.store.study_record import PromotionRecord, StudyState


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(tmp_path / "a.db") as opened:
        opened.create_or_resume_study(samples.spec())
        opened.create_or_resume_study(samples.spec(name="other"))
        samples.add_trial(opened, 0, samples.measured(1000.0, 0.2))
        samples.add_trial(opened, 1, None)
        yield opened


def promote(store: Store) -> None:
    store.add_promotion(
        PromotionRecord(
            study="s", trial=0, created_at=datetime.now(UTC), targets=("shell",), directory="/d", simulated=True
        )
    )


CHANGES: dict[str, Callable[[Store], object]] = {
    "a trial begins": lambda store: samples.add_trial(store, 2, None),
    "a trial is launched": lambda store: store.begin_attempt("s", 1, directory="/d"),
    "a trial ends": lambda store: store.finish_trial("s", 1, samples.measured(900.0, 0.3)),
    "the target moves": lambda store: store.set_target("s", 99),
    "the study ends": lambda store: store.set_study_state("s", StudyState.FINISHED),
    "something is promoted": promote,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_another_revision(store: Store, change: str) -> None:
    before = store.pulses()
    assert store.pulses() == before
    CHANGES[change](store)
    after = store.pulses()
    assert after["s"].revision != before["s"].revision
    if change != "something is promoted":  # what runs today stands beside every front
        assert after["other"] == before["other"]


def test_every_state_so_far_was_another_one(store: Store) -> None:
    seen = [store.pulses()["s"].revision]
    for change in CHANGES.values():
        change(store)
        seen.append(store.pulses()["s"].revision)
    assert len(set(seen)) == len(seen)


def test_a_study_without_trials_has_one_as_well(store: Store) -> None:
    pulse = store.pulses()["other"]
    assert (pulse.trials, pulse.finished, pulse.attempts) == (0, 0, 0)


def test_tallies_of_some_are_those_of_all(store: Store) -> None:
    assert store.tallies(["s"]) == {"s": store.tallies()["s"]}
    assert store.tallies([]) == {}
