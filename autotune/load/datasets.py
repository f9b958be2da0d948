"""Requests of a level: pure functions of seeds. What their prompts say is prompts.py's.

Shape (lengths, prefixes, order) comes from the workload's own seed, so every trial and every level of one size offers
the same work. Content comes from the level's seed and the trial's salt, because a prompt that was sent before is served
from the prefix cache and flatters whatever is measured second.
"""

from __future__ import annotations

import hashlib

import numpy as np

from autotune.load.arrivals import schedule
from autotune.load.lengths import sample_lengths
from autotune.load.workloads import Workload
from autotune.records import LoadLevel, PlannedRequest, SharedSpan

_PROMPTS, _OUTPUTS, _SHARERS, _PREFIX_IDS = range(4)


def plan_requests(workload: Workload, level: LoadLevel, trial_salt: int) -> tuple[PlannedRequest, ...]:
    """The requests of one level in the order they are sent; `scheduled_s` only in an open loop.

    Raises:
        ValueError: an open-loop level without a positive rate.
    """
    count = level.requests
    prompts = sample_lengths(workload.prompt_tokens, count, (workload.seed, _PROMPTS))
    outputs = sample_lengths(workload.output_tokens, count, (workload.seed, _OUTPUTS))
    prefix_ids = _prefix_ids(workload, count)
    prefix_tokens = workload.prefixes.tokens if workload.prefixes else 0
    due = schedule(level)
    return tuple(
        PlannedRequest(
            index=i,
            prompt_tokens=prompts[i] + (0 if prefix_ids[i] is None else prefix_tokens),
            output_tokens=outputs[i],
            content_seed=_content_seed(level, trial_salt, i),
            scheduled_s=None if due is None else due[i],
            shared=_span(prefix_ids[i], prefix_tokens),
        )
        for i in range(count)
    )


def _span(prefix_id: int | None, tokens: int) -> tuple[SharedSpan, ...]:
    return () if prefix_id is None else (SharedSpan(content=prefix_id, tokens=tokens),)


def _prefix_ids(workload: Workload, count: int) -> list[int | None]:
    """Which prefix each request opens with: exactly the asked share of requests, dealt evenly, in random order."""
    ids: list[int | None] = [None] * count
    if workload.prefixes is None:
        return ids
    sharers = np.random.default_rng([workload.seed, _SHARERS]).permutation(count)
    sharers = sharers[: round(workload.prefixes.share * count)]
    dealt = np.random.default_rng([workload.seed, _PREFIX_IDS]).permutation(len(sharers)) % workload.prefixes.count
    for place, prefix_id in zip(sharers.tolist(), dealt.tolist(), strict=True):
        ids[place] = prefix_id
    return ids


def _content_seed(level: LoadLevel, trial_salt: int, index: int) -> int:
    # The name is in it so that two levels given one seed by mistake still do not repeat each other's prompts.
    text = f"{level.seed}/{trial_salt}/{level.name}/{index}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
