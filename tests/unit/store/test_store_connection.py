"""Opening a database, and its errors in our words."""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

import pytest
import store_samples as samples
from sqlalchemy import event

from autotune.errors import ExitCode, SchemaMismatch, StorageError, StorageLocked
from autotune.store.connection import filesystem_of, locate, storage_error
from autotune.store.listing import listed
from autotune.store.repository import Store


def test_pragmas_hold_on_every_connection(tmp_path):
    with Store.open(tmp_path / "a.db", busy_timeout_s=7) as store, store.engine.connect() as connection:
        asked = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")
        }
    assert asked == {"journal_mode": "wal", "foreign_keys": 1, "synchronous": 2, "busy_timeout": 7000}


def test_missing_file_is_made_only_when_asked(tmp_path):
    path = tmp_path / "new folder" / "a%20{b}.db"
    with pytest.raises(StorageError, match="there is no database"):
        Store.open(path, create=False)
    assert not path.parent.exists()
    Store.open(path).close()
    Store.open(str(locate(path).url), create=False).close()
    assert path.exists()


def test_looking_at_a_file_changes_no_byte_of_it(tmp_path):
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        store.create_or_resume_study(samples.spec())
        samples.add_trial(store, 0, samples.measured())
    with sqlite3.connect(path) as raw:  # as a recorded study is kept, without the files of a running one beside it
        raw.execute("PRAGMA journal_mode=DELETE")
    before = path.read_bytes()
    with Store.open(path, create=False) as store:
        assert [trial.number for trial in store.trials(samples.spec().name)] == [0]
    assert listed(path)[0].name == samples.spec().name
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.db"]


@pytest.fixture
def closed(monkeypatch, tmp_path):
    """The folder cannot be written, also for root, whom no mode stops."""
    really = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path and really(path, mode))


def test_a_database_in_a_folder_that_cannot_be_written_is_read_and_followed(tmp_path, closed):
    path = tmp_path / "a%20{b}?.db"
    with Store.open(path) as store:
        store.create_or_resume_study(samples.spec())
    with Store.open(path, create=False) as looker:
        assert looker.trials(samples.spec().name) == ()
        assert [entry.name for entry in tmp_path.iterdir()] == [path.name]  # what SQLite makes to read a WAL
        with Store.open(path) as store:
            samples.add_trial(store, 0, samples.measured())
            assert [trial.number for trial in looker.trials(samples.spec().name)] == [0]
        assert [trial.number for trial in looker.trials(samples.spec().name)] == [0]
        with pytest.raises(StorageError, match="cannot be written"):
            looker.create_or_resume_study(samples.spec(name="other"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"this is a text file, long enough to look at " * 50, "not a database"),
        (b"SQLite format 3\x00" + b"\xff" * 5000, "not a database|damaged"),
    ],
)
def test_not_a_database(tmp_path, content, words):
    path = tmp_path / "a.db"
    path.write_bytes(content)
    with pytest.raises(StorageError, match=words) as caught:
        Store.open(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code is ExitCode.STORAGE
    assert path.read_bytes() == content


def test_damaged_pages_are_reported(tmp_path):
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        store.create_or_resume_study(samples.spec())
        for number in range(40):
            samples.add_trial(store, number, samples.measured())
    raw = bytearray(path.read_bytes())
    raw[8192:] = b"\xa5" * (len(raw) - 8192)
    path.write_bytes(raw)
    with pytest.raises(StorageError, match="damaged"), Store.open(path) as store:
        store.trials("s")


def test_a_folder_is_not_a_database(tmp_path):
    with pytest.raises(StorageError, match="cannot be opened"):
        Store.open(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_file_by_permissions(tmp_path):
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        store.create_or_resume_study(samples.spec())
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(StorageError, match="cannot be"), Store.open(path) as store:
            store.set_target("s", 3)
    finally:
        tmp_path.chmod(0o755)


def test_read_only_database_is_a_storage_error(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        store.create_or_resume_study(samples.spec())
        store.engine.dispose()
        event.listen(store.engine, "connect", lambda raw, _: raw.execute("PRAGMA query_only=ON"))
        with pytest.raises(StorageError, match="cannot be written"):
            store.set_target("s", 3)
        assert store.study("s").target_trials == 10


def test_full_disk_is_a_storage_error_and_loses_nothing(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        store.create_or_resume_study(samples.spec())
        store.engine.dispose()
        event.listen(store.engine, "connect", lambda raw, _: raw.execute("PRAGMA max_page_count=1"))

        def fill():
            for number in range(100):
                samples.add_trial(store, number, samples.measured())

        with pytest.raises(StorageError, match="the disk is full") as caught:
            fill()
        assert str(tmp_path) in str(caught.value)
        assert store.study("s").name == "s"


def test_locked_longer_than_the_busy_timeout(tmp_path):
    path = tmp_path / "a.db"
    with Store.open(path, busy_timeout_s=0.05) as store:
        store.create_or_resume_study(samples.spec())
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageLocked, match="another program") as caught:
            store.set_target("s", 3)
        assert caught.value.exit_code is ExitCode.STORAGE_LOCKED
        assert store.study("s").target_trials == 10, "readers are not held up by a writer"
        Store.open(path, busy_timeout_s=0.05).close()
        other.execute("ROLLBACK")
        other.close()
        store.set_target("s", 3)


def test_tables_missing_under_our_feet(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        raw = sqlite3.connect(tmp_path / "a.db")
        raw.execute("DROP TABLE autotune_promotions")
        raw.close()
        store.create_or_resume_study(samples.spec())
        with pytest.raises(SchemaMismatch, match="tables"):
            store.promotions("s")


@pytest.mark.parametrize(
    ("text", "drivername", "label"),
    [
        ("studies/a.db", "sqlite", "studies/a.db"),
        ("sqlite:////tmp/a.db", "sqlite", "/tmp/a.db"),
        ("postgresql://me:secret@db/x", "postgresql+psycopg", "postgresql+psycopg://me:***@db/x"),
        ("postgresql+psycopg2://me@db/x", "postgresql+psycopg2", "postgresql+psycopg2://me@db/x"),
    ],
)
def test_locations(text, drivername, label):
    location = locate(text)
    assert (location.url.drivername, location.label) == (drivername, label)


@pytest.mark.parametrize("text", ["mysql://me:secret@db/x", "sqlite://", "sqlite:///:memory:", "foo://", "://"])
def test_what_is_no_location(text):
    with pytest.raises(StorageError) as caught:
        locate(text)
    assert "secret" not in str(caught.value)


def test_missing_postgresql_driver_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)  # which Python takes for one that is not installed
    with pytest.raises(StorageError, match=r"vllm-autotune\[postgres\]") as caught:
        Store.open("postgresql://me:secret@127.0.0.1:9/x")
    assert "secret" not in str(caught.value)


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/me/local\\040disk xfs rw 0 0
tmpfs /home/me/ram tmpfs rw 0 0
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/a.db", "ext4"),
        ("/home/me/a.db", "nfs4"),
        ("/home/me/local disk/a.db", "xfs"),
        ("/home/me/ram/x/a.db", "tmpfs"),
        ("/homework/a.db", "ext4"),
    ],
)
def test_file_system_of_a_path(path, kind):
    assert filesystem_of(Path(path), MOUNTS) == kind


def test_unknown_reasons_keep_path_and_text():
    error = storage_error("a.db", sqlite3.OperationalError("something new\nwith a second line"))
    assert str(error) == "a.db: something new"
