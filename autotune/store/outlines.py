"""Studies in brief: what lists, fronts and picks are made of, taken out of the records by the database.

The full record of a trial is 10 kB and takes a millisecond to read and decode; of a study of 10,000 trials most of that
is never looked at. What is here is read in the database's own code, ten times as fast.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Text, cast, func, select
from sqlalchemy.orm import Session

from autotune.records import (
    DECIDING,
    Arrivals,
    Caveat,
    ClockKind,
    Config,
    EarlyEnd,
    Estimate,
    Failure,
    FailureClass,
    Goodput,
    Latency,
    LevelRole,
    LoadLevel,
    Measurement,
    Origin,
    Outcome,
    Phase,
    Quality,
    Trial,
    TrialResult,
)
from autotune.store.codec import UndecodableRecord, decode, decode_value
from autotune.store.tables import AttemptRow, MeasurementRow, PromotionRow, StudyRow, TrialRow

LATENCIES = ("ttft", "tpot", "itl", "e2e")
"""What an outline may hold of a level, in the words of an SLO's metrics."""

_UNCOUNTED = frozenset({Origin.REPEAT.value, Origin.VALIDATION.value})
_OUTCOMES = {one.value: one for one in Outcome}
_CLOCKS = {one.value: one for one in ClockKind}
_ORIGINS = {one.value: one for one in Origin}
_PHASES = {one.value: one for one in Phase}
_ROLES = {one.value: one for one in LevelRole}
_ARRIVALS = {one.value: one for one in Arrivals}
"""Looked up ten thousand times; an enum's own way takes longer than all that is read of a row."""

