from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.sse import Frame, FrameTooLarge, SseParser


def parse(*pieces: bytes, close: bool = False) -> list[Frame]:
    parser = SseParser()
    frames = [f for i, piece in enumerate(pieces) for f in parser.feed(piece, float(i))]
    return frames + (parser.close(99.0) if close else [])


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        # The examples of the HTML standard, section 9.2.6.
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [("YHOO\n+2\n10", None)]),
        (
            b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
            [("first event", None), ("second event", None), (" third event", None)],
        ),
        (b"data\n\ndata\ndata\n\ndata:", [("", None), ("\n", None)]),
        (b"data:test\n\ndata: test\n\n", [("test", None), ("test", None)]),
        # Ours.
        (b"event: error\ndata: x\n\ndata: y\n\n", [("x", "error"), ("y", None)]),
        (b"event: error\n\n", [("", "error")]),
        (b"event: ping\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", [("a", None)]),
        (b"retry: 5\nnonsense\n\n", []),
        (b"data: a:b: c\n\n", [("a:b: c", None)]),
        (b"data: \xff\n\n", [("\ufffd", None)]),
    ],
)
def test_grammar(stream: bytes, expected: list[tuple[str, str | None]]) -> None:
    assert [(f.data, f.event) for f in parse(stream)] == expected


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends_split_at_every_byte(end: bytes) -> None:
    stream = "event: m\ndata: é😀\ndata: 2\n\ndata: [DONE]\n\n".encode().replace(b"\n", end)
    frames = parse(*[bytes([b]) for b in stream])
    assert [(f.data, f.event) for f in frames] == [("é😀\n2", "m"), ("[DONE]", None)]


def test_a_frame_is_stamped_when_it_is_complete() -> None:
    frames = parse(b"data: a", b"\n", b"\ndata: b\n", b"\n")
    assert [f.at_s for f in frames] == [2.0, 3.0]


def test_close_gives_out_whole_lines_only() -> None:
    assert [f.data for f in parse(b"data: [DONE]\n", close=True)] == ["[DONE]"]
    assert parse(b"data: [DON", close=True) == []


def test_bounded() -> None:
    parser = SseParser(max_frame_bytes=100)
    for _ in range(100):
        parser.feed(b"x", 0.0)
    with pytest.raises(FrameTooLarge):
        parser.feed(b"x", 0.0)
    parser = SseParser(max_frame_bytes=100)
    with pytest.raises(FrameTooLarge):
        parser.feed(b"data: 0123456789\n" * 11, 0.0)
    parser = SseParser(max_frame_bytes=100)
    for _ in range(50):
        parser.feed(b"data: 0123456789\n\n", 0.0)


def oracle(text: str) -> list[tuple[str, str | None]]:
    """The standard's algorithm, a line at a time over decoded text."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    found: list[tuple[str, str | None]] = []
    data: list[str] = []
    event: str | None = None
    for line in lines:
        if line == "":
            if data or event == "error":
                found.append(("\n".join(data), event))
            data, event = [], None
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "data":
                data.append(value)
            elif name == "event":
                event = value
    return found


@given(
    st.lists(
        st.sampled_from(
            ["data: ", "data:", "event: error", "event: x", ": c", "é😀", " ", ":", "\n", "\r\n", "\r", "\n\n"]
        ),
        max_size=40,
    ),
    st.data(),
)
def test_any_split_gives_what_the_standard_says(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    bounds = [0, *cuts, len(raw)]
    pieces = [raw[a:b] for a, b in itertools.pairwise(bounds)]
    assert [(f.data, f.event) for f in parse(*pieces)] == oracle(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_survived(raw: bytes) -> None:
    parser = SseParser()
    parser.feed(raw, 0.0)
    parser.close(0.0)
