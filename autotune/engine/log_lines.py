"""From the bytes of a server's log to clean records: who said it, how loudly, and what.

Nothing is anchored to the start of a line: containers, Kubernetes and progress bars put their own text in front, and
a progress bar that ends without a newline leaves two records on one line.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

HEAD_BYTES = 48 * 1024
TAIL_BYTES = 16 * 1024
_GAP = b" [...] "
_STROKES = b"0123456789 #=>-|.,:/<?" + bytes(range(0x80, 0xC0)) + b"\xe2"
"""What one state of a progress bar differs in from the next: numbers, and strokes in ASCII or Unicode's blocks."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_]?)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_PROCESS = (
    r"\((?P<process>(?:[A-Za-z_][\w:.-]*(?:\s+rank=\d+)?\s+pid=\d+(?:,\s*ip=[^\s,()]+)?"
    r"|(?:EngineCore|APIServer|ApiServer|Worker|VllmWorker)\w*))\)\s?"
)
_HEADER = re.compile(
    rf"(?:{_PROCESS})?\b(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+\d\d-\d\d\s+\d\d:\d\d:\d\d(?:[.,]\d+)?\s+"
    r"\[?(?P<source>[\w./\\-]{1,200}:\d+)\]\s?"
)
_PROCESS_ONLY = re.compile(_PROCESS)
_PLAIN_LEVEL = re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):\s+")
# What container runtimes put in front: `vllm-1  | `, an ISO timestamp, `stderr F `, `[pod/x/y] `.
_CONTAINER = re.compile(
    r"(?:\[pod/[^\]\s]{1,200}\]\s)?(?:[\w.-]{1,80}\s+\|\s)?"
    r"(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?\s)?(?:(?:stdout|stderr)\s[FP]\s)?"
)
_PROGRESS_BAR = re.compile(r"\d{1,3}%\|[^%]*(?:it/s|s/it|B/s)\]?")
_REPEATED = re.compile(r"\s?\[repeated \d+x across cluster\].*$")
_RANK = re.compile(r"\[rank(\d+)\]:\s?")
_LEVEL_WORDS = {"WARN": "WARNING", "FATAL": "CRITICAL", "SEVERE": "ERROR"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One record of the log.

    Attributes:
        text: the message without any prefix; indentation is kept, because tracebacks speak by it.
        level: DEBUG .. CRITICAL as printed; None for text that no logger wrote.
        process: what stood in the brackets, e.g. `EngineCore_DP0 pid=12` or `VllmWorker rank=1 pid=7`.
        source: file and line that the logger printed, e.g. `core.py:1231`.
    """

    text: str
    level: str | None = None
    process: str | None = None
    source: str | None = None


class LineSplitter:
    """Cuts a byte stream at newlines and carriage returns.

    A line longer than 64 KiB keeps its first 48 and last 16 KiB: the rest never stays in memory. Of a bar that is drawn
    again and again (lines that a carriage return ends and that differ in numbers and strokes only) the last state
    before something else comes is a line: a log can hold a million of them, and reading each takes a tenth of a
    millisecond. The same bytes give the same lines however they are chunked.
    """

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = False
        self._drawn = self._shape = b""

    def feed(self, chunk: bytes) -> list[str]:
        """The lines that this chunk completes, decoded as UTF-8 with replacement; empty lines are left out."""
        lines: list[str] = []
        *rows, rest = chunk.split(b"\n")
        for row in rows:
            self._take(row, lines)
            self._flush_into(lines)
        self._take(rest, lines)
        return lines

    def close(self) -> list[str]:
        """The last line when no newline ended it."""
        lines: list[str] = []
        self._flush_into(lines)
        return lines

    def _take(self, row: bytes, lines: list[str]) -> None:
        """All of a row that carriage returns end, and what follows them."""
        *drawn, rest = row.split(b"\r")
        for piece in drawn:
            if self._head:
                self._keep(piece)
                piece = self._whole()
            if not piece:
                continue
            piece = piece[:HEAD_BYTES]
            shape = piece.translate(None, _STROKES)
            if shape != self._shape:
                self._flush_drawn_into(lines)
            self._drawn, self._shape = piece, shape
        self._keep(rest)

    def _keep(self, piece: bytes) -> None:
        room = HEAD_BYTES - len(self._head)
        if room > 0:
            self._head += piece[:room]
        rest = piece[max(0, room) :]
        if rest:
            self._tail += rest[-TAIL_BYTES:] if len(rest) > TAIL_BYTES else rest
            if len(rest) > TAIL_BYTES or len(self._tail) > TAIL_BYTES:
                self._dropped = True
                del self._tail[:-TAIL_BYTES]

    def _whole(self) -> bytes:
        """The line that was kept, which is over."""
        raw = bytes(self._head) + (_GAP if self._dropped else b"") + bytes(self._tail)
        self._head.clear()
        self._tail.clear()
        self._dropped = False
        return raw

    def _flush_into(self, lines: list[str]) -> None:
        self._flush_drawn_into(lines)
        _add(self._whole(), lines)

    def _flush_drawn_into(self, lines: list[str]) -> None:
        _add(self._drawn, lines)
        self._drawn = self._shape = b""


def _add(raw: bytes, lines: list[str]) -> None:
    if raw:
        text = clean(raw.decode("utf-8", errors="replace"))
        if text.strip():
            lines.append(text)


def clean(text: str) -> str:
    """The text without ANSI sequences and control characters (tabs stay)."""
    return _CONTROL.sub("", _ANSI.sub("", text)).rstrip()


def records_of(line: str, *, envelopes: int = 3) -> list[LogLine]:
    """The records on one physical line, usually one. Prefixes of every known vLLM version are taken off.

    Understands vLLM's text format (with and without brackets, process names and paths), its JSON format, Docker's
    and Google's JSON envelopes (at most `envelopes` inside one another), uvicorn's `INFO:  message`, `[rank0]: `
    and Ray's `(RayWorkerWrapper pid=1, ip=..)`.
    """
    unwrapped = _from_json(line, envelopes) if envelopes else None
    if unwrapped is not None:
        return unwrapped
    headers = list(_HEADER.finditer(line))
    if not headers:
        return [_without_header(line)]
    records: list[LogLine] = []
    before = line[: headers[0].start()]
    if _PROGRESS_BAR.search(before):
        records.append(_without_header(before))
    outer = _PROCESS_ONLY.search(before)
    for index, header in enumerate(headers):
        end = headers[index + 1].start() if index + 1 < len(headers) else len(line)
        records.append(
            LogLine(
                text=_REPEATED.sub("", line[header.end() : end]).rstrip(),
                level=header["level"],
                process=header["process"] or (outer["process"] if outer else None),
                source=header["source"],
            )
        )
    return records


def _without_header(line: str) -> LogLine:
    process = level = None
    found = _PROCESS_ONLY.search(line)
    if found and _is_noise(line[: found.start()]):
        process = found["process"]
        line = line[found.end() :]
    else:
        container = _CONTAINER.match(line)
        line = line[container.end() :] if container else line
    rank = _RANK.match(line.lstrip())
    if rank:
        process = process or f"rank{rank[1]}"
        line = line.lstrip()[rank.end() :]
    plain = _PLAIN_LEVEL.match(line)
    if plain:
        level = plain["level"]
        line = line[plain.end() :]
    return LogLine(text=_REPEATED.sub("", line).rstrip(), level=level, process=process)


def _is_noise(before: str) -> bool:
    if not before.strip() or _PROGRESS_BAR.search(before):
        return True
    container = _CONTAINER.match(before)
    return container is not None and not before[container.end() :].strip()


def _from_json(line: str, envelopes: int) -> list[LogLine] | None:
    start = line.find("{")
    if start < 0 or start > 200 or not line.endswith("}") or '":' not in line:
        return None
    try:
        found = json.loads(line[start:])
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    text = next((found[k] for k in ("message", "log", "msg", "textPayload") if isinstance(found.get(k), str)), None)
    if text is None:
        return None
    word = next((found[k] for k in ("levelname", "level", "severity") if isinstance(found.get(k), str)), None)
    level = None if word is None else _LEVEL_WORDS.get(word.upper(), word.upper())
    name, pid = found.get("processName"), found.get("process")
    process = f"{name} pid={pid}" if isinstance(name, str) and isinstance(pid, int) else None
    records: list[LogLine] = []
    for part in clean_lines(text) + clean_lines(str(found.get("exc_info") or "")):
        for inner in records_of(part, envelopes=envelopes - 1):
            records.append(replace(inner, level=inner.level or level, process=inner.process or process))
    return records


def clean_lines(text: str) -> list[str]:
    """The non-empty lines of a text that was inside an envelope."""
    return [part for part in (clean(raw) for raw in re.split(r"[\r\n]", text)) if part.strip()]
