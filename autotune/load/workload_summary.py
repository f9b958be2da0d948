"""What a workload offers, in figures, before anything is launched. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.load.arrivals import open_level
from autotune.load.model_len import guide_model_len
from autotune.load.requests import plan_caveats, plan_requests, reachable_share, reachable_tokens
from autotune.load.traces import burstiness
from autotune.load.workload import Workload
from autotune.records import Arrivals, Caveat, LevelRole, LoadLevel, PlannedRequest

MOST_REQUESTS = 20_000
SHOWN_CONCURRENCY = 64
SALT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Lengths that are sent, tokens."""

    mean: float
    p50: float
    p95: float
    p99: float
    longest: int

    @classmethod
    def of(cls, tokens: Sequence[int]) -> Distribution:
        """The figures of at least one length."""
        values = np.array(tokens, dtype=float)
        p50, p95, p99 = (float(value) for value in np.percentile(values, (50, 95, 99)))
        return cls(mean=float(values.mean()), p50=p50, p95=p95, p99=p99, longest=max(tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary:
    """One level of a workload in figures.

    Attributes:
        level: what was planned to find them.
        reachable: for each planned request, prompt tokens that a prefix cache without bounds would serve.
        shared_share: of prompt tokens that a prefix cache without bounds would serve (requests.reachable_share).
        continued_share: of requests that go on from another one's answer.
        turns: mean turns of a conversation, as drawn or recorded; None where there are none.
        arrival_burstiness: coefficient of variation of gaps: of the recording where there is one, else of the planned
            arrivals; None for a closed loop.
        needed: max-model-len that admits every request; `guide` is the guide's rounding of it.
    """

    level: LoadLevel
    planned: tuple[PlannedRequest, ...]
    reachable: tuple[int, ...]
    prompt: Distribution
    output: Distribution
    shared_share: float
    continued_share: float
    turns: float | None
    arrival_burstiness: float | None
    needed: int
    guide: int
    caveats: tuple[Caveat, ...]


def shown_level(workload: Workload, *, concurrency: int | None = None, rate_rps: float | None = None) -> LoadLevel:
    """A level as a study would have: a closed loop, or with a rate the workload's own open loop."""
    counts = workload.requests
    if rate_rps is not None:
        return open_level(
            "ttft",
            LevelRole.TTFT,
            workload.open_arrivals,
            requests=min(MOST_REQUESTS, max(counts.ttft, round(counts.level_s * rate_rps))),
            seed=0,
            rate_rps=rate_rps,
        )
    slots = concurrency or min(SHOWN_CONCURRENCY, workload.max_concurrency)
    return LoadLevel(
        name="throughput",
        role=LevelRole.THROUGHPUT,
        arrivals=Arrivals.CLOSED,
        requests=min(MOST_REQUESTS, counts.per_slot * slots),
        seed=0,
        concurrency=slots,
    )


def sum_up(workload: Workload, level: LoadLevel) -> WorkloadSummary:
    """The figures of a level; lengths are those of the whole trace where there is one.

    Raises:
        ValueError: see requests.plan_requests.
    """
    planned = plan_requests(workload, level, SALT)
    trace = workload.trace
    offered = trace.rows if trace else planned
    due = [at for at in (request.scheduled_s for request in planned) if at is not None]
    if trace is not None and trace.timed:
        due = [row.at_s for row in trace.rows if row.at_s is not None]
    return WorkloadSummary(
        level=level,
        planned=planned,
        reachable=reachable_tokens(planned),
        prompt=Distribution.of([each.prompt_tokens for each in offered]),
        output=Distribution.of([each.output_tokens for each in offered]),
        shared_share=reachable_share(planned),
        continued_share=sum(1 for request in planned if request.after is not None) / len(planned),
        turns=_turns(workload),
        arrival_burstiness=burstiness(due),
        needed=workload.max_model_len_needed,
        guide=guide_model_len(workload.max_model_len_needed),
        caveats=plan_caveats(workload, level),
    )


def _turns(workload: Workload) -> float | None:
    if workload.turns is not None:
        return workload.turns.count.mean
    if workload.trace is None:
        return None
    talks = workload.trace.conversations
    return len(workload.trace.rows) / len(talks) if len(talks) < len(workload.trace.rows) else None
