"""What stands on the wire against what the record says, for each transport on each event loop.

The table's truths follow from its scripts by hand: pauses are exact lower bounds, counts are exact.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from held_up import again_when_held_up
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import DONE, Hang, Pause, Reset, Script, Send, Step, delta, frame, serving, text, usage

from autotune.errors import InvalidOption
from autotune.load.client import DriveOptions, Timeouts, TransportKind, drive
from autotune.load.loops import new_loop
from autotune.load.measure import summarise, tpot_s
from autotune.load.wire import is_plain, request_head
from autotune.load.workloads import Api
from autotune.records import Arrivals, ClockKind, LevelRole, LoadLevel, PlannedRequest, RequestRecord

P = 0.04
"""A pause of the scripts, seconds."""

SLACK_S = 30.0
"""What hangs is later than that, and nothing that is slow."""

both_kinds = pytest.mark.parametrize("kind", TransportKind)
both_loops = pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, new_loop], ids=["asyncio", "uvloop"])
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def options(kind: TransportKind, **changes: Any) -> DriveOptions:
    base = DriveOptions(
        api=Api.CHAT,
        model="m",
        render=lambda _request: "prompt",
        timeouts=Timeouts(request_s=600.0, stall_s=600.0, connect_s=600.0),
        deadline_s=600.0,
        stagger_s=0.0,
        transport=kind,
    )
    return replace(base, **changes)


async def drive_some(
    url: str, opts: DriveOptions, count: int = 1, *, concurrency: int = 1, output_tokens: int = 3
) -> tuple[RequestRecord, ...]:
    level = LoadLevel(
        name="l", role=LevelRole.EXTRA, arrivals=Arrivals.CLOSED, requests=count, seed=0, concurrency=concurrency
    )
    requests = [
        PlannedRequest(index=i, prompt_tokens=1, output_tokens=output_tokens, content_seed=i) for i in range(count)
    ]
    return (await drive(url, level, requests, options=opts))[0]


Records = tuple[RequestRecord, ...]


def run(loop_factory: LoopFactory, work: Coroutine[Any, Any, Records]) -> Records:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(work)


def role(**more: object) -> Send:
    return delta(role="assistant", **{"content": "", **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """A script and what is true of it.

    Attributes:
        first_token: pauses before the first token; None where there is none.
        first_content: pauses before the first text of the content.
        last_token: pauses before the last token.
        chunks: that carried a token.
        tokens: by usage.
    """

    steps: tuple[Step, ...]
    first_token: int | None
    first_content: int | None
    last_token: int | None = None
    chunks: int
    tokens: int | None
    error: str | None = None
    first_frame: int = 0
    api: Api = Api.CHAT


def crlf(step: Send) -> Send:
    return Send(step.data.replace(b"\n", b"\r\n"))


W = Pause(P)
A, B = delta(content="a"), delta("length", content="b")
ENGINE_DEAD = frame({"error": {"message": "EngineCore encountered an issue", "code": 500}})
DETAILS = frame(
    {
        "choices": [],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}},
    }
)


def counting(content: str, so_far: int) -> Send:
    return frame({"choices": [{"delta": {"content": content}}], "usage": {"completion_tokens": so_far}})


TRUTHS = {
    "plain": Truth(
        steps=(W, A, W, B, usage(5, 2), DONE),
        first_frame=1, first_token=1, first_content=1, last_token=2, chunks=2, tokens=2,
    ),
    "role first": Truth(
        steps=(role(), W, A, B, usage(5, 2), DONE), first_token=1, first_content=1, last_token=1, chunks=2, tokens=2
    ),
    "role with null content first": Truth(
        steps=(role(content=None), W, A, B, usage(5, 2), DONE),
        first_token=1, first_content=1, last_token=1, chunks=2, tokens=2,
    ),
    "empty text first": Truth(
        steps=(text(""), W, text("a"), text("b", "length"), usage(5, 3), DONE),
        api=Api.COMPLETIONS, first_token=1, first_content=1, last_token=1, chunks=2, tokens=3,
    ),
    "empty text last": Truth(
        steps=(W, text("a"), W, text("", "length"), usage(5, 2), DONE),
        api=Api.COMPLETIONS, first_frame=1, first_token=1, first_content=1, last_token=1, chunks=1, tokens=2,
    ),
    "comment first": Truth(
        steps=(Send(b": ping\n\n"), W, role(), W, A, B, usage(5, 2), DONE),
        first_frame=1, first_token=2, first_content=2, last_token=2, chunks=2, tokens=2,
    ),
    "reasoning first": Truth(
        steps=(role(), W, delta(reasoning="hm"), W, A, B, usage(5, 3), DONE),
        first_token=1, first_content=2, last_token=2, chunks=3, tokens=3,
    ),
    "reasoning by its old name first": Truth(
        steps=(role(), W, delta(reasoning_content="hm", content=None), W, A, B, usage(5, 3), DONE),
        first_token=1, first_content=2, last_token=2, chunks=3, tokens=3,
    ),
    "reasoning only, counted once": Truth(
        steps=(W, delta(reasoning="hm"), W, delta("length", reasoning="so"), DETAILS, DONE),
        first_frame=1, first_token=1, first_content=None, last_token=2, chunks=2, tokens=2,
    ),
    "tool call": Truth(
        steps=(
            delta(tool_calls=[{"index": 0, "id": "x", "function": {"arguments": ""}}]), W,
            delta(tool_calls=[{"index": 0, "function": {"name": "f"}}]), W,
            delta("tool_calls", tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]), usage(5, 2), DONE,
        ),
        first_token=1, first_content=None, last_token=2, chunks=2, tokens=2,
    ),
    "several tokens per chunk": Truth(
        steps=(W, A, W, delta(content="b c d"), W, delta("length", content="e f g h"), usage(5, 9), DONE),
        first_frame=1, first_token=1, first_content=1, last_token=3, chunks=3, tokens=9,
    ),
    "several chunks per read": Truth(
        steps=(W, Send(A.data + A.data + B.data + usage(5, 3).data + DONE.data)),
        first_frame=1, first_token=1, first_content=1, last_token=1, chunks=3, tokens=3,
    ),
    "a chunk in several reads": Truth(
        steps=(W, Send(A.data[:30]), W, Send(A.data[30:]), B, usage(5, 2), DONE),
        first_frame=2, first_token=2, first_content=2, last_token=2, chunks=2, tokens=2,
    ),
    "no usage": Truth(
        steps=(role(), W, A, B, DONE), first_token=1, first_content=1, last_token=1, chunks=2, tokens=None
    ),
    "usage long after the last token": Truth(
        steps=(W, A, B, W, usage(5, 2), W, DONE),
        first_frame=1, first_token=1, first_content=1, last_token=1, chunks=2, tokens=2,
    ),
    "usage in every chunk": Truth(
        steps=(role(), W, counting("a", 1), counting("b c", 3), usage(5, 3), DONE),
        first_token=1, first_content=1, last_token=1, chunks=2, tokens=3,
    ),
    "usage and no text": Truth(
        steps=(role(), W, usage(5, 2), DONE), first_token=None, first_content=None, chunks=0, tokens=2
    ),
    "role and nothing else": Truth(
        steps=(role(), W, delta("stop", content=""), usage(5, 0), DONE),
        first_token=None, first_content=None, chunks=0, tokens=0, error="no_tokens",
    ),
    "error object, then DONE": Truth(
        steps=(role(), W, A, ENGINE_DEAD, DONE),
        first_token=1, first_content=1, last_token=1, chunks=1, tokens=None, error="error_frame",
    ),
    "error event": Truth(
        steps=(role(), W, A, Send(b"event: error\ndata: no\n\n"), DONE),
        first_token=1, first_content=1, last_token=1, chunks=1, tokens=None, error="error_frame",
    ),
    "cut off": Truth(
        steps=(role(), W, A, Reset()),
        first_token=1, first_content=1, last_token=1, chunks=1, tokens=None, error="reset",
    ),
    "neither usage nor DONE": Truth(
        steps=(role(), W, A, B), first_token=1, first_content=1, last_token=1, chunks=2, tokens=None, error="truncated"
    ),
    "a server that hangs after DONE": Truth(
        steps=(role(), W, A, B, usage(5, 2), DONE, Hang()),
        first_token=1, first_content=1, last_token=1, chunks=2, tokens=2,
    ),
    "lines that end in CRLF": Truth(
        steps=(crlf(role()), W, crlf(A), crlf(B), crlf(usage(5, 2)), crlf(DONE)),
        first_token=1, first_content=1, last_token=1, chunks=2, tokens=2,
    ),
    "quotes, escapes and other scripts": Truth(
        steps=(role(), W, A, delta(content='"\\\n'), delta(content="\u00e9\U0001f600"), B, usage(5, 4), DONE),
        first_token=1, first_content=1, last_token=1, chunks=4, tokens=4,
    ),
}  # fmt: skip


@both_loops
@both_kinds
@pytest.mark.parametrize("name", TRUTHS)
def test_truth(name: str, kind: TransportKind, loop_factory: LoopFactory) -> None:
    truth = TRUTHS[name]

    async def work() -> Records:
        async with serving(lambda _n, _body: Script(steps=truth.steps)) as (url, _seen):
            return await drive_some(url, options(kind, api=truth.api))

    (record,) = run(loop_factory, work())
    assert (record.error, record.counted_tokens, record.output_tokens) == (truth.error, truth.chunks, truth.tokens)
    sent_s = record.sent_s
    assert sent_s is not None
    stamps = {
        "first frame": (record.first_frame_s, truth.first_frame),
        "first token": (record.first_token_s, truth.first_token),
        "first content": (record.first_content_s, truth.first_content),
        "last token": (record.last_token_s, truth.last_token),
    }
    for what, (at_s, pauses) in stamps.items():
        assert (at_s is None) == (pauses is None), what
        if at_s is not None and pauses is not None:
            assert pauses * P - 0.001 <= at_s - sent_s < pauses * P + SLACK_S, what
    in_order = [record.scheduled_s, sent_s, record.first_byte_s, record.first_frame_s, record.first_token_s]
    known = [at_s for at_s in [*in_order, record.last_token_s, record.done_s] if at_s is not None]
    assert known == sorted(known)


def test_the_tables_pace() -> None:
    """Nine tokens of which the first came alone and the last two pauses later: a quarter of a pause each."""

    async def work() -> Records:
        async with serving(lambda _n, _b: Script(steps=TRUTHS["several tokens per chunk"].steps)) as (url, _seen):
            (record,) = await drive_some(url, options(TransportKind.RAW))
        tpot = tpot_s(record)
        assert tpot is not None
        assert 2 * P / 8 - 0.001 <= tpot < 2 * P / 8 + SLACK_S / 8
        return (record,)

    run(new_loop, again_when_held_up(work)())


def test_chunks_that_usage_does_not_know_are_doubted() -> None:
    """Three chunks with text, two tokens: one of them was none, and it may be the first."""

    async def work() -> Records:
        async with serving(lambda _n, _b: Script(steps=(A, A, B, usage(5, 2), DONE))) as (url, _seen):
            return await drive_some(url, options(TransportKind.RAW))

    records = run(new_loop, work())
    level = LoadLevel(name="l", role=LevelRole.EXTRA, arrivals=Arrivals.CLOSED, requests=1, seed=0, concurrency=1)
    assert "chunks_beyond_usage" in {caveat.code for caveat in summarise(level, records, 1.0, ClockKind.WALL).caveats}


# Below: HTTP itself. The server writes bytes literally.


@dataclass(slots=True)
class Wire:
    """What a literal server saw."""

    connections: int = 0
    requests: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def literally(
    *pieces: bytes, close: bool = False, then_close_s: float | None = None
) -> AsyncIterator[tuple[str, Wire]]:
    """Answer every request with these bytes, piece by piece; yields (base URL, Wire)."""
    wire = Wire()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                wire.requests.append(head + await reader.readexactly(length))
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if close:
                    break
                if then_close_s is not None:
                    await asyncio.sleep(then_close_s)
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", wire


def chunked(*frames: Send, head: bytes = b"") -> bytes:
    """A whole answer, each frame an HTTP chunk of its own."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(one.data), one.data) for one in frames)
    start = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + head + b"Transfer-Encoding: chunked\r\n\r\n"
    return start + body + b"0\r\n\r\n"


