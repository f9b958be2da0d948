"""A study leaves and arrives whole; an archive from elsewhere touches nothing but its own new folder."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import store_samples as samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.engine.base import ServerIdentity
from autotune.engine.redaction import REDACTED
from autotune.errors import ExitCode, InvalidFile, SchemaMismatch, StorageError, UnknownName
from autotune.life import Event, State, Transition
from autotune.records import ClockKind, FailureClass, LoadPlan, Outcome
from autotune.store.archive import export_study, import_study
from autotune.store.archive_file import MANIFEST, ROWS, open_archive
from autotune.store.repository import Store
from autotune.store.study_record import AttemptState, PromotionRecord

TOKEN = "hf_" + "Zx81kQ0pLm55RtYw72Bv"
MOMENT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path)


def make_root(folder: Path) -> Path:
    """A studies folder with a study `s` of every kind of trial, and with raw files."""
    root = folder / "studies"
    with Store.open(root / "autotune.db") as store:
        store.create_or_resume_study(
            samples.spec(spec={"file": {"note": f"a {TOKEN} b"}, "extra_args": ["--api-key", "x1"]})
        )
        store.set_load_plan(
            "s",
            LoadPlan(
                concurrency_per_gpu=8,
                rate_rps_per_gpu=float("inf"),
                throughput_requests_per_gpu=1,
                ttft_requests_per_gpu=1,
                warmup_requests_per_gpu=1,
            ),
        )
        samples.add_trial(store, 0, samples.measured(1000.0, 0.2))
        samples.add_trial(store, 1, samples.failed(Outcome.INFEASIBLE, FailureClass.KV_CACHE_NONE))
        samples.begin_trial(store, 2)
        store.begin_attempt("s", 2, directory=f"{root}/s/trial-0002", argv=["vllm", "serve", "--api-key", "x1"])
        launch = Transition(before=State.WAITING, event=Event.LAUNCH, after=State.LAUNCHING)
        store.record_phase("s", 2, 1, launch, at_utc=MOMENT, elapsed_s=0.5, clock=ClockKind.WALL)
        store.fault_attempt("s", 2, 1, samples.failed(Outcome.FAULTED, FailureClass.PORT_IN_USE))
        identity = ServerIdentity(pid=os.getpid(), started=1.0, pgid=os.getpgid(0), marker="m")
        store.begin_attempt(
            *("s", 2),
            directory=f"{root}/s/trial-0002-attempt-2",
            identity=identity,
            move=Transition(before=State.BACKING_OFF, event=Event.ATTEMPT, after=State.WAITING),
        )
        store.add_promotion(
            PromotionRecord(
                study="s",
                trial=0,
                created_at=MOMENT,
                targets=("shell",),
                directory="out",
                simulated=True,
                details={"env": {"HF_TOKEN": "x1"}},
            )
        )
    for name, content in {
        "trial-0000/level-ttft.jsonl.gz": bytes(range(256)),
        "trial-0000/server.log": f"one\r\ntoken {TOKEN}\nbad \xff\n".encode("latin-1"),
        "trial-0002-attempt-2/server.log": b"",
    }.items():
        path = root / "s" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / "s" / "trial-0000" / "level-link.jsonl.gz").symlink_to("/etc/passwd")
    (root / "s" / "trial-0000" / "notes.txt").write_text("not ours")
    return root


def exported(root: Path, out: Path, study: str = "s") -> Path:
    with Store.open(root / "autotune.db", create=False) as store:
        export_study(store, root, study, out)
    return out


def imported(archive: Path, root: Path, name: str = "s", **options: int) -> None:
    with open_archive(archive, **options) as found, Store.open(root / "autotune.db") as store:
        import_study(store, root, found, name)


def test_a_study_arrives_as_it_left(root: Path, tmp_path: Path) -> None:
    archive, there = exported(root, tmp_path / "a.zip"), tmp_path / "there"
    imported(archive, there)
    # The same bytes again, from the other place: nothing was lost, added or changed.
    assert exported(there, tmp_path / "b.zip").read_bytes() == archive.read_bytes()
    with Store.open(root / "autotune.db") as here, Store.open(there / "autotune.db") as store:
        for one, other in zip(store.trials("s"), here.trials("s"), strict=True):
            assert (one.config, one.result, one.attempts) == (other.config, other.result, other.attempts)
        assert store.get_load_plan("s") == here.get_load_plan("s")
        assert store.study("s").choices == here.study("s").choices
        assert store.study("s").created_at == here.study("s").created_at
        first, second = store.attempts("s", 2)
        assert (first.state, first.transitions) == (AttemptState.FAULTED, here.attempts("s", 2)[0].transitions)
        assert len(first.transitions) == 1
        assert str(second.transitions[-1].move) == "waiting -interrupted-> interrupted"
        # What ran there runs nowhere here: no process of this machine may be taken for its server.
        assert (second.state, second.identity) == (AttemptState.INTERRUPTED, None)
        assert second.directory == str(there / "s" / "trial-0002-attempt-2")
        assert store.unfinished_attempts() == ()
    assert (there / "s/trial-0000/level-ttft.jsonl.gz").read_bytes() == bytes(range(256))
    assert sorted(str(path.relative_to(there)) for path in there.rglob("*") if path.is_file() or path.is_symlink()) == [
        "autotune.db",
        "s/trial-0000/level-ttft.jsonl.gz",
        "s/trial-0000/server.log",
        "s/trial-0002-attempt-2/server.log",
    ]


def test_no_secret_leaves(root: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(exported(root, tmp_path / "a.zip")) as packed:
        content = b"".join(packed.read(name) for name in packed.namelist())
        log = packed.read("files/trial-0000/server.log")
    assert TOKEN.encode() not in content
    assert b'"x1"' not in content
    assert log == f"one\r\ntoken {REDACTED}\nbad \xff\n".encode("latin-1")


def test_it_may_have_another_name_and_none_that_is_taken(root: Path, tmp_path: Path) -> None:
    archive = exported(root, tmp_path / "a.zip")
    with pytest.raises(StorageError, match="has a study 's' already"):
        imported(archive, root)
    (root / "folder").mkdir()
    with pytest.raises(StorageError, match="is there already"):
        imported(archive, root, "folder")
    imported(archive, root, "t")
    with Store.open(root / "autotune.db") as store:
        assert [study.name for study in store.studies()] == ["s", "t"]
        assert store.trial("t", 0).directory is not None
    with pytest.raises(StorageError, match="is there already"):
        exported(root, archive)
    with pytest.raises(UnknownName):
        exported(root, tmp_path / "none.zip", "none")
    assert [path.name for path in tmp_path.iterdir() if "none" in path.name or path.name.startswith(".")] == []


# What comes from elsewhere


def rewritten(archive: Path, change: Callable[[dict[str, tuple[zipfile.ZipInfo, bytes]]], None]) -> Path:
    """An archive whose entries were changed, its manifest made to fit them again where it is a manifest."""
    with zipfile.ZipFile(archive) as packed:
        entries = {info.filename: (info, packed.read(info)) for info in packed.infolist()}
    change(entries)
    out = archive.with_name("hostile.zip")
    with zipfile.ZipFile(out, "w") as packed:
        for info, content in entries.values():
            packed.writestr(info, content)
    return out


def fitted(entries: dict[str, tuple[zipfile.ZipInfo, bytes]]) -> None:
    """Sizes and hashes as a careful attacker would give them."""
    manifest = json.loads(entries[MANIFEST][1])
    manifest["entries"] = [
        {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, (_, content) in entries.items()
        if name != MANIFEST
    ]
    entries[MANIFEST] = (entries[MANIFEST][0], json.dumps(manifest).encode())


def entry(name: str, content: bytes = b"x", kind: int = stat.S_IFREG):
    def change(entries: dict[str, tuple[zipfile.ZipInfo, bytes]]) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr = (kind | 0o644) << 16
        entries[name] = (info, content)
        fitted(entries)

    return change


def manifest(**changes: object):
    def change(entries: dict[str, tuple[zipfile.ZipInfo, bytes]]) -> None:
        info, content = entries[MANIFEST]
        entries[MANIFEST] = (info, json.dumps(json.loads(content) | changes).encode())

    return change


def row(number: int, key: str, value: object, **inner: object):
    """A document's value replaced; of the first attempt where `inner` says so."""

    def change(entries: dict[str, tuple[zipfile.ZipInfo, bytes]]) -> None:
        info, content = entries[ROWS]
        lines = [json.loads(line) for line in content.splitlines()]
        target = next(iter(lines[number].values()))
        target = target["attempts"][0] if inner.get("attempt") else target
        target[key] = value
        entries[ROWS] = (info, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        fitted(entries)

    return change


def rows_replaced(content: bytes):
    def change(entries: dict[str, tuple[zipfile.ZipInfo, bytes]]) -> None:
        entries[ROWS] = (entries[ROWS][0], content)
        fitted(entries)

    return change


def removed(name: str):
    def change(entries: dict[str, tuple[zipfile.ZipInfo, bytes]]) -> None:
        del entries[name]

    return change


HOSTILE = {
    "absolute": (entry("/etc/cron.d/owned"), "a name that studies do not have"),
    "above": (entry("../owned"), "a name that studies do not have"),
    "above-inside": (entry("files/trial-0000/../../../owned"), "a name that studies do not have"),
    "above-as-folder": (entry("files/../owned"), "a name that studies do not have"),
    "backslash": (entry("files\\trial-0000\\server.log"), "a name that studies do not have"),
    "other-name": (entry("files/trial-0000/run.sh"), "a name that studies do not have"),
    "hidden": (entry("files/trial-0000/.bashrc"), "a name that studies do not have"),
    "draft": (entry("files/trial-0000/.level-x.jsonl.gz.7"), "a name that studies do not have"),
    "newline": (entry("files/trial-0000/server.log\n"), "a name that studies do not have"),
    "twin-folder": (entry("files/trial-00000/server.log"), "a name that studies do not have"),
    "link": (entry("files/trial-0001/server.log", b"/etc/passwd", stat.S_IFLNK), "a link"),
    "device": (entry("files/trial-0001/server.log", b"", stat.S_IFCHR), "a device"),
    "pipe": (entry("files/trial-0001/server.log", b"", stat.S_IFIFO), "a pipe"),
    "folder": (entry("files/trial-0001/", b"", stat.S_IFDIR), "a folder"),
    "not-listed": (lambda entries: entries.update(extra(entries)), "in the manifest or in the archive alone"),
    "not-there": (removed("files/trial-0000/server.log"), "in the manifest or in the archive alone"),
    "no-manifest": (removed(MANIFEST), "no manifest.json"),
    "no-rows": (removed(ROWS), "in the manifest or in the archive alone"),
    "other-format": (manifest(format="tar"), "manifest.json, format"),
    "text-version": (manifest(version="1"), "manifest.json, version"),
    "wrong-hash": (lambda entries: entries.update(flipped(entries)), "SHA-256"),
    "rows-nonsense": (rows_replaced(b"{"), "rows that this version can read"),
    "rows-nan": (rows_replaced(b'{"study": NaN}\n'), "NaN is no JSON"),
    "rows-deep": (rows_replaced(b"[" * 200_000), "rows that this version can read"),
    "rows-digits": (rows_replaced(b'{"study": ' + b"9" * 5000 + b"}"), "rows that this version can read"),
    "rows-empty": (rows_replaced(b""), "the study"),
    "rows-other": (rows_replaced(b'{"user": {}}\n'), "one of study, trial, promotion"),
    "trial-first": (rows_replaced(b'{"trial": {}}\n'), "the study"),
    "unknown-key": (row(0, "owned", 1), "a key of this version"),
    "missing": (row(0, "seed", None), "there"),
    "wrong-type": (row(0, "seed", True), "an integer of 64 bits"),
    "huge": (row(0, "seed", 2**63), "an integer of 64 bits"),
    "nul": (row(0, "engine", "a\0"), "text of at most"),
    "half-a-letter": (row(0, "engine", "\ud800"), "text of at most"),
    "other-engine": (row(0, "engine", "rocket"), "rows that this version can read"),
    "naive-time": (row(0, "created_at", "2026-03-01T12:00:00"), "a moment with a time zone"),
    "identity-of-objects": (row(0, "identity", "x"), "an object or a list"),
    "gap": (row(2, "number", 7), "numbers have no gaps"),
    "result": (row(1, "result", {"outcome": "measured"}), "there, and it has no default"),
    "config": (row(1, "config", {"params": [["a", {"b": 1}]]}), "params[0][1]"),
    "kill-a-process": (
        row(3, "identity", {"pid": 1, "started": 1.0, "pgid": 1, "marker": "m"}, attempt=True),
        "null",
    ),
    "open-attempt": (row(3, "state", "open", attempt=True), "one of ended, faulted, interrupted"),
    "directory": (row(3, "directory", "/etc", attempt=True), "the name of an attempt's folder"),
    "directory-above": (row(3, "directory", "../x", attempt=True), "the name of an attempt's folder"),
    "promotion": (row(4, "trial_number", 9), "a trial of the study"),
}


def extra(entries):
    return {"files/trial-0001/server.log": (zipfile.ZipInfo("files/trial-0001/server.log"), b"x")}


def flipped(entries):
    info, content = entries["files/trial-0000/level-ttft.jsonl.gz"]
    return {info.filename: (info, b"\xff" + content[1:])}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    return exported(make_root(folder), folder / "good.zip")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(name: str, good: Path, tmp_path: Path) -> None:
    change, says = HOSTILE[name]
    copy = tmp_path / "copy.zip"
    copy.write_bytes(good.read_bytes())
    refused(rewritten(copy, change), tmp_path, says)


def refused(archive: Path, tmp_path: Path, says: str, **options: int) -> None:
    there = tmp_path / "there"
    with pytest.raises(InvalidFile) as caught:
        imported(archive, there, **options)
    assert says in caught.value.message
    assert str(archive) in caught.value.message
    assert "\n" not in caught.value.message
    assert [path.name for path in there.rglob("*")] in ([], ["autotune.db"])
    if there.exists():
        with Store.open(there / "autotune.db") as store:
            assert store.studies() == ()


def test_bombs_are_refused_before_they_are_unpacked(good: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.zip"
    copy.write_bytes(good.read_bytes())

    def bomb(entries):
        info = zipfile.ZipInfo("files/trial-0001/server.log")
        info.compress_type = zipfile.ZIP_DEFLATED
        entries[info.filename] = (info, bytes(50_000_000))
        fitted(entries)

    archive = rewritten(copy, bomb)
    assert archive.stat().st_size < 200_000
    refused(archive, tmp_path, "bytes unpacked", most_bytes=1_000_000)


def test_an_entry_that_is_there_twice_is_refused(good: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.zip"
    copy.write_bytes(good.read_bytes())
    with zipfile.ZipFile(copy, "a") as packed, pytest.warns(UserWarning, match="Duplicate name"):
        packed.writestr("files/trial-0000/server.log", b"another")
    refused(copy, tmp_path, "an entry that is there twice")


@pytest.mark.parametrize("changes", [{"version": 2}, {"revision": "9999"}])
def test_a_newer_archive_says_so(changes: dict[str, object], good: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.zip"
    copy.write_bytes(good.read_bytes())
    with pytest.raises(SchemaMismatch, match="newer") as caught:
        imported(rewritten(copy, manifest(**changes)), tmp_path / "there")
    assert caught.value.exit_code is ExitCode.SCHEMA_MISMATCH


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(place=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_archive_is_refused_or_is_the_same(
    place: int, byte: int, cut: bool, good: Path, tmp_path: Path
) -> None:
    content = bytearray(good.read_bytes())
    place %= len(content)
    content[place:] = content[place:place] if cut else bytes([byte]) + content[place + 1 :]
    archive = tmp_path / "damaged.zip"
    archive.write_bytes(content)
    try:
        with open_archive(archive) as found:
            assert found.study == "s"
    except (InvalidFile, SchemaMismatch) as error:
        said = error.message
    else:
        said = str(archive)
    assert str(archive) in said


@pytest.mark.parametrize("kind", ["missing", "folder", "text", "empty", "pipe"])
def test_other_files_are_no_archives(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "text" | "empty":
            path.write_text("hello" if kind == "text" else "")
        case _:
            pass
    with pytest.raises(InvalidFile, match=r"a\.zip"):
        imported(path, tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("error", [ValueError("mine"), KeyError("mine"), OSError("mine"), RuntimeError("mine")])
def test_what_a_caller_raises_beside_an_open_archive_is_its_own(error: Exception, good: Path) -> None:
    with pytest.raises(type(error), match="mine"), open_archive(good):
        raise error
