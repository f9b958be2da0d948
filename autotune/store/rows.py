"""Rows to records and back; pure but for the rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from autotune.engine.base import ServerIdentity
from autotune.life import Event, State, Transition
from autotune.records import (
    ClockKind,
    Config,
    EngineKind,
    FailureClass,
    LevelRole,
    Measurement,
    Origin,
    Trial,
    TrialResult,
)
from autotune.store.codec import UndecodableRecord, decode, decode_value, encode
from autotune.store.study_record import (
    AttemptRecord,
    AttemptState,
    PromotionRecord,
    StudyRecord,
    StudySpec,
    StudyState,
    TransitionRecord,
)
from autotune.store.tables import (
    AttemptRow,
    MeasurementRow,
    PromotionRow,
    StudyRow,
    TransitionRow,
    TrialRow,
)


def encoded(record: object) -> Any:
    """`encode`, typed for a column."""
    return encode(record)


def study_row(spec: StudySpec, created_at: datetime) -> StudyRow:
    """A new study, running."""
    return StudyRow(
        name=spec.name,
        created_at=created_at,
        seed=spec.seed,
        engine=spec.engine.value,
        simulated=spec.simulated,
        clock=spec.clock.value,
        state=StudyState.RUNNING.value,
        target_trials=spec.target_trials,
        identity=encoded(spec.identity),
        choices=encoded(spec.choices),
        spec=encoded(spec.spec),
        load_plan=None,
    )


def study_record(row: StudyRow) -> StudyRecord:
    """The stored study."""
    return StudyRecord(
        name=row.name,
        created_at=row.created_at,
        seed=row.seed,
        engine=EngineKind(row.engine),
        simulated=row.simulated,
        clock=ClockKind(row.clock),
        state=StudyState(row.state),
        target_trials=row.target_trials,
        identity=dict(row.identity),
        choices=tuple((name, tuple(decode_value(values))) for name, values in row.choices),
        spec=decode_value(row.spec),
    )


_IMPLIED = {"objective": "throughput"}
"""What studies that were made before a key was kept had asked."""


def differences(stored: StudySpec, wanted: StudySpec) -> tuple[tuple[str, str, str], ...]:
    """What makes `wanted` another question than `stored`: (what, stored value, wanted value), in a stable order."""
    pairs = [
        ("engine", stored.engine.value, wanted.engine.value),
        ("simulated", str(stored.simulated).lower(), str(wanted.simulated).lower()),
        ("clock", stored.clock.value, wanted.clock.value),
        ("seed", str(stored.seed), str(wanted.seed)),
    ]
    # Keys in the order of the stored study, then those that only the new command has.
    keys = [*stored.identity, *(key for key in wanted.identity if key not in stored.identity)]
    for key in keys:
        implied = _IMPLIED.get(key, "nothing")
        pairs.append((key, stored.identity.get(key, implied), wanted.identity.get(key, implied)))
    return tuple(pair for pair in pairs if pair[1] != pair[2])


def trial_record(row: TrialRow) -> Trial:
    """The stored trial with its evidence; command line and folder are those of its last attempt."""
    last = row.attempts[-1] if row.attempts else None
    return Trial(
        number=row.number,
        config=decode(Config, row.config),
        origin=Origin(row.origin),
        gpus=row.gpus,
        attempts=len(row.attempts),
        result=_result(row),
        repeat_of=row.repeat_of,
        why=row.why or "",
        argv=tuple(last.argv) if last else (),
        directory=last.directory if last else None,
    )


def _result(row: TrialRow) -> TrialResult | None:
    if row.result is None:
        return None
    measurements = tuple(decode(Measurement, measurement.record) for measurement in row.measurements)
    return replace(decode(TrialResult, row.result), measurements=measurements)


def fill_result(row: TrialRow, trial: Trial, result: TrialResult, finished_at: datetime) -> None:
    """Put the `result` of a finished `trial` into its row: the record, and the figures that people sort by."""
    throughput, per_gpu, ttft = trial.output_tok_s, trial.output_tok_s_per_gpu, trial.ttft_p95_s
    row.finished_at = finished_at
    row.outcome = result.outcome.value
    row.failure_class = result.failure.kind.value if result.failure else None
    row.output_tok_s = throughput.value if throughput else None
    row.output_tok_s_per_gpu = per_gpu.value if per_gpu else None
    row.ttft_p95_s = ttft.value if ttft else None
    row.result = encoded(replace(result, measurements=()))
    row.measurements = [_measurement_row(index, found) for index, found in enumerate(result.measurements)]


def _measurement_row(position: int, found: Measurement) -> MeasurementRow:
    return MeasurementRow(
        position=position,
        level=found.level.name,
        role=LevelRole(found.level.role).value,
        clock=found.clock.value,
        completed=found.completed,
        failed=found.failed,
        output_tok_s=found.output_tok_s.value if found.output_tok_s else None,
        request_rps=found.request_rps.value if found.request_rps else None,
        ttft_p95_s=found.ttft_s.p95.value if found.ttft_s else None,
        tpot_p95_s=found.tpot_s.p95.value if found.tpot_s else None,
        record=encoded(found),
    )


def attempt_record(study: str, row: AttemptRow) -> AttemptRecord:
    """The stored attempt; one that ended its trial shows the trial's result."""
    state = AttemptState(row.state)
    own = decode(TrialResult, row.result) if row.result is not None else None
    return AttemptRecord(
        study=study,
        trial=row.trial.number,
        number=row.number,
        state=state,
        started_at=row.started_at,
        ended_at=row.ended_at,
        directory=row.directory,
        argv=tuple(row.argv),
        identity=decode(ServerIdentity, row.identity) if row.identity is not None else None,
        result=_result(row.trial) if state is AttemptState.ENDED else own,
        transitions=tuple(_transition_record(found) for found in row.transitions),
    )


def transition_row(
    move: Transition, at_utc: datetime, elapsed_s: float | None = None, clock: ClockKind | None = None
) -> TransitionRow:
    """A move to store."""
    return TransitionRow(
        before=move.before.value,
        event=move.event.value,
        after=move.after.value,
        reason=None if move.reason is None else move.reason.value,
        at_utc=at_utc,
        elapsed_s=elapsed_s,
        clock=None if clock is None else clock.value,
    )


def _transition_record(row: TransitionRow) -> TransitionRecord:
    move = Transition(
        before=State(row.before),
        event=Event(row.event),
        after=State(row.after),
        reason=None if row.reason is None else FailureClass(row.reason),
    )
    clock = None if row.clock is None else ClockKind(row.clock)
    return TransitionRecord(move=move, at_utc=row.at_utc, elapsed_s=row.elapsed_s, clock=clock)


def promotion_record(study: str, row: PromotionRow) -> PromotionRecord:
    """The stored promotion.

    Raises:
        UndecodableRecord: its details are no mapping, or its targets no list.
    """
    if not isinstance(row.details, dict):
        raise UndecodableRecord("details", row.details, "a mapping")
    if not isinstance(row.targets, list):
        raise UndecodableRecord("targets", row.targets, "a list")
    return PromotionRecord(
        study=study,
        trial=row.trial_number,
        created_at=row.created_at,
        targets=tuple(row.targets),
        directory=row.directory,
        simulated=row.simulated,
        details=decode_value(row.details),
    )