GOOD = (role(), A, delta(content='"\n'), delta(content=" b"), B, usage(5, 4), DONE)
WHOLE = chunked(*GOOD)
BODY = b"".join(one.data for one in GOOD)


def outcome(record: RequestRecord) -> tuple[object, ...]:
    return record.error, record.counted_tokens, record.output_tokens, record.finish_reason, record.status


FINE = (None, 4, 4, "length", 200)


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=10), kind=st.sampled_from(TransportKind))
def test_any_split_of_the_bytes_gives_the_same_record(cuts: list[int], kind: TransportKind) -> None:
    pieces = [WHOLE[a:b] for a, b in itertools.pairwise([0, *sorted(cuts), len(WHOLE)])]

    async def work() -> Records:
        async with literally(*pieces) as (url, _wire):
            return await drive_some(url, options(kind), 2)

    assert [outcome(record) for record in run(new_loop, work())] == [FINE, FINE]


@both_loops
@both_kinds
class TestHttp:
    def driven(
        self, kind: TransportKind, loop_factory: LoopFactory, *pieces: bytes, count: int = 1, **how: Any
    ) -> tuple[Records, Wire]:
        kept: list[Wire] = []

        async def work() -> Records:
            async with literally(*pieces, **how) as (url, wire):
                kept.append(wire)
                return await drive_some(url, options(kind), count)

        return run(loop_factory, work()), kept[0]

    def test_a_connection_is_kept(self, kind: TransportKind, loop_factory: LoopFactory) -> None:
        records, wire = self.driven(kind, loop_factory, WHOLE, count=5)
        assert [outcome(record) for record in records] == [FINE] * 5
        assert wire.connections == 1

    @pytest.mark.parametrize("how", ["header", "silently"])
    def test_a_connection_that_the_server_closes(
        self, kind: TransportKind, loop_factory: LoopFactory, how: str
    ) -> None:
        whole = chunked(*GOOD, head=b"Connection: close\r\n") if how == "header" else WHOLE
        records, wire = self.driven(kind, loop_factory, whole, count=3, close=True)
        # Where it was not announced, the next request may have been written into it: lost, and not sent again.
        assert {record.error for record in records} <= ({None} if how == "header" else {None, "reset"})
        assert 1 < wire.connections <= 4

    def test_the_end_of_the_connection_is_the_end_of_the_answer(
        self, kind: TransportKind, loop_factory: LoopFactory
    ) -> None:
        head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        records, _ = self.driven(kind, loop_factory, head, BODY, close=True)
        assert [outcome(record) for record in records] == [FINE]

    def test_a_length_and_no_chunks(self, kind: TransportKind, loop_factory: LoopFactory) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(BODY)
        records, wire = self.driven(kind, loop_factory, head, BODY, count=2)
        assert [outcome(record) for record in records] == [FINE, FINE]
        assert wire.connections == 1

    def test_less_than_the_length(self, kind: TransportKind, loop_factory: LoopFactory) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"
        records, _ = self.driven(kind, loop_factory, head, A.data, close=True)
        assert [(record.error, record.counted_tokens) for record in records] == [("reset", 1)]

    def test_chunks_that_end_in_the_middle(self, kind: TransportKind, loop_factory: LoopFactory) -> None:
        records, _ = self.driven(kind, loop_factory, WHOLE[: WHOLE.index(b'" b"')], close=True)
        assert [record.error for record in records] == ["reset"]

    def test_hints_before_the_answer(self, kind: TransportKind, loop_factory: LoopFactory) -> None:
        early = b"HTTP/1.1 100 Continue\r\n\r\n"
        records, _ = self.driven(kind, loop_factory, early, WHOLE)
        assert [outcome(record) for record in records] == [FINE]

    @pytest.mark.parametrize("said", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 xx OK\r\n\r\n", b"\0" * 64])
    def test_what_is_no_http(self, kind: TransportKind, loop_factory: LoopFactory, said: bytes) -> None:
        records, _ = self.driven(kind, loop_factory, said, close=True)
        assert [record.error for record in records] == ["protocol"]

    def test_a_chunk_size_that_is_none(self, kind: TransportKind, loop_factory: LoopFactory) -> None:
        broken = WHOLE.replace(b"\r\n\r\n", b"\r\n\r\nzz\r\n", 1)
        records, _ = self.driven(kind, loop_factory, broken, close=True)
        assert [record.error for record in records] in (["protocol"], ["reset"])

    def test_a_long_page_of_an_error(self, kind: TransportKind, loop_factory: LoopFactory) -> None:
        page = b"<html>" + b"x" * 100_000
        head = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: %d\r\n\r\n" % len(page)
        records, _ = self.driven(kind, loop_factory, head, page)
        assert [(r.error, r.status, len(r.message or "")) for r in records] == [("http_5xx", 502, 300)]

    def test_the_next_request_after_an_error(self, kind: TransportKind, loop_factory: LoopFactory) -> None:
        busy = b'HTTP/1.1 503 No\r\nContent-Length: 18\r\n\r\n{"error": "wait!"}'
        records, wire = self.driven(kind, loop_factory, busy, count=3)
        assert [(r.error, r.message) for r in records] == [("http_5xx", "wait!")] * 3
        assert wire.connections == 1

    def test_cancelled_by_the_caller(self, kind: TransportKind, loop_factory: LoopFactory) -> None:
        async def work() -> Records:
            head = WHOLE[: WHOLE.index(b"length")]
            async with literally(head) as (url, _wire):
                task = asyncio.create_task(drive_some(url, options(kind), 4, concurrency=2))
                await asyncio.sleep(0.1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            return ()

        assert run(loop_factory, work()) == ()


def test_raw_connections_are_open_before_the_clock_starts() -> None:
    seen: list[int] = []

    async def work() -> Records:
        async with literally(WHOLE) as (url, wire):
            records = await drive_some(url, options(TransportKind.RAW), 12, concurrency=6)
            seen.append(wire.connections)
            return records

    assert [outcome(record) for record in run(new_loop, work())] == [FINE] * 12
    assert seen == [6]


def test_raw_writes_one_request_as_it_should_be() -> None:
    seen: list[bytes] = []

    async def work() -> Records:
        async with literally(WHOLE) as (url, wire):
            opts = options(TransportKind.RAW, headers=(("X-Team", "a"), ("content-type", "application/json; x=1")))
            records = await drive_some(url.replace("127.0.0.1", "localhost"), opts)
            seen.extend(wire.requests)
            return records

    run(new_loop, work())
    head, _, body = seen[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/chat/completions HTTP/1.1"
    assert lines[1].startswith("Host: localhost:")
    assert lines[2:] == [
        "Accept: */*",
        "User-Agent: vllm-autotune",
        "content-type: application/json; x=1",
        "X-Team: a",
        f"Content-Length: {len(body)}",
    ]


@both_kinds
async def test_a_header_that_would_break_the_request(kind: TransportKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIRE_TEST_KEY", "s3cret\r\nX-Evil: 1")
    with pytest.raises(InvalidOption, match="Authorization") as caught:
        await drive_some("http://127.0.0.1:1", options(kind, api_key_env="WIRE_TEST_KEY"))
    assert "s3cret" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("http://127.0.0.1:8000/v1/completions", True),
        ("http://[::1]:8000/v1/completions", True),
        ("https://127.0.0.1:8000/v1/completions", False),
        ("http://user:word@127.0.0.1:8000/v1/completions", False),
        ("http://127.0.0.1:8000/v1?x=1", False),
        ("http://b\u00fccher:8000/v1", False),
        ("http://127.0.0.1/a b", False),
    ],
)
async def test_what_raw_can_reach(url: str, plain: bool) -> None:
    assert is_plain(url) is plain
    if not plain:
        with pytest.raises(InvalidOption, match="plain http"):
            await drive_some(url, options(TransportKind.RAW, allow_remote=True))


def test_a_head_without_a_path() -> None:
    assert request_head("http://h", {}).startswith(b"POST / HTTP/1.1\r\nHost: h\r\n")
