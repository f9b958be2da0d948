"""One response as it is read: bytes and their arrival in, a `RequestRecord` out. No clock, no socket.

Stamps, all in seconds after the level's start, each of the bytes that completed what it names:

```
scheduled     when the request was due: what its user experiences counts from here
sent          it was handed to the kernel (raw: right before; aiohttp: right after)
first byte    anything of the body, a comment included: says nothing about tokens
first frame   first frame with data, even a role or an empty text: the server has taken the request up
first token   first frame with text, in any channel (content, reasoning, tool call)
first content first frame with text in the content: what a reader waits for who is not shown the reasoning
last token    last frame with text: the request's latency ends here, not at the usage frame or [DONE]
done          [DONE] arrived, or the response ended or failed
```

JSON is parsed until the first token and wherever a frame is unlike it (token_frames.py); all else is bytes.
"""

from __future__ import annotations

from array import array
from enum import StrEnum

import numpy as np

from autotune.load.chunks import Channel, MalformedChunk, Usage, interpret
from autotune.load.sse import MAX_FRAME_BYTES, Frame, FrameTooLarge, SseParser
from autotune.load.token_frames import is_string, shape_of
from autotune.records import PlannedRequest, RequestRecord

MAX_MESSAGE = 300
"""Characters of a server's message that are kept."""


class RequestError(StrEnum):
    """Why a request did not succeed. Nothing is retried: a retry would hide what the config did."""

    HTTP_429 = "http_429"
    HTTP_AUTH = "http_auth"
    """401 or 403: the server asks for an API key, or for another one."""
    HTTP_4XX = "http_4xx"
    HTTP_5XX = "http_5xx"
    REFUSED = "refused"
    """No connection."""
    RESET = "reset"
    """The connection was lost before the response ended."""
    TRUNCATED = "truncated"
    """The response ended properly for HTTP, but with neither [DONE] nor usage."""
    ERROR_FRAME = "error_frame"
    """An error object, an `event: error` or an aborted finish under HTTP 200."""
    NO_TOKENS = "no_tokens"
    """The stream ended well and empty."""
    STALLED = "stalled"
    """No byte for the stall timeout, or no end within the request timeout."""
    DEADLINE = "deadline"
    """Still open, or due and not sent, when the level's time was over."""
    ABORTED = "aborted"
    """Still open when the caller ended the level, e.g. because the server died."""
    PROTOCOL = "protocol"
    """An answer that is no OpenAI stream."""


_MOST_SHAPES = 8
"""Shapes learnt in a row that no frame had. A server that writes every frame differently is parsed from then on."""

_BAD_FINISHES = frozenset({"abort", "error"})


