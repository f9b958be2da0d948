"""`autotune gc` on a real store and real folders."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.gc import gc
from autotune.engine.compile_cache import CompileCaches, forget_cache, kept_caches
from autotune.engine.flag_cache import cached_answers, forget_answer
from autotune.errors import InvalidOption, StorageError, UnknownName
from autotune.quality.answers import ANSWERS_FILE
from autotune.records import (
    Arrivals,
    ClockKind,
    Config,
    EngineKind,
    Estimate,
    Latency,
    LevelRole,
    LoadLevel,
    Measurement,
    Origin,
    Outcome,
    TrialResult,
)
from autotune.simulator.calibrate import UNCERTAINTIES, Calibration
from autotune.simulator.coefficients import Coefficients
from autotune.store.calibrations import Place, kept_calibrations, save_calibration
from autotune.store.folder import LockHolder
from autotune.store.places import Places
from autotune.store.repository import Store
from autotune.store.study_record import PromotionRecord, StudySpec

LONG_AGO = datetime.now(UTC) - timedelta(days=100)


def measurement(role: LevelRole, tok_s: float, ttft_s: float) -> Measurement:
    at = Estimate(value=ttft_s)
    return Measurement(
        level=LoadLevel(name=str(role), role=role, arrivals=Arrivals.POISSON, requests=9, seed=1, rate_rps=1.0),
        clock=ClockKind.WALL,
        duration_s=9.0,
        steady_s=9.0,
        planned=9,
        completed=9,
        failed=0,
        errors=(),
        prompt_tokens=9,
        output_tokens=9,
        output_tok_s=Estimate(value=tok_s),
        total_tok_s=None,
        request_rps=None,
        goodput_rps=None,
        ttft_s=Latency(count=9, mean=at, p50=at, p90=at, p95=at, p99=at),
        ttft_from_send_s=None,
        tpot_s=None,
        itl_s=None,
        e2e_s=None,
    )


def measured(tok_s: float, ttft_s: float) -> TrialResult:
    levels = tuple(measurement(role, tok_s, ttft_s) for role in (LevelRole.THROUGHPUT, LevelRole.TTFT))
    return TrialResult(outcome=Outcome.MEASURED, clock=ClockKind.WALL, simulated=False, measurements=levels)


FAULTED = TrialResult(outcome=Outcome.FAULTED, clock=ClockKind.WALL, simulated=False)


def write(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (LONG_AGO.timestamp(), LONG_AGO.timestamp()))
    return path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_shared_tmp: None) -> Places:
    """A study of five trials a hundred days ago: 0 baseline, 1 promoted, 2 beaten, 3 the pick, 4 spoilt once."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))  # as an operator sets it
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = Places(root=tmp_path / "studies")
    made.root.mkdir()
    spec = StudySpec(
        name="chat",
        seed=0,
        engine=EngineKind.PROCESS,
        simulated=False,
        clock=ClockKind.WALL,
        target_trials=5,
        identity={"model": "m", "workload": "w", "node": "n", "vllm_version": "0.32.0"},
    )
    results = [measured(1000, 0.2), measured(900, 0.3), measured(500, 0.9), measured(2000, 0.1), measured(800, 0.4)]
    with Store.open(made.database, now=lambda: LONG_AGO) as store:
        store.create_or_resume_study(spec)
        for number, result in enumerate(results):
            config = Config.of({"max-num-seqs": 2**number})
            origin = Origin.SAMPLER if number else Origin.BASELINE
            store.begin_trial("chat", number=number, config=config, origin=origin, gpus=1)
            if number == 4:
                spoilt = store.begin_attempt("chat", number, directory="d")
                store.fault_attempt("chat", number, spoilt, FAULTED)
            store.begin_attempt("chat", number, directory="d")
            store.finish_trial("chat", number, result)
            write(made.folder("chat").attempt(number, 1) / "level-ttft.jsonl.gz", 1000)
            write(made.folder("chat").attempt(number, 1) / "server.log", 10)
        store.add_promotion(
            PromotionRecord(
                study="chat",
                trial=1,
                created_at=LONG_AGO,
                targets=("shell",),
                directory="o",
                simulated=False,
                details={},
            )
        )
    write(made.folder("chat").attempt(4, 2) / "level-ttft.jsonl.gz", 1000)
    return made


