"""One response as it is read: bytes and their arrival in, a `RequestRecord` out. No clock, no socket.

Stamps, all in seconds after the level's start:

```
scheduled   when the request was due: what its user experiences counts from here
sent        its head was handed to the kernel
first byte  anything of the body, even a role-only frame: says nothing about tokens
first token first frame with text, in any channel (content, reasoning, tool call)
last token  last such frame: the request's latency ends here, not at the usage frame or [DONE]
done        [DONE] arrived, or the response ended or failed
```
"""

from __future__ import annotations

from enum import StrEnum

from autotune.load.chunks import MalformedChunk, Usage, interpret
from autotune.load.sse import Frame, FrameTooLarge, SseParser
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


_BAD_FINISHES = frozenset({"abort", "error"})


class Reading:
    """Accumulates one response. The first error stays; what arrives after it changes nothing but `done`."""

    __slots__ = (
        "_counted",
        "_done_s",
        "_error",
        "_finish",
        "_first_byte_s",
        "_message",
        "_most_chunks",
        "_parser",
        "_saw_done",
        "_sent_s",
        "_status",
        "_times",
        "_usage",
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
        self._done_s: float | None = None
        self._times: list[float] = []
        self._counted = 0
        self._usage: Usage | None = None
        self._finish: str | None = None
        self._status: int | None = None
        self._error: RequestError | None = None
        self._message: str | None = None
        self._saw_done = False

    @property
    def over(self) -> bool:
        """Nothing that still arrives can change the outcome."""
        return self._done_s is not None

    @property
    def done_s(self) -> float | None:
        """When it ended; None while it is open."""
        return self._done_s

    def sent(self, at_s: float) -> None:
        """The request's head was written."""
        self._sent_s = at_s

    def answered(self, status: int) -> None:
        """The response's head arrived."""
        self._status = status

    def feed(self, data: bytes, at_s: float) -> None:
        """Bytes of a 2xx event stream, stamped by the caller before it did anything else."""
        if self.over:
            return
        if self._first_byte_s is None and data:
            self._first_byte_s = at_s
        try:
            for frame in self._parser.feed(data, at_s):
                self._take(frame)
        except (FrameTooLarge, MalformedChunk) as error:
            self.fail(RequestError.PROTOCOL, str(error), at_s)

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
        self._done_s = at_s

    def record(self) -> RequestRecord:
        """What happened, stamps rounded to the microsecond (what a file keeps of them)."""
        usage = self._usage
        times = tuple(round(t, 6) for t in self._times)
        return RequestRecord(
            index=self.request.index,
            scheduled_s=round(self.scheduled_s, 6),
            sent_s=_rounded(self._sent_s),
            first_byte_s=_rounded(self._first_byte_s),
            first_token_s=times[0] if times else None,
            last_token_s=times[-1] if times else None,
            done_s=_rounded(self._done_s),
            token_times_s=times,
            prompt_tokens=usage.prompt_tokens if usage else None,
            output_tokens=usage.completion_tokens if usage else None,
            counted_tokens=self._counted,
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
        if chunk.error is not None:
            self._note(RequestError.ERROR_FRAME, chunk.error)
        elif chunk.done:
            self._saw_done = True
            self._conclude(frame.at_s)
        elif self._error is None:
            if chunk.channel is not None:
                self._times.append(frame.at_s)
                self._counted += 1
                if self._counted > self._most_chunks:
                    raise MalformedChunk(f"{self._counted} chunks for {self.request.output_tokens} tokens asked for")
            self._usage = chunk.usage or self._usage
            self._finish = chunk.finish_reason or self._finish

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
        self._done_s = at_s

    def _note(self, kind: RequestError, message: str) -> None:
        if self._error is None:
            self._error, self._message = kind, message[:MAX_MESSAGE]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
