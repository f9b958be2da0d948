"""All studies in brief, for `autotune list` and `status`.

These ask the tables by their names: to map them to classes, as `tables.py` does for everything else, takes longer than
the whole question.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, Boolean, Connection, column, func, select, table

from autotune.records import Origin, Outcome
from autotune.store.connection import BUSY_TIMEOUT_S, connect, locate, translated
from autotune.store.schema import upgrade
from autotune.store.table_names import STUDIES, TRIALS

_STUDIES = table(
    STUDIES,
    *(column("id"), column("name"), column("created_at"), column("engine"), column("simulated", Boolean)),
    *(column("state"), column("target_trials"), column("identity", JSON), column("spec", JSON)),
)
_TRIALS = table(
    TRIALS, *(column("study_id"), column("number"), column("outcome"), column("origin"), column("result", JSON))
)
_UNCOUNTED = frozenset({Origin.REPEAT.value, Origin.VALIDATION.value})


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedStudy:
    """What is told of a study among others.

    Attributes:
        identity, spec: as `StudySpec` has them.
    """

    name: str
    engine: str
    simulated: bool
    state: str
    target_trials: int
    identity: Mapping[str, str]
    spec: Mapping[str, Any]
    tally: Tally


def listed(url_or_path: str | Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> tuple[ListedStudy, ...]:
    """All studies of an existing database, oldest first.

    Raises:
        StorageError: as `Store.open` and its verbs.
    """
    location = locate(url_or_path)
    engine = connect(location, create=False, busy_timeout_s=busy_timeout_s)
    try:
        upgrade(engine, location)
        with translated(location), engine.connect() as connection:
            tallies, studies = read_tallies(connection), _STUDIES.c
            told = (studies.name, studies.engine, studies.simulated, studies.state, studies.target_trials)
            wanted = select(*told, studies.identity, studies.spec).order_by(studies.created_at, studies.id)
            return tuple(
                ListedStudy(
                    name=row.name,
                    engine=row.engine,
                    simulated=row.simulated,
                    state=row.state,
                    target_trials=row.target_trials,
                    identity=row.identity,
                    spec=row.spec,
                    tally=tallies.get(row.name, Tally()),
                )
                for row in connection.execute(wanted)
            )
    finally:
        engine.dispose()


def read_tallies(connection: Connection, names: Collection[str] | None = None) -> dict[str, Tally]:
    """How far each study is, or each of those named, by its name."""
    trials = _TRIALS.c
    simulated = trials.result["simulated"].as_boolean()
    seen = (
        select(_STUDIES.c.name, trials.outcome, trials.origin, simulated, func.count(), func.min(trials.number))
        .select_from(_STUDIES.join(_TRIALS, trials.study_id == _STUDIES.c.id))
        .group_by(_STUDIES.c.name, trials.outcome, trials.origin, simulated)
    )
    studies = select(_STUDIES.c.name)
    if names is not None:
        seen, studies = seen.where(_STUDIES.c.name.in_(names)), studies.where(_STUDIES.c.name.in_(names))
    groups: dict[str, list[Any]] = {name: [] for name in connection.scalars(studies)}
    for name, *group in connection.execute(seen):
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
