"""What one chunk of an OpenAI stream says: a token or not, usage, the end, an error.

Parsed by hand and not by pydantic: this runs once per generated token, and all it needs is six keys, each checked for
its type where it is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Channel(StrEnum):
    """Where a token shows. Reasoning is `delta.reasoning` since vLLM 0.11 and `delta.reasoning_content` before."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"


class MalformedChunk(ValueError):
    """The data of a frame is not an OpenAI stream chunk."""


MOST_TOKENS = 100_000_000
"""Of one request, ten times the longest prompt of a workload; a larger count is no count."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The server's own count. `completion_tokens` already includes reasoning tokens; adding them counts twice."""

    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk.

    Attributes:
        channel: where its text shows; None when it carries none (role only, empty text, usage, finish).
        error: the server's message, when the chunk is an error object under HTTP 200.
        done: the `[DONE]` mark. No proof of success: vLLM sends it after an error object, too.
    """

    channel: Channel | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    error: str | None = None
    done: bool = False


def interpret(data: str) -> Chunk:
    """The meaning of a frame's data, for /v1/chat/completions and /v1/completions alike.

    Raises:
        MalformedChunk: not JSON, or not an object.
    """
    if data.strip() == "[DONE]":
        return Chunk(done=True)
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedChunk(f"not JSON: {data[:80]!r}") from error
    if not isinstance(body, dict):
        raise MalformedChunk(f"not an object: {data[:80]!r}")
    message = error_message(body)
    if message is not None:
        return Chunk(error=message)
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    finish = choice.get("finish_reason")
    return Chunk(
        channel=_channel(choice),
        usage=_usage(body.get("usage")),
        finish_reason=finish if isinstance(finish, str) and finish else None,
    )


def error_message(body: dict[str, Any]) -> str | None:
    """The text of an error object, in the shapes servers use; None when there is no error.

    `{"error": {"message": ..., "code": ...}}` (OpenAI, vLLM), `{"error": "..."}`, `{"object": "error", "message": ...}`
    (older vLLM).
    """
    error = body.get("error")
    if isinstance(error, dict):
        text, code = error.get("message"), error.get("code")
        return f"{text or error.get('type') or 'error without a message'}" + (f" (code {code})" if code else "")
    if error:
        return str(error)
    if body.get("object") == "error":
        return str(body.get("message") or "error without a message")
    return None


def _channel(choice: dict[str, Any]) -> Channel | None:
    if _filled(choice.get("text")) or _filled_list(choice.get("token_ids")):
        # Ids alone come from a vLLM without a detokenizer (--skip-tokenizer-init) that was asked to return them.
        return Channel.CONTENT
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return None
    if _filled(delta.get("content")):
        return Channel.CONTENT
    if _filled(delta.get("reasoning")) or _filled(delta.get("reasoning_content")):
        return Channel.REASONING
    calls = delta.get("tool_calls")
    if isinstance(calls, list) and any(_calls(call) for call in calls):
        return Channel.TOOL_CALL
    return None


def _calls(call: object) -> bool:
    """Whether a tool-call delta carries generated text: a name or arguments; an id alone is not generated."""
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and (_filled(function.get("name")) or _filled(function.get("arguments")))


def _filled_list(value: object) -> bool:
    return isinstance(value, list) and bool(value)


def _filled(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _usage(value: object) -> Usage | None:
    if not isinstance(value, dict):
        return None
    return Usage(_count(value.get("prompt_tokens")), _count(value.get("completion_tokens")))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS else None
