"""Several writers, a full disk, a writer killed in its transaction, old tables, a backup while somebody writes."""

from __future__ import annotations

import gzip
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from alembic.command import downgrade
from alembic.script import ScriptDirectory

from autotune.store.archive import export_study, import_study
from autotune.store.archive_file import open_archive
from autotune.store.connection import WRITE, connect, locate
from autotune.store.repository import Store
from autotune.store.schema import HEAD, alembic_config
from autotune.store.study_record import AttemptState

ROOT = Path(__file__).parents[2]
RECORDED = sorted((ROOT / "studies").glob("h200-*/autotune.db"))
SAMPLES = ROOT / "tests" / "unit" / "store"
sys.path.append(str(SAMPLES))

import store_samples as samples  # noqa: E402 - beside the unit tests of the store

PRELUDE = f"""
import os, sys, resource, signal
sys.path[:0] = [{str(SAMPLES)!r}, {str(ROOT)!r}]
import store_samples as samples
from autotune.records import Config, Origin
from autotune.store.repository import Store

def trial(store, **values):
    number = store.begin_trial("s", config=Config.of(values), origin=Origin.SAMPLER, gpus=1).number
    store.begin_attempt("s", number, directory=f"t/{{number}}")
    store.finish_trial("s", number, samples.measured(1000.0 + number))
    print(number, flush=True)
"""


def started(path: Path, code: str) -> subprocess.Popen[str]:
    text = PRELUDE + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-c", text, str(path)], stdout=subprocess.PIPE, text=True)


def finished(path: Path, code: str) -> list[str]:
    process = started(path, code)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return out.split("\n")[:-1]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "a.db") as store:
        store.create_or_resume_study(samples.spec())
    return tmp_path / "a.db"


def whole(path: Path) -> tuple[int, ...]:
    """Numbers of the finished trials, each of which has all its evidence; nothing in the file is damaged."""
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    raw.close()
    with Store.open(path, create=False) as store:
        trials = store.trials("s")
        assert [trial.number for trial in trials] == list(range(len(trials)))
        done = [trial for trial in trials if trial.result is not None]
        for trial in done:
            assert trial.output_tok_s is not None
            assert trial.output_tok_s.value == 1000.0 + trial.number
            assert [attempt.state for attempt in store.attempts("s", trial.number)] == [AttemptState.ENDED]
        return tuple(trial.number for trial in done)


def test_eight_processes_write_to_one_study_and_a_reader_is_not_in_their_way(database: Path) -> None:
    process = started(
        database,
        """
        children = []
        for writer in range(8):
            child = os.fork()
            if not child:
                with Store.open(sys.argv[1]) as store:
                    for index in range(4):
                        trial(store, writer=writer, index=index)
                os._exit(0)
            children.append(child)
        assert all(os.waitpid(child, 0)[1] == 0 for child in children)
        """,
    )
    with Store.open(database) as reader:
        seen = 0
        while process.poll() is None:
            now = sum(trial.result is not None for trial in reader.outlines("s"))
            assert now >= seen
            assert reader.tallies()["s"].counted >= now
            seen = now
            time.sleep(0.01)
    out = process.communicate(timeout=600)[0].split()
    assert process.returncode == 0
    assert sorted(map(int, out)) == list(range(32))
    assert whole(database) == tuple(range(32))


def test_a_disk_that_is_full_in_the_middle_of_a_trial_loses_that_verb_alone(database: Path) -> None:
    said = finished(
        database,
        """
        from autotune.errors import StorageError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with Store.open(sys.argv[1]) as store:
            trial(store, x=0)
            most = os.path.getsize(sys.argv[1] + "-wal") + 60_000
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
            try:
                for x in range(1, 1000):
                    trial(store, x=x)
            except StorageError as error:
                print(type(error).__name__, error.message, flush=True)
            # Reading goes on, and so does writing as soon as there is room.
            there = len(store.trials("s"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            trial(store, x=-1)
        """,
    )
    stored = [int(line) for line in said if line.isdigit()]
    (error,) = [line for line in said if not line.isdigit()]
    assert "StorageError" in error
    assert str(database) in error
    assert 2 < len(stored) < 900
    assert set(stored) <= set(whole(database))


def test_a_writer_killed_inside_its_transaction_leaves_nothing_and_holds_nothing(database: Path) -> None:
    process = started(
        database,
        """
        import time
        with Store.open(sys.argv[1]) as store:
            trial(store, x=0)
            with store.writing() as session:
                parent = store._study(session, "s")
                parent.target_trials = 999
                session.flush()
                print("inside", flush=True)
                time.sleep(600)
        """,
    )
    assert process.stdout is not None
    assert [process.stdout.readline().strip() for _ in range(2)] == ["0", "inside"]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with Store.open(database, busy_timeout_s=5) as store:
        assert store.study("s").target_trials == samples.spec().target_trials
        store.set_target("s", 11)
    assert whole(database) == (0,)


def revisions() -> list[str]:
    script = ScriptDirectory.from_config(alembic_config())
    return sorted(revision.revision for revision in script.walk_revisions() if revision.revision != HEAD)


@pytest.mark.parametrize("revision", revisions())
def test_a_database_of_every_earlier_version_goes_on(revision: str, database: Path) -> None:
    with Store.open(database) as store:
        samples.add_trial(store, 0, samples.measured(1000.0))
        samples.add_trial(store, 1, None)
        before = store.trials("s")
    engine = connect(locate(database), create=False)
    with engine.connect().execution_options(**WRITE) as connection, connection.begin():
        downgrade(alembic_config(connection), revision)
    engine.dispose()
    with Store.open(database) as store:
        assert store.trials("s") == before
        samples.add_trial(store, 2, samples.measured(1002.0))
    assert whole(database) == (0, 2)


def test_a_recorded_database_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    path.write_bytes(gzip.decompress((ROOT / "tests" / "data" / "store" / "h200-at-0002.db.gz").read_bytes()))
    with Store.open(path, create=False) as store:
        (study,) = store.studies()
        trials = store.trials(study.name)
        assert len(trials) == 7
        assert store.outlines(study.name)[0].objectives == trials[0].objectives


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.parent.name)
def test_a_recorded_study_is_not_changed_by_being_looked_at(recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    shutil.copyfile(recorded, path)
    with Store.open(path, create=False) as store:
        assert store.trials(store.studies()[0].name)
    assert path.read_bytes() == recorded.read_bytes()
    assert [entry.name for entry in tmp_path.iterdir()] == ["autotune.db"]


def test_a_backup_and_an_export_while_somebody_writes_are_whole(database: Path, tmp_path: Path) -> None:
    stop, failures = threading.Event(), []

    def write() -> None:
        try:
            with Store.open(database) as store:
                number = 0
                while not stop.is_set():
                    samples.add_trial(store, number, samples.measured(1000.0 + number))
                    number += 1
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        source, copy = sqlite3.connect(database), sqlite3.connect(tmp_path / "copy.db")
        with Store.open(database) as store:
            while store.tallies()["s"].counted < 3 and not failures:
                time.sleep(0.01)
            source.backup(copy, pages=5, sleep=0.001)
            export_study(store, tmp_path, "s", tmp_path / "s.zip")
        source.close()
        copy.close()
    finally:
        stop.set()
        writer.join()
    assert failures == []
    assert len(whole(tmp_path / "copy.db")) >= 3
    with open_archive(tmp_path / "s.zip") as archive, Store.open(tmp_path / "there" / "a.db") as store:
        import_study(store, tmp_path / "there", archive, "s")
    assert len(whole(tmp_path / "there" / "a.db")) >= 3
