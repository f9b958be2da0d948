"""The requests that arrive in a study, and what spaces and samplers are told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.load.requests import plan_requests, reachable_share
from autotune.load.tokenizing import find_tokenizer
from autotune.load.workloads import Workload, load_workload, workload_from_numbers
from autotune.planning.plan import Surroundings
from autotune.recipe import Recipe
from autotune.records import Arrivals, LevelRole, LoadLevel, PlannedRequest
from autotune.search.need import Traffic

SAMPLE = 400
"""Planned requests that traffic is described by."""

MIN_SHARED = 0.05
"""Share of reachable prefix-cache hits from which prompts are said to open alike: a chat template alone is below it."""

RECORDED = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
"""Files that may hold texts."""

DEFAULT_CONCURRENCY = 512
"""Where the ramp of a workload from numbers ends, per GPU, unless the operator says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arriving:
    """What arrives.

    Attributes:
        reachable_hits: share of prompt tokens that a prefix cache can serve at best, 0..1.
    """

    workload: Workload
    traffic: Traffic
    reachable_hits: float


def arriving_of(recipe: Recipe, here: Surroundings) -> Arriving:
    """The workload of a recipe, and `SAMPLE` requests of it in a few figures.

    Raises:
        BadInput: there is no such workload, or its file cannot be used.
    """
    workload = _workload(recipe, here)
    sent = _sample(workload)
    hits = reachable_share(sent)
    return Arriving(workload=workload, traffic=_traffic(workload, sent, hits), reachable_hits=hits)


def _workload(recipe: Recipe, here: Surroundings) -> Workload:
    numbers = recipe.numbers
    if numbers is not None:
        return workload_from_numbers(
            numbers.prompt_mean,
            numbers.prompt_p95 or numbers.prompt_mean,
            numbers.output_mean,
            numbers.concurrency or DEFAULT_CONCURRENCY,
        )
    count_tokens = None
    if recipe.workload.endswith(RECORDED):
        # Texts of a log are counted as the model's own tokenizer counts them, where it can be had.
        found = find_tokenizer(recipe.model, environ=here.environ)
        count_tokens = found.tokenizer.count if found.tokenizer else None
    return load_workload(recipe.workload, count_tokens=count_tokens)


def _sample(workload: Workload) -> tuple[PlannedRequest, ...]:
    level = LoadLevel(
        name="sample",
        role=LevelRole.THROUGHPUT,
        arrivals=Arrivals.CLOSED,
        requests=SAMPLE,
        seed=0,
        concurrency=workload.start_concurrency,
    )
    return plan_requests(workload, level, 0)


def _traffic(workload: Workload, sent: Sequence[PlannedRequest], hits: float) -> Traffic:
    """What a generated space is made for. Speculation from the prompt is only of use where real prompts are sent:
    answers to made-up words quote nothing."""
    prompts = sorted(request.prompt_tokens for request in sent)
    return Traffic(
        prompt_mean=sum(prompts) / len(prompts),
        prompt_p95=float(prompts[min(len(prompts) - 1, round(0.95 * len(prompts)))]),
        output_mean=sum(request.output_tokens for request in sent) / len(sent),
        shares_prefixes=hits >= MIN_SHARED,
        repeats_input=bool(workload.texts),
    )
