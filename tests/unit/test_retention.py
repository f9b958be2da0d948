"""What may be deleted, by hand: one file for each reason."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autotune.engine.flag_cache import CachedAnswer
from autotune.errors import InvalidOption
from autotune.records import Config, Origin, Trial
from autotune.retention import (
    Keep,
    LostFigures,
    Part,
    RetentionPlan,
    StudyFacts,
    parse_age,
    plan_retention,
    protected_trials,
)
from autotune.store.raw_files import FileKind, RawFile
from autotune.store.study_record import AttemptRecord, AttemptState

NOW = datetime(2026, 6, 1, tzinfo=UTC)
OLD = NOW - timedelta(days=40)
YOUNG = NOW - timedelta(days=20)
MONTH = timedelta(days=30)


def attempt(
    trial: int, number: int = 1, state: AttemptState = AttemptState.ENDED, ended: datetime | None = OLD
) -> AttemptRecord:
    return AttemptRecord(
        study="s",
        trial=trial,
        number=number,
        state=state,
        started_at=OLD,
        ended_at=ended,
        directory="/elsewhere",
        argv=(),
        identity=None,
        result=None,
    )


def file(
    trial: int, kind: FileKind = FileKind.LEVEL, number: int = 1, modified: datetime = OLD, size: int = 100
) -> RawFile:
    name = {FileKind.LEVEL: "level-ttft.jsonl.gz", FileKind.LOG: "server.log", FileKind.DRAFT: ".level-x.jsonl.gz.1"}
    return RawFile(
        study="s",
        trial=trial,
        attempt=number,
        kind=kind,
        name=name[kind],
        size_bytes=size,
        modified_at=modified,
        level="ttft" if kind is FileKind.LEVEL else None,
    )


def facts(
    files: list[RawFile],
    attempts: list[AttemptRecord],
    *,
    running: bool = False,
    protected: dict[int, Keep] | None = None,
) -> StudyFacts:
    return StudyFacts(
        name="s", running=running, protected=protected or {}, attempts=tuple(attempts), files=tuple(files)
    )


def plan(
    *studies: StudyFacts,
    answers: tuple[CachedAnswer, ...] = (),
    used: tuple[str, ...] = (),
    parts: tuple[Part, ...] = (),
) -> RetentionPlan:
    return plan_retention(studies, answers, used_versions=used, parts=parts or tuple(Part), now=NOW, older_than=MONTH)


def verdict(study: StudyFacts) -> Part | Keep:
    """What becomes of its only file."""
    made = plan(study)
    assert len(made.files) + len(made.kept) == 1
    return made.files[0][1] if made.files else made.kept[0].reason


def test_what_may_go_and_what_stays() -> None:
    ended = [attempt(3)]
    assert verdict(facts([file(3)], ended)) is Part.RAW
    assert verdict(facts([file(3, FileKind.LOG)], ended)) is Part.LOGS
    assert verdict(facts([file(3, FileKind.DRAFT)], ended)) is Part.LEFTOVERS
    assert verdict(facts([file(3)], ended, running=True)) is Keep.RUNNING
    assert verdict(facts([file(3, FileKind.DRAFT)], ended, running=True)) is Keep.RUNNING
    assert verdict(facts([file(4)], ended)) is Keep.UNKNOWN
    assert verdict(facts([file(3, number=2)], ended)) is Keep.UNKNOWN
    assert verdict(facts([file(3)], [attempt(3, state=AttemptState.OPEN, ended=None)])) is Keep.OPEN
    for reason in (Keep.BASELINE, Keep.FRONT, Keep.PICK, Keep.PROMOTED):
        assert verdict(facts([file(3)], ended, protected={3: reason})) is reason
        assert verdict(facts([file(3, FileKind.LOG)], ended, protected={3: reason})) is reason


def test_dead_attempts_leave_files_even_of_protected_trials() -> None:
    for state in (AttemptState.FAULTED, AttemptState.INTERRUPTED):
        for kind in FileKind:
            found = facts([file(0, kind)], [attempt(0, 1, state), attempt(0, 2)], protected={0: Keep.BASELINE})
            assert verdict(found) is Part.LEFTOVERS


def test_the_age_is_the_later_of_file_and_attempt() -> None:
    assert verdict(facts([file(3, modified=YOUNG)], [attempt(3)])) is Keep.RECENT
    assert verdict(facts([file(3)], [attempt(3, ended=YOUNG)])) is Keep.RECENT
    exactly = NOW - MONTH
    assert verdict(facts([file(3, modified=exactly)], [attempt(3)])) is Part.RAW
    assert verdict(facts([file(3, modified=exactly + timedelta(seconds=1))], [attempt(3)])) is Keep.RECENT


def test_only_what_is_asked_for() -> None:
    study = facts(
        [file(3), file(3, FileKind.LOG), file(4, number=1), file(3, FileKind.DRAFT)],
        [attempt(3), attempt(4, 1, AttemptState.FAULTED), attempt(4, 2)],
    )
    assert [part for _, part in plan(study).files] == [Part.RAW, Part.LOGS, Part.LEFTOVERS, Part.LEFTOVERS]
    made = plan(study, parts=(Part.LOGS,))
    assert [one.path for one, _ in made.files] == ["s/trial-0003/server.log"]
    assert [(one.reason, one.files, one.size_bytes) for one in made.kept] == [(Keep.NOT_CHOSEN, 3, 300)]


def test_what_is_lost_is_said_and_added_up() -> None:
    level = replace(file(3), name="level-throughput.jsonl.gz", level="throughput", size_bytes=1000)
    study = facts(
        [file(3), level, file(3, FileKind.LOG), file(4)], [attempt(3), attempt(4, state=AttemptState.FAULTED)]
    )
    made = plan(study)
    # The attempt that was spoilt ended no trial, so no figure came from it.
    assert made.lost == (LostFigures(study="s", trial=3, levels=("ttft", "throughput")),)
    assert made.size_bytes == 100 + 1000 + 100 + 100


def answer(version: str | None, command: str = "vllm serve", modified: datetime = OLD) -> CachedAnswer:
    return CachedAnswer(
        path=Path(f"/cache/{version}"),
        command=tuple(command.split()),
        version=version,
        size_bytes=7,
        modified_at=modified,
    )


def test_answers_of_versions_that_nobody_uses() -> None:
    used, older, oldest = answer("0.32"), answer("0.31"), answer("0.30", modified=OLD - timedelta(days=9))
    latest = answer("0.33", modified=OLD + timedelta(days=1))
    young = answer("0.29", modified=YOUNG)
    lone = answer("0.12", command="other serve")
    damaged = answer(None)
    made = plan(answers=(used, older, oldest, latest, lone, damaged), used=("0.32",))
    assert made.answers == (older, oldest, damaged)
    assert {one.reason: one.files for one in made.kept} == {Keep.USED: 1, Keep.LATEST: 2}
    assert plan(answers=(young, latest)).kept[0].reason is Keep.RECENT
    assert made.size_bytes == 21
    assert plan(answers=(used, older), parts=(Part.RAW,)).answers == ()


def trial(number: int, seqs: int, origin: Origin = Origin.SAMPLER) -> Trial:
    return Trial(
        number=number, config=Config.of({"max-num-seqs": seqs}), origin=origin, gpus=1, attempts=1, result=None
    )


def test_protected_are_all_launches_of_a_protected_config() -> None:
    trials = [
        trial(0, 1, Origin.BASELINE),
        trial(1, 2),
        trial(2, 3),
        trial(3, 4),
        trial(4, 5),
        trial(5, 1, Origin.REPEAT),
        trial(6, 3, Origin.REPEAT),
    ]
    found = protected_trials(trials, front=(1, 2), pick=2, promoted=(3, 99))
    assert found == {
        0: Keep.BASELINE,
        1: Keep.FRONT,
        2: Keep.PICK,
        3: Keep.PROMOTED,
        5: Keep.BASELINE,
        6: Keep.PICK,
    }
    assert protected_trials([], front=(), pick=None, promoted=()) == {}


@pytest.mark.parametrize(
    ("text", "days"), [("30d", 30), ("12h", 0.5), ("2w", 14), ("90m", 1 / 16), ("0s", 0), (" 1 d ", 1)]
)
def test_ages(text: str, days: float) -> None:
    assert parse_age(text) == timedelta(days=days)


@pytest.mark.parametrize("text", ["", "d", "30", "-1d", "1.5d", "1y", "9999999d", "30d or so", "٣d", "1\n2d"])
def test_what_is_no_age(text: str) -> None:
    with pytest.raises(InvalidOption, match="--older-than"):
        parse_age(text)
