"""Trials in brief: what fronts and picks are made of, taken out of the records by the database.

The full record of a trial is 10 kB and takes a millisecond to read and decode; of a study of 10,000 trials most of that
is never looked at. What is here is read in the database's own code, ten times as fast.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

from pydantic_core import from_json
from sqlalchemy import ColumnElement, Text, case, cast, func, null, select
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
    SloMetric,
    Trial,
    TrialResult,
)
from autotune.store.codec import UndecodableRecord, decode, decode_value
from autotune.store.tables import AttemptRow, MeasurementRow, TrialRow

Made = TypeVar("Made")

_OUTCOMES = {one.value: one for one in Outcome}
_CLOCKS = {one.value: one for one in ClockKind}
_ORIGINS = {one.value: one for one in Origin}
_PHASES = {one.value: one for one in Phase}
_FAILURES = {one.value: Failure(kind=one, line=None) for one in FailureClass}
_ROLES = {one.value: one for one in LevelRole}
_ARRIVALS = {one.value: one for one in Arrivals}
"""Looked up ten thousand times; an enum's own way takes longer than all that is read of a row."""

_LEVEL_FIELDS = frozenset(field.name for field in fields(LoadLevel))
_CAVEAT_FIELDS = frozenset(field.name for field in fields(Caveat))


def read_outlines(
    session: Session, study_id: int, metrics: Collection[SloMetric], *, phases: bool = False
) -> tuple[Trial, ...]:
    """See `Store.outlines`."""
    with _without_collector():
        return _read_trials(session, study_id, _read_levels(session, study_id, _asked(metrics)), phases=phases)


class _Asked(NamedTuple):
    """What is read of one latency of a level: its p95, and further percentiles that an SLO limits."""

    field: str
    points: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Where it stands in the record."""
        return tuple(f"{self.field}.{name}" for name in ("count", "p95", *self.points))

    def latency(self, found: Sequence[Any]) -> Latency | None:
        """Of what stands there."""
        count, p95, *others = found
        if p95 is None:
            return None
        further = dict(zip(self.points, map(_estimate, others), strict=True))
        return Latency(
            count=count,
            mean=None,
            p50=further.get("p50"),
            p90=None,
            p95=Estimate(**p95),
            p99=further.get("p99"),
        )


def _asked(metrics: Collection[SloMetric]) -> tuple[_Asked, ...]:
    named = [metric.value.rpartition("_") for metric in metrics if metric.is_time]
    return tuple(
        _Asked(f"{name}_s", tuple(sorted({point for one, _, point in named if one == name} - {"p95"})))
        for name in sorted({name for name, _, _ in named})
    )


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


def _read_trials(
    session: Session, study_id: int, levels: Mapping[int, Sequence[Measurement]], *, phases: bool
) -> tuple[Trial, ...]:
    of_study = select(TrialRow.id).where(TrialRow.study_id == study_id).scalar_subquery()
    counts = select(AttemptRow.trial_id, func.count()).where(AttemptRow.trial_id.in_(of_study))
    launches: dict[int, int] = {trial: count for trial, count in session.execute(counts.group_by(AttemptRow.trial_id))}  # noqa: C416 - typed so
    trials = select(
        *(TrialRow.id, TrialRow.number, cast(TrialRow.config, Text), TrialRow.config_hash, TrialRow.origin),
        TrialRow.gpus,
        *(TrialRow.repeat_of, TrialRow.why, TrialRow.outcome, TrialRow.failure_class),
        _parts(session, TrialRow.result, ("clock", "simulated", "goodput", "early", "quality")),
        cast(TrialRow.result["phase_seconds"], Text) if phases else null(),
    ).where(TrialRow.study_id == study_id)
    ending = cache(_ending)

    def made(row: Sequence[Any]) -> Trial:
        return _trial(row, ending, launches.get(row[0], 0), tuple(levels.get(row[0], ())))

    return tuple(_made(made, session.connection().execute(trials.order_by(TrialRow.number)).all()))


def _read_levels(session: Session, study_id: int, asked: Sequence[_Asked]) -> dict[int, list[Measurement]]:
    """Those that decide, by their trial's row; latencies only of the one that an SLO is held against."""
    latencies = [path for one in asked for path in one.paths]
    parts = case(
        (MeasurementRow.role == LevelRole.TTFT.value, _parts(session, MeasurementRow.record, (*_PARTS, *latencies))),
        else_=_parts(session, MeasurementRow.record, _PARTS),
    )
    wanted = (
        select(
            *(MeasurementRow.trial_id, MeasurementRow.clock, MeasurementRow.completed, MeasurementRow.failed),
            *(_parts(session, MeasurementRow.record, _SHARED_PARTS), parts),
        )
        .join(TrialRow, TrialRow.id == MeasurementRow.trial_id)
        .where(TrialRow.study_id == study_id, MeasurementRow.role.in_([role.value for role in DECIDING]))
        .order_by(TrialRow.number, MeasurementRow.position)
    )
    rows = session.connection().execute(wanted).all()
    found: dict[int, list[Measurement]] = {}
    levels = _made(partial(_level, shared=cache(_shared), asked=asked), rows)
    for row, level in zip(rows, levels, strict=True):
        found.setdefault(row[0], []).append(level)
    return found


