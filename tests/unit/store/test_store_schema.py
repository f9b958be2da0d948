"""Migrations agree with the tables, run once, and refuse what they do not know."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest
import store_samples as samples
from alembic.autogenerate import compare_metadata
from alembic.command import downgrade
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from autotune.errors import ExitCode, SchemaMismatch
from autotune.life import Event, State
from autotune.records import ClockKind, Config, FailureClass, Origin, Outcome, Phase
from autotune.store.connection import WRITE, connect, locate
from autotune.store.repository import Store
from autotune.store.schema import HEAD, alembic_config, ours
from autotune.store.table_names import TABLE_PREFIX, VERSION_TABLE
from autotune.store.tables import Base
from autotune.trial_life import TrialLife


def tables_of(path):
    with sqlite3.connect(path) as connection:
        found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    connection.close()
    return found


def test_migrations_and_tables_agree(tmp_path):
    Store.open(tmp_path / "a.db").close()
    engine = connect(locate(tmp_path / "a.db"), create=False)
    with engine.connect() as connection:
        # Somebody else's table must not be seen as one of ours to drop.
        connection.exec_driver_sql("CREATE TABLE trials (id INTEGER)")
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "include_name": ours, "compare_type": True}
        )
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_every_table_of_ours_carries_the_prefix(tmp_path):
    assert all(name.startswith(TABLE_PREFIX) for name in Base.metadata.tables)
    Store.open(tmp_path / "a.db").close()
    assert tables_of(tmp_path / "a.db") == {*Base.metadata.tables, VERSION_TABLE}


def test_one_line_of_revisions():
    script = ScriptDirectory.from_config(alembic_config())
    assert script.get_heads() == [HEAD]
    assert script.get_bases() == ["0001"]


def test_opening_again_changes_nothing(tmp_path):
    path = tmp_path / "a.db"
    Store.open(path).close()
    before = path.read_bytes()
    Store.open(path).close()
    assert path.read_bytes() == before


def test_newer_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "a.db"
    Store.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    connection.close()
    with pytest.raises(SchemaMismatch, match=r"newer autotune.*'9999'") as caught:
        Store.open(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code is ExitCode.SCHEMA_MISMATCH


def test_downgrade_leaves_nothing_of_ours(tmp_path):
    path = tmp_path / "a.db"
    Store.open(path).close()
    engine = connect(locate(path), create=False)
    with engine.connect().execution_options(**WRITE) as connection, connection.begin():
        downgrade(alembic_config(connection), "base")
    engine.dispose()
    assert tables_of(path) == {VERSION_TABLE}


def test_a_database_of_the_first_revision_goes_on_with_all_its_trials(tmp_path):
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        store.create_or_resume_study(samples.spec())
        samples.begin_trial(store, 0)
        before = store.trials(samples.spec().name)
    engine = connect(locate(path), create=False)
    with engine.connect().execution_options(**WRITE) as connection, connection.begin():
        downgrade(alembic_config(connection), "0001")
        columns = {row[1] for row in connection.exec_driver_sql("PRAGMA table_info(autotune_trials)")}
    engine.dispose()
    assert "why" not in columns
    with Store.open(path) as store:
        assert store.trials(samples.spec().name) == before
        assert [trial.why for trial in before] == [""]
        store.begin_trial(
            samples.spec().name, number=1, config=Config.of({"x": 1}), origin=Origin.SAMPLER, gpus=1, why="prior: more"
        )
        assert store.trials(samples.spec().name)[1].why == "prior: more"


def test_moves_of_older_databases_are_told_from_what_they_hold(tmp_path):
    """Three trials with every way for an attempt to end, back to the revision without moves, and up again."""
    path = tmp_path / "a.db"
    busy, gated = (samples.failed(Outcome.FAULTED, kind) for kind in (FailureClass.GPU_BUSY, FailureClass.MODEL_ACCESS))
    crash = samples.failed(Outcome.FAULTED, FailureClass.CRASH)
    start, whole = (Phase.LAUNCHING, Phase.ENDED), tuple(Phase)[1:]
    lives = (
        ((start, Event.SPOILT, busy), ((Phase.LAUNCHING, Phase.WARMING), Event.INTERRUPTED, None),
         (whole, Event.MEASURED, samples.measured())),
        ((start, Event.FATAL, gated), (whole, Event.SPOILT, crash), (whole, Event.REPEATED, crash)),
        ((start, Event.SPOILT, busy), (start, Event.EXHAUSTED, busy)),
    )  # fmt: skip
    with Store.open(path) as store:
        store.create_or_resume_study(samples.spec())
        for number, attempts in enumerate(lives):
            samples.begin_trial(store, number)
            kept = TrialLife(store, "s", number)
            for phases, event, result in attempts:
                kept.begin(tmp_path)
                for second, phase in enumerate(phases):
                    kept.enter(phase, float(second), ClockKind.WALL)
                kept.cut_off(event) if result is None else kept.end(event, result)
        told = [store.attempts("s", number) for number in range(len(lives))]
    engine = connect(locate(path), create=False)
    with engine.connect().execution_options(**WRITE) as connection, connection.begin():
        downgrade(alembic_config(connection), "0002")
        assert connection.exec_driver_sql("SELECT count(*) FROM autotune_phase_changes").scalar() == 25
    engine.dispose()
    with Store.open(path) as store:
        again = [store.attempts("s", number) for number in range(len(lives))]
        assert [TrialLife(store, "s", number).life.state for number in range(3)] == [State.DONE] * 3
    for before, after in zip(told, again, strict=True):
        for was, now in zip(before, after, strict=True):
            assert [(one.move, one.elapsed_s, one.clock) for one in now.transitions] == [
                (one.move, one.elapsed_s, one.clock) for one in was.transitions
            ]


def test_many_programs_may_open_a_new_database_at_once(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        for store in pool.map(lambda _: Store.open(tmp_path / "a.db"), range(8)):
            store.close()
    assert tables_of(tmp_path / "a.db") == {*Base.metadata.tables, VERSION_TABLE}


@pytest.mark.parametrize("revision", ["0001", "base"])
def test_who_only_looks_leaves_an_older_database_as_it_is(revision, tmp_path):
    path = tmp_path / "a.db"
    Store.open(path).close()
    engine = connect(locate(path), create=False)
    with engine.connect().execution_options(**WRITE) as connection, connection.begin():
        downgrade(alembic_config(connection), revision)
    engine.dispose()
    before = path.read_bytes()
    with pytest.raises(SchemaMismatch, match="nothing may be written here"):
        Store.open(path, create=False, migrate=False)
    assert path.read_bytes() == before
    Store.open(path).close()
    Store.open(path, create=False, migrate=False).close()
