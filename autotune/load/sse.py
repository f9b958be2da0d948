"""Server-sent events as a push parser: bytes and their arrival time in, frames out.

Follows the event-stream grammar of the HTML standard (section 9.2.6): lines end in LF, CRLF or CR, a blank line ends a
frame, `data:` lines add up. Two deviations, both towards not losing an error: a frame that only says `event: error` is
given out although it has no data, and `close` gives out a last frame whose blank line never came.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_FRAME_BYTES = 1 << 20
"""A frame that grows beyond this is not a token stream; vLLM's frames are under 1 KiB."""

_BOM = b"\xef\xbb\xbf"


class FrameTooLarge(ValueError):
    """The server sent a frame longer than the parser is willing to hold."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event. `at_s` is the arrival of the bytes that completed it; `event` is None for the default kind."""

    data: str
    at_s: float
    event: str | None = None


class SseParser:
    """Feed it what the socket gave, in order, split anywhere. Holds at most `max_frame_bytes` of an open frame."""

    __slots__ = ("_data", "_event", "_held", "_line", "_max", "_skip_lf", "_started")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max = max_frame_bytes
        self._line = bytearray()
        self._data: list[bytes] = []
        self._event: str | None = None
        self._held = 0
        self._skip_lf = False
        self._started = False

    @property
    def between_frames(self) -> bool:
        """Whether what comes next begins a frame: nothing is held, and no LF of a cut CRLF is awaited."""
        return self._started and not (self._skip_lf or self._line or self._data or self._event is not None)

    def feed(self, data: bytes, at_s: float) -> list[Frame]:
        """Frames completed by these bytes, each stamped `at_s`.

        Raises:
            FrameTooLarge: the open frame outgrew the bound; the parser is of no more use.
        """
        if self._skip_lf and data:
            data = data[1:] if data[0] == 0x0A else data
            self._skip_lf = False
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *complete, rest = data.split(b"\n")
        frames: list[Frame] = []
        for line in complete:
            if self._line:
                # A line that came in pieces; decoded only when whole, so UTF-8 may be cut anywhere.
                self._line += line
                line = bytes(self._line)
                self._line.clear()
            self._take(line, at_s, frames)
        self._line += rest
        if self._held + len(self._line) > self._max:
            raise FrameTooLarge(f"a frame of more than {self._max} bytes")
        return frames

    def close(self, at_s: float) -> list[Frame]:
        """What the end of the stream leaves: a frame whose lines are whole but whose blank line is missing.

        An incomplete line is dropped; nobody can say what it would have become.
        """
        frames: list[Frame] = []
        self._dispatch(at_s, frames)
        self._line.clear()
        return frames

    def _take(self, line: bytes, at_s: float, frames: list[Frame]) -> None:
        if not self._started:
            self._started = True
            line = line.removeprefix(_BOM)
        if not line:
            self._dispatch(at_s, frames)
            return
        if line[0] == 0x3A:  # ":" opens a comment, sent to keep connections alive
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._held += len(value) + 1
            if self._held > self._max:
                raise FrameTooLarge(f"a frame of more than {self._max} bytes")
        elif field == b"event":
            self._event = value.decode("utf-8", "replace")

    def _dispatch(self, at_s: float, frames: list[Frame]) -> None:
        if self._data or self._event == "error":
            frames.append(Frame(b"\n".join(self._data).decode("utf-8", "replace"), at_s, self._event))
        self._data.clear()
        self._event = None
        self._held = 0
