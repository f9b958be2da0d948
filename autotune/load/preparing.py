"""How prompts are written for one server, settled by asking it: exact where that is possible, with a doubt where not.

```
tokenizer found      pooled words or fitted text; the server says what it adds to a prompt (/tokenize, or usage)
server has /tokenize pooled words chosen by its counts
neither              token ids on /v1/completions, when the vocabulary's size is known
none of these        words, calibrated where the server counts at all
```
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from autotune.load.calibrating import (
    DEADLINE_S,
    ask,
    calibrate,
    calibrate_by_requests,
    count_by_requests,
    count_tokens,
    pool_of_server,
)
from autotune.load.client import DriveOptions
from autotune.load.fitting import FittedPrompts
from autotune.load.prompts import (
    Calibration,
    Prompt,
    Render,
    TokenIds,
    WordPool,
    draw,
    id_range,
    render_ids,
    render_pooled,
    render_prompt,
)
from autotune.load.tokenizing import TextTokenizer
from autotune.load.words import COMMON_WORDS
from autotune.load.workloads import Api
from autotune.records import Caveat, PlannedRequest

SAMPLE_WORDS = (8, 40, 200)
"""Lengths of the texts by which the server's overhead is found: it must be the same for all of them."""

_PROBE_IDS = 16
_LEAST_S = 0.2
"""Left to each further question when the time is over: enough to be told that there is no such route."""

_VOCABULARIES = (100_000, 30_000, 1_000)
"""Guesses at the size of a vocabulary nobody told, the largest that the server takes; most are 32,000 to 256,000."""

