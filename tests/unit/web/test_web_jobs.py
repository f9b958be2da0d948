"""Jobs as values, the file that outlives the service, and what is told of a job's log."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autotune.errors import StorageError
from autotune.web.asked import LogQuery
from autotune.web.job import MOST_ENDED, Fate, Job, JobKind, Jobs, JobState, ended, fate_of, load, save
from autotune.web.job_process import BEGUN, last_word
from autotune.web.trials import log_piece

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def jobs(*states: JobState, needs_node: bool = True) -> Jobs:
    found = Jobs()
    for number, state in enumerate(states):
        found = found.added(kind=JobKind.STUDY, study=f"s{number}", words=("x",), at=NOW, needs_node=needs_node)
        found = found.changed(found.jobs[-1].id, state=state)
    return found


def names(found: tuple[Job, ...]) -> list[str]:
    return [job.study for job in found]


def test_what_was_interrupted_goes_first_and_the_rest_in_order() -> None:
    found = jobs(JobState.QUEUED, JobState.FINISHED, JobState.INTERRUPTED, JobState.QUEUED)
    assert names(found.waiting()) == ["s2", "s0", "s3"]
    assert names(found.startable()) == ["s2"]


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.STOPPING])
def test_one_has_the_node_until_it_is_gone(state: JobState) -> None:
    found = jobs(state, JobState.QUEUED)
    assert found.startable() == ()
    beside = replace(found, jobs=(*found.jobs, *jobs(JobState.QUEUED, needs_node=False).jobs))
    assert [job.needs_node for job in beside.startable()] == [False]


def test_ids_are_never_used_again_and_the_oldest_are_forgotten() -> None:
    found = jobs(*[JobState.FINISHED] * (MOST_ENDED + 5), JobState.QUEUED)
    kept = found.added(kind=JobKind.STUDY, study="new", words=(), at=NOW)
    assert len(kept.jobs) == MOST_ENDED + 2
    assert kept.jobs[0].study == "s5"
    assert kept.jobs[-1].id == f"j-{MOST_ENDED + 7:06d}"


@pytest.mark.parametrize(
    ("code", "fate"),
    [
        (0, Fate.DONE),
        (130, Fate.ASKED_TO_END),
        (-signal.SIGTERM, Fate.ASKED_TO_END),
        (-signal.SIGINT, Fate.ASKED_TO_END),
        (-signal.SIGKILL, Fate.FAILED),
        (-signal.SIGSEGV, Fate.FAILED),
        (24, Fate.FAILED),
        (1, Fate.FAILED),
    ],
)
def test_an_exit_status_is_a_fate(code: int, fate: Fate) -> None:
    assert fate_of(code) is fate


@pytest.mark.parametrize(
    ("fate", "before", "closing", "after"),
    [
        (Fate.DONE, JobState.RUNNING, False, JobState.FINISHED),
        (Fate.DONE, JobState.STOPPING, False, JobState.FINISHED),
        (Fate.FAILED, JobState.RUNNING, True, JobState.FAILED),
        (Fate.ASKED_TO_END, JobState.RUNNING, False, JobState.STOPPED),  # `autotune stop`
        (Fate.ASKED_TO_END, JobState.STOPPING, True, JobState.STOPPED),
        (Fate.ASKED_TO_END, JobState.RUNNING, True, JobState.INTERRUPTED),
        (Fate.LOST, JobState.RUNNING, False, JobState.INTERRUPTED),
        (Fate.LOST, JobState.STOPPING, False, JobState.STOPPED),
    ],
)
def test_what_a_fate_makes_of_a_job(fate: Fate, before: JobState, closing: bool, after: JobState) -> None:
    (job,) = jobs(before).jobs
    changes = ended(job, fate, at=NOW, exit_code=0 if fate is Fate.DONE else 130, message="m", closing=closing)
    changed = replace(job, **changes)
    assert (changed.state, changed.pid) == (after, None)
    assert (changed.ended_at is None) is (after is JobState.INTERRUPTED)
    if after is JobState.FINISHED:
        assert changed.message is None


def test_a_killed_process_says_by_which_signal() -> None:
    (job,) = jobs(JobState.RUNNING).jobs
    changes = ended(job, Fate.FAILED, at=NOW, exit_code=-9, message=None, closing=False)
    assert changes["message"] == "its process was ended by signal 9"


def test_the_file_gives_back_what_was_put_in(tmp_path: Path) -> None:
    found = jobs(*JobState)
    save(tmp_path / "jobs.json", found)
    assert load(tmp_path / "jobs.json") == found
    assert load(tmp_path / "none.json") == Jobs()
    newer = json.loads((tmp_path / "jobs.json").read_text())
    newer["jobs"][0]["colour"] = "red"  # of a later version of the same format
    (tmp_path / "jobs.json").write_text(json.dumps(newer))
    assert load(tmp_path / "jobs.json") == found


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 2}', '{"format": 1, "last": 0, "jobs": [{}]}'])
def test_a_damaged_queue_is_said_with_its_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "jobs.json").write_text(content)
    with pytest.raises(StorageError, match=r"jobs\.json: the queue cannot be read"):
        load(tmp_path / "jobs.json")


def test_the_last_word_is_of_the_last_process(tmp_path: Path) -> None:
    log = tmp_path / "j.log"
    assert last_word(log) is None
    log.write_text(f"{BEGUN} x\nautotune: stopped by the operator\n")
    assert last_word(log) == "stopped by the operator"
    log.write_text(f"{BEGUN} x\nautotune: boom\n{BEGUN} y\nall is well\n")
    assert last_word(log) is None
    log.write_text(f"{BEGUN} x\nautotune: one\n  a hint\nautotune: token hf_{'a' * 34}\n")
    assert "a" * 34 not in (last_word(log) or "")


class TestPieces:
    """Of a log: whole lines, so that secrets are seen whole."""

    def piece(self, path: Path, offset: int, limit: int) -> tuple[str, int, int]:
        found = log_piece(path, LogQuery(offset=offset, limit=limit), complete=True)
        return found["text"], found["offset"], found["next_offset"]

    def test_they_follow_each_other_without_gap_or_overlap(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text("".join(f"line {number}\n" for number in range(100)))
        text, offset = "", 0
        for _ in range(100):
            found, begin, offset = self.piece(log, offset, 40)
            assert begin == len(text)
            text += found
            if not found:
                break
        assert text == log.read_text()

    def test_the_end_begins_with_a_whole_line(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text("first line\nsecond line\nthird")
        assert self.piece(log, -8, 100) == ("third", 23, 28)
        assert self.piece(log, -1000, 100)[0] == log.read_text()

    def test_a_line_longer_than_was_asked_for_comes_whole(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text("x" * 50)
        assert self.piece(log, 0, 20) == ("x" * 50, 0, 50)
        assert self.piece(log, 40, 20) == ("x" * 50, 0, 50)
        assert self.piece(log, 900, 20) == ("", 50, 50)

    def test_secrets_are_taken_out(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text(f"Authorization: Bearer {'s' * 30}\n")
        assert "s" * 30 not in self.piece(log, 0, 1000)[0]

    def test_there_may_be_none(self, tmp_path: Path) -> None:
        assert self.piece(tmp_path / "none", 0, 10) == ("", 0, 0)
        assert log_piece(None, LogQuery(), complete=True)["size"] == 0
