"""Conversations: how many turns, how long, and in which order their requests come. Pure.

So many conversations are open at once as asked, each sends its next turn when all others have sent theirs, and a new
one takes the place of one that has ended. The first ones stand somewhere in their middle: a level that began with
first turns only would see its prompts grow from start to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from autotune.load.lengths import sample_lengths
from autotune.load.workload import Workload

_PROMPTS, _OUTPUTS, _COUNTS, _PHASES = range(10, 14)
"""Streams of the workload's seed, apart from those of requests.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """One conversation: what each turn adds, tokens.

    Attributes:
        asked, answered: tokens of the user's part and of the answer, turn by turn.
    """

    asked: tuple[int, ...]
    answered: tuple[int, ...]

    @property
    def turns(self) -> int:
        """Turns it has."""
        return len(self.asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One place in the order of requests.

    Attributes:
        serial: of the conversation: counts on, also when the list of conversations begins anew.
        turn: 0-based.
        after: place in the order of its previous turn; None where that was before the level.
    """

    serial: int
    turn: int
    after: int | None


def draw_talks(workload: Workload, requests: int, open_at_once: int) -> tuple[Talk, ...]:
    """Conversations enough for so many requests, by the workload's own seed.

    Raises:
        ValueError: a workload without turns.
    """
    turns = workload.turns
    if turns is None:
        raise ValueError(f"workload {workload.name} has no turns")
    seed = workload.seed
    wanted = open_at_once + -(-requests // max(1, round(turns.count.mean))) + 1
    counts = sample_lengths(turns.count, wanted, (seed, _COUNTS))
    ends = list(accumulate(counts, initial=0))
    asked = sample_lengths(workload.prompt_tokens, ends[-1], (seed, _PROMPTS))
    answered = sample_lengths(workload.output_tokens, ends[-1], (seed, _OUTPUTS))
    prefix = workload.prefixes.tokens if workload.prefixes else 0
    return tuple(
        _cut(asked[start:end], answered[start:end], turns.longest_tokens - prefix) for start, end in pairwise(ends)
    )


def interleave(turns: Sequence[int], requests: int, open_at_once: int, seed: int) -> tuple[Turn, ...]:
    """The order of `requests` turns of conversations of so many turns each; they begin anew when they run out.

    The next turn of a conversation stands `open_at_once` places behind the one before, so that twice as many open
    conversations as slots make a turn wait only for an answer of twice the usual time.
    """
    rng = np.random.default_rng([seed, _PHASES])
    started = 0
    slots: list[Turn] = []
    for _ in range(max(1, min(open_at_once, requests))):
        middle = int(rng.integers(turns[started % len(turns)]))
        slots.append(Turn(serial=started, turn=middle, after=None))
        started += 1
    order: list[Turn] = []
    while len(order) < requests:
        for slot, due in enumerate(slots[: requests - len(order)]):
            order.append(due)
            if due.turn + 1 < turns[due.serial % len(turns)]:
                slots[slot] = Turn(serial=due.serial, turn=due.turn + 1, after=len(order) - 1)
            else:
                slots[slot] = Turn(serial=started, turn=0, after=None)
                started += 1
    return tuple(order)


def _cut(asked: tuple[int, ...], answered: tuple[int, ...], longest: int) -> Talk:
    """The turns until prompt and answer together would exceed `longest`; the first one always."""
    sums = accumulate(prompt + answer for prompt, answer in zip(asked, answered, strict=True))
    kept = max(1, sum(1 for total in sums if total <= longest))
    return Talk(asked=asked[:kept], answered=answered[:kept])
