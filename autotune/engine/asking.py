"""Asking a server for log-probabilities and greedy tokens, one prompt after the other.

vLLM's completions API gives both in one answer: `prompt_logprobs` is its own extension, the rest is OpenAI's. Requests
follow one another, because what else is in a batch changes the last bits of what is computed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import aiohttp
from pydantic import BaseModel, ValidationError

from autotune.quality.answers import Answer, Answers
from autotune.quality.prompts import QualityPrompt

MOST_BYTES = 64 * 1024 * 1024
REQUEST_S = 120.0


class _LogProb(BaseModel):
    logprob: float
    rank: int | None = None


class _Tokens(BaseModel):
    tokens: list[str]


class _Choice(BaseModel):
    text: str = ""
    logprobs: _Tokens | None = None
    prompt_logprobs: list[dict[int, _LogProb] | None] | None = None


class _Completion(BaseModel):
    choices: list[_Choice]


class _Refused(Exception):
    """The server gives no answer that can be compared."""


async def ask_server(
    base_url: str,
    model: str,
    prompts: Sequence[QualityPrompt],
    *,
    output_tokens: int,
    deadline_s: float,
    api_key: str | None = None,
) -> Answers:
    """Every prompt's answer; what stands in the way is told in `problem`, never raised.

    Args:
        deadline_s: of all prompts together.
        api_key: bearer token; never shown.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    begun = time.monotonic()
    found: list[Answer] = []
    timeout = aiohttp.ClientTimeout(total=REQUEST_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            for prompt in prompts:
                if time.monotonic() - begun > deadline_s:
                    return _none(f"{len(found)} of {len(prompts)} prompts were answered in {deadline_s:.0f} s", begun)
                body = {
                    "model": model,
                    "prompt": prompt.text,
                    "max_tokens": output_tokens,
                    "temperature": 0,
                    "seed": 0,
                    "logprobs": 1,
                    "prompt_logprobs": 0,
                }
                async with session.post(f"{base_url}/v1/completions", json=body, allow_redirects=False) as response:
                    text = await _read(response)
                    if response.status != 200:
                        raise _Refused(f"the server answered {response.status} to a request for log-probabilities")
                found.append(_answer(prompt.name, text))
    except _Refused as refused:
        return _none(str(refused), begun)
    except TimeoutError:
        return _none(f"no answer within {REQUEST_S:.0f} s", begun)
    except (aiohttp.ClientError, OSError) as error:
        return _none(f"no answer: {error or type(error).__name__}", begun)
    return Answers(answers=tuple(found), seconds=time.monotonic() - begun)


def _answer(name: str, text: bytes) -> Answer:
    try:
        choice = _Completion.model_validate_json(text).choices[0]
    except (ValidationError, IndexError):
        raise _Refused("the server's answer is no completion") from None
    if choice.prompt_logprobs is None or choice.logprobs is None:
        raise _Refused("the server gives no log-probabilities of prompts (vLLM does, as prompt_logprobs)")
    # Of the first token there is none. With 0 asked for, an entry holds the prompt's own token alone.
    scored = [next(iter(one.items())) for one in choice.prompt_logprobs if one]
    return Answer(
        name=name,
        prompt_ids=tuple(token for token, _ in scored),
        logprobs=tuple(one.logprob for _, one in scored),
        greedy=tuple(choice.logprobs.tokens),
    )


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = b""
    while piece := await response.content.readany():
        body += piece
        if len(body) > MOST_BYTES:
            raise _Refused("the server's answer is too long")
    return body


def _none(problem: str, begun: float) -> Answers:
    return Answers(problem=problem, seconds=time.monotonic() - begun)
