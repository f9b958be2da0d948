"""The load of a verification beyond a trial's two levels: further windows, a higher rate, the longest request."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from autotune.load.arrival_windows import WindowRule
from autotune.records import Arrivals, LevelRole, LoadLevel, Measurement, PlannedRequest

LONGEST = "longest"
OVERLOAD = "rate-plus"
LONGEST_OUTPUT = 16
ROOM_SHARE, LEAST_ROOM = 0.01, 16
"""Tokens of max-model-len that the longest request leaves free: a chat template and a guessed tokenizer add some."""

_WINDOWS, _OVERLOAD, _LONGEST = 0, 1_000, 1_001
"""Places of their seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherLoad:
    """What to drive once the two levels are through.

    Attributes:
        windows: of the TTFT level, the level itself counted.
        rate_factor: of the TTFT level's rate; above 1.
    """

    windows: WindowRule
    rate_factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """How a level is driven on the server of the trial.

    Attributes:
        level: one that has to be carried, or the trial fails.
        attempt: one whose failed requests are evidence.
        fixed: of given requests; failed ones are evidence.
    """

    level: Callable[[LoadLevel], Awaitable[Measurement]]
    attempt: Callable[[LoadLevel], Awaitable[Measurement]]
    fixed: Callable[[LoadLevel, Sequence[PlannedRequest]], Awaitable[Measurement]]


async def drive_further(
    further: FurtherLoad,
    first: Measurement,
    max_model_len: int | None,
    *,
    drive: Drive,
    seed_of: Callable[[int], int],
) -> None:
    """Drive it all; what came out is kept by `drive`.

    Args:
        first: of the TTFT level.
        max_model_len: that the server told; where it did not, no longest request is sent.
        seed_of: place to seed.
    """
    level = first.level
    logs = _log(first)
    place = 1
    while not further.windows.enough(logs) and place < further.windows.most:
        place += 1
        window = replace(
            level, name=f"ttft-{place}", role=LevelRole.EXTRA, seed=seed_of(_WINDOWS + place), most_requests=None
        )
        logs += _log(await drive.level(window))
    rate_rps = (level.rate_rps or 1.0) * further.rate_factor
    await drive.attempt(
        replace(
            level,
            name=OVERLOAD,
            role=LevelRole.EXTRA,
            seed=seed_of(_OVERLOAD),
            rate_rps=rate_rps,
            requests=math.ceil(level.requests * further.rate_factor),
            most_requests=None,
        )
    )
    if max_model_len is not None:
        await drive.fixed(*longest_request(max_model_len, seed_of(_LONGEST)))


def longest_request(max_model_len: int, seed: int) -> tuple[LoadLevel, tuple[PlannedRequest, ...]]:
    """One request that fills the context."""
    room = max(LEAST_ROOM, math.ceil(ROOM_SHARE * max_model_len))
    output = min(LONGEST_OUTPUT, max(1, max_model_len // 4))
    level = LoadLevel(
        name=LONGEST, role=LevelRole.EXTRA, arrivals=Arrivals.CLOSED, requests=1, seed=seed, concurrency=1
    )
    request = PlannedRequest(
        index=0, prompt_tokens=max(1, max_model_len - output - room), output_tokens=output, content_seed=seed
    )
    return level, (request,)


def _log(measurement: Measurement) -> list[float]:
    found = measurement.ttft_s
    return [math.log(found.p95.value)] if found is not None and found.p95.value > 0 else []
