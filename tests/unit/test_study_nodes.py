"""A study on several nodes: no neighbours, lost attempts done elsewhere, launches again on one host."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from test_study_parallel import LIST, Notes, plan_for, speeds

from autotune.engine.base import ServerIdentity
from autotune.engine.fake import FakeEngine
from autotune.executor.fake import FakeExecutor
from autotune.records import FailureClass, Origin, Outcome, Phase, Trial
from autotune.search.proposer import Proposer
from autotune.session import reap_left_over, spec_of
from autotune.store.folder import StudyFolder
from autotune.store.projection import Projection
from autotune.store.repository import Store
from autotune.store.study_record import AttemptState
from autotune.study import StudyRun
from autotune.trial_life import TrialLife

HOSTS = ("a", "b", "c")


def finished(folder: Path, executor: FakeExecutor, **values: object) -> tuple[tuple[Trial, ...], Notes]:
    plan, observer = plan_for(folder, **{"parallel": 1, "repeats": 1, "attempts": 2, **values}), Notes()
    with Store.open(folder / "autotune.db") as store, Projection.open(store) as projection:
        run = StudyRun(
            plan=plan,
            study=store.create_or_resume_study(spec_of(plan)),
            store=store,
            folder=StudyFolder(root=folder, name="s"),
            executor=executor,
            proposer=Proposer(plan.space, plan.recipe.sampler, plan.recipe.seed),
            projection=projection,
            observer=observer,
        )
        asyncio.run(run.run())
        return run.trials(), observer


def test_trials_use_all_nodes_alone_and_launches_again_that_of_the_baseline(tmp_path: Path) -> None:
    executor = FakeExecutor(engine=FakeEngine(script=speeds), hosts=HOSTS)
    trials, _ = finished(tmp_path, executor)
    searched = [trial for trial in trials if trial.counted]
    assert len(searched) == len(LIST) + 1
    assert {host for _, host in executor.performed} == set(HOSTS)
    assert all(trial.alone and "beside_neighbours" not in [one.code for one in trial.caveats] for trial in trials)
    assert not any(trial.origin is Origin.PROBE for trial in trials)
    assert all(trial.result is not None and trial.result.host in HOSTS for trial in trials)
    assert trials[0].result is not None
    again = [trial for trial in trials if trial.repeat_of is not None]
    assert len(again) >= 2
    assert {trial.result.host for trial in again if trial.result} == {trials[0].result.host}


def test_an_attempt_that_is_lost_is_done_elsewhere_and_stored_as_faulted(tmp_path: Path) -> None:
    lost_at = {0: Phase.WARMING, 2: Phase.MEASURING, 3: Phase.LAUNCHING, 5: Phase.STOPPING}
    executor = FakeExecutor(
        engine=FakeEngine(script=speeds),
        hosts=HOSTS,
        goes_at=lambda trial, before: lost_at.get(trial) if before == 0 else None,
    )
    trials, notes = finished(tmp_path, executor)
    assert all(trial.measured for trial in trials)
    for number in lost_at:
        first, then = [host for trial, host in executor.performed if trial == number]
        assert number or first != then  # beside the baseline the other hosts were free
        assert any(f"trial {number}: node_lost, launched again" in note for note in notes.notes)
        with Store.open(tmp_path / "autotune.db") as store:
            one, two = store.attempts("s", number)
        assert (one.state, two.state) == (AttemptState.FAULTED, AttemptState.ENDED)
        assert one.result is not None
        assert one.result.host == first


def test_a_config_that_takes_every_node_down_is_given_up(tmp_path: Path) -> None:
    executor = FakeExecutor(
        engine=FakeEngine(script=speeds),
        hosts=HOSTS,
        goes_at=lambda trial, before: Phase.MEASURING if trial == 4 else None,
    )
    trials, _ = finished(tmp_path, executor)
    lost = trials[4]
    assert lost.attempts == 2
    assert lost.result is not None
    # The environment's fault: a config is not to blame for a node that went.
    assert lost.result.outcome is Outcome.FAULTED
    assert lost.result.failure is not None
    assert lost.result.failure.kind is FailureClass.NODE_LOST
    assert all(trial.measured for trial in trials if trial.config != lost.config)


@pytest.mark.parametrize("host", ["b", "gone"])
def test_what_a_dead_tuner_left_is_looked_for_where_it_ran(host: str, tmp_path: Path) -> None:
    identity = ServerIdentity(pid=1, started=1.0, pgid=2, marker="m", host=host)
    executor, observer = FakeExecutor(engine=FakeEngine(script=speeds), hosts=HOSTS), Notes()
    plan = plan_for(tmp_path, parallel=1)
    with Store.open(tmp_path / "autotune.db") as store:
        store.create_or_resume_study(spec_of(plan))
        store.begin_trial("s", config=plan.baseline, origin=Origin.BASELINE, gpus=1)
        TrialLife(store, "s", 0).begin(tmp_path)
        store.record_identity("s", 0, 1, identity)
        reap_left_over(store, "s", observer, executor.reap)
        (attempt,) = store.attempts("s", 0)
    assert executor.reaped == [identity]
    assert attempt.state is AttemptState.INTERRUPTED
    assert bool(observer.notes) == (host == "gone")
