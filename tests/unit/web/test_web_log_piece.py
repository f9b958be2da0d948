"""Pieces of logs as the service sends them: no offset and no limit shows a secret that the whole log would not."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.web.asked import LogQuery
from autotune.web.trials import LONGEST_LINE_BYTES, log_piece

SECRET = "hf_" + "Q7" * 17
TEXT = f"first\nHF_TOKEN={SECRET} é\n\nlast {SECRET}\n"


def file_with(folder: Path, text: str) -> Path:
    path = folder / "log"
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("limit", [1, 7, 20, 1000])
def test_no_piece_shows_part_of_a_secret(tmp_path: Path, limit: int) -> None:
    path = file_with(tmp_path, TEXT)
    size = path.stat().st_size
    for offset in range(-size, size + 1):
        piece = log_piece(path, LogQuery(offset=offset, limit=limit), complete=True)
        assert "Q7" not in piece["text"], offset
        assert piece["offset"] == size or piece["next_offset"] > piece["offset"]


@pytest.mark.parametrize("limit", [1, 7, 20, 1000])
@pytest.mark.parametrize("end", ["\n", ""], ids=["newline at the end", "none"])
def test_pieces_one_after_another_are_the_whole_log(tmp_path: Path, limit: int, end: str) -> None:
    path = file_with(tmp_path, "a\nbb é\n\n" + "c" * 30 + end)
    found, at = "", 0
    while (piece := log_piece(path, LogQuery(offset=at, limit=limit), complete=True))["next_offset"] > at:
        assert piece["offset"] == at
        found, at = found + piece["text"], piece["next_offset"]
    assert (found, at) == (path.read_text(), path.stat().st_size)


def test_a_line_that_is_still_being_written_waits_for_its_end(tmp_path: Path) -> None:
    path = file_with(tmp_path, f"begun\nHF_TOKEN {SECRET[:9]}")
    piece = log_piece(path, LogQuery(offset=0), complete=False)
    assert (piece["text"], piece["next_offset"]) == ("begun\n", 6)
    assert log_piece(path, LogQuery(offset=8), complete=False)["text"] == ""
    with path.open("a") as file:
        file.write(f"{SECRET[9:]}\n")
    assert log_piece(path, LogQuery(offset=6), complete=False)["text"] == "HF_TOKEN <redacted>\n"


def test_the_end_of_a_log_is_its_last_whole_lines(tmp_path: Path) -> None:
    path = file_with(tmp_path, "one\ntwo\nthree\n")
    assert log_piece(path, LogQuery(offset=-7), complete=True)["text"] == "three\n"
    assert log_piece(path, LogQuery(offset=-10), complete=True)["text"] == "two\nthree\n"
    assert log_piece(path, LogQuery(offset=-3), complete=True)["text"] == "three\n"  # a line at least


def test_a_line_longer_than_any_is_told_and_not_shown(tmp_path: Path) -> None:
    long = LONGEST_LINE_BYTES + 5
    path = file_with(tmp_path, "a\n" + "x" * (long - 1) + "\nb\n")
    piece = log_piece(path, LogQuery(offset=0), complete=True)
    assert piece["text"] == "a\n"
    piece = log_piece(path, LogQuery(offset=piece["next_offset"], limit=2_000), complete=True)
    assert (piece["text"], piece["next_offset"]) == (f"[a line of {long:,} bytes is not shown]\n", 2 + long)
    assert log_piece(path, LogQuery(offset=long // 2), complete=True)["offset"] == 2
