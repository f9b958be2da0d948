"""The raw files of a study: what counts as one, and that nothing else is ever touched."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import StorageError
from autotune.load.records_file import level_path
from autotune.records import Arrivals, LevelRole, LoadLevel
from autotune.store.folder import StudyFolder
from autotune.store.raw_files import FileKind, RawFile, delete_raw_file, list_raw_files


def write(path: Path, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write everywhere, so a test of what may not be written steps down."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_root() -> Iterator[Path]:
    """A folder that any user may look into; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def paths(files: tuple[RawFile, ...]) -> list[str]:
    return [file.path for file in files]


def test_what_the_program_writes_is_found(tmp_path: Path) -> None:
    """Names as the writers themselves make them."""
    first = StudyFolder(root=tmp_path, name="s").attempt(7, 1)
    second = StudyFolder(root=tmp_path, name="s").attempt(7, 2)
    level = LoadLevel(
        name="rate=2.5/s", role=LevelRole.TTFT, arrivals=Arrivals.POISSON, requests=3, seed=1, rate_rps=2.5
    )
    write(level_path(first, level), 100)
    write(first / "server.log", 20)
    write(level_path(second, level).with_name(f".{level_path(second, level).name}.4242"), 3)
    found = list_raw_files(tmp_path, "s")
    assert [(file.kind, file.trial, file.attempt, file.size_bytes) for file in found] == [
        (FileKind.LEVEL, 7, 1, 100),
        (FileKind.LOG, 7, 1, 20),
        (FileKind.DRAFT, 7, 2, 3),
    ]
    assert found[0].level == "rate=2.5_s"
    assert all((tmp_path / file.path).is_file() for file in found)


def test_other_names_are_none_of_ours(tmp_path: Path) -> None:
    for name in (
        "notes.txt",
        "level-.jsonl.gz",
        "level-a.jsonl",
        "level-a b.jsonl.gz",
        "level-a\n.jsonl.gz",
        "server.log.bak",
        "xserver.log",
        "level-\u0663.jsonl.gz",
    ):
        write(tmp_path / "s" / "trial-0001" / name)
    for folder in ("trial-1", "trial-00001", "trial-0001-attempt-1", "trial-0001-attempt-02", "trial-١٢٣٤", "backup"):
        write(tmp_path / "s" / folder / "server.log")
    write(tmp_path / "s" / "server.log")
    (tmp_path / "s" / "trial-0002" / "server.log").mkdir(parents=True)
    (tmp_path / "s" / "trial-0003").write_text("a file")
    os.mkfifo(tmp_path / "s" / "trial-0001" / "level-pipe.jsonl.gz")
    assert list_raw_files(tmp_path, "s") == ()


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside" / "trial-0001" / "server.log")
    root = tmp_path / "studies"
    (root / "real" / "trial-0001").mkdir(parents=True)
    (root / "linked").symlink_to(tmp_path / "outside")
    (root / "real" / "trial-0002").symlink_to(outside.parent)
    (root / "real" / "trial-0001" / "server.log").symlink_to(outside)
    assert list_raw_files(root, "linked") == ()
    assert list_raw_files(root, "real") == ()


def test_a_folder_of_studies_that_is_a_link_itself_is_fine(tmp_path: Path) -> None:
    write(tmp_path / "disk" / "s" / "trial-0001" / "server.log")
    (tmp_path / "studies").symlink_to(tmp_path / "disk")
    assert paths(list_raw_files(tmp_path / "studies", "s")) == ["s/trial-0001/server.log"]


@pytest.mark.parametrize("name", ["", ".", "..", "../outside", "/etc", "a/b", "a\0b", "missing", "x" * 300])
def test_hostile_study_names_lead_nowhere(tmp_path: Path, name: str) -> None:
    write(tmp_path / "outside" / "trial-0001" / "server.log")
    write(tmp_path / "studies" / "trial-0001" / "server.log")
    assert list_raw_files(tmp_path / "studies", name) == ()
    assert list_raw_files(tmp_path / "nowhere", "s") == ()


@given(st.text(max_size=30))
def test_no_name_makes_listing_fail(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        inside = write(Path(folder) / "root" / "s" / "trial-0001" / "server.log")
        found = list_raw_files(Path(folder) / "root", name)
        assert all((Path(folder) / "root" / file.path).samefile(inside) for file in found)


def test_deleting_takes_the_file_and_an_empty_folder(tmp_path: Path) -> None:
    log = write(tmp_path / "s" / "trial-0001" / "server.log")
    level = write(tmp_path / "s" / "trial-0001" / "level-a.jsonl.gz")
    first, second = list_raw_files(tmp_path, "s")
    assert delete_raw_file(tmp_path, first)
    assert not level.exists()
    assert log.exists()
    assert not delete_raw_file(tmp_path, first)
    assert delete_raw_file(tmp_path, second)
    assert not log.parent.exists()
    assert (tmp_path / "s").is_dir()
    assert not delete_raw_file(tmp_path, second)


def test_what_was_swapped_for_a_link_meanwhile_is_left_alone(tmp_path: Path) -> None:
    """Between the list and the deletion: the file, its folder, and the study's folder become links to elsewhere."""
    precious = write(tmp_path / "outside" / "trial-0001" / "server.log")
    root = tmp_path / "studies"
    log = write(root / "s" / "trial-0001" / "server.log")
    (file,) = list_raw_files(root, "s")
    log.unlink()
    log.symlink_to(precious)
    with pytest.raises(StorageError, match="no regular file any more"):
        delete_raw_file(root, file)
    log.unlink()
    log.parent.rmdir()
    log.parent.symlink_to(precious.parent)
    assert not delete_raw_file(root, file)
    log.parent.unlink()
    log.parent.parent.rmdir()
    (root / "s").symlink_to(tmp_path / "outside")
    assert not delete_raw_file(root, file)
    assert precious.read_bytes() == b"x" * 10


def test_a_read_only_folder_is_said(open_root: Path) -> None:
    log = write(open_root / "s" / "trial-0001" / "server.log")
    log.parent.chmod(0o555)
    (file,) = list_raw_files(open_root, "s")
    with unprivileged(), pytest.raises(StorageError, match=r"server\.log: cannot be deleted"):
        delete_raw_file(open_root, file)
    assert log.exists()
    log.parent.chmod(0o755)


def test_a_folder_that_may_not_be_read_is_said(open_root: Path) -> None:
    log = write(open_root / "s" / "trial-0001" / "server.log")
    log.parent.chmod(0o000)
    with unprivileged(), pytest.raises(StorageError, match="trial-0001"):
        list_raw_files(open_root, "s")
    log.parent.chmod(0o755)
