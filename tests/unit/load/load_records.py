"""Request records with known truth, for the tests of measuring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autotune.records import Arrivals, LevelRole, LoadLevel, RequestRecord


def level(**changes: Any) -> LoadLevel:
    """A closed loop of two slots."""
    base = LoadLevel(name="l", role=LevelRole.THROUGHPUT, arrivals=Arrivals.CLOSED, requests=10, seed=0, concurrency=2)
    return replace(base, **changes)


def open_level(rate_rps: float, **changes: Any) -> LoadLevel:
    """A Poisson level."""
    return level(role=LevelRole.TTFT, arrivals=Arrivals.POISSON, concurrency=None, rate_rps=rate_rps, **changes)


def record(index: int, scheduled_s: float, **changes: Any) -> RequestRecord:
    """A request whose first token comes 0.1 s after it was due and three more every 0.1 s."""
    times = tuple(scheduled_s + 0.1 * n for n in range(1, 5))
    base = RequestRecord(
        index=index,
        scheduled_s=scheduled_s,
        sent_s=scheduled_s,
        first_byte_s=times[0],
        first_token_s=times[0],
        last_token_s=times[-1],
        done_s=times[-1],
        token_times_s=times,
        prompt_tokens=10,
        output_tokens=4,
        counted_tokens=4,
        wanted_output_tokens=4,
        finish_reason="length",
        status=200,
    )
    return replace(base, **changes)


def failed(index: int, scheduled_s: float, error: str, **changes: Any) -> RequestRecord:
    """The same request, failed after two tokens."""
    good = record(index, scheduled_s)
    return replace(
        good,
        **{
            "error": error,
            "token_times_s": good.token_times_s[:2],
            "last_token_s": good.token_times_s[1],
            "done_s": good.token_times_s[1],
            "counted_tokens": 2,
            "output_tokens": None,
            "prompt_tokens": None,
            "finish_reason": None,
            **changes,
        },
    )


def closed_loop(slots: int, rounds: int, stagger_s: float = 0.05) -> list[RequestRecord]:
    """`slots` slots that each serve `rounds` requests of 0.4 s back to back, started `stagger_s` apart."""
    starts = sorted((slot * stagger_s + round_ * 0.4, slot) for slot in range(slots) for round_ in range(rounds))
    return [record(i, round(start, 6)) for i, (start, _) in enumerate(starts)]
