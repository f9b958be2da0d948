"""Frames carry errands and events whole; raw files stay in their folder; errors keep their fields on the way."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest

from autotune.errors import AutotuneError, ClusterUnusable, InvalidFile, StudyMismatch, UnknownName
from autotune.executor.errand import PART_BYTES, Entered, FilePart, Told, keep, packed, parts, read_frame, unpacked
from autotune.executor.ray_task import environment
from autotune.records import Phase


def test_frames_follow_each_other_and_a_cut_one_is_the_end() -> None:
    events = [Entered(phase=Phase.MEASURING, elapsed_s=1.5), Told(text="a line"), FilePart(name="a", content=b"\0" * 9)]
    stream = io.BytesIO(b"".join(map(packed, events)) + packed(events[0])[:-1])
    read = []
    while (frame := read_frame(stream)) is not None:
        read.append(unpacked(frame))
    assert read == events


def test_files_come_in_parts_and_are_put_together(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "inner").mkdir(parents=True)
    here.mkdir()
    contents = {"server.log": b"x" * (PART_BYTES + 3), "empty": b"", "inner/level.gz": b"\x1f\x8b"}
    for name, content in contents.items():
        (there / name).write_bytes(content)
    (there / "link").symlink_to("/etc/passwd")
    sent = list(parts(there))
    assert [part.name for part in sent] == ["empty", "inner/level.gz", "server.log", "server.log"]
    for part in sent:
        keep(part, here)
    assert {path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file()} == set(contents)
    assert all((here / name).read_bytes() == content for name, content in contents.items())


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x"])
def test_no_file_leaves_its_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="out of its folder"):
        keep(FilePart(name=name, content=b"x"), tmp_path / "folder")


@pytest.mark.parametrize(
    "error",
    [
        ClusterUnusable("no", hint="yes"),
        UnknownName("model", "x", ("y",)),
        InvalidFile("f", "k", 1, "2"),
        StudyMismatch("s", (("a", "b", "c"),)),
    ],
)
def test_an_error_that_travels_is_the_same_error(error: AutotuneError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.exit_code, vars(again)) == (str(error), error.exit_code, vars(error))


def test_a_server_inherits_nothing_that_ray_put_there() -> None:
    inherited = {"RAY_JOB_ID": "1", "RAY_ADDRESS": "x:1", "OMP_NUM_THREADS": "1", "HF_TOKEN": "t", "PATH": "/bin"}
    assert environment(inherited) == {"HF_TOKEN": "t", "PATH": "/bin"}
    assert environment({"OMP_NUM_THREADS": "8"}) == {"OMP_NUM_THREADS": "8"}
