"""Records of verifications: found by the names that this program gives, read only where they are plain files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.store import gate_files
from autotune.store.gate_files import GATE_FOLDER, RECORD_FILE, GateFound, gate_folder_name, gates_of

TRIAL = 7


def folder(root: Path, count: int, *launches: str) -> Path:
    made = root / "s" / gate_folder_name(TRIAL, count)
    for name in launches:
        (made / name).mkdir(parents=True)
    made.mkdir(parents=True, exist_ok=True)
    return made


def test_the_name_of_a_folder_is_one_that_is_found() -> None:
    match = GATE_FOLDER.fullmatch(gate_folder_name(TRIAL, 12))
    assert match is not None
    assert (int(match[1]), int(match[2])) == (TRIAL, 12)


def test_verifications_of_a_trial_in_their_order(tmp_path: Path) -> None:
    assert gates_of(tmp_path, "s", TRIAL) == ()
    folder(tmp_path, 10, "launch-1-against")
    first = folder(tmp_path, 2, "launch-1-against", "launch-2-candidate", "launch-2-candidate.old")
    (first / RECORD_FILE).write_text("{}", encoding="utf-8")
    (tmp_path / "s" / gate_folder_name(TRIAL + 1, 1)).mkdir()
    assert gates_of(tmp_path, "s", TRIAL) == (
        GateFound(count=2, launches=2, record="{}"),
        GateFound(count=10, launches=1, record=None),
    )


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "large", "bytes"])
def test_what_is_no_record_is_none(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path, 1) / RECORD_FILE
    if kind == "link":
        (tmp_path / "elsewhere").write_text("{}", encoding="utf-8")
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        monkeypatch.setattr(gate_files, "RECORD_LIMIT_BYTES", 10)
        path.write_text("{          }", encoding="utf-8")
    else:
        path.write_bytes(b"\xff\xfe{}")
    assert [one.record for one in gates_of(tmp_path, "s", TRIAL)] == [None]
