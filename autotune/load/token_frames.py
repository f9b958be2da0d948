"""Recognises the frames between a stream's first token and its end by their bytes, without parsing JSON. Pure.

A server writes these frames alike but for their text. The first one that is parsed gives their shape, what stands
before and behind the text; frames of that shape are tokens and nothing else, which is proven of each shape by
interpreting it with and without a text. Every other frame (one with usage or a finish reason, say) is parsed. A JSON
parse costs about as much as all else that is done for a chunk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from autotune.load.chunks import Channel, Chunk, MalformedChunk, interpret

MAX_SHAPE_CHARS = 4096
"""Of a frame whose shape is worth keeping; vLLM's are under 400."""

_STRING = r"(?:[^\"\\\x00-\x1f]++|\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4}))++"
"""The inside of a JSON string that is not empty (RFC 8259, section 7). Possessive: no text makes it try twice."""

_OPENING = re.compile(r'"(?:content|text|reasoning|reasoning_content|arguments)":\s?"')
_TEXT = re.compile(_STRING)

is_string = re.compile(_STRING.encode()).fullmatch
"""Whether bytes from one place to another are the inside of a JSON string: `is_string(data, start, end)`."""


@dataclass(frozen=True, slots=True)
class TokenShape:
    """Frames `head` + text + `tail` carry a token and nothing else.

    Attributes:
        head: begins with `data: `.
        tail: ends with the blank line.
    """

    head: bytes
    tail: bytes
    channel: Channel

    def fits(self, frame: bytes) -> bool:
        """Whether these bytes are exactly one frame of this shape. Reading.feed has the same, written out."""
        return (
            frame.startswith(self.head)
            and frame.endswith(self.tail)
            and is_string(frame, len(self.head), len(frame) - len(self.tail)) is not None
        )


def shape_of(data: str) -> TokenShape | None:
    """The shape of a frame with this data, as servers write it (`data: ...`, LF, LF).

    None where the text is in two places (both names of reasoning), where something else changes with it (log
    probabilities, a count), or where it is no token.
    """
    if len(data) > MAX_SHAPE_CHARS or "\n" in data:
        return None
    for opening in _OPENING.finditer(data):
        text = _TEXT.match(data, opening.end())
        if text is None:
            continue
        head, tail = data[: text.start()], data[text.end() :]
        try:
            filled, empty = interpret(f"{head}x{tail}"), interpret(head + tail)
        except MalformedChunk:
            continue
        if filled.channel is not None and filled == Chunk(channel=filled.channel) and empty == Chunk():
            return TokenShape(b"data: " + head.encode(), tail.encode() + b"\n\n", filled.channel)
    return None