_UNCALIBRATED = Caveat(
    code="uncalibrated",
    text="the server did not say how its tokenizer counts (/tokenize), so prompts were not calibrated and their "
    "lengths are a guess",
    remedy="Check that the server offers /tokenize; compare the trial only with others that have this caveat.",
)
_COMPLETIONS_INSTEAD = Caveat(
    code="completions_instead",
    text="prompts were sent as token ids to /v1/completions, because no tokenizer could be had; the workload asks for "
    "the chat API, whose template and parsing were so not exercised",
    remedy="Put the model's tokenizer.json where it can be read (a local folder or the Hugging Face cache).",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSource:
    """What prompts of a study can be made from, before any server was asked.

    Attributes:
        api: the endpoint that the workload asks for.
        study_salt: of the shared spans' content.
        tokenizer: the model's, where it was found.
        vocab_size: of the model's shape; None where unknown.
        texts: the workload's own prompts, sent as they are where a request names one.
    """

    api: Api
    study_salt: int = 0
    tokenizer: TextTokenizer | None = None
    vocab_size: int | None = None
    texts: Sequence[Prompt] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPrompts:
    """How prompts are written for this server.

    Attributes:
        api: the endpoint they go to.
        exact: the server counts the tokens asked for, within one or two.
        return_token_ids: the server shows tokens only by their ids (it has no detokenizer).
        caveats: doubts about every level that is driven with them.
    """

    api: Api
    render: Render
    exact: bool
    return_token_ids: bool = False
    caveats: tuple[Caveat, ...] = ()

    def over(self, options: DriveOptions) -> DriveOptions:
        """The load client's options with these prompts."""
        return replace(options, api=self.api, render=self.render, return_token_ids=self.return_token_ids)


async def prepare_prompts(
    base_url: str,
    source: PromptSource,
    options: DriveOptions,
    *,
    may_request: bool = False,
    deadline_s: float = DEADLINE_S,
) -> PreparedPrompts:
    """Settle how prompts are written. Asks the server some hundred short questions, in `deadline_s` altogether.

    Args:
        options: model, key, time limits; API and prompts in it are not used.
        may_request: real requests (of one token) may be sent where /tokenize is missing, and a vocabulary guessed.

    Raises:
        InvalidOption: `base_url` is not one that load may go to.
    """
    asking = replace(options, api=source.api)
    clock = asyncio.get_running_loop().time
    end_s = clock() + deadline_s

    def left_s() -> float:
        return max(_LEAST_S, end_s - clock())

    made = await _by_tokenizer(base_url, source, asking, left_s)
    if made is None:
        pool = await pool_of_server(base_url, asking, deadline_s=left_s())
        made = None if pool is None else _exact(source, partial(render_pooled, pool=pool, study_salt=source.study_salt))
    if made is None:
        # Its own count of words beats leaving the chat API.
        line = await calibrate(base_url, asking, deadline_s=left_s())
        if line is not None:
            return _guessed(source, line)
        made = None if source.texts else await _by_ids(base_url, source, asking, may_request, left_s)
    if made is not None:
        return made
    line = await calibrate_by_requests(base_url, asking, deadline_s=left_s()) if may_request else None
    return _guessed(source, line)


async def _by_tokenizer(
    base_url: str, source: PromptSource, options: DriveOptions, left_s: Callable[[], float]
) -> PreparedPrompts | None:
    """Prompts by the model's own tokenizer; None without one, or where the server counts by another."""
    tokenizer = source.tokenizer
    if tokenizer is None:
        return None
    pool = tokenizer.pool()
    words = pool.words if pool is not None else COMMON_WORDS
    first = pool.openers[0] if pool is not None else words[0]
    texts = [" ".join([first, *(words[pick] for pick in draw([size], len(words), size - 1))]) for size in SAMPLE_WORDS]
    counts = await count_tokens(base_url, options, texts, deadline_s=left_s())
    if counts is None:
        counts = await count_by_requests(base_url, options, texts, deadline_s=left_s())
    if counts is None:
        return None
    added = {counted - tokenizer.count(text) for counted, text in zip(counts, texts, strict=True)}
    overhead = min(added)
    if len(added) > 1 or overhead < 0:
        return None
    if pool is not None:
        whole = WordPool(words=pool.words, openers=pool.openers, overhead_tokens=overhead)
        return _exact(source, partial(render_pooled, pool=whole, study_salt=source.study_salt))
    fitted = FittedPrompts(tokenizer.count, words, opener=first, overhead_tokens=overhead, study_salt=source.study_salt)
    return _exact(source, fitted)


async def _by_ids(
    base_url: str, source: PromptSource, options: DriveOptions, may_request: bool, left_s: Callable[[], float]
) -> PreparedPrompts | None:
    """Token ids, tried with one request each; None where no size is known or the server does not take them."""
    sizes = [source.vocab_size] if source.vocab_size is not None else list(_VOCABULARIES) if may_request else []
    asking = replace(options, api=Api.COMPLETIONS, return_token_ids=False)
    for size in sizes:
        ids = id_range(size)
        if ids is None:
            continue
        # The highest id is among them: a server refuses what lies beyond its vocabulary.
        probe = TokenIds(ids=(*(ids.low + pick for pick in draw([0], ids.high - ids.low, _PROBE_IDS)), ids.high - 1))
        (record, *_rest) = await ask(base_url, asking, [probe], output_tokens=2, deadline_s=left_s()) or (None,)
        if record is None or record.error is not None or record.prompt_tokens not in (None, len(probe.ids)):
            continue
        return replace(
            _exact(source, partial(render_ids, ids=ids, study_salt=source.study_salt)),
            api=Api.COMPLETIONS,
            return_token_ids=record.counted_tokens == 0,
            caveats=(_COMPLETIONS_INSTEAD,) if source.api is Api.CHAT else (),
        )
    return None


def _exact(source: PromptSource, made_up: Render) -> PreparedPrompts:
    return PreparedPrompts(api=source.api, render=_with_texts(source, made_up), exact=True)


def _guessed(source: PromptSource, line: Calibration | None) -> PreparedPrompts:
    render = partial(render_prompt, words=COMMON_WORDS, calibration=line, study_salt=source.study_salt)
    doubts = (_UNCALIBRATED,) if line is None and not source.texts else ()
    return PreparedPrompts(api=source.api, render=_with_texts(source, render), exact=False, caveats=doubts)


def _with_texts(source: PromptSource, made_up: Callable[[PlannedRequest], Prompt]) -> Render:
    """The workload's own prompt where a request names one, else a made-up one."""
    texts = source.texts
    if not texts:
        return made_up

    def render(request: PlannedRequest) -> Prompt:
        return made_up(request) if request.text_index is None else texts[request.text_index]

    return render
