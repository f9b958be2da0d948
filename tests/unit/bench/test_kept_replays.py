"""Finished replays in a file: what is taken over is exactly what was kept, whatever happened to the file in between."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from autotune.bench.contenders import SamplerName
from autotune.bench.identity import code_hash, recorded_hash, replay_key
from autotune.bench.kept import KeptReplays
from autotune.bench.replay import Replay
from autotune.bench.summary import Study
from autotune.bench.surfaces import SurfaceKind
from autotune.errors import AutotuneError, InvalidFile, StorageError


def study(seed: int, *gap: float) -> Study:
    replay = Replay(
        gap=gap, infeasible=(False,) * len(gap), minutes=tuple(0.1 * n for n in range(len(gap))), gave_up=seed % 2 == 1
    )
    return Study(surface="s", kind=SurfaceKind.RECORDED, sampler="random", seed=seed, replay=replay)


STUDIES = {"a": study(0, 0.0, 1 / 3), "b": study(1, 0.0, 0.1 + 0.2, 1.0), "c": study(2, 0.0)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three studies in a folder that was not there."""
    found = tmp_path / "new" / "replays.jsonl"
    kept = KeptReplays(found)
    for key, one in STUDIES.items():
        kept.add(key, one)
    kept.close()
    return found


def read(path: Path, *keys: str) -> dict[str, Study]:
    kept = KeptReplays(path)
    try:
        return kept.read(keys)
    finally:
        kept.close()


def test_what_is_read_is_what_was_kept_to_the_last_bit(path: Path) -> None:
    assert read(path, *STUDIES) == STUDIES
    assert read(path, "b", "other") == {"b": STUDIES["b"]}


def test_a_crash_in_the_middle_of_a_line_costs_that_line_only(path: Path) -> None:
    whole = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        kept = KeptReplays(path)
        before = sum(end <= cut for end in ends)
        assert list(kept.read(STUDIES)) == list(STUDIES)[:before]
        kept.add("d", STUDIES["a"])
        kept.close()
        after = read(path, *STUDIES, "d")
        assert after["d"] == STUDIES["a"]
        # A line that lacked its line feed alone is whole again.
        assert len(after) in {before + 1, before + 2}


def test_a_damaged_line_is_no_replay(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    damaged = json.loads(lines[1])
    damaged["minutes"].pop()
    path.write_text("\n".join([lines[0], json.dumps(damaged), "\0\0", lines[2], ""]), encoding="utf-8")

    assert list(read(path, *STUDIES)) == ["a", "c"]


@pytest.mark.parametrize(
    "changed",
    [
        {"gap": [1.0, 0.0]},
        {"minutes": [0.0, 0.2]},
        {"kind": "simulated"},
        {"surface": "other"},
        {"surface": "\x1b[31m"},
        {"sampler": "other"},
        {"seed": 7},
        {"check": "0" * 16},
        {"check": ""},
    ],
)
def test_a_line_of_which_anything_was_changed_is_no_replay(changed: dict[str, object], path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | changed, separators=(",", ":"))
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")

    assert list(read(path, *STUDIES)) == ["b", "c"]


def test_a_line_without_its_check_is_no_replay(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    del lines[0]["check"]
    path.write_text("".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines), encoding="utf-8")

    assert list(read(path, *STUDIES)) == ["b", "c"]


def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(StorageError, match="cannot be kept in /proc/self/mem"):
        KeptReplays(Path("/proc/self/mem"))


def test_two_runs_may_keep_in_one_file(path: Path) -> None:
    first, second = KeptReplays(path), KeptReplays(path)
    first.add("d", STUDIES["a"])
    second.add("e", STUDIES["b"])
    first.add("f", STUDIES["c"])

    assert second.read("def") == {"d": STUDIES["a"], "e": STUDIES["b"], "f": STUDIES["c"]}
    first.close()
    second.close()


@pytest.mark.parametrize("content", [b"flags: {}\n", b"\n", b'{"format": "autotune-surface"}\n', b"\xff\xfe"])
def test_a_file_of_something_else_is_refused_and_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_bytes(content)

    with pytest.raises(InvalidFile, match="precious at line 1"):
        KeptReplays(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("place", "error"), [(".", StorageError), ("file/below", StorageError), ("nul\0", StorageError), ("p", InvalidFile)]
)
def test_what_cannot_be_a_file_is_told(place: str, error: type[AutotuneError], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "p")

    with pytest.raises(error):
        KeptReplays(tmp_path / place)


def test_a_full_disk_is_told() -> None:
    class Full(KeptReplays):
        def __init__(self) -> None:
            self.path = Path("/dev/full")
            self._file = os.open(self.path, os.O_RDWR)

    kept = Full()
    with pytest.raises(StorageError, match=r"/dev/full: No space left"):
        kept.add("a", STUDIES["a"])
    kept.close()


def test_a_key_is_of_all_that_a_replay_follows_from() -> None:
    first = replay_key("code", "surface", SamplerName.TPE, 0)

    assert first == replay_key("code", "surface", SamplerName.TPE, 0)
    others = {
        replay_key("other", "surface", SamplerName.TPE, 0),
        replay_key("code", "other", SamplerName.TPE, 0),
        replay_key("code", "surface", SamplerName.MOTPE, 0),
        replay_key("code", "surface", SamplerName.TPE, 1),
    }
    assert len(others | {first}) == 5


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few rooms of the program."""
    found = tmp_path_factory.mktemp("program") / "autotune"
    here = Path(code_hash.__code__.co_filename).parents[1]
    for room in ("bench", "cli"):
        shutil.copytree(here / room, found / room, ignore=shutil.ignore_patterns("__pycache__"))
    return found


@pytest.mark.parametrize(
    ("changed", "matters"),
    [
        ("bench/replay.py", True),
        ("bench/recorded_surfaces/h200-8b-rag.jsonl", True),
        ("bench/new.py", True),
        ("cli/bench.py", False),
        ("bench/__pycache__/replay.pyc", False),
        ("bench/.replay.py.swp", False),
        ("bench/replay.py~", False),
    ],
)
def test_the_code_is_every_file_that_a_replay_may_follow_from(changed: str, matters: bool, package: Path) -> None:
    before = code_hash(package)
    path = package / changed
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as stream:
        stream.write(b"#")

    assert (code_hash(package) != before) is matters


def test_a_recorded_study_is_its_file() -> None:
    assert recorded_hash(b"one", (), None) == recorded_hash(b"one", (), None)
    assert recorded_hash(b"one", (), None) != recorded_hash(b"two", (), None)
