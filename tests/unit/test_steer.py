"""Steering studies at moments that the end-to-end tests cannot hold still."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from autotune.cli import steer
from autotune.errors import StudyBusy
from autotune.records import ClockKind, Config, EngineKind, Origin, Outcome, TrialResult
from autotune.store.folder import LockHolder
from autotune.store.places import Places
from autotune.store.repository import Store
from autotune.store.study_record import StudySpec

SPEC = StudySpec(
    name="s",
    seed=0,
    engine=EngineKind.PROCESS,
    simulated=False,
    clock=ClockKind.WALL,
    target_trials=3,
    identity={"model": "m", "workload": "w", "node": "n"},
)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    made = Places(root=tmp_path)
    with Store.open(made.database) as store:
        store.create_or_resume_study(SPEC)
    return made


def test_logs_of_a_study_without_a_trial_yet(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    for follow in (False, True):
        steer.logs("s", follow=follow, studies_dir=places.root)
        said = capsys.readouterr()
        assert said.out == ""
        assert "no server log" in said.err


def test_a_tuner_of_another_user_cannot_be_stopped(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signum: int) -> None:
        raise PermissionError(pid, signum)

    monkeypatch.setattr(os, "kill", refuse)  # a second user is more than a test may ask for
    me = LockHolder(pid=os.getpid(), started=psutil.Process().create_time())
    with places.folder("s").locked(me), pytest.raises(StudyBusy, match="another user"):
        steer.stop("s", wait_s=0.0, studies_dir=places.root)


@pytest.mark.parametrize(
    "content",
    ["", "[[", '{"pid": -1, "started": 1}', '{"pid": 1e999, "started": 1}', '{"pid": 5, "started": NaN}', '"\\ud800"'],
)
def test_a_study_whose_lock_says_nonsense_is_not_said_to_be_stopped(
    places: Places, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    me = LockHolder(pid=os.getpid(), started=psutil.Process().create_time())
    with places.folder("s").locked(me):
        (places.root / "s" / ".lock").write_text(content, encoding="utf-8")
        with pytest.raises(StudyBusy, match="does not name"):
            steer.stop("s", wait_s=0.0, studies_dir=places.root)
        folder = places.folder("s")
        assert (folder.holder(), folder.is_held(), places.is_left("s")) == (None, True, False)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("now", "signals"), [(False, 1), (True, 2)])
def test_a_study_is_asked_once_to_finish_and_twice_to_end_now(
    places: Places, monkeypatch: pytest.MonkeyPatch, now: bool, signals: int
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _pid, number: sent.append(number))  # it would end the test itself
    me = LockHolder(pid=os.getpid(), started=psutil.Process().create_time())
    with places.folder("s").locked(me), pytest.raises(StudyBusy, match="still finishing what it measures"):
        steer.stop("s", wait_s=0.0, now=now, studies_dir=places.root)
    assert sent == [signal.SIGTERM] * signals


def test_the_list_counts_what_counts_against_the_trials(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(places.database) as store:
        for origin, outcome in (
            (Origin.BASELINE, Outcome.MEASURED),
            (Origin.SAMPLER, Outcome.INFEASIBLE),
            (Origin.REPEAT, Outcome.MEASURED),
        ):
            trial = store.begin_trial("s", config=Config.of({}), origin=origin, gpus=1)
            result = TrialResult(outcome=outcome, clock=ClockKind.WALL, simulated=False)
            store.finish_trial("s", trial.number, result)
    steer.print_studies(places.root, None, live=False, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["studies"]
    assert (row["done"], row["wanted"], row["measured"], row["infeasible"]) == (2, 3, 1, 1)