_LEVEL_FIELDS = frozenset(field.name for field in fields(LoadLevel))
_CAVEAT_FIELDS = frozenset(field.name for field in fields(Caveat))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How far a study is.

    Attributes:
        counted: trials that ended and count against the target; `measured` and `infeasible` are some of them.
        waiting: number of the first trial that has not ended; None where all have.
        simulated: whether any result is a simulation's.
    """

    counted: int = 0
    measured: int = 0
    infeasible: int = 0
    waiting: int | None = None
    simulated: bool = False


def read_tallies(session: Session, names: Collection[str] | None = None) -> dict[str, Tally]:
    """Of every study, or of those named, by its name."""
    simulated = TrialRow.result["simulated"].as_boolean()
    seen = (
        select(StudyRow.name, TrialRow.outcome, TrialRow.origin, simulated, func.count(), func.min(TrialRow.number))
        .join(TrialRow, TrialRow.study_id == StudyRow.id)
        .group_by(StudyRow.name, TrialRow.outcome, TrialRow.origin, simulated)
    )
    studies = select(StudyRow.name)
    if names is not None:
        seen, studies = seen.where(StudyRow.name.in_(names)), studies.where(StudyRow.name.in_(names))
    groups: dict[str, list[Any]] = {name: [] for name in session.scalars(studies)}
    for name, *group in session.execute(seen):
        groups[name].append(group)
    return {name: _tally(found) for name, found in groups.items()}


def _tally(groups: list[Any]) -> Tally:
    counts = {outcome.value: 0 for outcome in Outcome}
    for outcome, origin, _, count, _ in groups:
        if outcome is not None and origin not in _UNCOUNTED:
            counts[outcome] += count
    return Tally(
        counted=sum(counts.values()),
        measured=counts[Outcome.MEASURED.value],
        infeasible=counts[Outcome.INFEASIBLE.value],
        waiting=min((first for outcome, _, _, _, first in groups if outcome is None), default=None),
        simulated=any(simulated for _, _, simulated, _, _ in groups),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """By what it is seen, at little cost, that a study has changed: phases of a running trial are not among it.

    Attributes:
        trials, finished: how many there are, and how many of them have ended.
        attempts: the latest one's row; 0 where there is none.
        promotions: of all studies, as what runs today is shown beside every front.
    """

    state: str
    target: int
    trials: int
    finished: int
    attempts: int
    promotions: int

    @property
    def revision(self) -> str:
        """A short text that no two states of a study share."""
        counts = (self.trials, self.finished, self.attempts, self.target, self.promotions)
        return f"{self.state}-{'.'.join(map(str, counts))}"


def read_pulses(session: Session) -> dict[str, Pulse]:
    """Of every study, by its name."""
    promotions = session.scalar(select(func.count()).select_from(PromotionRow)) or 0
    counted = (
        select(
            StudyRow.name, StudyRow.state, StudyRow.target_trials, func.count(TrialRow.id), func.count(TrialRow.outcome)
        )
        .outerjoin(TrialRow, TrialRow.study_id == StudyRow.id)
        .group_by(StudyRow.id, StudyRow.name, StudyRow.state, StudyRow.target_trials)
    )
    open_trials = select(TrialRow.id, StudyRow.name).join(StudyRow).where(TrialRow.outcome.is_(None)).subquery()
    latest = select(open_trials.c.name, func.max(AttemptRow.id)).join(
        AttemptRow, AttemptRow.trial_id == open_trials.c.id
    )
    attempts = {name: row for name, row in session.execute(latest.group_by(open_trials.c.name))}  # noqa: C416 - typed so
    return {
        name: Pulse(
            state=state,
            target=target,
            trials=trials,
            finished=finished,
            attempts=attempts.get(name, 0),
            promotions=promotions,
        )
        for name, state, target, trials, finished in session.execute(counted)
    }


def read_outlines(session: Session, study_id: int, latencies: Collection[str]) -> tuple[Trial, ...]:
    """See `Store.outlines`."""
    with _without_collector():
        levels = _read_levels(session, study_id, [name for name in LATENCIES if name in latencies])
        return _read_trials(session, study_id, levels)


@contextmanager
def _without_collector() -> Iterator[None]:
    """A hundred thousand objects are made and none is garbage; looking through them again and again takes as long."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read_trials(session: Session, study_id: int, levels: Mapping[int, Sequence[Measurement]]) -> tuple[Trial, ...]:
    of_study = select(TrialRow.id).where(TrialRow.study_id == study_id).scalar_subquery()
    counts = select(AttemptRow.trial_id, func.count()).where(AttemptRow.trial_id.in_(of_study))
    launches: dict[int, int] = {trial: count for trial, count in session.execute(counts.group_by(AttemptRow.trial_id))}  # noqa: C416 - typed so
    trials = select(
        *(TrialRow.id, TrialRow.number, cast(TrialRow.config, Text), TrialRow.origin, TrialRow.gpus),
        *(TrialRow.repeat_of, TrialRow.why, TrialRow.outcome, TrialRow.failure_class),
        _parts(session, TrialRow.result, ("clock", "simulated", "goodput", "early", "quality", "phase_seconds")),
    ).where(TrialRow.study_id == study_id)
    return tuple(
        _made(_trial, row, launches.get(row[0], 0), tuple(levels.get(row[0], ())))
        for row in session.execute(trials.order_by(TrialRow.number))
    )


def _read_levels(session: Session, study_id: int, asked: list[str]) -> dict[int, list[Measurement]]:
    """Those that decide, by their trial's row; latencies only of the one that an SLO is held against."""
    found: dict[int, list[tuple[int, Measurement]]] = {}
    others = [role.value for role in DECIDING if role is not LevelRole.TTFT]
    for roles, names in (([LevelRole.TTFT.value], asked), (others, [])):
        wanted = (
            select(
                *(MeasurementRow.trial_id, MeasurementRow.position, MeasurementRow.clock),
                *(MeasurementRow.completed, MeasurementRow.failed),
                _parts(session, MeasurementRow.record, (*_PARTS, *(f"{name}_s" for name in names))),
            )
            .join(TrialRow, TrialRow.id == MeasurementRow.trial_id)
            .where(TrialRow.study_id == study_id, MeasurementRow.role.in_(roles))
        )
        for row in session.execute(wanted):
            found.setdefault(row[0], []).append((row[1], _made(_level, row, names)))
    return {trial: [level for _, level in sorted(levels, key=itemgetter(0))] for trial, levels in found.items()}


