"""The search for a config's highest rate within the SLO, driven on one server; load/goodput.py decides."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from autotune.load.arrivals import open_level
from autotune.load.goodput import Budget, Step, goodput_of, next_step, samples_wanted, seen_of
from autotune.load.workloads import Workload
from autotune.records import (
    Caveat,
    Failure,
    FailureClass,
    Goodput,
    GoodputEnd,
    LevelRole,
    LoadLevel,
    Measurement,
    Slo,
)
from autotune.units import plural

STRETCH = 3
"""On slow nodes the requests that an interval needs take long to come: so many usual lengths are waited for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputOrder:
    """What to search under.

    Attributes:
        gpus: that the config uses; the workload's counts are per GPU.
        longest_s: no level is planned to last longer.
    """

    slo: Slo
    workload: Workload
    gpus: int
    longest_s: float

    def level_s(self, rate_rps: float) -> float:
        """How long a level at about this rate lasts: as usual, or until it has the requests that an interval needs."""
        usual_s = self.workload.requests.level_s
        return min(self.longest_s, max(usual_s, min(samples_wanted(self.slo) / rate_rps, STRETCH * usual_s)))


async def find_goodput(
    order: GoodputOrder,
    first: Measurement,
    capacity_rps: float | None,
    *,
    drive: Callable[[LoadLevel], Awaitable[Measurement]],
    seed_of: Callable[[int], int],
) -> Goodput:
    """Drive levels until the rate is known or the budget is spent.

    Args:
        first: of the TTFT level, which is the search's first point.
        capacity_rps: requests/s of the throughput level.
        drive: drives one level and gives its figures, those of an overloaded server too.
        seed_of: seed of the n-th level.
    """
    budget = Budget.of(order.level_s(first.level.rate_rps or 1.0))
    levels = [first]
    while True:
        void = next((level for level in levels if level.void is not None), None)
        if void is not None:  # more requests would show the client's capacity
            end = GoodputEnd.CLIENT_LIMIT
            break
        seen = [seen_of(level, order.slo) for level in levels]
        step = next_step(seen, budget, capacity_rps=capacity_rps)
        if isinstance(step, GoodputEnd):
            end = step
            break
        levels.append(await drive(goodput_level(order, step, len(levels), seed=seed_of(len(levels)))))
    return goodput_of([seen_of(level, order.slo) for level in levels], end, order.slo, tokens_per_request(levels))


def goodput_level(order: GoodputOrder, step: Step, place: int, *, seed: int) -> LoadLevel:
    """The `place`-th level: as many requests as come in the step's time, or as an interval of each limit needs."""
    most = min(order.workload.requests.most * order.gpus, math.floor(order.longest_s * step.rate_rps))
    wanted = math.ceil(max(step.seconds, order.level_s(step.rate_rps)) * step.rate_rps)
    return open_level(
        f"goodput-{place}",
        LevelRole.GOODPUT,
        order.workload.open_arrivals,
        rate_rps=step.rate_rps,
        requests=max(1, min(wanted, most)),
        seed=seed,
    )


def tokens_per_request(levels: Sequence[Measurement]) -> float | None:
    """Mean output of the requests that succeeded; None where no server said."""
    known = [(level.output_tokens, level.completed) for level in levels if level.output_tokens and level.completed]
    tokens, requests = (sum(column) for column in zip(*known, strict=True)) if known else (0, 0)
    return tokens / requests if requests else None


def goodput_caveats(found: Goodput) -> tuple[Caveat, ...]:
    """What is doubtful about a rate that was found. Codes: goodput_open, goodput_uncertain."""
    rate = found.rate_rps
    if rate is None or found.end is GoodputEnd.CLIENT_LIMIT:
        return ()
    if found.is_open:
        return (
            Caveat(
                code="goodput_open",
                text=f"every rate that was tried met the SLO, {rate.value:.3g} requests/s the highest of them, when "
                f"the search's {found.end} were spent: the goodput is at least that",
                remedy="Tighten --slo, or raise the load that the study starts from with --load rate=R.",
            ),
        )
    if found.end is GoodputEnd.NARROW or rate.low is None or rate.high is None:
        return ()
    return (
        Caveat(
            code="goodput_uncertain",
            text=f"the goodput is known to {rate.low:.3g}-{rate.high:.3g} requests/s after "
            f"{plural(found.levels, 'level')} and {found.seconds:.0f} s, when the search's {found.end} were spent",
            remedy="Repeat the trial, or lengthen the workload's levels (`level_s`).",
        ),
    )


def slo_failure(found: Goodput, levels: Sequence[Measurement]) -> Failure:
    """That a config meets the SLO at no rate."""
    lowest = min((level for level in levels if level.level.rate_rps), key=lambda level: level.level.rate_rps or 0.0)
    figures = ((limit, limit.figure(lowest)) for limit in found.slo.limits)
    missed = [
        f"{limit.metric} {figure.value:.3g}" for limit, figure in figures if figure and figure.value > limit.bound
    ]
    return Failure(
        kind=FailureClass.SLO_MISSED,
        line=f"at no rate within {found.slo}: at {lowest.level.rate_rps:.3g} requests/s still "
        f"{', '.join(missed) or 'a figure is missing or the queue grew'} (seconds, or a share)",
        remedies=("Loosen --slo; if no config meets it, take faster GPUs or a smaller model.",),
    )
