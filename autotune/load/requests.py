"""The requests of a level: pure functions of seeds.

Shape (lengths, what is shared, order) comes from the workload's own seed, so every trial and every level of one size
offers the same work. Content comes from the level's seed and the trial's salt, because a prompt that was sent before is
served from the prefix cache and flatters whatever is measured second. Real prompts alone are always the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import ceil

import numpy as np

from autotune.load.arrivals import level_steps, schedule
from autotune.load.lengths import sample_lengths
from autotune.load.talks import Talk, Turn, draw_talks, interleave
from autotune.load.traces import Trace, TraceRow, block_id
from autotune.load.workload import Workload
from autotune.records import Arrivals, Caveat, LoadLevel, PlannedRequest, SharedSpan

_PROMPTS, _OUTPUTS, _SHARERS, _PREFIX_IDS, _OFFSET = range(5)

OPEN_PER_SLOT = 2
"""Conversations open at once for each slot of a closed loop: while one is answered, another one's user types."""

RECORDED_THINK_S = 5.0
"""Between turns of recorded conversations that have no times."""


def plan_requests(workload: Workload, level: LoadLevel, trial_salt: int) -> tuple[PlannedRequest, ...]:
    """The requests of one level in the order they are sent; `scheduled_s` only in an open loop.

    Raises:
        ValueError: an open-loop level without a positive rate, or one that replays arrivals that the workload lacks.
    """
    if workload.trace is not None:
        return _recorded(workload, workload.trace, level, trial_salt)
    if workload.turns is not None:
        return _talking(workload, level, trial_salt)
    return _drawn(workload, level, trial_salt)


def reachable_share(requests: Sequence[PlannedRequest | TraceRow]) -> float:
    """Share of all prompt tokens that a prefix cache without bounds would serve: what an earlier prompt began with too.

    0..1, an upper bound: blocks that are not full and requests that run side by side take some off it.
    """
    total = sum(request.prompt_tokens for request in requests)
    return sum(reachable_tokens(requests)) / total if total else 0.0


def reachable_tokens(requests: Sequence[PlannedRequest | TraceRow]) -> tuple[int, ...]:
    """The same for each request, in tokens of its prompt."""
    known: dict[tuple[int, int], int] = {}
    found = []
    for request in requests:
        node, seen, hits = 0, True, 0
        for span in request.shared:
            key = (node, span.content)
            seen = seen and key in known
            if seen:
                hits += min(span.tokens, request.prompt_tokens)
            node = known.setdefault(key, len(known) + 1)
        found.append(hits)
    return tuple(found)


def plan_caveats(workload: Workload, level: LoadLevel) -> tuple[Caveat, ...]:
    """What is doubtful about a level before it is driven.

    Codes: repeated_prompts, estimated_tokens.
    """
    trace = workload.trace
    found = []
    if trace is not None and workload.texts and level.requests > len(trace.rows):
        found.append(
            Caveat(
                code="repeated_prompts",
                text=f"{level.requests} requests came from a log of {len(trace.rows)}: prompts were repeated, and the "
                "prefix cache served them",
                remedy="Give a longer log, or send fewer requests per level.",
            )
        )
    if trace is not None and trace.estimated:
        found.append(
            Caveat(
                code="estimated_tokens",
                text="lengths of real prompts were estimated from their size, not counted",
                remedy="Let the model's tokenizer be found, or log the usage that the server reports.",
            )
        )
    return tuple(found)


def open_conversations(workload: Workload, level: LoadLevel) -> int:
    """Conversations that are open at once: two for each slot, or as many as make the time to think come true.

    In an open loop at `rate` requests/s, the turns of N conversations in turn are N / rate seconds apart.
    """
    if level.arrivals is Arrivals.CLOSED:
        return OPEN_PER_SLOT * (level.concurrency or 1)
    think_s = workload.turns.think_s if workload.turns else RECORDED_THINK_S
    return max(1, min(level.requests, ceil((level.rate_rps or 0.0) * think_s)))


def _drawn(workload: Workload, level: LoadLevel, trial_salt: int) -> tuple[PlannedRequest, ...]:
    """Independent requests, some with a shared prefix; each step of a level that may grow has the whole mixture."""
    prompts: list[int] = []
    outputs: list[int] = []
    prefixes: list[tuple[SharedSpan, ...]] = []
    for place, count in enumerate(level_steps(level)):
        step = (place,) if place else ()
        prompts += sample_lengths(workload.prompt_tokens, count, (workload.seed, _PROMPTS, *step))
        outputs += sample_lengths(workload.output_tokens, count, (workload.seed, _OUTPUTS, *step))
        prefixes += _prefixes(workload, count, *step)
    due = schedule(level)
    return tuple(
        PlannedRequest(
            index=i,
            prompt_tokens=prompts[i] + sum(span.tokens for span in prefixes[i]),
            output_tokens=outputs[i],
            content_seed=_content_seed(level, trial_salt, i),
            scheduled_s=None if due is None else due[i],
            shared=prefixes[i],
        )
        for i in range(len(prompts))
    )


