"""What a study believes of configs before it launches them, made from its plan and the load that it found."""

from __future__ import annotations

from collections.abc import Callable

from autotune.load.ramp import plan_levels
from autotune.load.requests import plan_requests
from autotune.planning.plan import StudyPlan
from autotune.records import Config, LoadLevel, LoadPlan, PlannedRequest
from autotune.search.prior.completing import completing
from autotune.search.prior.physical import PhysicalPrior
from autotune.simulator.closed_form import Offered
from autotune.simulator.coefficients import STUDIED, Coefficients

SAMPLER = "prior"
"""The sampler that asks for a prior."""

CONTROLS = frozenset({"random", "qmc", "grid"})
"""Samplers that learn nothing from what was launched."""

_DRAWN = 0
"""Of the requests that are simulated: any but the study's own draws would do, they differ in words and order only."""

Level = tuple[LoadLevel, tuple[PlannedRequest, ...]]


def has_physics(plan: StudyPlan) -> bool:
    """Whether anything can be predicted for the plan's node and model: known peaks, known shape."""
    gpus = plan.node.gpus
    known = all(gpu.bf16_flops is not None and gpu.memory_bytes_per_s is not None for gpu in gpus)
    return plan.shape is not None and len(gpus) > 0 and known


def prior_of(plan: StudyPlan, load: LoadPlan, *, coefficients: Coefficients | None = None) -> PhysicalPrior | None:
    """The prior of a study; None where nothing is known of its GPU or model.

    Args:
        load: the levels that its trials are driven with.
        coefficients: calibrated on this node; where not given those that a study of an H200 showed, or of simulated
            servers the simulation's own.
    """
    if plan.shape is None or not has_physics(plan):
        return None

    def levels(gpus: int) -> tuple[Level, Level]:
        workload = plan.workload
        _, busy, steady = plan_levels(
            load, gpus, seed=_DRAWN, open_arrivals=workload.open_arrivals, prompts=len(workload.texts)
        )
        return (
            (busy, plan_requests(plan.workload, busy, _DRAWN)),
            (steady, plan_requests(plan.workload, steady, _DRAWN)),
        )

    found = PhysicalPrior(
        node=plan.node,
        shape=plan.shape,
        offered=Offered(
            prompt_tokens=plan.traffic.prompt_mean or 1.0,
            output_tokens=plan.traffic.output_mean or 1.0,
            concurrency=load.concurrency_per_gpu,
            rate_rps=load.rate_rps_per_gpu,
            requests=load.ttft_requests_per_gpu,
            cached_share=plan.reachable_hits or 0.0,
        ),
        fixed=(*plan.fixed, *plan.extra),
        vllm_version=plan.vllm_version,
        shapes=dict(plan.checkpoints),
        coefficients=coefficients or (Coefficients() if plan.simulated else STUDIED),
        levels=levels,
    )
    seen = load.capacity_rps_per_gpu
    return found if seen is None else found.paced(plan.baseline, seen)


def tried_first(plan: StudyPlan) -> tuple[Config, ...]:
    """What is launched between the baseline and the sampler's own proposals.

    What runs today comes first, and what the operator asked for. Of the guide's configs none is launched before a
    control, which is to show what knowing nothing finds; one before a prediction that ranks the space; all before a
    sampler that learns from them.
    """
    today = () if plan.today is None else (plan.today,)
    asked = len(plan.recipe.starting_points)
    if plan.recipe.sampler in CONTROLS:
        return (*today, *plan.starting_points[:asked])
    if plan.recipe.sampler != SAMPLER or not has_physics(plan):
        return (*today, *plan.starting_points)
    return (*today, *plan.starting_points[: max(1, asked)])


def why_tried(plan: StudyPlan, config: Config) -> str:
    """Why one of `tried_first` is."""
    if config == plan.today:
        return "what runs today"
    asked = config in plan.starting_points[: len(plan.recipe.starting_points)]
    return "asked for by the study" if asked else "what the guide tries first for this model on this node"


def completer(plan: StudyPlan) -> Callable[[Config], Config]:
    """Fills in what vLLM takes for the space's parameters that a config lacks, so that the baseline teaches."""
    if plan.shape is None:
        return lambda config: config
    return completing(plan.space, plan.node, plan.shape, plan.vllm_version, dict((*plan.fixed, *plan.extra)))
