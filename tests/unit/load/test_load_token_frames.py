from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.chunks import Channel, Chunk, MalformedChunk, interpret
from autotune.load.reading import Reading
from autotune.load.token_frames import MAX_SHAPE_CHARS, shape_of
from autotune.records import PlannedRequest, RequestRecord


def chat(text: str = "a", **delta: Any) -> str:
    return json.dumps(
        {"id": "x", "choices": [{"index": 0, "delta": delta or {"content": text}, "finish_reason": None}]},
        ensure_ascii=False,
    )


def frame(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


@pytest.mark.parametrize(
    ("data", "channel"),
    [
        (chat(" the"), Channel.CONTENT),
        (chat('say "é" \\ \n'), Channel.CONTENT),
        (chat(reasoning="hm"), Channel.REASONING),
        (chat(reasoning_content="hm", content=None), Channel.REASONING),
        (chat(role="assistant", content="a"), Channel.CONTENT),
        (chat(tool_calls=[{"index": 0, "function": {"arguments": '{"a'}}]), Channel.TOOL_CALL),
        ('{"choices":[{"text":"a","logprobs":null,"finish_reason":null}],"usage":null}', Channel.CONTENT),
        # The text is found by its key, not by its looks: an id may hold the same word.
        ('{"id":"content","choices":[{"delta":{"content":"content"}}]}', Channel.CONTENT),
    ],
)
def test_other_texts_have_the_shape_of_the_first(data: str, channel: Channel) -> None:
    shape = shape_of(data)
    assert shape is not None
    assert shape.channel is channel
    assert shape.fits(frame(data))
    other = shape.head + rb"\u00e9 x\"" + shape.tail
    assert shape.fits(other)
    assert interpret(other.decode()[6:]).channel is channel


@pytest.mark.parametrize(
    "data",
    [
        chat(role="assistant", content=""),
        chat(reasoning="hm", reasoning_content="hm"),  # the text stands in two places
        '{"choices":[{"text":"a","finish_reason":"length"}]}',
        '{"choices":[{"text":"a"}],"usage":{"completion_tokens":1}}',
        '{"choices":[{"text":"a","token_ids":[5]}]}',
        '{"choices":[],"usage":{"completion_tokens":1}}',
        '{"error":{"content":"a"}}',
        '{"note":{"text":"a"},"choices":[]}',
        "[DONE]",
        "",
        '{"choices":[{"text":"' + "a" * MAX_SHAPE_CHARS + '"}]}',
    ],
)
def test_no_shape(data: str) -> None:
    assert shape_of(data) is None


@pytest.mark.parametrize(
    "bad",
    [
        b"",  # no text: no token
        b'a"',
        b"a\\",  # the quote behind it would be the text's
        b"a\nb",
        b"a\tb",
        b"\\x",
        b"\\u12",
        b'a"},"finish_reason":"length","x":{"y":"',
        b"x" * 60_000 + b"\\",
    ],
)
def test_what_is_no_json_string_does_not_fit(bad: bytes) -> None:
    shape = shape_of(chat())
    assert shape is not None
    assert not shape.fits(shape.head + bad + shape.tail)


@given(st.binary(max_size=12) | st.text(max_size=8).map(lambda text: json.dumps(text)[1:-1].encode()))
def test_whatever_fits_is_a_token_and_nothing_else(text: bytes) -> None:
    shape = shape_of(chat())
    assert shape is not None
    candidate = shape.head + text + shape.tail
    if shape.fits(candidate):
        assert interpret(candidate.decode("utf-8", "replace")[6:]) == Chunk(channel=Channel.CONTENT)
    elif text and b'"' not in text:
        # The other way round: it was no JSON.
        with pytest.raises(MalformedChunk):
            interpret(candidate.decode("utf-8", "replace")[6:])


FRAMES = [
    frame(chat(" a")),
    frame(chat(' "é😀\n')),
    frame(chat(" the")).replace(b'"x"', b'"y"'),
    frame(chat(role="assistant", content="")),
    frame(chat(reasoning="hm")),
    frame(chat(reasoning="hm", reasoning_content="hm")),
    frame(chat(" a")).replace(b"\n", b"\r\n"),
    frame(chat(" a")).replace(b"\n\n", b"\r\r"),
    frame('{"choices":[{"text":" t","finish_reason":null}]}'),
    frame('{"choices":[{"text":" t","finish_reason":"length"}]}'),
    frame('{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}}'),
    frame('{"error":{"message":"no"}}'),
    b"event: error\n" + frame(chat(" a")),
    b"event: x\n" + frame(chat(" a")),
    frame(chat(" a"))[6:],
    frame(chat(" a")).replace(b" a", b"a\x01"),
    frame(chat(" a")).replace(b" a", b"\xff"),
    b"data: \n" + frame(chat(" a")),
    b": ping\n\n",
    b"\n",
    b"\r",
    b"data: [DONE]\n\n",
]


def read(pieces: list[bytes]) -> RequestRecord:
    """With every stamp alike: what the record says must not hang on how the bytes came."""
    reading = Reading(PlannedRequest(index=0, prompt_tokens=1, output_tokens=5, content_seed=0), 0.0)
    reading.sent(0.0)
    reading.answered(200)
    for piece in pieces:
        reading.feed(piece, 1.0)
    reading.close(1.0)
    return reading.record()


@given(st.lists(st.sampled_from(FRAMES), max_size=12), st.data())
def test_any_split_gives_the_record_of_single_bytes(frames: list[bytes], data: st.DataObject) -> None:
    """Single bytes never are a whole frame, so that all of them are parsed: the slow oracle."""
    raw = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    pieces = [raw[a:b] for a, b in itertools.pairwise([0, *cuts, len(raw)])]
    oracle = read([bytes([byte]) for byte in raw])
    assert read(pieces) == oracle
    assert read(frames) == oracle


def test_frames_of_one_shape_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def counting(data: str) -> Chunk:
        parsed.append(data)
        return interpret(data)

    monkeypatch.setattr("autotune.load.reading.interpret", counting)
    tokens = [frame(chat(f" word{i}")) for i in range(50)]
    assert read([*tokens, b"data: [DONE]\n\n"]).counted_tokens == 50
    assert len(parsed) == 2
    parsed.clear()
    assert read([b"".join(tokens), b"data: [DONE]\n\n"]).counted_tokens == 50  # all in one read: no shape is known yet
    parsed.clear()
    assert read([tokens[0], b"".join(tokens[1:]), b"data: [DONE]\n\n"]).counted_tokens == 50
    assert len(parsed) == 2


def test_a_server_that_writes_every_frame_differently() -> None:
    tokens = [frame(chat(" a")).replace(b'"x"', f'"{i}"'.encode()) for i in range(100)]
    assert read([*tokens, b"data: [DONE]\n\n"]).counted_tokens == 100


def test_a_shape_that_changes_now_and_then_is_learnt_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """`created` may be the second of the chunk and not of the request."""
    parsed: list[str] = []

    def counting(data: str) -> Chunk:
        parsed.append(data)
        return interpret(data)

    monkeypatch.setattr("autotune.load.reading.interpret", counting)
    tokens = [frame(chat(" a")).replace(b'"x"', f'"{i // 10}"'.encode()) for i in range(1000)]
    assert read([*tokens, b"data: [DONE]\n\n"]).counted_tokens == 1000
    assert len(parsed) == 101
