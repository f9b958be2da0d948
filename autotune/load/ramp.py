"""Finds the baseline's capacity and fixes the two levels of a study. Pure policy: points in, next step out.

Formulas of `load_plan`:

```
knee         smallest concurrency whose output tok/s is within 5 % of the best seen
concurrency  2 x knee, at most the workload's maximum: a better config needs more requests in flight to saturate
capacity     best output tok/s / mean output tokens: requests/s, steadier than counting ends in a short window
rate         0.85 x capacity: near the knee, where configs differ, and still stable for the baseline
throughput   max(per_slot x concurrency, level_s x capacity) requests, lengthened to at most `most`
ttft         max(ttft, level_s x rate) requests, lengthened to at most `most`
ttft, most   max(ttft above, min(ttft_most_s x rate, `most`)): what the level may grow to (growing.py)
warm-up      warmup_per_slot x concurrency requests
```

On a slow node these counts would take hours. No level is planned to last longer than `longest_s` at the baseline's
capacity: counts are cut to what that serves (never below two per slot, or MIN_TTFT_REQUESTS in all), concurrency to
what keeps a request's own stay to a quarter of it, and the ramp ends before a step that would take longer.

All of it per GPU that the baseline uses, so that a config on other GPUs is offered the same work per GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.load.arrivals import open_level
from autotune.load.workloads import Workload
from autotune.records import ArrivalProcess, Arrivals, Estimate, LevelRole, LoadLevel, LoadPlan, Measurement

START_PER_GPU = 8
MIN_GAIN = 0.05
HEAD_ROOM = 2
RATE_SHARE = 0.85
MIN_RAMP_REQUESTS = 24
RAMP_PER_SLOT = 4
MIN_TTFT_REQUESTS = 40
POISSON = ArrivalProcess()
LONGEST_S = 300.0
"""Half of the default deadline of a level, so that configs of half the baseline's speed still end in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RampPoint:
    """What the baseline did at one concurrency, all its GPUs together.

    Attributes:
        output_tok_s: over the steady window, with its interval where there is one.
        request_rps: requests/s that this is, by the mean output of the requests that succeeded.
    """

    concurrency: int
    output_tok_s: Estimate
    request_rps: float


def ramp_point(measurement: Measurement) -> RampPoint | None:
    """The point of a measured ramp level; None when it has no throughput or was no closed loop."""
    rate, concurrency = measurement.output_tok_s, measurement.level.concurrency
    if rate is None or concurrency is None or not measurement.completed:
        return None
    if measurement.output_tokens:
        request_rps = rate.value / (measurement.output_tokens / measurement.completed)
    elif measurement.request_rps is not None:
        request_rps = measurement.request_rps.value
    else:
        return None
    return RampPoint(concurrency=concurrency, output_tok_s=rate, request_rps=request_rps)


def next_concurrency(
    points: Sequence[RampPoint],
    limit: int,
    *,
    start: int = START_PER_GPU,
    gpus: int = 1,
    longest_s: float = LONGEST_S,
) -> int | None:
    """The concurrency to try next, all GPUs together; None when the ramp is over.

    Doubles from `start` per GPU until a doubling gains less than 5 % over the best before. A gain that noise could have
    hidden (the intervals are wider than 5 %) must be missing twice.

    Args:
        points: in the order tried.
        limit: highest concurrency allowed, all GPUs together.
    """
    if not points:
        return max(1, min(start * gpus, limit))
    if points[-1].concurrency >= limit or _flat(points):
        return None
    concurrency = min(2 * points[-1].concurrency, limit)
    # Two requests per slot are the least that has a steady part; at no more than the best rate so far they take this.
    best_rps = max(point.request_rps for point in points)
    return None if 2 * concurrency > longest_s * best_rps else concurrency


def ramp_level(
    concurrency: int,
    points: Sequence[RampPoint] = (),
    *,
    seed: int,
    longest_s: float = LONGEST_S,
    per_slot: int = RAMP_PER_SLOT,
) -> LoadLevel:
    """A closed loop that shows the throughput at `concurrency`: `per_slot` requests each, at least 24; less if slow."""
    requests = max(MIN_RAMP_REQUESTS, per_slot * concurrency)
    if points:
        served = math.floor(longest_s * max(point.request_rps for point in points))
        requests = max(2 * concurrency, min(requests, served))
    return LoadLevel(
        name=f"ramp-{concurrency}",
        role=LevelRole.RAMP,
        arrivals=Arrivals.CLOSED,
        requests=requests,
        seed=seed,
        concurrency=concurrency,
    )


