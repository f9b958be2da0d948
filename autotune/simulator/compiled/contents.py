"""Numbers for the blocks of a level's prompts, so that equal content has equal numbers and no key is looked up.

A prompt is a row of contents (shared spans, its own rest), and a content seen after the same history is the same
everywhere. So each content gets one run of numbers, one per block it may fill; those that several requests have, or
that an earlier level left in a cache, get such a run on every rank.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autotune.records import PlannedRequest
from autotune.simulator.compiled.layout import SEGMENT, Array

Ints = NDArray[np.int64]
UNKNOWN = -1
"""Content that nobody can ask for again: of an answer."""


@dataclass(slots=True)
class Contents:
    """Numbers of all contents met so far, each with its history."""

    numbers: dict[Hashable, int] = field(default_factory=dict)

    def number(self, content: Hashable) -> int:
        """The content's number, a new one if it is new."""
        return self.numbers.setdefault(content, len(self.numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Contents of all prompts: `request` has tokens `start` to `end` of content `content`, in order."""

    request: Ints
    content: Ints
    start: Ints
    end: Ints


def spans_of(requests: Sequence[PlannedRequest], contents: Contents) -> Spans:
    """The prompts' contents; `engine_model.block_keys` says the same block by block."""
    rows: list[tuple[int, int, int, int]] = []
    for position, request in enumerate(requests):
        before: tuple[Hashable, ...] = ()
        start = 0
        for span in request.shared:
            end = min(start + span.tokens, request.prompt_tokens)
            rows.append((position, contents.number((*before, span.content)), start, end))
            before = (*before, (span.content, span.tokens))
            start = end
        own = contents.number((*before, ("own", request.content_seed)))
        rows.append((position, own, start, max(start, request.prompt_tokens)))
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return Spans(request=table[:, 0], content=table[:, 1], start=table[:, 2], end=table[:, 3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What one rank's cache holds: content and block index of each block, oldest first."""

    content: Ints
    index: Ints


NOTHING_KEPT = Kept(content=np.empty(0, dtype=np.int64), index=np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """Block numbers of one level.

    Attributes:
        count: numbers given, those of the kept blocks included.
        segments: rows of `SEGMENT`, one per span.
        first_segment, keys: per request, its first segment and its blocks with a content key.
        kept: numbers of the kept blocks, one array per rank.
    """

    count: int
    segments: Array
    first_segment: Ints
    keys: Ints
    own_blocks: Ints
    kept: tuple[Ints, ...]
    _runs: _Runs
    _strays: Kept

    def known(self, blocks: Ints) -> Kept:
        """Content and index of blocks by number."""
        runs = self._runs
        within = np.where(blocks < runs.own_from, blocks % max(runs.shared, 1), blocks - runs.own_from + runs.shared)
        place = np.searchsorted(runs.begin, within, side="right") - 1
        place = np.clip(place, 0, max(len(runs.begin) - 1, 0))
        content, index = np.full(len(blocks), UNKNOWN), np.zeros(len(blocks), dtype=np.int64)
        named = blocks < runs.answers_from
        if len(runs.begin):
            content[named] = runs.content[place[named]]
            index[named] = (within - runs.begin[place] + runs.low[place])[named]
        stray = blocks >= runs.strays_from
        content[stray] = self._strays.content[blocks[stray] - runs.strays_from]
        index[stray] = self._strays.index[blocks[stray] - runs.strays_from]
        return Kept(content=content, index=index)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """Runs of numbers, the shared contents' first (once per rank), then those of one request, of answers, and strays.

    Attributes:
        content, low, begin: by run: its content, lowest block index, and first number within the first rank's.
        shared: numbers of one rank's shared runs.
    """

    content: Ints
    low: Ints
    begin: Ints
    shared: int
    own_from: int
    answers_from: int
    strays_from: int


def number_blocks(
    spans: Spans, prompts: Ints, outputs: Ints, block_size: int, kept: Sequence[Kept], *, caching: bool
) -> Numbering:
    """Number the blocks of a level's prompts and answers, and those that the ranks' caches hold.

    Args:
        kept: of each rank.
        caching: False numbers nothing: no block will be looked up.
    """
    count, ranks = len(prompts), len(kept)
    low = spans.start // block_size
    high = np.maximum(low, spans.end // block_size)
    if not caching:
        low = high = np.zeros_like(low)
    contents, run = np.unique(spans.content, return_inverse=True)
    lowest = np.full(len(contents), np.iinfo(np.int64).max)
    highest = np.zeros(len(contents), dtype=np.int64)
    np.minimum.at(lowest, run, low)
    np.maximum.at(highest, run, high)
    uses = np.bincount(run, minlength=len(contents))
    met = np.unique(np.concatenate([k.content for k in kept]))
    shared = (uses > 1) | np.isin(contents, met)
    order = np.argsort(~shared, kind="stable")
    sizes = (highest - lowest)[order]
    begin = np.cumsum(sizes) - sizes
    shared_size = int(sizes[: int(shared.sum())].sum())
    own_from = shared_size * ranks
    answers_from = own_from + int(sizes.sum()) - shared_size
    keys = np.zeros(count, dtype=np.int64)
    np.maximum.at(keys, spans.request, high)
    answers = np.maximum(0, (prompts + outputs) // block_size - keys + 1) if caching else np.zeros_like(keys)
    own_blocks = answers_from + np.cumsum(answers) - answers
    runs = _Runs(
        content=contents[order],
        low=lowest[order],
        begin=begin,
        shared=shared_size,
        own_from=own_from,
        answers_from=answers_from,
        strays_from=answers_from + int(answers.sum()),
    )
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    segments = np.zeros(len(low), dtype=SEGMENT)
    segments["until"] = high
    lift = np.where(shared, 0, own_from - shared_size)
    segments["base"] = (begin[place] - lowest + lift)[run]
    segments["stride"] = np.where(shared, shared_size, 0)[run]
    numbers, strays = _number_kept(runs, kept, highest[order])
    return Numbering(
        count=runs.strays_from + len(strays.content),
        segments=segments,
        first_segment=np.searchsorted(spans.request, np.arange(count)),
        keys=keys,
        own_blocks=own_blocks,
        kept=numbers,
        _runs=runs,
        _strays=strays,
    )


def _number_kept(runs: _Runs, kept: Sequence[Kept], high: Ints) -> tuple[tuple[Ints, ...], Kept]:
    """Numbers of kept blocks: of their content's run where the level has it, else of their own (a stray)."""
    by_content = np.argsort(runs.content)
    sorted_contents = runs.content[by_content]
    numbers: list[Ints] = []
    strays: list[Kept] = []
    given = runs.strays_from
    for rank, k in enumerate(kept):
        found = np.searchsorted(sorted_contents, k.content)
        found = np.clip(found, 0, max(len(sorted_contents) - 1, 0))
        run = by_content[found] if len(by_content) else found
        if len(by_content):
            here = (runs.content[run] == k.content) & (k.index >= runs.low[run]) & (k.index < high[run])
            number = runs.begin[run] + k.index - runs.low[run] + rank * runs.shared
        else:
            here, number = np.zeros(len(k.content), dtype=np.bool_), np.zeros(len(k.content), dtype=np.int64)
        stray = ~here
        number = number.copy()
        number[stray] = given + np.arange(int(stray.sum()))
        given += int(stray.sum())
        numbers.append(number)
        strays.append(Kept(content=k.content[stray], index=k.index[stray]))
    joined = Kept(content=np.concatenate([k.content for k in strays]), index=np.concatenate([k.index for k in strays]))
    return tuple(numbers), joined
