"""The prior of a surface's study: the one that the product makes, of the node as it is written down.

It is made from a plan and the load, both of which any study knows, and never from a surface.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autotune.bench.physics import Load
from autotune.load.ramp import RATE_SHARE
from autotune.planning import StudyPlan
from autotune.planning import prior as product
from autotune.records import LoadPlan
from autotune.search.prior.physical import PhysicalPrior
from autotune.search.space import SearchSpace


def prior_of(plan: StudyPlan, space: SearchSpace, load: Load) -> PhysicalPrior | None:
    """What a study of `space` believes under `load` before its first launch; None for unknown physics."""
    return product.prior_of(replace(plan, space=space), _load_plan(plan, load))


def prior_of_closed(plan: StudyPlan, space: SearchSpace, concurrency: float) -> PhysicalPrior | None:
    """The same where both objectives are of one closed loop of that many requests per GPU, as some recordings are.

    The closed form knows Poisson arrivals only. So TTFT is what the event simulator sees in the closed loop, its
    opening burst included, for as many configs as it is asked about.
    """
    some = prior_of(plan, space, Load(concurrency=concurrency, rate_rps=1.0))
    if some is None:
        return None
    tokens_s = float(np.exp(some.expect([plan.baseline]).log_throughput[0]))
    rate = RATE_SHARE * tokens_s / some.offered.output_tokens
    found = replace(some, offered=replace(some.offered, rate_rps=rate), pace=1.0)
    both = some.levels
    return found if both is None else replace(found, levels=lambda gpus: (both(gpus)[0], both(gpus)[0]))


def _load_plan(plan: StudyPlan, load: Load) -> LoadPlan:
    """The levels that a study would fix for that load, by the formulas of `load.ramp`."""
    counts = plan.workload.requests
    concurrency, rate = round(load.concurrency), load.rate_rps
    return LoadPlan(
        concurrency_per_gpu=concurrency,
        rate_rps_per_gpu=rate,
        throughput_requests_per_gpu=min(counts.most, max(counts.per_slot * concurrency, round(counts.level_s * rate))),
        ttft_requests_per_gpu=min(counts.most, max(counts.ttft, round(counts.level_s * rate))),
        warmup_requests_per_gpu=counts.warmup_per_slot * concurrency,
        capacity_rps_per_gpu=rate / RATE_SHARE,
    )
