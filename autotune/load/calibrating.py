"""How a server counts tokens, asked of the server itself: by vLLM's /tokenize, else by requests of one token."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import aiohttp

from autotune.load.client import DriveOptions, auth_headers, check_url, drive, prompt_fields
from autotune.load.prompts import (
    Calibration,
    Prompt,
    WordPool,
    choose_pool,
    fit_calibration,
    pool_groups,
    pool_texts,
)
from autotune.load.words import COMMON_WORDS
from autotune.records import Arrivals, LevelRole, LoadLevel, PlannedRequest, RequestRecord

PIECE_WORDS = 100
"""Words per text of a calibration: short enough for any context length."""

DEADLINE_S = 60.0
"""Of all its calls together: a server that counts so slowly is measured with words for tokens."""


async def calibrate(
    base_url: str, options: DriveOptions, words: Sequence[str] = COMMON_WORDS, *, deadline_s: float = DEADLINE_S
) -> Calibration | None:
    """How the server's tokenizer counts `words`, by vLLM's /tokenize; None when the server has none that works in time.

    Raises:
        InvalidOption: `base_url` is not one that load may go to.
    """
    texts, halves = _cuts(words)
    counts = await count_tokens(base_url, options, [*texts, *halves], deadline_s=deadline_s)
    return _line(words, texts, counts)


async def calibrate_by_requests(
    base_url: str, options: DriveOptions, words: Sequence[str] = COMMON_WORDS, *, deadline_s: float = DEADLINE_S
) -> Calibration | None:
    """The same from the usage of real requests, for a server without /tokenize.

    Raises:
        InvalidOption: `base_url` is not one that load may go to.
    """
    texts, halves = _cuts(words)
    counts = await count_by_requests(base_url, options, [*texts, *halves], deadline_s=deadline_s)
    return _line(words, texts, counts)


async def pool_of_server(
    base_url: str, options: DriveOptions, words: Sequence[str] = COMMON_WORDS, *, deadline_s: float = DEADLINE_S
) -> WordPool | None:
    """The words that are one token each for the server, and its overhead, by /tokenize; None where it cannot tell.

    Raises:
        InvalidOption: `base_url` is not one that load may go to.
    """
    groups = pool_groups(words)
    texts = [text for pair in pool_texts(groups) for text in pair]
    counts = await count_tokens(base_url, options, texts, deadline_s=deadline_s)
    return None if counts is None else choose_pool(groups, list(zip(counts[::2], counts[1::2], strict=True)))


async def count_tokens(
    base_url: str, options: DriveOptions, texts: Sequence[str], *, deadline_s: float = DEADLINE_S
) -> list[int] | None:
    """Tokens of each text as a prompt of `options.api`, template included, by /tokenize; None where it cannot tell.

    Raises:
        InvalidOption: `base_url` is not one that load may go to.
    """
    base = check_url(base_url, allow_remote=options.allow_remote)
    try:
        async with asyncio.timeout(deadline_s), aiohttp.ClientSession(headers=auth_headers(options)) as session:
            return [await _tokenize(session, base, text, options) for text in texts]
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


async def count_by_requests(
    base_url: str, options: DriveOptions, prompts: Sequence[Prompt], *, deadline_s: float = DEADLINE_S
) -> list[int] | None:
    """Tokens of each prompt by the usage of a request for one token; None as soon as one of them does not tell.

    Raises:
        InvalidOption: `base_url` is not one that load may go to.
    """
    records = await ask(base_url, options, prompts, output_tokens=1, deadline_s=deadline_s)
    counts = [record.prompt_tokens for record in records if record.error is None and record.prompt_tokens is not None]
    return counts if len(counts) == len(prompts) else None


async def ask(
    base_url: str,
    options: DriveOptions,
    prompts: Sequence[Prompt],
    *,
    output_tokens: int,
    deadline_s: float = DEADLINE_S,
) -> tuple[RequestRecord, ...]:
    """Send these prompts one after the other; nothing is raised for what the server answers.

    Raises:
        InvalidOption: `base_url` is not one that load may go to.
    """
    level = LoadLevel(
        name="ask",
        role=LevelRole.WARMUP,
        arrivals=Arrivals.CLOSED,
        requests=len(prompts),
        seed=0,
        concurrency=1,
    )
    planned = [
        PlannedRequest(index=at, prompt_tokens=1, output_tokens=output_tokens, content_seed=0)
        for at in range(len(prompts))
    ]
    asking = replace(
        options,
        render=lambda request: prompts[request.index],
        deadline_s=deadline_s,
        abort=None,
        on_record=None,
        before_start=None,
    )
    records, _ = await drive(base_url, level, planned, options=asking)
    return records


def _cuts(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words in texts of PIECE_WORDS, and in twice as many texts."""
    pieces = [list(words[at : at + PIECE_WORDS]) for at in range(0, len(words), PIECE_WORDS)]
    halves = [half for piece in pieces for half in (piece[: len(piece) // 2], piece[len(piece) // 2 :])]
    return [" ".join(piece) for piece in pieces], [" ".join(half) for half in halves]


def _line(words: Sequence[str], texts: Sequence[str], counts: Sequence[int] | None) -> Calibration | None:
    if counts is None:
        return None
    whole, halved = sum(counts[: len(texts)]), sum(counts[len(texts) :])
    try:
        return fit_calibration(words=len(words), pieces=len(texts), tokens=whole, tokens_halved=halved)
    except ValueError:
        return None


async def _tokenize(session: aiohttp.ClientSession, base: str, text: str, options: DriveOptions) -> int:
    body = {"model": options.model} | prompt_fields(text, options.api)
    async with session.post(f"{base}/tokenize", json=body, allow_redirects=False) as response:
        response.raise_for_status()
        answer = await response.json()
    count = answer.get("count") if isinstance(answer, dict) else None
    if not isinstance(count, int):
        raise ValueError("/tokenize gave no count")
    return count
