"""The prior of a surface's study: the one that the product makes, of the node as it is written down.

It is made from a `Situation` and the load, both of which any study knows, and never from a surface.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.bench.physics import Load
from autotune.bench.situations import Situation
from autotune.load.ramp import RATE_SHARE
from autotune.planning import prior as product
from autotune.records import LoadPlan
from autotune.search.prior.expectation import Prior


def prior_of(situation: Situation, load: Load) -> Prior | None:
    """What a study believes of `situation` under `load` before its first launch; None for unknown physics."""
    return product.prior_of(replace(situation.plan, space=situation.space), _load_plan(situation, load))


def _load_plan(situation: Situation, load: Load) -> LoadPlan:
    """The levels that a study would fix for that load, by the formulas of `load.ramp`."""
    counts = situation.plan.workload.requests
    concurrency, rate = round(load.concurrency), load.rate_rps
    return LoadPlan(
        concurrency_per_gpu=concurrency,
        rate_rps_per_gpu=rate,
        throughput_requests_per_gpu=min(counts.most, max(counts.per_slot * concurrency, round(counts.level_s * rate))),
        ttft_requests_per_gpu=min(counts.most, max(counts.ttft, round(counts.level_s * rate))),
        warmup_requests_per_gpu=counts.warmup_per_slot * concurrency,
        capacity_rps_per_gpu=rate / RATE_SHARE,
    )