_PARTS = ("level", "duration_s", "steady_s", "planned", "output_tok_s", "caveats")


def _parts(session: Session, record: Any, names: Sequence[str]) -> ColumnElement[str]:
    """A JSON array of parts of a record, as text: one text a row is parsed, and no more than is wanted."""
    if session.get_bind().dialect.name == "sqlite":
        return func.json_extract(record, *(f"$.{name}" for name in names), type_=Text())
    return cast(func.json_build_array(*(record[name] for name in names)), Text)


_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # not in typeshed
"""`json.loads` without its looks for a byte order mark and white space, which take as long on short texts."""


def _parsed(text: str) -> Any:
    found, _ = _scan(text, 0)
    return decode_value(found) if '"$float"' in text else found


def _made(make: Any, row: Sequence[Any], *others: Any) -> Any:
    try:
        return make(row, *others)
    except UndecodableRecord:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UndecodableRecord(f"row {row[0]}", repr(error), "a record of this version") from None


def _trial(row: Sequence[Any], launches: int, levels: tuple[Measurement, ...]) -> Trial:
    _, number, config, origin, gpus, repeat_of, why, outcome, failure, parts = row
    result = None
    if outcome is not None:
        clock, simulated, goodput, early, quality, phases = _parsed(parts)
        result = TrialResult(
            outcome=_OUTCOMES[outcome],
            clock=_CLOCKS[clock],
            simulated=bool(simulated),
            failure=None if failure is None else Failure(kind=FailureClass(failure), line=None),
            measurements=levels,
            goodput=None if goodput is None else decode(Goodput, goodput),
            early=None if early is None else decode(EarlyEnd, early),
            quality=None if quality is None else decode(Quality, quality),
            phase_seconds=tuple((_PHASES[phase], float(value)) for phase, value in phases or ()),
        )
    return Trial(
        number=number,
        config=Config(params=tuple((name, value) for name, value in _parsed(config)["params"])),
        origin=_ORIGINS[origin],
        gpus=gpus,
        attempts=launches,
        result=result,
        repeat_of=repeat_of,
        why=why or "",
    )


def _level(row: Sequence[Any], asked: list[str]) -> Measurement:
    _, _, clock, completed, failed, text = row
    level, duration_s, steady_s, planned, output_tok_s, caveats, *found = _parsed(text)
    latencies = {name: _latency(data) for name, data in zip(asked, found, strict=True)}
    level = _known(level, _LEVEL_FIELDS) | {"role": _ROLES[level["role"]], "arrivals": _ARRIVALS[level["arrivals"]]}
    return Measurement(
        level=LoadLevel(**level),
        clock=_CLOCKS[clock],
        duration_s=duration_s,
        steady_s=steady_s,
        planned=planned,
        completed=completed,
        failed=failed,
        errors=(),
        prompt_tokens=None,
        output_tokens=None,
        output_tok_s=_estimate(output_tok_s),
        total_tok_s=None,
        request_rps=None,
        goodput_rps=None,
        ttft_s=latencies.get("ttft"),
        ttft_from_send_s=None,
        tpot_s=latencies.get("tpot"),
        itl_s=latencies.get("itl"),
        e2e_s=latencies.get("e2e"),
        caveats=_read_caveats(caveats or ()),
    )


def _read_caveats(data: Sequence[dict[str, Any]], kind: type[Caveat] = Caveat) -> tuple[Caveat, ...]:
    return tuple(kind(**_known(one, _CAVEAT_FIELDS)) for one in data)


def _known(data: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """A newer version may have stored more beside it."""
    return data if data.keys() <= names else {name: value for name, value in data.items() if name in names}


def _latency(data: Mapping[str, Any] | None) -> Latency | None:
    if data is None:
        return None
    return Latency(
        count=data["count"],
        mean=Estimate(**data["mean"]),
        p50=Estimate(**data["p50"]),
        p90=Estimate(**data["p90"]),
        p95=Estimate(**data["p95"]),
        p99=Estimate(**data["p99"]),
    )


def _estimate(data: Mapping[str, Any] | None) -> Estimate | None:
    return None if data is None else Estimate(**data)
