"""One line of a study: who holds its lock says whether it runs, whatever is stored."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autotune.cli.steer import stopped_text
from autotune.errors import StudyBusy
from autotune.life import Event, State, Transition
from autotune.review.listing import study_row
from autotune.store.folder import HeldFor, LockHolder
from autotune.store.listing import ListedStudy, Tally
from autotune.store.places import Places
from autotune.store.study_record import AttemptRecord, AttemptState, StudyState, TransitionRecord

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TALLY = Tally(counted=3, measured=2, infeasible=1, waiting=3)


def listed(state: StudyState) -> ListedStudy:
    return ListedStudy(
        name="s",
        engine="process",
        simulated=False,
        state=state,
        target_trials=9,
        identity={"model": "m"},
        spec={"workload": "chat"},
        tally=TALLY,
    )


def attempts(study: str, trial: int) -> tuple[AttemptRecord, ...]:
    assert (study, trial) == ("s", 3)
    began = NOW - timedelta(seconds=42)
    move = Transition(before=State.LAUNCHING, event=Event.READY, after=State.WARMING)
    return (
        AttemptRecord(
            study=study,
            trial=trial,
            number=1,
            state=AttemptState.OPEN,
            started_at=began,
            ended_at=None,
            directory="d",
            argv=(),
            identity=None,
            result=None,
            transitions=(TransitionRecord(move=move, at_utc=began),),
        ),
    )


def test_a_study_that_runs_tells_its_trial_and_since_when(tmp_path: Path) -> None:
    places = Places(root=tmp_path)
    with places.folder("s").locked(LockHolder(pid=17, started=1.0)):
        row = study_row(listed(StudyState.RUNNING), TALLY, places, attempts, now=NOW)
    assert (row.state, row.pid, row.trial, row.phase, row.elapsed_s) == ("running", 17, 3, "warming", 42.0)
    assert (row.done, row.wanted, row.measured, row.infeasible) == (3, 9, 2, 1)


@pytest.mark.parametrize(("stored", "told"), [(StudyState.RUNNING, "interrupted"), (StudyState.FINISHED, "finished")])
def test_one_that_nobody_runs_tells_no_trial(tmp_path: Path, stored: StudyState, told: str) -> None:
    row = study_row(listed(stored), TALLY, Places(root=tmp_path), attempts, now=NOW)
    assert (row.state, row.pid, row.trial, row.phase, row.elapsed_s) == (told, None, None, None, None)


def test_a_verification_is_told_from_a_study_that_runs(tmp_path: Path) -> None:
    places = Places(root=tmp_path)
    for stored in (StudyState.FINISHED, StudyState.RUNNING):
        with places.folder("s").locked(LockHolder(pid=17, started=1.0, held_for=HeldFor.VERIFICATION)):
            row = study_row(listed(stored), TALLY, places, attempts, now=NOW)
        assert (row.state, row.pid) == ("verifying", 17)
    with places.folder("s").locked(LockHolder(pid=17, started=1.0, held_for=HeldFor.CLEARING_UP)):
        assert study_row(listed(StudyState.FINISHED), TALLY, places, attempts, now=NOW).state == "finished"


def test_of_a_study_that_another_machine_may_run_nothing_is_known(tmp_path: Path) -> None:
    server = Places(root=tmp_path, storage="postgresql://somewhere/studies")
    assert study_row(listed(StudyState.RUNNING), TALLY, server, attempts, now=NOW).state == "running"
    with server.folder("s").locked(LockHolder(pid=17, started=1.0)):
        pass  # it was run from here
    assert study_row(listed(StudyState.RUNNING), TALLY, server, attempts, now=NOW).state == "interrupted"


def test_a_purpose_that_only_another_version_knows_leaves_what_is_stored(tmp_path: Path) -> None:
    places = Places(root=tmp_path)
    with places.folder("s").locked(LockHolder(pid=17, started=1.0)):
        (tmp_path / "s" / ".lock").write_text('{"pid": 17, "started": 1.0, "held_for": "lunch"}', encoding="utf-8")
        row = study_row(listed(StudyState.RUNNING), TALLY, places, attempts, now=NOW)
        assert places.folder("s").holder() == LockHolder(pid=17, started=1.0, held_for=HeldFor.OTHER)
    assert row.state == "running"


def test_a_lock_that_may_not_be_read_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places(root=tmp_path)
    with places.folder("s").locked(LockHolder(pid=17, started=1.0)):
        pass

    def refuse(path: object, *_: object) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", refuse)  # a second user is more than a test may ask for
    assert (places.folder("s").holder(), places.is_left("s")) == (None, False)


def test_a_pipe_in_a_locks_place_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    os.mkfifo(tmp_path / "s" / ".lock")
    assert Places(root=tmp_path).folder("s").holder() is None
    assert Places(root=tmp_path).is_left("s")


@pytest.mark.parametrize(
    ("held_for", "said", "next_"),
    [
        (HeldFor.STUDY, "'s' is being run by process 17", "autotune logs -f s"),
        (HeldFor.VERIFICATION, "'s' is being verified by process 17", "Wait for its end"),
        (HeldFor.CLEARING_UP, "'s' is being cleared up by process 17", "Wait for its end"),
        (HeldFor.OTHER, "'s' is being worked on by process 17", "Wait for its end"),
    ],
)
def test_who_is_kept_out_is_told_what_is_being_done(tmp_path: Path, held_for: HeldFor, said: str, next_: str) -> None:
    folder = Places(root=tmp_path).folder("s")
    with (
        folder.locked(LockHolder(pid=17, started=1.0, held_for=held_for)),
        pytest.raises(StudyBusy, match=said) as refused,
        folder.locked(LockHolder(pid=18, started=1.0)),
    ):
        pass
    assert next_ in str(refused.value.hint)


def test_what_was_stopped_is_named_with_the_command_that_goes_on_with_it() -> None:
    assert stopped_text("s", HeldFor.STUDY) == "study s is stopped; the same `autotune study` command goes on with it"
    assert stopped_text("s", HeldFor.VERIFICATION).endswith("the same `autotune promote` command begins it anew")
