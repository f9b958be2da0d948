"""Optuna's view of our studies, in the same database: for `optuna-dashboard` and for anybody's Optuna scripts.

Our tables are the truth and nothing is read back from here, so a projection that is lost or deleted is simply made
again. Optuna owns the tables `studies`, `trials`, ... and `alembic_version`; ours are named `autotune_*`.

| our trial | in Optuna |
|---|---|
| measured | COMPLETE with its two objectives, constraint `infeasible` = 0 |
| infeasible | COMPLETE with placeholder values, constraint `infeasible` = 1, marked `autotune:values_are_placeholder` |
| abandoned | PRUNED |
| faulted, or measured without both objectives | FAIL |
| running, or waiting to be run again | RUNNING |
| refused by a rule before launch | not there; it has no trial number |

Infeasible trials are not FAIL, because Optuna's TPE does not see failed trials and keeps proposing them (measured:
94 % of proposals where uniform random gives 67 %). A COMPLETE trial must have values, hence the placeholders. They are
dominated by the baseline, so that no program that ignores constraints can take one for a good trial.
"""

from __future__ import annotations

import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any

import optuna
from alembic.runtime.migration import MigrationContext
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from autotune.errors import SchemaMismatch, StorageError
from autotune.records import Outcome, Trial, Value
from autotune.store.connection import IN_UTF8, Location, storage_error, translated
from autotune.store.repository import Store
from autotune.store.study_record import StudyRecord

DIRECTIONS = (StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE)
METRIC_NAMES = ("output tokens/s per GPU", "p95 TTFT (s)")
CONSTRAINT = "infeasible"
OLD_CONSTRAINTS = "constraints"
"""The system attribute where Optuna 4 kept constraints, as a list; optuna-dashboard 0.21 reads no other."""

PLACEHOLDER_THROUGHPUT_SHARE = 0.5
PLACEHOLDER_TTFT_FACTOR = 4.0
"""Placeholder of an infeasible trial: half the baseline's throughput, four times its p95 TTFT."""

PLACEHOLDER_WITHOUT_BASELINE = (0.0, 3600.0)
"""Placeholder while the baseline itself has no figures: nothing served, an hour's wait."""

PREFIX = "autotune:"
PLACEHOLDER_ATTR = PREFIX + "values_are_placeholder"
"""Of a trial whose values nobody measured: for who reads the study with Optuna or its dashboard; nothing here does."""

_SCHEMA_TRIES = 5


class Projection:
    """The Optuna side of an open store. Close it before the store."""

    def __init__(self, store: Store, storage: RDBStorage) -> None:
        self._store = store
        self._storage = storage
        self._studies: dict[str, optuna.Study] = {}

    @classmethod
    def open(cls, store: Store) -> Projection:
        """Connect Optuna to the store's database; makes Optuna's tables once.

        Raises:
            SchemaMismatch: Optuna's tables are of another Optuna version; says how to bring them together.
            StorageLocked: another program holds the database.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        _check_schema(store)
        return cls(store, _storage(store.location, store.busy_timeout_s))

    def close(self) -> None:
        """Give Optuna's connections back."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def __enter__(self) -> Projection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def sync(self, name: str) -> int:
        """Bring Optuna's study up to ours; the number of trials that were added or finished.

        Safe to repeat and to be killed in: each step leaves a state from which the next call goes on.

        Raises:
            StorageError: Optuna's study of this name holds trials that are not ours.
        """
        stored = self._store.study(name)
        trials = self._store.trials(name)
        times = self._store.trial_times(name)  # read later: somebody may have finished or begun one in between
        with _optuna_errors(self._store.location):
            study = self._studies.get(name) or self._open_study(stored)
            self._studies[name] = study
            known = study.get_trials(deepcopy=False)
            self._refuse_foreign(name, known, trials)
            placeholder = placeholder_values(trials)
            changed = 0
            for trial, (begun, finished) in zip(trials, times, strict=False):
                if trial.number >= len(known):
                    ended = None if trial.result is None else finished
                    study.add_trial(_frozen(trial, stored, placeholder, begun, ended))
                    changed += 1
                elif known[trial.number].state is TrialState.RUNNING and trial.result is not None:
                    self._finish(study, known[trial.number], trial, placeholder)
                    changed += 1
            return changed

    def _open_study(self, stored: StudyRecord) -> optuna.Study:
        # Its sampler is never asked; RANDOM is the one that costs nothing to have.
        sampler = optuna.samplers.RandomSampler(seed=0)
        study = optuna.create_study(
            storage=self._storage,
            sampler=sampler,
            study_name=stored.name,
            directions=DIRECTIONS,
            load_if_exists=True,
        )
        if tuple(study.directions) != DIRECTIONS:
            raise _foreign(self._store.location, stored.name, "has other directions")
        if study.metric_names != list(METRIC_NAMES):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                study.set_metric_names(list(METRIC_NAMES))
        facts = {"engine": stored.engine.value, "simulated": stored.simulated, "clock": stored.clock.value}
        wanted = {PREFIX + key: value for key, value in {**stored.identity, **facts}.items()}
        for key, value in wanted.items():
            if study.user_attrs.get(key) != value:
                study.set_user_attr(key, value)
        return study

    def _finish(self, study: optuna.Study, known: FrozenTrial, trial: Trial, placeholder: tuple[float, float]) -> None:
        """Turn a RUNNING trial into what it became; the state comes last: a kill before it leaves it RUNNING."""
        state, values, constraint = _state_and_values(trial, placeholder)
        open_trial = optuna.Trial(study, known._trial_id)
        for key, value in _attributes(trial).items():
            if known.user_attrs.get(key) != value:
                open_trial.set_user_attr(key, value)
        if constraint is not None:
            self._storage.set_trial_system_attr(known._trial_id, OLD_CONSTRAINTS, [constraint])
            if CONSTRAINT not in known.constraints:
                open_trial.set_constraint(CONSTRAINT, constraint)
        study.tell(open_trial, values, state)

    def _refuse_foreign(self, name: str, known: Sequence[FrozenTrial], trials: Sequence[Trial]) -> None:
        if len(known) > len(trials):
            raise _foreign(self._store.location, name, f"has {len(known)} trials, ours has {len(trials)}")
        for ours, theirs in zip(trials, known, strict=False):
            if theirs.user_attrs.get(PREFIX + "config_hash") != ours.config.hash:
                raise _foreign(self._store.location, name, f"has another trial {ours.number}")