def load_plan(points: Sequence[RampPoint], workload: Workload, gpus: int, *, longest_s: float = LONGEST_S) -> LoadPlan:
    """The levels of a study, by the formulas above.

    Raises:
        ValueError: no point, or none with throughput: there is no capacity to plan from.
    """
    best = max(points, key=lambda p: p.output_tok_s.value, default=None)
    if best is None or best.output_tok_s.value <= 0 or best.request_rps <= 0:
        raise ValueError("the ramp measured no throughput")
    knee = min(p.concurrency for p in points if p.output_tok_s.value >= best.output_tok_s.value * (1 - MIN_GAIN))
    counts = workload.requests
    capacity_rps = best.request_rps / gpus
    rate_rps = RATE_SHARE * capacity_rps
    concurrency = min(
        math.ceil(HEAD_ROOM * knee / gpus),
        workload.max_concurrency,
        max(1, math.floor(capacity_rps * longest_s / 4)),
    )
    ttft_requests = _bounded(
        _lengthened(counts.ttft, counts.level_s * rate_rps, counts.most),
        least=math.ceil(MIN_TTFT_REQUESTS / gpus),
        served=longest_s * rate_rps,
    )
    return LoadPlan(
        concurrency_per_gpu=concurrency,
        rate_rps_per_gpu=rate_rps,
        throughput_requests_per_gpu=_bounded(
            _lengthened(counts.per_slot * concurrency, counts.level_s * capacity_rps, counts.most),
            least=2 * concurrency,
            served=longest_s * capacity_rps,
        ),
        ttft_requests_per_gpu=ttft_requests,
        warmup_requests_per_gpu=counts.warmup_per_slot * concurrency,
        capacity_rps_per_gpu=capacity_rps,
        ttft_most_requests_per_gpu=most_ttft_requests(workload, ttft_requests, rate_rps, longest_s=longest_s),
    )


def most_ttft_requests(
    workload: Workload, requests: int, rate_rps: float, *, longest_s: float = LONGEST_S
) -> int | None:
    """What an open loop of `requests` at `rate_rps` may grow to; None where that is no more. Real prompts never repeat.

    Args:
        longest_s: what all requests together may take to arrive.
    """
    counts = workload.requests
    most = min(math.floor(min(counts.ttft_most_s, longest_s) * rate_rps), counts.most)
    return growing_to(most, requests, prompts=len(workload.texts))


def growing_to(most: int, requests: int, *, prompts: int) -> int | None:
    """`most` as far as there are real prompts that were not sent yet; None where that is no more than `requests`.

    Args:
        prompts: how many real ones there are; 0 for made-up ones, which are never the same.
    """
    bounded = min(most, prompts) if prompts else most
    return bounded if bounded > requests else None


def ramp_per_slot(workload: Workload) -> int:
    """Requests per slot of a ramp step. Conversations need more: the first turn of each finds nothing in the cache."""
    return RAMP_PER_SLOT if workload.turns is None else max(RAMP_PER_SLOT, workload.requests.per_slot)


def plan_levels(
    plan: LoadPlan, gpus: int, *, seed: int, open_arrivals: ArrivalProcess = POISSON, prompts: int = 0
) -> tuple[LoadLevel, LoadLevel, LoadLevel]:
    """Warm-up, throughput and TTFT levels of a config that uses `gpus` GPUs, busiest first.

    Args:
        open_arrivals: of the TTFT level (`Workload.open_arrivals`).
        prompts: how many real ones the workload has, whatever the number of GPUs; 0 for made-up ones.
    """
    concurrency, rate = plan.concurrency_per_gpu * gpus, plan.rate_rps_per_gpu * gpus
    requests, most = plan.ttft_requests_per_gpu * gpus, plan.ttft_most_requests_per_gpu
    return (
        LoadLevel(
            name="warmup",
            role=LevelRole.WARMUP,
            arrivals=Arrivals.CLOSED,
            requests=plan.warmup_requests_per_gpu * gpus,
            seed=seed,
            concurrency=concurrency,
        ),
        LoadLevel(
            name="throughput",
            role=LevelRole.THROUGHPUT,
            arrivals=Arrivals.CLOSED,
            requests=plan.throughput_requests_per_gpu * gpus,
            seed=seed + 1,
            concurrency=concurrency,
        ),
        open_level(
            "ttft",
            LevelRole.TTFT,
            open_arrivals,
            requests=requests,
            seed=seed + 2,
            rate_rps=rate,
            most_requests=None if most is None else growing_to(most * gpus, requests, prompts=prompts),
        ),
    )


def _lengthened(least: int, wanted: float, most: int) -> int:
    """`least`, or more to last as long as wanted, but lengthened only up to `most`."""
    return max(least, min(math.ceil(wanted), most))


def _bounded(wanted: int, *, least: int, served: float) -> int:
    """`wanted`, or what is served in the longest time a level may take, but not less than is needed to say anything."""
    return min(wanted, max(least, math.floor(served)))


def _flat(points: Sequence[RampPoint]) -> bool:
    if len(points) < 2 or _gain(points) >= MIN_GAIN:
        return False
    noisy = max(_half_width(points[-1]), _half_width(points[-2])) > MIN_GAIN
    return not noisy or (len(points) >= 3 and _gain(points[:-1]) < MIN_GAIN)


def _gain(points: Sequence[RampPoint]) -> float:
    """What the last point adds to the best before it, as a share."""
    before = max(p.output_tok_s.value for p in points[:-1])
    return points[-1].output_tok_s.value / before - 1 if before > 0 else math.inf


def _half_width(point: RampPoint) -> float:
    """Half the relative interval; as good as none where there is no interval."""
    rate = point.output_tok_s
    if rate.low is None or rate.high is None or rate.value <= 0:
        return math.inf
    return (rate.high - rate.low) / 2 / rate.value
