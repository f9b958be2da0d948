"""The OpenAI objects of the simulated server: requests parsed at the border, answers in vLLM's form. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

VOCABULARY = 32_000
DEFAULT_COMPLETION_TOKENS = 16
"""`max_tokens` of /v1/completions where the request does not say."""


class BadRequest(Exception):
    """An answer other than 200, in vLLM's form."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="allow")
    include_usage: bool = False


_Model = TypeVar("_Model", bound=BaseModel)
_Ids = list[Annotated[int, Field(ge=0)]]


class _Common(BaseModel):
    """vLLM ignores fields it does not know, and so does this."""

    model_config = ConfigDict(extra="allow")
    model: str | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=0)
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False


class _Completion(_Common):
    prompt: str | _Ids | list[str] | list[_Ids]


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow")
    role: str
    content: str | list[dict[str, Any]] | None = None


class _Chat(_Common):
    messages: list[_Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=0)


class _Tokenize(BaseModel):
    model_config = ConfigDict(extra="allow")
    model: str | None = None
    prompt: str | None = None
    messages: list[_Message] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One parsed request. `prompts` are token ids, one list per choice."""

    chat: bool
    model: str | None
    prompts: tuple[tuple[int, ...], ...]
    stream: bool
    include_usage: bool
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool

    def output_tokens(self, prompt: Sequence[int], max_model_len: int) -> int:
        """How many tokens to generate for `prompt`.

        Without `ignore_eos` the answer ends by itself after a length that depends on the prompt only.

        Raises:
            BadRequest: the prompt, or prompt and output together, exceed the context.
        """
        length = len(prompt)
        if length >= max_model_len:
            raise BadRequest(
                f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
                f"{length} "
                "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of "
                "the "
                "input prompt.",
                param="input_tokens",
            )
        room = max_model_len - length
        default = room if self.chat else min(room, DEFAULT_COMPLETION_TOKENS)
        limit = default if self.max_tokens is None else self.max_tokens
        if limit > room:
            raise BadRequest(
                f"This model's maximum context length is {max_model_len} tokens. However, you requested {limit} output "
                f"tokens and your prompt contains at least {length} input tokens, for a total of at least "
                f"{length + limit} tokens. Please reduce the length of the input prompt or the number of requested "
                "output "
                "tokens.",
                param="input_tokens",
            )
        if self.ignore_eos:
            return max(1, limit)
        natural = 16 + zlib.crc32(repr(tuple(prompt[-64:])).encode()) % 240
        return max(1, min(limit, max(natural, self.min_tokens)))


def parse_completion(body: bytes) -> Wanted:
    """A body of /v1/completions.

    Raises:
        BadRequest: not JSON, or not of the right form.
    """
    request = _parse(_Completion, body)
    prompt = request.prompt
    if isinstance(prompt, str):
        prompts = [tokenize(prompt)]
    elif all(isinstance(item, int) for item in prompt):
        prompts = [tuple(prompt)]  # type: ignore[arg-type]  # all() does not narrow the union
    else:
        # Not a list of numbers alone, which the type checker does not see.
        lists = cast("list[str | list[int]]", prompt)
        prompts = [tokenize(item) if isinstance(item, str) else tuple(item) for item in lists]
    if not prompts or not all(prompts):
        raise BadRequest("The decoder prompt cannot be empty", param="prompt")
    return _wanted(request, tuple(prompts), request.max_tokens, chat=False)


def parse_chat(body: bytes) -> Wanted:
    """A body of /v1/chat/completions.

    Raises:
        BadRequest: not JSON, or not of the right form.
    """
    request = _parse(_Chat, body)
    limit = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    return _wanted(request, (_render_chat(request.messages),), limit, chat=True)


def parse_tokenize(body: bytes) -> tuple[str | None, tuple[int, ...]]:
    """Model and tokens of a body of /tokenize.

    Raises:
        BadRequest: not JSON, or neither prompt nor messages.
    """
    request = _parse(_Tokenize, body)
    if request.messages is not None:
        return request.model, _render_chat(request.messages)
    if request.prompt is None:
        raise BadRequest("Either prompt or messages must be given.", param="prompt")
    return request.model, tokenize(request.prompt)


def tokenize(text: str) -> tuple[int, ...]:
    """One token per word between blanks; the same word is always the same token."""
    return tuple(zlib.crc32(word.encode("utf-8", "surrogatepass")) % VOCABULARY for word in text.split())


def block_keys(tokens: Sequence[int], block_size: int) -> list[int]:
    """Chained content keys of the full blocks: a key stands for its block and everything before it."""
    keys: list[int] = []
    key = 0
    for start in range(0, len(tokens) - block_size + 1, block_size):
        # Hashes of ints and of tuples of ints do not depend on PYTHONHASHSEED.
        key = hash((key, *tokens[start : start + block_size]))
        keys.append(key)
    return keys


def words(first: int, count: int) -> str:
    """The text of `count` generated tokens from number `first`."""
    return "".join(f" w{number % VOCABULARY}" for number in range(first, first + count))


def frame(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, object]:
    """The usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None,
    }


def _render_chat(messages: Sequence[_Message]) -> tuple[int, ...]:
    parts = []
    for message in messages:
        content = message.content or ""
        if not isinstance(content, str):
            content = " ".join(str(part.get("text", "")) for part in content)
        parts.append(f"{message.role}: {content}")
    return tokenize("\n".join([*parts, "assistant:"]))


def _wanted(request: _Common, prompts: tuple[tuple[int, ...], ...], limit: int | None, *, chat: bool) -> Wanted:
    return Wanted(
        chat=chat,
        model=request.model,
        prompts=prompts,
        stream=request.stream,
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        max_tokens=limit,
        min_tokens=request.min_tokens,
        ignore_eos=request.ignore_eos,
    )


def _parse(kind: type[_Model], body: bytes) -> _Model:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadRequest(f"{first['msg']} ({where})" if where else str(first["msg"]), param=where or None) from None
