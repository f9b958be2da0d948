"""A study's rows as plain JSON documents and back: without row numbers, processes and places of this machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, TypeVar

from sqlalchemy import JSON, BigInteger, Boolean, Column, Double, Integer, String, select
from sqlalchemy.orm import Session, selectinload

from autotune.engine.redaction import redact_data
from autotune.life import Event, State
from autotune.store import rows
from autotune.store.codec import UndecodableRecord
from autotune.store.raw_files import is_attempt_folder
from autotune.store.study_record import AttemptState
from autotune.store.tables import (
    AttemptRow,
    Base,
    MeasurementRow,
    PromotionRow,
    StudyRow,
    TransitionRow,
    TrialRow,
    UtcDateTime,
)

TRIALS_AT_ONCE = 500
_KEYS = frozenset({"id", "study_id", "trial_id", "attempt_id"})

Document = dict[str, Any]
Row = TypeVar("Row", bound=Base)


class BadDocument(ValueError):
    """A document that is none of ours; `place` leads to the value, e.g. `trial 7, attempts[0].state`."""

    def __init__(self, place: str, value: object, allowed: str) -> None:
        super().__init__(f"{place}: {value!r:.80} is not {allowed}")
        self.place, self.value, self.allowed = place, value, allowed


def dump_study(session: Session, study: StudyRow) -> Iterator[Document]:
    """The study, its trials in order, its promotions; secrets taken out.

    What only means something on this machine is left out: processes, and folders above an attempt's own. An attempt
    that runs is written as interrupted, which is what it will be wherever the study goes on.
    """
    yield {"study": redact_data(_values(study))}
    numbers = session.scalars(
        select(TrialRow.number).where(TrialRow.study_id == study.id).order_by(TrialRow.number)
    ).all()
    for first in range(0, len(numbers), TRIALS_AT_ONCE):
        some = numbers[first : first + TRIALS_AT_ONCE]
        wanted = (
            select(TrialRow)
            .where(TrialRow.study_id == study.id, TrialRow.number.in_(some))
            .order_by(TrialRow.number)
            .options(
                selectinload(TrialRow.attempts).selectinload(AttemptRow.transitions),
                selectinload(TrialRow.measurements),
            )
        )
        for trial in session.scalars(wanted):
            yield {"trial": redact_data(_trial(trial))}
        session.expunge_all()
    promotions = select(PromotionRow).where(PromotionRow.study_id == study.id).order_by(PromotionRow.id)
    for promotion in session.scalars(promotions):
        yield {"promotion": redact_data(_values(promotion))}


def _trial(row: TrialRow) -> Document:
    return {
        **_values(row),
        "attempts": [_attempt(attempt) for attempt in row.attempts],
        "measurements": [_values(level) for level in row.measurements],
    }


def _attempt(row: AttemptRow) -> Document:
    values = _values(row) | {"identity": None, "directory": _own_folder(row.directory)}
    moves = [_values(move) for move in row.transitions]
    if row.state == AttemptState.OPEN.value:
        values["state"] = AttemptState.INTERRUPTED.value
        if moves:
            end = {"event": Event.INTERRUPTED.value, "after": State.INTERRUPTED.value}
            nothing = {"reason": None, "elapsed_s": None, "clock": None}
            moves.append({**moves[-1], **nothing, **end, "before": moves[-1]["after"]})
    return {**values, "transitions": moves}


def _own_folder(directory: str) -> str:
    name = PurePosixPath(directory).name
    return name if is_attempt_folder(name) else ""


def _values(row: Base) -> Document:
    return {column.key: _plain(getattr(row, column.key)) for column in _columns(type(row))}


def _plain(value: Any) -> Any:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def _columns(kind: type[Base]) -> list[Column[Any]]:
    return [column for column in kind.__table__.columns if column.key not in _KEYS]  # type: ignore[misc]  # a Table has Columns


def load_study(session: Session, name: str, documents: Iterable[object], folder: PurePosixPath) -> int:
    """Add what `dump_study` gave as a new study; how many trials it has.

    Args:
        name: of the study here.
        folder: of its raw files here.

    Raises:
        BadDocument: a document that is none of ours, or one that does not fit the others.
    """
    study: StudyRow | None = None
    trials = 0
    for document in documents:
        kind, values = _kind_of(document, f"document {trials + 1}")
        if (study is None) != (kind == "study"):
            raise BadDocument("the first document, and no other", kind, "the study")
        if study is None:
            study = _made(StudyRow, values | {"name": name}, "study")
            with _readable("study"):
                rows.study_record(study)
            session.add(study)
            session.flush()
        elif kind == "trial":
            _add_trial(session, study.id, values, trials, folder)
            trials += 1
        else:
            place = "promotion"
            promotion = _made(PromotionRow, values, place)
            if not 0 <= promotion.trial_number < trials:
                raise BadDocument(f"{place}.trial_number", promotion.trial_number, "a trial of the study")
            promotion.study_id = study.id
            session.add(promotion)
    if study is None:
        raise BadDocument("the first document", None, "the study")
    return trials


def _kind_of(document: object, place: str) -> tuple[str, Document]:
    if not isinstance(document, dict) or len(document) != 1:
        raise BadDocument(place, document, "an object with one key")
    ((kind, values),) = document.items()
    if kind not in ("study", "trial", "promotion"):
        raise BadDocument(place, kind, "one of study, trial, promotion")
    return kind, _object(values, kind)


def _object(value: object, place: str) -> Document:
    if not isinstance(value, dict):
        raise BadDocument(place, value, "an object")
    return value


def _add_trial(session: Session, study_id: int, values: Document, number: int, folder: PurePosixPath) -> None:
    place = f"trial {number}"
    row = _made(TrialRow, values, place, beside=("attempts", "measurements"))
    if row.number != number:
        raise BadDocument(f"{place}.number", row.number, f"{number}: numbers have no gaps")
    row.study_id = study_id
    for index, found in enumerate(_objects(values, "attempts", place)):
        attempt = _checked_attempt(found, f"{place}, attempts[{index}]", index + 1)
        attempt.directory = str(folder / attempt.directory) if attempt.directory else ""
        row.attempts.append(attempt)
    for index, found in enumerate(_objects(values, "measurements", place)):
        where = f"{place}, measurements[{index}]"
        level = _made(MeasurementRow, found, where)
        if level.position != index:
            raise BadDocument(f"{where}.position", level.position, str(index))
        row.measurements.append(level)
    with _readable(place):
        rows.trial_record(row)
        for attempt in row.attempts:
            rows.attempt_record("", attempt)
    session.add(row)
    if number % TRIALS_AT_ONCE == TRIALS_AT_ONCE - 1:
        session.flush()
        session.expire_all()


@contextmanager
def _readable(place: str) -> Iterator[None]:
    """What is read here is what every later command reads of it."""
    try:
        yield
    except UndecodableRecord as error:
        raise BadDocument(f"{place}, {error.path}", error.value, error.wanted) from None


def _checked_attempt(values: Document, place: str, number: int) -> AttemptRow:
    row = _made(AttemptRow, values, place, beside=("transitions",))
    if row.number != number:
        raise BadDocument(f"{place}.number", row.number, str(number))
    # A process that an archive names is none of this machine's; it would be stopped as one that a dead tuner left.
    if row.identity is not None:
        raise BadDocument(f"{place}.identity", row.identity, "null")
    closed = [state.value for state in AttemptState if state is not AttemptState.OPEN]
    if row.state not in closed:
        raise BadDocument(f"{place}.state", row.state, f"one of {', '.join(closed)}")
    if row.directory and not is_attempt_folder(row.directory):
        raise BadDocument(f"{place}.directory", row.directory, "the name of an attempt's folder, e.g. trial-0007")
    for index, found in enumerate(_objects(values, "transitions", place)):
        row.transitions.append(_made(TransitionRow, found, f"{place}, transitions[{index}]"))
    return row


def _objects(values: Document, key: str, place: str) -> list[Document]:
    found = values.get(key)
    if not isinstance(found, list):
        raise BadDocument(f"{place}.{key}", found, "a list")
    return [_object(one, f"{place}, {key}[{index}]") for index, one in enumerate(found)]


def _made(kind: type[Row], values: Mapping[str, Any], place: str, *, beside: tuple[str, ...] = ()) -> Row:
    """A row from values that were looked at one by one."""
    columns = _columns(kind)
    unknown = values.keys() - {column.key for column in columns} - set(beside)
    if unknown:
        raise BadDocument(place, min(unknown), "a key of this version")
    return kind(**{column.key: _cell(column, values.get(column.key), f"{place}.{column.key}") for column in columns})


def _cell(column: Column[Any], value: Any, place: str) -> Any:
    kind = column.type
    if value is None:
        if not column.nullable:
            raise BadDocument(place, None, "there")
        return None
    match kind:
        case UtcDateTime():
            return _moment(value, place)
        case Boolean():
            ok, allowed = isinstance(value, bool), "true or false"
        case BigInteger() | Integer():
            bits = 63 if isinstance(kind, BigInteger) else 31
            ok = isinstance(value, int) and not isinstance(value, bool) and -(2**bits) <= value < 2**bits
            allowed = f"an integer of {bits + 1} bits"
        case Double():
            ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            allowed = "a finite number"
        case JSON():
            ok, allowed = isinstance(value, (dict, list)), "an object or a list"
        case String():  # Text is one
            most = kind.length or 1_000_000
            ok = isinstance(value, str) and len(value) <= most and _is_text(value)
            allowed = f"text of at most {most} characters"
        case _:
            raise AssertionError(f"{kind!r} has no check")
    if not ok:
        raise BadDocument(place, value, allowed)
    return value


def _is_text(value: str) -> bool:
    """Text that both databases take: UTF-8, and without the sign that PostgreSQL ends a text with."""
    return "\0" not in value and value.encode("utf-8", "replace").decode() == value


def _moment(value: Any, place: str) -> datetime:
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        found = None
    if found is None or found.tzinfo is None:
        raise BadDocument(place, value, "a moment with a time zone, such as 2026-03-01T12:00:00+00:00")
    return found.astimezone(UTC)
