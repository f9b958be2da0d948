from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from load_records import closed_loop, failed, level, open_level, record

from autotune.errors import StorageError
from autotune.load.measure import summarise
from autotune.load.records_file import level_path, read_records, write_records
from autotune.records import ClockKind, CpuUse, GpuUse, LevelUse, ServerDelta


def test_a_file_gives_the_same_measurement(tmp_path: Path) -> None:
    records = [*closed_loop(2, 60), failed(500, 1.0, "reset", message="löst ☃")]
    server = ServerDelta(preemptions=2, prefix_queries=1000, prefix_hits=500)
    path = level_path(tmp_path, level())
    write_records(path, level(), ClockKind.VIRTUAL, records, 24.05, server)
    back = read_records(path)
    assert back.records == tuple(records)
    assert back.level == level()
    before = summarise(level(), records, 24.05, ClockKind.VIRTUAL, 0.2, server, shared_tokens_per_request=0.0)
    after = summarise(
        back.level, back.records, back.duration_s, back.clock, 0.2, back.server, shared_tokens_per_request=0.0
    )
    assert after == before
    assert list(tmp_path.iterdir()) == [path]


def test_open_level_without_server(tmp_path: Path) -> None:
    path = tmp_path / "f.gz"
    write_records(path, open_level(3.5), ClockKind.WALL, [], 0.0)
    back = read_records(path)
    assert (back.level, back.records, back.server) == (open_level(3.5), (), None)


def test_energy_is_kept_and_older_files_have_none(tmp_path: Path) -> None:
    path = tmp_path / "f.gz"
    write_records(path, level(), ClockKind.WALL, closed_loop(2, 5), 2.0, None, 1234.5)
    assert read_records(path).energy_j == 1234.5
    write_records(path, level(), ClockKind.WALL, closed_loop(2, 5), 2.0)
    assert b"energy" not in gzip.decompress(path.read_bytes())
    assert read_records(path).energy_j is None


def test_what_was_seen_beside_is_kept_and_older_files_have_none(tmp_path: Path) -> None:
    path = tmp_path / "f.gz"
    use = LevelUse(
        gpus=(GpuUse(index=3, samples=9, busy_share=0.5), GpuUse(index=4, samples=9, memory_used_max_bytes=1)),
        cpu=CpuUse(client_share=0.25),
        jit_compiles=0,
    )
    write_records(path, level(), ClockKind.WALL, closed_loop(2, 5), 2.0, use=use)
    assert read_records(path).use == use
    write_records(path, level(), ClockKind.WALL, closed_loop(2, 5), 2.0, use=LevelUse())
    assert read_records(path).use == LevelUse()
    write_records(path, level(), ClockKind.WALL, closed_loop(2, 5), 2.0)
    assert b'"use"' not in gzip.decompress(path.read_bytes())
    assert read_records(path).use is None


def test_same_records_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_records(tmp_path / name, level(), ClockKind.WALL, closed_loop(2, 5), 2.0)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_names_are_safe(tmp_path: Path) -> None:
    assert level_path(tmp_path, level(name="../a b/64")) == tmp_path / "level-.._a_b_64.jsonl.gz"
    assert level_path(tmp_path, level(name="rate=12.5")).name == "level-rate=12.5.jsonl.gz"


def test_nothing_is_left_of_a_write_that_failed(tmp_path: Path) -> None:
    def broken():
        yield record(0, 0.0)
        raise OSError(28, "No space left on device")

    path = tmp_path / "f.gz"
    path.write_bytes(b"before")
    with pytest.raises(StorageError, match="No space left"):
        write_records(path, level(), ClockKind.WALL, broken(), 1.0)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write"):
        write_records(tmp_path / "gone" / "f.gz", level(), ClockKind.WALL, [], 1.0)


def test_broken_files_are_told(tmp_path: Path) -> None:
    whole = tmp_path / "whole.gz"
    write_records(whole, level(), ClockKind.WALL, closed_loop(2, 50), 20.0)
    raw = whole.read_bytes()
    lines = gzip.decompress(raw).splitlines(keepends=True)
    cases = {
        "cut": raw[: len(raw) // 2],
        "not-gzip": b"hello",
        "flipped": raw[:200] + bytes([raw[200] ^ 0xFF]) + raw[201:],
        "no-end": gzip.compress(b"".join(lines[:-1])),
        "lost-line": gzip.compress(b"".join(lines[:5] + lines[6:])),
        "other-format": gzip.compress(b'{"format": 99}\n'),
        "empty": gzip.compress(b""),
        "list": gzip.compress(b"[]\n"),
        "unknown-key": gzip.compress(lines[0] + b'{"index": 0, "token_times_s": [], "colour": 1}\n'),
        "not-json": gzip.compress(lines[0] + b"x\n"),
    }
    for name, content in cases.items():
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(StorageError):
            read_records(file)
    with pytest.raises(StorageError, match="cannot read"):
        read_records(tmp_path / "missing.gz")