def sync(store: Store, name: str) -> int:
    """Bring Optuna's study up to ours, once. To sync after every trial, keep a `Projection` open."""
    with Projection.open(store) as projection:
        return projection.sync(name)


def make_tables(database: str, busy_timeout_s: float) -> None:
    """Our tables and Optuna's, where they are missing: a dashboard does not start on a database without them.

    Raises:
        StorageError: as `Store.open` and `Projection.open`.
    """
    with Store.open(database, busy_timeout_s=busy_timeout_s) as store, Projection.open(store):
        pass


def placeholder_values(trials: Sequence[Trial]) -> tuple[float, float]:
    """What infeasible trials show for values they do not have: (tokens/s per GPU, seconds), worse than the baseline."""
    baseline = _objectives(trials[0]) if trials else None
    if baseline is None:
        return PLACEHOLDER_WITHOUT_BASELINE
    return baseline[0] * PLACEHOLDER_THROUGHPUT_SHARE, baseline[1] * PLACEHOLDER_TTFT_FACTOR


def _objectives(trial: Trial) -> tuple[float, float] | None:
    """Both values, or None; Optuna takes an infinite one without a word and calls it best."""
    pair = trial.objectives
    return None if pair is None else (pair[0].value, pair[1].value)


def _state_and_values(
    trial: Trial, placeholder: tuple[float, float]
) -> tuple[TrialState, tuple[float, float] | None, float | None]:
    """State, values, and the value of the constraint; None for what the state does not have."""
    if trial.result is None:
        return TrialState.RUNNING, None, None
    match trial.result.outcome:
        case Outcome.MEASURED:
            values = _objectives(trial)
            return (TrialState.FAIL, None, None) if values is None else (TrialState.COMPLETE, values, 0.0)
        case Outcome.INFEASIBLE:
            return TrialState.COMPLETE, placeholder, 1.0
        case Outcome.ABANDONED:
            return TrialState.PRUNED, None, None
        case Outcome.FAULTED:
            return TrialState.FAIL, None, None


def _attributes(trial: Trial) -> dict[str, Any]:
    """What the trial's page shows; everything that Optuna itself has no place for."""
    result = trial.result
    found: dict[str, Any] = {
        "number": trial.number,
        "config": trial.config.as_dict(),
        "config_hash": trial.config.hash,
        "origin": trial.origin.value,
        "gpus": trial.gpus,
    }
    if trial.repeat_of is not None:
        found["repeat_of"] = trial.repeat_of
    if result is not None:
        found |= {"outcome": result.outcome.value, "simulated": result.simulated, "clock": result.clock.value}
        if result.failure is not None:
            found |= {"reason": result.failure.kind.value, "line": result.failure.line}
        elif result.outcome is Outcome.MEASURED and _objectives(trial) is None:
            found["reason"] = "an objective was not measured"
        if result.outcome is Outcome.INFEASIBLE:
            found["values_are_placeholder"] = True
    return {PREFIX + key: value for key, value in found.items()}


