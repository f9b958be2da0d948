"""What `autotune measure` is asked for, and the levels that follow from it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from autotune.load.arrivals import open_level
from autotune.load.ramp import most_ttft_requests
from autotune.load.stats import samples_for
from autotune.load.workload import Workload
from autotune.records import Arrivals, LevelRole, LoadLevel, Slo

MIN_REQUESTS = 20
MOST_REQUESTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOrder:
    """What is to be measured.

    Attributes:
        model: the name to ask for; None for the only one that is served.
        api_key_env: environment variable with the server's key.
        concurrencies: closed loops, requests in flight, in the order to drive them.
        rates: open loops after those, requests per second.
        requests: of each level; None for enough that a p95 has an interval, in the time that a level may take; open
            loops then go on while their p95 TTFT is not known well enough, as the TTFT level of a study does.
        seed: of the prompts' content and of arrivals.
        tokenizer: folder, file or hub name; None for what the server's model name leads to on this machine.
        out: folder for raw records, as they are and as JSON of `vllm bench serve`; None to keep none.
        level_deadline_s: after which a level is ended with its requests open.
    """

    url: str
    workload: Workload
    concurrencies: tuple[int, ...]
    rates: tuple[float, ...]
    seed: int
    model: str | None = None
    api_key_env: str | None = None
    requests: int | None = None
    tokenizer: str | None = None
    gpus: int | None = None
    slo: Slo | None = None
    out: Path | None = None
    level_deadline_s: float = 300.0


def planned_levels(order: MeasureOrder) -> tuple[LoadLevel, ...]:
    """The levels with as many requests as are wanted of each, were time no matter."""
    counts = order.workload.requests
    enough = samples_for(95)
    closed = [
        LoadLevel(
            name=f"concurrency-{concurrency}",
            role=LevelRole.EXTRA,
            arrivals=Arrivals.CLOSED,
            requests=order.requests
            # Ramp and tail, which are cut off, have one request per slot each.
            or min(MOST_REQUESTS, max(enough + 2 * concurrency, counts.per_slot * concurrency)),
            seed=level_seed(order, place),
            concurrency=concurrency,
        )
        for place, concurrency in enumerate(order.concurrencies, start=1)
    ]
    # No more than arrive in half the time that a level may take, so that the last ones can still end.
    arriving = [max(MIN_REQUESTS, math.floor(rate * order.level_deadline_s / 2)) for rate in order.rates]
    opened = [
        _open(order, rate, min(MOST_REQUESTS, max(enough, counts.ttft), most), level_seed(order, place))
        for place, (rate, most) in enumerate(zip(order.rates, arriving, strict=True), start=1 + len(closed))
    ]
    return (*closed, *opened)


def _open(order: MeasureOrder, rate: float, requests: int, seed: int) -> LoadLevel:
    """An open loop of `requests`, or of as many as were asked for; only the first may grow."""
    most = None
    if order.requests is None:
        most = most_ttft_requests(order.workload, requests, rate, longest_s=order.level_deadline_s / 2)
    return open_level(
        f"rate-{rate:g}",
        LevelRole.EXTRA,
        order.workload.open_arrivals,
        requests=order.requests or requests,
        seed=seed,
        rate_rps=rate,
        most_requests=most,
    )


def level_seed(order: MeasureOrder, place: int) -> int:
    return (order.seed * 1_000_003 + place) % 2**32
