"""Requests in JSON: conversations (ShareGPT, LMSYS), logs of OpenAI requests, Mooncake's traces. A push reader, pure.

```
ShareGPT   {"conversations": [{"from": "human", "value": ..}, {"from": "gpt", "value": ..}, ..]}
request    {"messages": [..] | "prompt": "..", "max_tokens": ..}, bare or as "body" or "request",
           beside it "response" (choices, usage) or "usage", and a time
Mooncake   {"timestamp": ms, "input_length": .., "output_length": .., "hash_ids": [..]}, 512 tokens a block
lengths    {"prompt_tokens": .., "completion_tokens": ..} and the like, with a time in seconds or not
```
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from autotune.errors import InvalidFile
from autotune.load.prompts import ChatMessage, Conversation
from autotune.load.trace_fields import (
    NO_OUTPUT,
    NO_PROMPT,
    OUTPUT_NAMES,
    PROMPT_NAMES,
    TIME_NAMES,
    Ordered,
    seconds_of,
    tokens_of,
)
from autotune.load.traces import RawRow, block_id

MOONCAKE_BLOCK_TOKENS = 512
BYTES_PER_TOKEN = 4.0
"""Of UTF-8, to estimate tokens without a tokenizer: English has about 4 characters a token, and a Chinese or Korean
character (3 bytes) is about 0.75 of one."""

_MAX_COUNTS = 1_000

PIECE_CHARS = 2_048
"""Real prompts are compared in pieces of this many characters, about a Mooncake block: equal openings are shared."""


NOT_TEXT = "parts that are no text (pictures, sound)"

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
}
_ALLOWED = (
    "a conversation (`conversations` of from and value), a request (`messages` or `prompt`), or lengths "
    "(`input_length` and `output_length`, `prompt_tokens` and `completion_tokens`)"
)


class JsonRows:
    """Objects in, requests out.

    Attributes:
        texts: real prompts, by the `text_index` of their rows.
        text_chars: their size together.
        blocks: in all prompts so far.
        ordered: False once conversations stood one after the other.
        estimated: whether tokens of a text had to be estimated.
        skipped: requests left out so far, by reason.
    """

    def __init__(self, file: str, count_tokens: Callable[[str], int] | None = None) -> None:
        self._file = file
        self._count = count_tokens
        self._order = Ordered(file)
        self._rows = 0
        self._counts: dict[str, int] = {}
        self._said: dict[int, int] = {}
        self._hash = hashlib.sha256()
        self.source = "a log"
        self.texts: list[str | Conversation] = []
        self.text_chars = 0
        self.blocks = 0
        self.ordered = True
        self.estimated = False
        self.skipped: Counter[str] = Counter()

    @property
    def text_digest(self) -> str:
        """Of all texts so far; empty when there were none."""
        return self._hash.hexdigest() if self.texts else ""

    def feed(self, value: object, where: str) -> Iterator[RawRow]:
        """The requests of one object; `where` is its place for errors.

        Raises:
            InvalidFile: it is no such object, or a value in it is none.
        """
        if not isinstance(value, Mapping):
            self._refuse(where, value, f"an object: {_ALLOWED}")
        talk = value.get("conversations", value.get("conversation"))
        request = next((v for v in (value.get("body"), value.get("request")) if isinstance(v, Mapping)), value)
        if talk is not None:
            self.source, self.ordered = "a file of conversations", False
            yield from self._conversation(talk, where)
        elif "messages" in request or "prompt" in request:
            self.source = "a log of requests"
            yield from self._request(value, request, where)
        else:
            yield from self._lengths(value, where)

    # Lengths alone

    def _lengths(self, value: Mapping[str, Any], where: str) -> Iterator[RawRow]:
        usage, _ = _answer(value)
        value = {**usage, **value}  # a log that keeps what was counted and not what was said
        folded = {str(key).casefold(): key for key in value}
        prompt, output = (
            next((folded[n] for n in names if n in folded), None) for names in (PROMPT_NAMES, OUTPUT_NAMES)
        )
        if prompt is None or output is None:
            self._refuse(where, sorted(map(str, value))[:12], f"the keys of {_ALLOWED}")
        mooncake = "hash_ids" in value or prompt == "input_length"
        self.source = "a trace in Mooncake's form" if "hash_ids" in value else "a log of lengths"
        at_s = self._time(value, where, milliseconds=mooncake)
        asked = tokens_of(value[prompt], file=self._file, where=f"{where}, {prompt}")
        given = tokens_of(value[output], file=self._file, where=f"{where}, {output}")
        blocks = self._hash_blocks(value["hash_ids"], asked, where) if value.get("hash_ids") is not None else ()
        if asked and given:
            yield self._kept(RawRow(prompt_tokens=asked, output_tokens=given, at_s=at_s, blocks=blocks))
        else:
            self.skipped[NO_OUTPUT if asked else NO_PROMPT] += 1

    def _hash_blocks(self, ids: object, prompt_tokens: int, where: str) -> tuple[tuple[int, int], ...]:
        """Blocks of 512 tokens; the last one holds what is left of the prompt."""
        place = f"{where}, hash_ids"
        if not isinstance(ids, list) or any(isinstance(i, bool) or not isinstance(i, int | str) for i in ids):
            self._refuse(place, ids, "a list of whole numbers or texts")
        needed = -(-prompt_tokens // MOONCAKE_BLOCK_TOKENS)
        if len(ids) > needed:
            allowed = f"at most {needed} blocks of {MOONCAKE_BLOCK_TOKENS} tokens for a prompt of {prompt_tokens:,}"
            self._refuse(place, f"{len(ids)} blocks", allowed)
        sizes = [min(MOONCAKE_BLOCK_TOKENS, prompt_tokens - i * MOONCAKE_BLOCK_TOKENS) for i in range(len(ids))]
        return tuple((block_id(name), size) for name, size in zip(ids, sizes, strict=True))

    # Conversations

    def _conversation(self, talk: object, where: str) -> Iterator[RawRow]:
        """One request for each answer; its prompt is all that was said before."""
        messages = self._messages(talk, f"{where}, conversations")
        if messages is None:
            self.skipped[NOT_TEXT] += 1
            return
        previous = None
        for at, message in enumerate(messages):
            if message.role != "assistant":
                continue
            if not any(m.role == "user" and m.content for m in messages[:at]):
                self.skipped[NO_PROMPT] += 1
            elif not message.content:
                self.skipped[NO_OUTPUT] += 1
            else:
                row = self._spoken(messages[:at], self._tokens(message.content), after=previous)
                previous = self._rows
                yield self._kept(row)

    # Requests

    def _request(self, record: Mapping[str, Any], request: Mapping[str, Any], where: str) -> Iterator[RawRow]:
        at_s = self._time(record, where)
        prompt = request.get("prompt")
        if "messages" in request:
            messages = self._messages(request["messages"], f"{where}, messages")
        elif isinstance(prompt, str):
            messages = (ChatMessage(role="user", content=prompt),)
        else:
            messages = None if isinstance(prompt, list) else self._refuse(f"{where}, prompt", prompt, "a text")
        if messages is None:
            self.skipped[NOT_TEXT] += 1
            return
        usage, answer = _answer(record)
        if messages and messages[-1].role == "assistant":
            # A finished exchange, as fine-tuning files have them.
            answer, messages = answer or messages[-1].content, messages[:-1]
        output = self._output(usage, answer, request, where)
        if not any(message.content for message in messages):
            self.skipped[NO_PROMPT] += 1
        elif not output:
            self.skipped[NO_OUTPUT] += 1
        else:
            known = usage.get("prompt_tokens") if self._count is None else None
            counted = (
                None if known is None else tokens_of(known, file=self._file, where=f"{where}, usage.prompt_tokens")
            )
            yield self._kept(self._spoken(messages, output, at_s=at_s, prompt_tokens=counted or None))

    def _output(self, usage: Mapping[str, Any], answer: str, request: Mapping[str, Any], where: str) -> int:
        """Generated tokens: what the server counted, else those of the answer, else the most that was allowed."""
        if usage.get("completion_tokens") is not None:
            return tokens_of(usage["completion_tokens"], file=self._file, where=f"{where}, usage.completion_tokens")
        if answer:
            return self._tokens(answer)
        for key in ("max_completion_tokens", "max_tokens"):
            if request.get(key) is not None:
                return tokens_of(request[key], file=self._file, where=f"{where}, {key}")
        allowed = "usage.completion_tokens, a response with its text, or max_tokens"
        raise InvalidFile(self._file, where, "no length of the output", allowed)

    # Texts

    def _messages(self, value: object, where: str) -> tuple[ChatMessage, ...] | None:
        """Messages of text; None when one of them is something else."""
        if not isinstance(value, list):
            self._refuse(where, value, "a list of messages")
        found = []
        for number, message in enumerate(value):
            place = f"{where}.{number}"
            if not isinstance(message, Mapping):
                self._refuse(place, message, "an object with role and content, or from and value")
            who = message.get("role", message.get("from"))
            role = _ROLES.get(who.casefold()) if isinstance(who, str) else None
            if role is None:
                self._refuse(f"{place}.role", who, f"one of {', '.join(_ROLES)}")
            content = message.get("content", message.get("value"))
            text = _text(content)
            if text is None:
                return None
            found.append(ChatMessage(role=role, content=text))
        return tuple(found)

    def _spoken(
        self,
        messages: tuple[ChatMessage, ...],
        output: int,
        *,
        at_s: float | None = None,
        after: int | None = None,
        prompt_tokens: int | None = None,
    ) -> RawRow:
        """A row with its prompt kept; `prompt_tokens` overrides the count of its messages."""
        counts = [self._tokens(message.content) if prompt_tokens is None else 0 for message in messages]
        sizes = [len(message.content) for message in messages]
        if prompt_tokens is not None:
            counts = _dealt(prompt_tokens, sizes)
        blocks, so_far = [], 0
        ends = []
        for message, tokens in zip(messages, counts, strict=True):
            pieces = range(0, max(1, len(message.content)), PIECE_CHARS)
            texts = [message.content[at : at + PIECE_CHARS] for at in pieces]
            for text, size in zip(texts, _dealt(tokens, [len(text) for text in texts]), strict=True):
                so_far = block_id(so_far, message.role, text)
                blocks.append((so_far, size))
            ends.append(so_far)
        self.text_chars += sizes[-1] if after is not None else sum(sizes)
        if after is None:
            after = next((self._said[end] for end in reversed(ends[:-1]) if end in self._said), None)
        self._said[so_far] = self._rows
        single = len(messages) == 1 and messages[0].role == "user"
        self.texts.append(messages[0].content if single else Conversation(messages=messages))
        self._hash.update(so_far.to_bytes(8))
        return RawRow(
            prompt_tokens=max(1, sum(counts)),
            output_tokens=output,
            at_s=at_s,
            blocks=tuple(blocks),
            after=after,
            text_index=len(self.texts) - 1,
        )

    def _tokens(self, text: str) -> int:
        if self._count is not None:
            # A system prompt, and the history of a conversation, come again and again.
            if len(self._counts) > _MAX_COUNTS:
                self._counts.clear()
            if text not in self._counts:
                self._counts[text] = self._count(text)
            return self._counts[text]
        self.estimated = self.estimated or bool(text)
        return round(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN) or int(bool(text))

    def _time(self, record: Mapping[str, Any], where: str, *, milliseconds: bool = False) -> float | None:
        found = next((name for name in TIME_NAMES if record.get(name) is not None), None)
        place, value = f"{where}, {found or 'timestamp'}", record.get(found) if found else None
        at_s = None
        if found is not None:
            at_s = seconds_of(value, file=self._file, where=place, milliseconds=milliseconds or found.endswith("_ms"))
        self._order.check(at_s, place, value)
        return at_s

    def _kept(self, row: RawRow) -> RawRow:
        self._rows += 1
        self.blocks += len(row.blocks)
        return row

    def _refuse(self, where: str, value: object, allowed: str) -> NoReturn:
        raise InvalidFile(self._file, where, value, allowed)


def parse_json(text: str, file: str, where: str) -> Any:
    """One JSON value of untrusted text.

    Raises:
        InvalidFile: no JSON, NaN or infinity, a number of thousands of digits, nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        seen = text[error.pos : error.pos + 40].strip() or "the end"
        raise InvalidFile(file, f"{where}, column {error.pos + 1}", seen, f"JSON ({error.msg})") from None
    except RecursionError:
        raise InvalidFile(file, where, "nested too deeply", "JSON") from None
    except ValueError as error:
        raise InvalidFile(file, where, str(error), "JSON with finite numbers") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"the number {name}")


def _answer(record: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Usage and text of the recorded response; empty where there is none."""
    response = record.get("response")
    if isinstance(response, Mapping) and isinstance(response.get("body"), Mapping):
        response = response["body"]
    if isinstance(response, str):
        return _mapping(record.get("usage")), response
    usage = _mapping(record.get("usage")) or _mapping(_mapping(response).get("usage"))
    choices = _mapping(response).get("choices")
    first = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
    content = _mapping(first.get("message")).get("content", first.get("text"))
    return usage, _text(content) or ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(content: object) -> str | None:
    """The text of a message's content; None where it has parts that are none. A tool call alone has an empty one."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) if len(texts) == len(parts) else None


def _dealt(tokens: int, sizes: list[int]) -> list[int]:
    """`tokens` dealt out by size, rounded so that they add up."""
    whole, given, dealt, seen = max(1, sum(sizes)), 0, [], 0
    for size in sizes:
        seen += size
        upto = round(tokens * seen / whole)
        dealt.append(upto - given)
        given = upto
    return dealt