def _distributions(stored: StudyRecord, config: Mapping[str, Value]) -> dict[str, BaseDistribution]:
    """Distributions of the parameters whose value is one of the space's choices.

    A baseline may hold others (what vLLM needs to start at all); Optuna cannot widen a distribution later, so those
    stand in `autotune:config` alone.
    """
    return {
        name: CategoricalDistribution(choices)
        for name, choices in stored.choices
        if name in config and any(type(choice) is type(config[name]) and choice == config[name] for choice in choices)
    }


def _frozen(
    trial: Trial,
    stored: StudyRecord,
    placeholder: tuple[float, float],
    begun: datetime,
    finished: datetime | None,
) -> FrozenTrial:
    state, values, constraint = _state_and_values(trial, placeholder)
    config = trial.config.as_dict()
    distributions = _distributions(stored, config)
    frozen = FrozenTrial(
        number=-1,
        trial_id=-1,
        state=state,
        value=None,
        values=values,
        datetime_start=_local(begun),
        datetime_complete=_local(finished) if finished is not None else None,
        params={name: config[name] for name in distributions},
        distributions=distributions,
        user_attrs=_attributes(trial),
        system_attrs={} if constraint is None else {OLD_CONSTRAINTS: [constraint]},
        intermediate_values={},
    )
    if constraint is not None:
        frozen.set_constraint(CONSTRAINT, constraint)
    return frozen


def _local(moment: datetime) -> datetime:
    """Optuna keeps naive local times."""
    return moment.astimezone().replace(tzinfo=None)


def _check_schema(store: Store) -> None:
    """Refuse another Optuna version's tables before Optuna touches them: it would add to them without asking."""
    with translated(store.location), store.engine.connect() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    if current is None:
        return
    yardstick = RDBStorage("sqlite:///:memory:")
    head, known = yardstick.get_head_version(), yardstick.get_all_versions()
    yardstick.remove_session()
    yardstick.engine.dispose()
    if current != head:
        raise _schema_mismatch(store.location, current, head, older=current in known)


def _schema_mismatch(location: Location, current: str, head: str, *, older: bool) -> SchemaMismatch:
    address = location.url.render_as_string(hide_password=True)
    hint = (
        f"Copy the database, then run `optuna storage upgrade --storage {address}`; our own tables are not affected."
        if older
        else f"Install the Optuna (and optuna-dashboard) that wrote it, or a newer one; this is {optuna.__version__}."
    )
    return SchemaMismatch(
        f"{location.label}: Optuna's tables are at revision {current!r}, Optuna {optuna.__version__} needs {head!r}",
        hint=hint,
    )


def _storage(location: Location, busy_timeout_s: float) -> RDBStorage:
    # Doubled braces: Optuna formats the URL like a template.
    url = location.url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
    options: dict[str, Any] = (
        {"pool_pre_ping": True, "connect_args": dict(IN_UTF8)}
        if location.path is None
        else {"connect_args": {"timeout": busy_timeout_s}}
    )
    for attempt in range(1, _SCHEMA_TRIES + 1):
        try:
            with _optuna_errors(location):
                return RDBStorage(url, engine_kwargs=options)
        except StorageError as error:
            # Optuna does not make its tables in one transaction: two programs that start at once meet each other's
            # half. What the other made is there on the next try.
            if attempt == _SCHEMA_TRIES or not any(
                text in str(error) for text in ("already exists", "UNIQUE", "uplicate")
            ):
                raise
            time.sleep(0.1 * attempt)
        except RuntimeError as error:
            raise SchemaMismatch(f"{location.label}: {error}") from error
    raise StorageError(f"{location.label}: Optuna's tables could not be made")


@contextmanager
def _optuna_errors(location: Location) -> Iterator[None]:
    try:
        yield
    except StorageInternalError as error:
        raise storage_error(location.label, error.__cause__ or error) from error
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise storage_error(location.label, error) from error


def _foreign(location: Location, name: str, what: str) -> StorageError:
    return StorageError(
        f"{location.label}: Optuna's study {name!r} {what}; somebody else wrote to it",
        hint="Delete it (`optuna delete-study`, or in the dashboard): it is made again from our tables.",
    )