def run(places: Places, capsys: pytest.CaptureFixture[str], *studies: str, **options: Any) -> Any:
    capsys.readouterr()
    gc(list(studies) or None, studies_dir=places.root, as_json=True, **options)
    return json.loads(capsys.readouterr().out)


def on_disk(places: Places) -> set[str]:
    return {str(path.relative_to(places.root)) for path in places.root.rglob("trial-*/*")}


EXPECTED = {
    "chat/trial-0002/level-ttft.jsonl.gz": "raw",
    "chat/trial-0002/server.log": "logs",
    "chat/trial-0004/level-ttft.jsonl.gz": "leftovers",
    "chat/trial-0004/server.log": "leftovers",
    "chat/trial-0004-attempt-2/level-ttft.jsonl.gz": "raw",
}


def test_a_dry_run_lists_and_deletes_nothing(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    before = on_disk(places)
    document = run(places, capsys)
    assert {file["path"]: file["part"] for file in document["files"]} == EXPECTED
    assert document["bytes"] == 3 * 1000 + 2 * 10
    assert document["dry_run"] is True
    assert document["deleted"] is None
    assert document["lost"] == [
        {"study": "chat", "trial": 2, "levels": ["ttft"]},
        {"study": "chat", "trial": 4, "levels": ["ttft"]},
    ]
    assert {kept["reason"]: kept["files"] for kept in document["kept"]} == {
        "of the baseline": 2,
        "of a promoted config": 2,
        "of the recommended config": 2,
    }
    assert on_disk(places) == before


def test_yes_deletes_what_was_listed_and_no_row(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    before = on_disk(places)
    with Store.open(places.database) as store:
        rows = store.trials("chat")
    document = run(places, capsys, yes=True)
    assert set(document["deleted"]) == set(EXPECTED)
    assert document["deleted_bytes"] == document["bytes"] == 3020
    assert on_disk(places) == before - set(EXPECTED)
    assert not (places.root / "chat" / "trial-0002").exists()
    with Store.open(places.database) as store:
        assert store.trials("chat") == rows
    again = run(places, capsys, yes=True)
    assert (again["files"], again["deleted"], again["errors"]) == ([], [], [])


def test_parts_studies_and_age(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    assert [file["part"] for file in run(places, capsys, logs=True)["files"]] == ["logs"]
    both = run(places, capsys, raw=True, leftovers=True)["files"]
    assert sorted(file["part"] for file in both) == ["leftovers", "leftovers", "raw", "raw"]
    assert run(places, capsys, older_than="200d")["files"] == []
    assert len(run(places, capsys, "chat", older_than="90d")["files"]) == 5
    with pytest.raises(UnknownName, match="chatt"):
        run(places, capsys, "chatt")
    with pytest.raises(UnknownName):
        run(places, capsys, "../chat")
    with pytest.raises(InvalidOption, match="such as 30d"):
        run(places, capsys, older_than="soon")


def test_a_running_study_is_left_alone(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    before = on_disk(places)
    with places.folder("chat").locked(LockHolder(pid=1, started=1.0)):
        document = run(places, capsys, yes=True)
    assert document["files"] == []
    assert document["kept"] == [{"reason": "its study is running", "files": 11, "bytes": 6 * 1000 + 5 * 10}]
    assert on_disk(places) == before


def test_a_study_that_begins_to_run_between_list_and_deletion(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    from autotune.cli.gc import _delete, _facts
    from autotune.retention import Part, StudyFacts, plan_retention

    def plan_again(facts: StudyFacts) -> Any:
        return plan_retention(
            [facts], (), used_versions=(), parts=tuple(Part), now=datetime.now(UTC), older_than=timedelta(days=30)
        )

    before = on_disk(places)
    with Store.open(places.database) as store:
        plan = plan_again(_facts(store, store.study("chat"), places))
        assert len(plan.files) == 5
        with places.folder("chat").locked(LockHolder(pid=1, started=1.0)):
            done = _delete(plan, store, places, plan_again)
        assert (done.deleted, done.busy) == ((), ("chat",))
        assert on_disk(places) == before
        # Trial 2 is promoted after the list was made: its files stay although they were on it.
        store.add_promotion(
            PromotionRecord(
                study="chat",
                trial=2,
                created_at=LONG_AGO,
                targets=("shell",),
                directory="o",
                simulated=False,
                details={},
            )
        )
        done = _delete(plan, store, places, plan_again)
    assert before - on_disk(places) == {path for path in EXPECTED if "0004" in path}
    assert len(done.deleted) == 3


def test_what_cannot_be_deleted_is_an_error_in_the_end(
    places: Places, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A lock file that cannot be opened stands for a folder that cannot be written, also for root."""
    (places.root / "chat" / ".lock").unlink(missing_ok=True)
    (places.root / "chat" / ".lock").mkdir()
    before = on_disk(places)
    with pytest.raises(StorageError, match=r"^0 of \d+ files were deleted; the first that could not be: "):
        run(places, capsys, yes=True)
    assert json.loads(capsys.readouterr().out)["errors"]
    assert on_disk(places) == before


def test_the_table_says_what_goes_what_stays_and_what_is_lost(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    gc(studies_dir=places.root)
    said = capsys.readouterr().out
    for words in (
        "leftovers",
        "2, 4",
        "of the baseline",
        "chat trial 2: ttft",
        "5 files, 2.95 KiB. Nothing was deleted; --yes deletes.",
    ):
        assert words in said
    gc(studies_dir=places.root, yes=True)
    assert "Deleted 5 of 5 files, 2.95 KiB." in capsys.readouterr().out
    gc(studies_dir=places.root)
    assert "Nothing to delete." in capsys.readouterr().out


def test_without_studies_there_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], places: Places) -> None:
    assert run(Places(root=tmp_path / "none"), capsys)["files"] == []
    assert not (tmp_path / "none").exists()


# The cache of flags


def answer(folder: Path, name: str, version: str, command: str = "vllm") -> Path:
    path = folder / name
    folder.mkdir(exist_ok=True)
    path.write_text(json.dumps({"command": [command], "version": version, "flags": []}))
    os.utime(path, (LONG_AGO.timestamp(), LONG_AGO.timestamp()))
    return path


def test_answers_of_unused_versions_go(places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = tmp_path / "cache"
    used = answer(cache, f"flags-{'0' * 16}.json", "0.32.0")
    unused = answer(cache, f"flags-{'1' * 16}.json", "0.31.0")
    latest = answer(cache, f"flags-{'2' * 16}.json", "0.33.0")
    os.utime(latest, (LONG_AGO.timestamp() + 9, LONG_AGO.timestamp() + 9))
    draft = write(cache / f"flags-{'3' * 16}.77.tmp", 5)
    other = write(cache / "flags-notes.json", 5)
    (cache / f"flags-{'4' * 16}.json").symlink_to(other)
    document = run(places, capsys, yes=True, flag_caches=True)
    assert {Path(one["path"]).name for one in document["flag_caches"]} == {unused.name, draft.name}
    assert used.exists()
    assert latest.exists()
    assert other.exists()
    assert not unused.exists()
    assert not draft.exists()
    assert len(on_disk(places)) == 11
    answer(cache, unused.name, "0.31.0")
    assert run(places, capsys, "chat")["flag_caches"] == []  # a study's name says nothing about what all share


def test_damaged_answers_have_no_version(tmp_path: Path) -> None:
    write(tmp_path / f"flags-{'a' * 16}.json", 3)
    write(tmp_path / f"flags-{'b' * 16}.json", 5 * 1024 * 1024)
    found = cached_answers(tmp_path)
    assert [one.version for one in found] == [None, None]
    assert forget_answer(found[0])
    assert not forget_answer(found[0])
    assert cached_answers(tmp_path / "none") == ()
    with pytest.raises(StorageError, match="cannot be deleted"):
        forget_answer(type(found[0])(**{**_fields(found[0]), "path": tmp_path}))


def _fields(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}


def calibration(folder: Path, machine: str, version: str, age_s: float = 0.0) -> Path:
    spreads = {name: sigma / 2 for name, sigma in UNCERTAINTIES.items()}
    found = Calibration(coefficients=Coefficients(), spreads=spreads, loads=2, misfit_before=2.0, misfit_after=1.0)
    path = save_calibration(folder, Place(machine=machine, gpu="NVIDIA H200", vllm=version), found)
    os.utime(path, (LONG_AGO.timestamp() + age_s, LONG_AGO.timestamp() + age_s))
    return path


def test_calibrations_of_versions_that_are_gone_go_and_the_latest_of_a_machine_stays(
    places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    used = calibration(cache, "one", "0.32.0")  # the study's own version
    older, latest = calibration(cache, "one", "0.30.0"), calibration(cache, "one", "0.31.0", 9.0)
    alone = calibration(cache, "two", "0.20.0")
    young = calibration(cache, "one", "0.29.0", 100 * 86400.0)
    os.utime(latest, (LONG_AGO.timestamp() + 200, LONG_AGO.timestamp() + 200))
    damaged = write(cache / f"calibration-{'0' * 16}.json", 7)
    (cache / "calibration-link.json").symlink_to(used)
    listed = run(places, capsys, calibrations=True)["shared"]
    assert {Path(one["path"]).name for one in listed} == {older.name, latest.name, damaged.name}
    assert {one["part"] for one in listed} == {"calibrations"}
    young.unlink()  # then the version before it is the latest
    document = run(places, capsys, calibrations=True, yes=True)
    assert sorted(document["deleted"]) == sorted([str(older), str(damaged)])
    assert used.exists()
    assert latest.exists()
    assert alone.exists()
    assert len(kept_calibrations(cache)) == 3
    calibration(cache, "one", "0.30.0")
    assert run(places, capsys, "chat")["shared"] == []  # a study's name says nothing about what all share


def test_the_folder_that_a_killed_server_left_goes(
    places: Places, short_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short_tmp))
    left, young = (short_tmp / f"autotune-server-{signs * 12}" for signs in ("a", "b"))
    for folder in (left, young, short_tmp / "autotune-server-other"):
        folder.mkdir()
        write(folder / "socket", 3)
    os.utime(left, (LONG_AGO.timestamp(), LONG_AGO.timestamp()))
    listed = run(places, capsys, leftovers=True)["shared"]
    assert listed == [{"path": str(left), "part": "leftovers", "vllm_version": None, "bytes": 3}]
    assert str(left) in run(places, capsys, leftovers=True, yes=True)["deleted"]
    assert not left.exists()
    assert len(list(short_tmp.iterdir())) == 2


def test_compiled_code_goes_when_no_server_used_it_for_long(
    places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    caches = CompileCaches.of(cache, version="0.32.0", command="vllm", node="n", environ={})
    held, idle = caches.take({}), caches.take({})
    assert held is not None
    assert idle is not None
    for number in (0, 1):
        write(caches.root / f"slot-{number}" / "vllm" / "torch_compile_cache" / "graph", 500)
    idle.release()
    assert run(places, capsys, compile_caches=True)["shared"] == []  # just used
    for lock in caches.root.glob("*.lock"):
        os.utime(lock, (LONG_AGO.timestamp(), LONG_AGO.timestamp()))
    stranger = write(cache / "compile" / "vllm-0.32.0-x" / "notes", 5)
    listed = run(places, capsys, compile_caches=True)
    assert [Path(one["path"]).name for one in listed["shared"]] == ["slot-1"]
    assert listed["shared"][0]["bytes"] >= 500
    assert next(one["files"] for one in listed["kept"] if one["reason"] == "a server is using it") == 1
    assert run(places, capsys, compile_caches=True, yes=True)["deleted"] == [str(caches.root / "slot-1")]
    assert not (caches.root / "slot-1").exists()
    assert (caches.root / "slot-0").exists()
    assert stranger.exists()
    again = caches.take({})  # the slot can be taken as before
    assert again is not None
    assert again.was_empty
    again.release()
    held.release()


def test_a_slot_that_a_server_takes_meanwhile_is_left_alone(tmp_path: Path) -> None:
    caches = CompileCaches.of(tmp_path, version="0.32.0", command="vllm", node="n", environ={})
    first = caches.take({})
    assert first is not None
    first.release()
    (found,) = kept_caches(tmp_path)
    assert not found.in_use
    lease = caches.take({})
    assert lease is not None
    assert not forget_cache(found)
    assert found.path.exists()
    lease.release()
    assert forget_cache(found)
    assert not forget_cache(found)
    assert kept_caches(tmp_path / "none") == ()


def gate(places: Places, name: str, *, directory: str = "launch-1-against") -> set[str]:
    """A verification that was made long ago."""
    folder = places.folder("chat").path / name
    write(folder / "gate.json", 5)
    files = ("level-ttft-2.jsonl.gz", "level-rate-plus.jsonl.gz", "server.log", ANSWERS_FILE)
    return {str(write(folder / directory / file, 100).relative_to(places.root)) for file in files}


def test_launches_of_verifications_go_and_their_verdicts_stay(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = gate(places, "gate-0002-1") | gate(places, "gate-0003-1", directory="launch-12-candidate")
    promoted = gate(places, "gate-0001-2")
    running = gate(places, "gate-0003-2")
    write(places.folder("chat").path / "gate-0003-2" / "launch-1-against" / "server.json", 1)
    odd = write(places.folder("chat").path / "gate-0002-1" / "launch-1-against" / "notes.txt", 1)
    outside = write(places.root / "elsewhere" / "server.log", 1)
    (places.folder("chat").path / "gate-0004-1").symlink_to(outside.parent)
    record = {
        "gate": {"launches": [{"directory": str(places.folder("chat").path / "gate-0001-2" / "launch-1-against")}]}
    }
    with Store.open(places.database, now=lambda: LONG_AGO) as store:
        (before,) = store.promotions("chat")
        store.add_promotion(replace(before, details=record))
    listed = run(places, capsys, gates=True)
    assert ({one["path"] for one in listed["gates"]}, listed["files"]) == (gone, [])
    assert listed["bytes"] == 800
    reasons = {kept["reason"]: kept["files"] for kept in listed["kept"]}
    assert (reasons["its attempt is not finished"], reasons["of a promoted config"]) == (4, 4 + 2)
    assert run(places, capsys, older_than="200d")["gates"] == []
    assert set(run(places, capsys, gates=True, yes=True)["deleted"]) == gone
    kept = {str(path.relative_to(places.root)) for path in places.root.rglob("gate-*/*/*")}
    assert promoted | running <= kept
    assert not gone & kept
    assert odd.exists()
    assert outside.exists()
    # The record of a verification that did not pass is all there is of it.
    assert (places.folder("chat").path / "gate-0003-1" / "gate.json").exists()
    assert not (places.folder("chat").path / "gate-0003-1" / "launch-12-candidate").exists()
