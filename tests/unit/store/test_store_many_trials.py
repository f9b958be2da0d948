"""Studies with more trials than SQLite takes values in one statement."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import store_samples as samples
from sqlalchemy import event

from autotune.store.repository import Store
from autotune.store.trial_reading import IDS_PER_QUERY

LIMIT = 2 * IDS_PER_QUERY
"""SQLite's own is 32,766; lowered here, so that fewer trials are too many."""

COPIES = """
    INSERT INTO autotune_trials (study_id, number, config_hash, config, origin, gpus, created_at)
    WITH RECURSIVE counted(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM counted WHERE n < ?)
    SELECT study_id, n, config_hash, config, origin, gpus, created_at FROM autotune_trials, counted WHERE number = 1
"""


def test_a_study_larger_than_a_statement_is_read_first_whole_and_then_in_parts(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db") as store:
        store.create_or_resume_study(samples.spec())
        samples.add_trial(store, 0, samples.measured(1000, 0.2))
        samples.add_trial(store, 1, None)
        with store.engine.connect() as connection:
            connection.exec_driver_sql(COPIES, (LIMIT + 200,))
            connection.commit()
        store.engine.dispose()

        @event.listens_for(store.engine, "connect")
        def lower(connection: sqlite3.Connection, _record: object) -> None:
            connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, LIMIT)

        first, second = store.trials("s"), store.trials("s")
        assert [trial.number for trial in first] == list(range(LIMIT + 201))
        assert second == first
