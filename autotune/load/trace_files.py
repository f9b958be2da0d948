"""Logs and traces on disk: opened, unpacked, cut into lines or objects within bounds; trace_csv and trace_json read."""

from __future__ import annotations

import codecs
import gzip
import json
import stat
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from autotune.errors import InvalidFile
from autotune.load.prompts import Conversation
from autotune.load.trace_csv import CsvRows
from autotune.load.trace_json import JsonRows, parse_json
from autotune.load.traces import RawRow, Trace, make_trace

TRACE_SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv")
"""Each also with .gz behind."""

MAX_ROWS = 100_000
"""Rows kept: twenty times the longest level. The first ones, as arrival times only mean something in a row."""

MAX_READ_BYTES = 1 << 30
MAX_LINE_BYTES = 1 << 24
MAX_LINES = 10_000_000
MAX_TEXT_CHARS = 200_000_000
MAX_BLOCKS = 2_000_000
"""Bounds of one reading, unpacked; a longer line is refused, at the others reading ends and the trace says that it was
cut. Every request holds the blocks of its whole prompt, so those of one endless conversation grow with its square."""

TORN = "a last line that was still being written"

_CHUNK_CHARS = 1 << 16  # also read at once, in bytes
_BLANK = " \t\r\n"
_BOM = "\ufeff"


def is_trace_name(name: str) -> bool:
    """Whether a file of this name is read as a log or trace."""
    return name.lower().removesuffix(".gz").endswith(TRACE_SUFFIXES)


def trace_stem(name: str) -> str:
    """A file's name without its endings."""
    bare = name[: -len(".gz")] if name.lower().endswith(".gz") else name
    return bare.rsplit(".", 1)[0] or bare


def read_trace(
    path: Path, *, count_tokens: Callable[[str], int] | None = None, max_rows: int = MAX_ROWS
) -> tuple[Trace, tuple[str | Conversation, ...]]:
    """The first `max_rows` requests of a log or trace, and the real prompts where it has them.

    Raises:
        InvalidFile: cannot be read, or has a row that is not accepted: with its line, key, value, and what is allowed.
    """
    file = str(path)
    try:
        with _open(path) as stream:
            return _read(_Lines(stream, file), file, count_tokens, max_rows)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidFile(file, "", reason, "a readable log or trace") from None


def _read(
    lines: _Lines, file: str, count_tokens: Callable[[str], int] | None, max_rows: int
) -> tuple[Trace, tuple[str | Conversation, ...]]:
    if file.lower().removesuffix(".gz").endswith(".csv"):
        table = CsvRows(lines, file)
        rows = _take(table, max_rows)
        return _trace(rows, file, table, lines, max_rows), ()
    objects = JsonRows(file, count_tokens)
    rows = _take(_from_objects(objects, lines, file), max_rows)
    return _trace(rows, file, objects, lines, max_rows, objects), tuple(objects.texts[: _texts_of(rows)])


def _take(rows: Iterable[RawRow], most: int) -> list[RawRow]:
    """Up to one more than `most`, so that it shows whether there are more."""
    taken: list[RawRow] = []
    for row in rows:
        taken.append(row)
        if len(taken) > most:
            break
    return taken


def _texts_of(rows: list[RawRow]) -> int:
    return sum(1 for row in rows if row.text_index is not None)


def _trace(
    rows: list[RawRow],
    file: str,
    reader: CsvRows | JsonRows,
    lines: _Lines,
    max_rows: int,
    objects: JsonRows | None = None,
) -> Trace:
    more = len(rows) > max_rows
    del rows[max_rows:]
    if not rows:
        left_out = ", ".join(f"{count} left out: {reason}" for reason, count in sorted(reader.skipped.items()))
        raise InvalidFile(file, "", left_out or "no request", "at least one request that can be sent")
    return make_trace(
        rows,
        source=reader.source,
        ordered=objects.ordered if objects else True,
        estimated=objects.estimated if objects else False,
        text_digest=objects.text_digest if objects else "",
        skipped=sorted(reader.skipped.items()),
        cut=more or lines.cut,
    )


def _from_objects(reader: JsonRows, lines: _Lines, file: str) -> Iterator[RawRow]:
    for where, value in _objects(lines, file, reader.skipped):
        for row in reader.feed(value, where):
            yield row
            if reader.text_chars > MAX_TEXT_CHARS or reader.blocks > MAX_BLOCKS:
                lines.cut = True
                return