_PARTS = ("duration_s", "steady_s", "planned", "output_tok_s")
_SHARED_PARTS = ("level", "caveats")
"""What few levels of a study say differently, so that it is read once for all that say the same."""


def _parts(session: Session, record: Any, names: Sequence[str]) -> ColumnElement[str]:
    """A JSON array of parts of a record, as text: one text a row is parsed, and no more than is wanted."""
    if session.get_bind().dialect.name == "sqlite":
        return func.json_extract(record, *(f"$.{name}" for name in names), type_=Text())
    return cast(func.json_build_array(*(_part(record, name) for name in names)), Text)


def _part(record: Any, name: str) -> Any:
    for key in name.split("."):
        record = record[key]
    return record


def _parsed(text: str) -> Any:
    try:
        found = from_json(text)  # in less than half of the time that the standard library takes
    except ValueError:  # which takes half a surrogate pair, as in a flag that is no UTF-8
        found = json.loads(text)
    return decode_value(found) if '"$float"' in text else found


def _made(make: Callable[[Sequence[Any]], Made], rows: Sequence[Sequence[Any]]) -> Iterator[Made]:
    """What each row holds; the first column tells which it is."""
    row: Sequence[Any] = ()
    try:
        for row in rows:
            yield make(row)
    except UndecodableRecord:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UndecodableRecord(f"row {row[0]}", repr(error), "a record of this version") from None


class _Ending(NamedTuple):
    """How a trial ended, but for its outcome and figures."""

    clock: ClockKind
    simulated: bool
    goodput: Goodput | None
    early: EarlyEnd | None
    quality: Quality | None


def _ending(parts: str) -> _Ending:
    clock, simulated, goodput, early, quality = _parsed(parts)
    return _Ending(
        clock=_CLOCKS[clock],
        simulated=bool(simulated),
        goodput=None if goodput is None else decode(Goodput, goodput),
        early=None if early is None else decode(EarlyEnd, early),
        quality=None if quality is None else decode(Quality, quality),
    )


def _trial(
    row: Sequence[Any], ending: Callable[[str], _Ending], launches: int, levels: tuple[Measurement, ...]
) -> Trial:
    _, number, config, known, origin, gpus, repeat_of, why, outcome, failure, parts, phases = row
    result = None
    if outcome is not None:
        ended = ending(parts)
        result = TrialResult(
            outcome=_OUTCOMES[outcome],
            clock=ended.clock,
            simulated=ended.simulated,
            failure=None if failure is None else _FAILURES[failure],
            measurements=levels,
            goodput=ended.goodput,
            early=ended.early,
            quality=ended.quality,
            phase_seconds=() if phases is None else _phase_seconds(phases),
        )
    return Trial(
        number=number,
        config=Config.stored(map(tuple, _parsed(config)["params"]), known),
        origin=_ORIGINS[origin],
        gpus=gpus,
        attempts=launches,
        result=result,
        repeat_of=repeat_of,
        why=why or "",
    )


def _phase_seconds(text: str) -> tuple[tuple[Phase, float], ...]:
    return tuple((_PHASES[phase], float(value)) for phase, value in _parsed(text) or ())


_Shared = tuple[LoadLevel, tuple[Caveat, ...]]


def _shared(text: str) -> _Shared:
    level, caveats = _parsed(text)
    level = _known(level, _LEVEL_FIELDS) | {"role": _ROLES[level["role"]], "arrivals": _ARRIVALS[level["arrivals"]]}
    return LoadLevel(**level), _read_caveats(caveats or ())


def _level(row: Sequence[Any], shared: Callable[[str], _Shared], asked: Sequence[_Asked]) -> Measurement:
    _, clock, completed, failed, common, text = row
    duration_s, steady_s, planned, output_tok_s, *found = _parsed(text)
    level, caveats = shared(common)
    latencies: dict[str, Latency | None] = {}
    if found:
        for one in asked:
            taken = len(one.points) + 2
            latencies[one.field], found = one.latency(found[:taken]), found[taken:]
    return Measurement(
        level=level,
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
        ttft_s=latencies.get("ttft_s"),
        ttft_from_send_s=None,
        tpot_s=latencies.get("tpot_s"),
        itl_s=latencies.get("itl_s"),
        e2e_s=latencies.get("e2e_s"),
        caveats=caveats,
    )


def _read_caveats(data: Sequence[dict[str, Any]], kind: type[Caveat] = Caveat) -> tuple[Caveat, ...]:
    return tuple(kind(**_known(one, _CAVEAT_FIELDS)) for one in data)


def _known(data: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """A newer version may have stored more beside it."""
    return data if data.keys() <= names else {name: value for name, value in data.items() if name in names}


def _estimate(data: Mapping[str, Any] | None) -> Estimate | None:
    return None if data is None else Estimate(**data)
