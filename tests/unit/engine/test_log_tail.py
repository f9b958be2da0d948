"""Following a file: everything once, in order, in bounded pieces."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.log_tail import LogTail


async def test_no_file_yet_then_growth(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    tail = LogTail(path)
    assert await tail.read() == b""
    path.write_bytes(b"one\nhal")
    assert await tail.read() == b"one\nhal"
    with path.open("ab") as file:
        file.write(b"f\n")
    assert await tail.read() == b"f\n"
    assert await tail.read() == b""
    assert LogTail(path, offset=4).read_now() == b"half\n"


async def test_what_cannot_be_read_says_nothing_and_is_read_later(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.symlink_to(path)  # opening it fails for root too
    tail = LogTail(path)
    assert await tail.read() == b""
    path.unlink()
    path.write_bytes(b"late")
    assert await tail.read() == b"late"


def test_a_burst_comes_in_bounded_pieces(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(bytes(range(256)) * 100)
    tail = LogTail(path, chunk_bytes=10_000)
    pieces = [tail.read_now() for _ in range(4)]
    assert [len(piece) for piece in pieces] == [10_000, 10_000, 5_600, 0]
    assert b"".join(pieces) == path.read_bytes()


def test_a_truncated_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"a long first life")
    tail = LogTail(path)
    tail.read_now()
    path.write_bytes(b"second")
    assert tail.read_now() == b"second"


@given(pieces=st.lists(st.binary(max_size=50), max_size=20), chunk=st.integers(min_value=1, max_value=64))
def test_nothing_is_lost_or_repeated(tmp_path_factory, pieces: list[bytes], chunk: int) -> None:
    path = tmp_path_factory.mktemp("tail") / "log"
    tail = LogTail(path, chunk_bytes=chunk)
    seen = b""
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)
        seen += tail.read_now()
    while more := tail.read_now():
        seen += more
    assert seen == b"".join(pieces)
