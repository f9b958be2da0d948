"""A database as large as one wants, filled with records of a real study whose figures are moved about."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from autotune.records import (
    ClockKind,
    Config,
    Estimate,
    Failure,
    FailureClass,
    Latency,
    LevelRole,
    Measurement,
    Origin,
    Outcome,
    Trial,
    TrialResult,
)
from autotune.store import rows
from autotune.store.connection import WRITE
from autotune.store.repository import Store
from autotune.store.study_record import AttemptState
from autotune.store.tables import AttemptRow, MeasurementRow, StudyRow, TrialRow

TEMPLATE = Path(__file__).parents[1] / "studies" / "h200-llama-8b-chat" / "autotune.db"
STUDY = "h200-llama-8b-chat"
CHUNK = 500

INFEASIBLE_SHARE, REPEAT_SHARE = 0.15, 0.02
WORSE = 0.4
"""Mean distance of a config from the best of its kind, in both logarithms."""


def make_large_study(path: Path, trials: int, *, seed: int = 1) -> str:
    """A study of `trials` trials at `path`, the recorded ones first; its name.

    Args:
        seed: of the figures; equal seeds give equal studies.
    """
    shutil.copyfile(TEMPLATE, path)
    with Store.open(path) as store:
        templates = [trial for trial in store.trials(STUDY) if trial.measured]
        with store.engine.connect().execution_options(**WRITE) as connection, connection.begin():
            study_id = connection.scalar(select(StudyRow.id).where(StudyRow.name == STUDY))
            made = _trials(templates, len(store.trials(STUDY)), trials, np.random.default_rng(seed))
            chunk: list[Trial] = []
            for trial in made:
                chunk.append(trial)
                if len(chunk) == CHUNK or trial.number == trials - 1:
                    _insert(Session(bind=connection), study_id, chunk)
                    chunk.clear()
        store.engine.dispose()
    return STUDY


def _trials(templates: list[Trial], first: int, trials: int, rng: np.random.Generator) -> Iterator[Trial]:
    base = templates[0]
    for number in range(first, trials):
        template = templates[int(rng.integers(len(templates)))]
        assert template.result is not None
        values = {**template.config.as_dict(), "max-num-seqs": number, "max-num-batched-tokens": 2048 + number % 64}
        trial = replace(
            template, number=number, config=Config.of(values), origin=Origin.SAMPLER, repeat_of=None, attempts=1
        )
        if rng.random() < INFEASIBLE_SHARE:
            failure = Failure(kind=FailureClass.KV_CACHE_TOO_SMALL, line="ValueError: To serve at least one request")
            ended = TrialResult(outcome=Outcome.INFEASIBLE, clock=ClockKind.WALL, simulated=False, failure=failure)
            yield replace(trial, result=ended)
            continue
        if rng.random() < REPEAT_SHARE:
            trial = replace(trial, config=base.config, origin=Origin.REPEAT, repeat_of=0)
            factors = (float(np.exp(rng.normal(0, 0.01))), float(np.exp(rng.normal(0, 0.1))))
            yield replace(trial, result=_moved(base.result or template.result, factors))
            continue
        # A trade-off: more throughput, up to a limit, for longer waits; and much that is worse in both.
        load = rng.uniform(0.5, 3.0)
        worse = rng.exponential(WORSE, 2)
        factors = (float((1 - np.exp(-load)) * np.exp(-worse[0])), float(np.exp(load - 1.5 + worse[1])))
        yield replace(trial, result=_moved(template.result, factors))


def _moved(result: TrialResult, factors: tuple[float, float]) -> TrialResult:
    return replace(result, measurements=tuple(_level(one, factors) for one in result.measurements if _decides(one)))


def _decides(level: Measurement) -> bool:
    return level.level.role in (LevelRole.THROUGHPUT, LevelRole.TTFT)


def _level(level: Measurement, factors: tuple[float, float]) -> Measurement:
    def times(figure: Estimate | None) -> Estimate | None:
        return None if figure is None else figure.times(factors[0])

    ttft = level.ttft_s
    return replace(
        level, output_tok_s=times(level.output_tok_s), ttft_s=None if ttft is None else _slower(ttft, factors[1])
    )


def _slower(latency: Latency, factor: float) -> Latency:
    parts = {name: getattr(latency, name).times(factor) for name in ("mean", "p50", "p90", "p95", "p99")}
    return replace(latency, **parts)


def _insert(session: Session, study_id: Any, trials: list[Trial]) -> None:
    """Rows as the store's own verbs write them, but many in one statement."""
    now = session.scalar(select(StudyRow.created_at))
    assert now is not None
    written = []
    for trial in trials:
        row = TrialRow(
            study_id=study_id,
            number=trial.number,
            config_hash=trial.config.hash,
            config=rows.encoded(trial.config),
            origin=trial.origin.value,
            gpus=trial.gpus,
            repeat_of=trial.repeat_of,
            why=trial.why or None,
            created_at=now,
        )
        assert trial.result is not None
        rows.fill_result(row, trial, trial.result, now)
        written.append(row)
    session.execute(insert(TrialRow), [_values(row) for row in written])
    numbers = (TrialRow.study_id == study_id, TrialRow.number >= trials[0].number)
    ids = {number: i for number, i in session.execute(select(TrialRow.number, TrialRow.id).where(*numbers))}  # noqa: C416 - typed so
    levels = [{**_values(one), "trial_id": ids[row.number]} for row in written for one in row.measurements]
    session.execute(insert(MeasurementRow), levels)
    session.execute(
        insert(AttemptRow),
        [
            {
                "trial_id": ids[trial.number],
                "number": 1,
                "state": AttemptState.ENDED.value,
                "started_at": now,
                "ended_at": now,
                "directory": f"studies/{STUDY}/trial-{trial.number:04d}",
                "argv": list(trial.argv),
            }
            for trial in trials
        ],
    )


def _values(row: TrialRow | MeasurementRow) -> dict[str, Any]:
    names = [column.key for column in type(row).__table__.columns if column.key not in ("id", "trial_id")]
    return {name: getattr(row, name) for name in names}
