"""Recorded requests: lengths, arrival times and what their prompts share. Pure; the readers are in trace_*.py.

Prompts are told as blocks: ids of pieces in order, where an equal id stands for an equal piece after an equal
beginning (the hash ids of Mooncake's traces; hashes of the text so far for real prompts). What at least two rows have
becomes a shared span, the rest is a row's own.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, takewhile

import numpy as np

from autotune.records import SharedSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRow:
    """One request as a reader found it.

    Attributes:
        at_s: seconds on any clock.
        blocks: id and tokens of every piece of the prompt, in order; empty when nothing is known of its content.
        after: position of the row whose answer this one goes on from.
        text_index: position of its real prompt among those read.
    """

    prompt_tokens: int
    output_tokens: int
    at_s: float | None = None
    blocks: tuple[tuple[int, int], ...] = ()
    after: int | None = None
    text_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One recorded request.

    Attributes:
        at_s: seconds after the first one; None where the file has no times.
        shared: spans that other rows open with as well; `content` counts within this trace, 0 and above.
        after: position of the row whose answer this one goes on from.
        text_index: position of its prompt in `Workload.texts`.
    """

    prompt_tokens: int
    output_tokens: int
    at_s: float | None = None
    shared: tuple[SharedSpan, ...] = ()
    after: int | None = None
    text_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Recorded requests in the order they came.

    Attributes:
        source: what was read: kind of file, without its content.
        digest: hex hash of all rows and of all texts.
        ordered: the order of rows is that of arrival; False where conversations stand one after the other.
        estimated: token counts of texts were estimated from their size, no tokenizer counted them.
        skipped: (reason, rows) that were left out.
        cut: the file has more rows than were read.
    """

    source: str
    rows: tuple[TraceRow, ...]
    digest: str
    ordered: bool = True
    estimated: bool = False
    skipped: tuple[tuple[str, int], ...] = ()
    cut: bool = False

    @property
    def timed(self) -> bool:
        """Whether the rows' own arrival times can be replayed: they have some, and not all the same."""
        first, last = self.rows[0].at_s, self.rows[-1].at_s
        return first is not None and last is not None and last > first

    @property
    def conversations(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the rows of each conversation, in the order of their first rows; lone rows are one each."""
        of_row: list[int] = []
        groups: list[list[int]] = []
        for position, row in enumerate(self.rows):
            if row.after is None:
                of_row.append(len(groups))
                groups.append([position])
            else:
                of_row.append(of_row[row.after])
                groups[of_row[row.after]].append(position)
        return tuple(map(tuple, groups))


def make_trace(
    raw: Sequence[RawRow],
    *,
    source: str,
    text_digest: str = "",
    ordered: bool = True,
    estimated: bool = False,
    skipped: Iterable[tuple[str, int]] = (),
    cut: bool = False,
) -> Trace:
    """A trace of `raw`: times count from the first row, blocks of several rows become shared spans.

    Raises:
        ValueError: no rows, or a row that goes on from itself or a later one.
    """
    if not raw:
        raise ValueError("a trace needs a row")
    users = Counter(block for row in raw for block in {block for block, _ in row.blocks})
    start = raw[0].at_s
    rows = tuple(
        TraceRow(
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            at_s=None if row.at_s is None or start is None else row.at_s - start,
            shared=_spans(row, users),
            after=_earlier(position, row.after),
            text_index=row.text_index,
        )
        for position, row in enumerate(raw)
    )
    digest = hashlib.sha256(text_digest.encode())
    for row in rows:
        spans = [(span.content, span.tokens) for span in row.shared]
        digest.update(repr((row.prompt_tokens, row.output_tokens, row.at_s, row.after, spans)).encode())
    return Trace(
        source=source,
        rows=rows,
        digest=digest.hexdigest(),
        ordered=ordered,
        estimated=estimated,
        skipped=tuple(skipped),
        cut=cut,
    )


def burstiness(times_s: Sequence[float]) -> float | None:
    """Coefficient of variation of the gaps between arrivals: 0 even, 1 Poisson, above 1 bursty; None of less than
    three arrivals or no time between them."""
    gaps = np.array([later - earlier for earlier, later in pairwise(times_s)], dtype=float)
    return None if len(gaps) < 2 or gaps.mean() <= 0 else float(gaps.std() / gaps.mean())


def block_id(*parts: object) -> int:
    """A number of 62 bits for a piece of content; equal parts give equal numbers."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()) >> 2


def _spans(row: RawRow, users: Counter[int]) -> tuple[SharedSpan, ...]:
    """Leading blocks that another row has too; a run that the same number of rows has is one span.

    In a prefix tree all rows that have a block have those before it, so a run of equal counts belongs together in each
    of them. The tokens of all spans never exceed the prompt.
    """
    shared = takewhile(lambda block: users[block[0]] > 1, row.blocks)
    spans, left = [], row.prompt_tokens
    for _, run in groupby(shared, key=lambda block: users[block[0]]):
        blocks = list(run)
        tokens = min(left, sum(size for _, size in blocks))
        if tokens > 0:
            spans.append(SharedSpan(content=block_id(*(name for name, _ in blocks)), tokens=tokens))
            left -= tokens
    return tuple(spans)


def _earlier(position: int, after: int | None) -> int | None:
    if after is not None and not 0 <= after < position:
        raise ValueError(f"row {position} goes on from row {after}, which is not before it")
    return after