def _objects(lines: _Lines, file: str, skipped: Counter[str]) -> Iterator[tuple[str, Any]]:
    """Every object with its place: one a line, or the elements of one array.

    Args:
        skipped: counts a last line that was being written when the log was copied.
    """
    if lines.opens_with(b"["):
        yield from _elements(lines, file)
        return
    for line in lines:
        if not line.strip():
            continue
        where = f"line {lines.number}"
        try:
            value = parse_json(line, file, where)
        except InvalidFile:
            if lines.number == 1 or not lines.torn:
                raise
            skipped[TORN] += 1
            return
        yield where, value


def _elements(lines: _Lines, file: str) -> Iterator[tuple[str, Any]]:
    """Elements of an array one by one: a conversation dump of gigabytes is never in memory as a whole.

    An element that is not complete is tried again only after the text has doubled, so that a long one costs no square.
    """
    buffer, wanted, number, ended = lines.chunk().lstrip(_BOM + _BLANK)[1:], _CHUNK_CHARS, 0, False
    while True:
        while not ended and len(buffer) < wanted:
            piece = lines.chunk()
            ended = not piece
            buffer += piece
        at = len(buffer) - len(buffer.lstrip(_BLANK + ","))
        if buffer[at : at + 1] == "]":
            return
        where = f"element {number}"
        if at == len(buffer) and ended:
            if lines.cut:
                return
            raise InvalidFile(file, where, "the end of the file", "`]` at the end of the array")
        end = _end_of_value(buffer, at)
        if end is None and not ended:
            if len(buffer) - at > MAX_LINE_BYTES:
                raise InvalidFile(file, where, "a larger one", f"elements of at most {MAX_LINE_BYTES:,} characters")
            wanted = 2 * max(len(buffer), _CHUNK_CHARS)
            continue
        if end is None and lines.cut:
            return
        yield where, parse_json(buffer[at:end], file, where)
        number, buffer, wanted = number + 1, buffer[end:], _CHUNK_CHARS


def _end_of_value(buffer: str, at: int) -> int | None:
    """Where the object that begins at `at` ends; None when that is not in the buffer, or it is no object."""
    try:
        return json.JSONDecoder().raw_decode(buffer, at)[1]
    except (ValueError, RecursionError):
        return None


class _Lines:
    """A binary stream as lines, or as chunks, of text within bounds.

    `number` of the last line counts from 1, and it is `torn` where no line break ends it.
    """

    def __init__(self, stream: BufferedReader, file: str) -> None:
        self._stream = stream
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._read = 0
        self.number = 0
        self.cut = False
        self.torn = False

    def opens_with(self, sign: bytes) -> bool:
        """Whether the text begins with `sign`, blanks apart; nothing is consumed."""
        return self._stream.peek(_CHUNK_CHARS).removeprefix(codecs.BOM_UTF8).lstrip().startswith(sign)

    def chunk(self) -> str:
        """Some more of the text, lines or not; empty at the end of the file, or of what may be read."""
        text = ""
        while not text:
            content = b"" if self._over() else self._stream.read(_CHUNK_CHARS)
            try:
                text = self._decoder.decode(content, final=not content)
            except UnicodeDecodeError:
                seen = f"a byte after {self._read} that is not UTF-8"
                raise InvalidFile(self._file, "", seen, "text in UTF-8") from None
            self._read += len(content)
            if not content:
                break
        return text

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        content = b"" if self._over() else self._stream.readline(MAX_LINE_BYTES + 1)
        if not content:
            raise StopIteration
        self.number += 1
        if len(content) > MAX_LINE_BYTES:
            raise InvalidFile(
                self._file, f"line {self.number}", "a longer line", f"lines of at most {MAX_LINE_BYTES:,} bytes"
            )
        self._read += len(content)
        self.torn = not content.endswith(b"\n")
        try:
            text = content.decode("utf-8", errors="replace" if self.torn and self.number > 1 else "strict")
        except UnicodeDecodeError as error:
            seen = f"byte {error.start} is not UTF-8"
            raise InvalidFile(self._file, f"line {self.number}", seen, "text in UTF-8") from None
        return text.removeprefix(_BOM) if self.number == 1 else text

    def _over(self) -> bool:
        self.cut = self.cut or self._read >= MAX_READ_BYTES or self.number >= MAX_LINES
        return self.cut


def _open(path: Path) -> BufferedReader:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a device or a pipe"
        raise InvalidFile(str(path), "", kind, "a regular file")
    if path.name.lower().endswith(".gz"):
        return BufferedReader(gzip.open(path, "rb"))
    return path.open("rb")