def _talking(workload: Workload, level: LoadLevel, trial_salt: int) -> tuple[PlannedRequest, ...]:
    """Turns of conversations: each prompt opens with all that was said before in its own."""
    open_at_once = open_conversations(workload, level)
    count = sum(level_steps(level))
    talks = draw_talks(workload, count, open_at_once)
    order = interleave([talk.turns for talk in talks], count, open_at_once, workload.seed)
    serials = max((turn.serial for turn in order), default=-1) + 1
    prefixes = _prefixes(workload, serials)
    due = schedule(level)
    said: dict[int, tuple[SharedSpan, ...]] = {}
    planned = []
    for index, turn in enumerate(order):
        talk = talks[turn.serial % len(talks)]
        if turn.serial not in said:
            salt = f"{level.seed}/{trial_salt}/{level.name}/{turn.serial}"
            said[turn.serial] = (*prefixes[turn.serial], *_spans(talk, salt))
        shared = _before_answer(said[turn.serial], len(prefixes[turn.serial]), turn.turn)
        planned.append(
            PlannedRequest(
                index=index,
                prompt_tokens=sum(span.tokens for span in shared) + 1,
                output_tokens=talk.answered[turn.turn],
                content_seed=_content_seed(level, trial_salt, index),
                scheduled_s=None if due is None else due[index],
                shared=tuple(span for span in shared if span.tokens),
                after=turn.after,
            )
        )
    return tuple(planned)


def _spans(talk: Talk, salt: str) -> list[SharedSpan]:
    """Two spans a turn: what the user says less its last token, and that token with the answer.

    A prompt's last token is always its own (prompts.render_prompt), also where the next turn repeats the prompt.
    """
    spans = []
    for turn, (asked, answered) in enumerate(zip(talk.asked, talk.answered, strict=True)):
        spans.append(SharedSpan(content=_passing(salt, turn, "asked"), tokens=asked - 1))
        spans.append(SharedSpan(content=_passing(salt, turn, "answered"), tokens=answered + 1))
    return spans


def _before_answer(said: tuple[SharedSpan, ...], prefixes: int, turn: int) -> tuple[SharedSpan, ...]:
    return said[: prefixes + 2 * turn + 1]


def _recorded(workload: Workload, trace: Trace, level: LoadLevel, trial_salt: int) -> tuple[PlannedRequest, ...]:
    """Rows of a trace from a place that the workload's seed and the level's name decide; from its start when it ends.

    The name is in it so that real prompts of one level are not those of the next, as far as there are enough.
    """
    offset = _hash(workload.seed, level.name, _OFFSET)
    rows, count = len(trace.rows), sum(level_steps(level))
    if trace.ordered:
        offset %= rows
        places = [divmod(offset + i, rows) for i in range(count)]
        times = _times(trace, offset, count) if level.arrivals is Arrivals.TRACE else None
    else:
        places, times = _talks_in_turn(trace, offset, level, open_conversations(workload, level)), None
    due = schedule(level, times)
    sent: dict[tuple[int, int], int] = {}
    planned = []
    for index, (lap, place) in enumerate(places):
        row = trace.rows[place]
        real = row.text_index is not None
        salt = f"{level.seed}/{trial_salt}/{level.name}/{lap}"
        planned.append(
            PlannedRequest(
                index=index,
                prompt_tokens=row.prompt_tokens,
                output_tokens=row.output_tokens,
                content_seed=block_id("text", row.text_index) if real else _content_seed(level, trial_salt, index),
                scheduled_s=None if due is None else due[index],
                shared=row.shared if real else _salted(row, salt),
                after=None if row.after is None else sent.get((lap, row.after)),
                text_index=row.text_index,
            )
        )
        sent[lap, place] = index
    return tuple(planned)


def _talks_in_turn(trace: Trace, offset: int, level: LoadLevel, open_at_once: int) -> list[tuple[int, int]]:
    """Lap and row of each request, for conversations that the file has one after the other."""
    talks = trace.conversations
    start = offset % len(talks)
    talks = talks[start:] + talks[:start]
    count = sum(level_steps(level))
    order: tuple[Turn, ...] = interleave([len(talk) for talk in talks], count, open_at_once, offset >> 8)
    return [(turn.serial // len(talks), talks[turn.serial % len(talks)][turn.turn]) for turn in order]


def _salted(row: TraceRow, salt: str) -> tuple[SharedSpan, ...]:
    """A recording's spans with content that only this level, trial and lap share."""
    return tuple(SharedSpan(content=_passing(salt, span.content), tokens=span.tokens) for span in row.shared)


def _times(trace: Trace, offset: int, requests: int) -> list[float] | None:
    """Arrivals of the rows from `offset` on, and that of one more; a lap follows the last by a mean gap."""
    if not trace.timed:
        return None
    at = [row.at_s or 0.0 for row in trace.rows]
    lap_s = at[-1] * len(at) / (len(at) - 1)
    laps = (divmod(offset + i, len(at)) for i in range(requests + 1))
    return [lap * lap_s + at[place] for lap, place in laps]


def _prefixes(workload: Workload, count: int, *step: int) -> list[tuple[SharedSpan, ...]]:
    """What each request opens with: exactly the asked share of them has a prefix, dealt evenly, in random order."""
    spans: list[tuple[SharedSpan, ...]] = [()] * count
    if workload.prefixes is None:
        return spans
    sharers = np.random.default_rng([workload.seed, _SHARERS, *step]).permutation(count)
    sharers = sharers[: round(workload.prefixes.share * count)]
    dealt = (
        np.random.default_rng([workload.seed, _PREFIX_IDS, *step]).permutation(len(sharers)) % workload.prefixes.count
    )
    for place, prefix_id in zip(sharers.tolist(), dealt.tolist(), strict=True):
        spans[place] = (SharedSpan(content=prefix_id, tokens=workload.prefixes.tokens),)
    return spans


def _passing(*parts: object) -> int:
    """Content that does not outlive its level and trial: below 0."""
    return -1 - block_id(*parts)


def _content_seed(level: LoadLevel, trial_salt: int, index: int) -> int:
    # The name is in it so that two levels given one seed by mistake still do not repeat each other's prompts.
    return _hash(level.seed, trial_salt, level.name, index)


def _hash(*parts: object) -> int:
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