class Reading:
    """Accumulates one response. The first error stays; what arrives after it changes nothing but `done`.

    Attributes:
        done_s: when it ended; None while it is open. To be read only.
    """

    __slots__ = (
        "_error",
        "_finish",
        "_first_byte_s",
        "_first_content_s",
        "_first_frame_s",
        "_head",
        "_head_bytes",
        "_learnt_at",
        "_message",
        "_most_chunks",
        "_parser",
        "_quick",
        "_saw_done",
        "_sent_s",
        "_shapes_left",
        "_status",
        "_tail",
        "_tail_bytes",
        "_times",
        "_usage",
        "done_s",
        "request",
        "scheduled_s",
    )

    def __init__(self, request: PlannedRequest, scheduled_s: float) -> None:
        self.request = request
        self.scheduled_s = scheduled_s
        self._parser = SseParser()
        # A server that never stops would fill our memory: a stamp is kept of each chunk.
        self._most_chunks = 4 * request.output_tokens + 10_000
        self._sent_s: float | None = None
        self._first_byte_s: float | None = None
        self._first_frame_s: float | None = None
        self._first_content_s: float | None = None
        self.done_s: float | None = None
        self._times = array("d")
        # The shape of the last token frame that was parsed, and whether bytes may be held against it now.
        self._quick = False
        self._head = self._tail = b""
        self._head_bytes = self._tail_bytes = 0
        self._shapes_left = _MOST_SHAPES
        self._learnt_at = 0
        self._usage: Usage | None = None
        self._finish: str | None = None
        self._status: int | None = None
        self._error: RequestError | None = None
        self._message: str | None = None
        self._saw_done = False

    @property
    def over(self) -> bool:
        """Nothing that still arrives can change the outcome."""
        return self.done_s is not None

    def sent(self, at_s: float) -> None:
        """The request's head was written."""
        self._sent_s = at_s

    def answered(self, status: int) -> None:
        """The response's head arrived."""
        self._status = status

    def feed(self, data: bytes, at_s: float) -> None:
        """Bytes of a 2xx event stream, stamped by the caller before it did anything else."""
        if (
            # TokenShape.fits, written out: this runs once per token, and a call costs half as much as the test itself.
            self._quick
            and data.startswith(self._head)
            and data.endswith(self._tail)
            and is_string(data, self._head_bytes, len(data) - self._tail_bytes)
            and len(data) <= MAX_FRAME_BYTES
            and self.done_s is None
        ):
            self._times.append(at_s)
            if len(self._times) > self._most_chunks:
                self._stop_counting(at_s)
        elif self.done_s is None:
            self._feed_frames(data, at_s)

    def _feed_frames(self, data: bytes, at_s: float) -> None:
        """Bytes that are not one token frame: pieces of frames, several frames, or another kind."""
        if self._first_byte_s is None and data:
            self._first_byte_s = at_s
        end = data.find(b"\n\n") + 2
        if self._quick and 2 <= end < len(data):
            # A read of several frames is taken apart, so that most of them are seen to be tokens.
            self.feed(data[:end], at_s)
            while end < len(data):
                next_end = data.find(b"\n\n", end) + 2
                next_end = next_end if next_end >= 2 else len(data)
                self.feed(data[end:next_end], at_s)
                end = next_end
            return
        try:
            for frame in self._parser.feed(data, at_s):
                self._take(frame)
        except (FrameTooLarge, MalformedChunk) as error:
            self.fail(RequestError.PROTOCOL, str(error), at_s)
        self._quick = bool(self._head) and self._error is None and self._parser.between_frames

    def close(self, at_s: float) -> None:
        """The response ended properly for HTTP."""
        if self.over:
            return
        try:
            for frame in self._parser.close(at_s):
                self._take(frame)
        except MalformedChunk as error:
            self.fail(RequestError.PROTOCOL, str(error), at_s)
        self._conclude(at_s)

    def fail(self, kind: RequestError, message: str, at_s: float) -> None:
        """The response ended badly. Has no effect on one that is over: what was complete stays complete."""
        if self.over:
            return
        self._note(kind, message)
        self.done_s = at_s

    @property
    def first_token_s(self) -> float | None:
        """When the first token came; None while there is none."""
        return self._times[0] if self._times else None

    def record(self) -> RequestRecord:
        """What happened, stamps rounded to the microsecond (what a file keeps of them)."""
        usage = self._usage
        times = tuple((np.rint(np.frombuffer(self._times) * 1e6) / 1e6).tolist()) if self._times else ()
        return RequestRecord(
            index=self.request.index,
            scheduled_s=round(self.scheduled_s * 1e6) / 1e6,
            sent_s=_rounded(self._sent_s),
            first_byte_s=_rounded(self._first_byte_s),
            first_frame_s=_rounded(self._first_frame_s),
            first_content_s=_rounded(self._first_content_s),
            first_token_s=times[0] if times else None,
            last_token_s=times[-1] if times else None,
            done_s=_rounded(self.done_s),
            token_times_s=times,
            prompt_tokens=usage.prompt_tokens if usage else None,
            output_tokens=usage.completion_tokens if usage else None,
            counted_tokens=len(times),
            wanted_output_tokens=self.request.output_tokens,
            finish_reason=self._finish,
            status=self._status,
            error=None if self._error is None else str(self._error),
            message=self._message,
        )

    def _take(self, frame: Frame) -> None:
        if self.over:  # frames behind [DONE]
            return
        if frame.event == "error":
            self._note(RequestError.ERROR_FRAME, frame.data or "event: error")
            return
        chunk = interpret(frame.data)
        if self._first_frame_s is None and not chunk.done:
            self._first_frame_s = frame.at_s
        if chunk.error is not None:
            self._note(RequestError.ERROR_FRAME, chunk.error)
        elif chunk.done:
            self._saw_done = True
            self._conclude(frame.at_s)
        elif self._error is None:
            if chunk.channel is not None:
                self._take_token(frame, chunk.channel)
            self._usage = chunk.usage or self._usage
            self._finish = chunk.finish_reason or self._finish

    def _take_token(self, frame: Frame, channel: Channel) -> None:
        self._times.append(frame.at_s)
        if channel is Channel.CONTENT and self._first_content_s is None:
            self._first_content_s = frame.at_s
        if len(self._times) > self._most_chunks:
            self._stop_counting(frame.at_s)
            return
        if len(self._times) > self._learnt_at + 1:  # frames of the last shape came: it was worth its price
            self._shapes_left = _MOST_SHAPES
        if self._shapes_left:
            self._shapes_left -= 1
            self._learnt_at = len(self._times)
            shape = shape_of(frame.data)
            if shape is not None:
                self._head, self._tail = shape.head, shape.tail
                self._head_bytes, self._tail_bytes = len(shape.head), len(shape.tail)

    def _stop_counting(self, at_s: float) -> None:
        count, asked = len(self._times), self.request.output_tokens
        self.fail(RequestError.PROTOCOL, f"{count} chunks for {asked} tokens asked for", at_s)

    def _conclude(self, at_s: float) -> None:
        """The stream is whole: decide whether it was a success."""
        if self.over:
            return
        generated = self._usage.completion_tokens if self._usage else None
        if self._finish in _BAD_FINISHES:
            self._note(RequestError.ERROR_FRAME, f"finish_reason {self._finish}")
        elif not self._saw_done and self._usage is None:
            self._note(RequestError.TRUNCATED, "the stream ended with neither [DONE] nor usage")
        elif not self._times and not generated:
            self._note(RequestError.NO_TOKENS, "the stream ended without a token")
        self.done_s = at_s

    def _note(self, kind: RequestError, message: str) -> None:
        if self._error is None:
            self._error, self._message = kind, message[:MAX_MESSAGE]


def _rounded(value: float | None) -> float | None:
    # As numpy rounds the times of the tokens; round(value, 6) may differ from that by a microsecond.
    return None if value is None else round(value * 1e6) / 1e6
