"""What `autotune plan` shows beyond a study's own plan: layouts with their KV memory, and the time it takes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from autotune.engine.simulated import COMPILE_S, DISK_BYTES_PER_S, GRAPHS_S, IMPORT_S, READY_S
from autotune.errors import InvalidOption
from autotune.load.ramp import START_PER_GPU
from autotune.node.defaults import parse_version, resolve
from autotune.node.memory import estimate
from autotune.planning.plan import StudyPlan
from autotune.records import Config, Value
from autotune.search.funnel import RuleCount
from autotune.search.layouts import LayoutPlan
from autotune.search.rules import funnel, warnings_of
from autotune.search.rules_base import RuleWarning
from autotune.search.rules_memory import smallest_gpu

LAYOUT_NAMES = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
EXPERT_PARALLEL = "enable-expert-parallel"
STOP_S = 5.0
RAMP_STEP_S = 12.0
"""One step of the baseline's ramp, roughly: `MIN_RAMP_REQUESTS` or two per slot, each a few seconds long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """One layout of the feasible configs, with its memory under the configs that lie nearest to vLLM's defaults.

    Attributes:
        config: the layout's parameters alone.
        configs: feasible configs that have it.
        kv_tokens: of one replica, smallest and largest over those configs; None where the shape is not known.
        first_tried: place among the configs that are tried first, 1-based; None where the sampler decides.
        why: the judgement behind it; empty for a layout that is there to be compared.
    """

    config: Config
    gpus: int
    configs: int
    kv_tokens: tuple[int, int] | None
    concurrency: tuple[float, float] | None
    first_tried: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """How long a study takes, roughly; a real disk, compile cache or network makes each start slower or faster.

    Attributes:
        start_s: one launch until it is ready.
        load_s: warm-up and both levels of one launch.
        ramp_s: the baseline's search for the load, once.
        launches: counted trials, repeats included.
    """

    start_s: float
    load_s: float
    ramp_s: float
    launches: int

    @property
    def total_s(self) -> float:
        """All launches one after the other."""
        return self.launches * (self.start_s + self.load_s + STOP_S) + self.ramp_s


def layouts(plan: StudyPlan) -> tuple[LayoutRow, ...]:
    """Every layout that a feasible config has: those tried first in their order, then the generator's order."""
    groups: dict[Config, list[Config]] = {}
    for config in plan.feasible:
        groups.setdefault(_layout(plan, config), []).append(config)
    tried: dict[Config, int] = {}
    for place, config in enumerate((plan.baseline, *plan.starting_points), start=1):
        tried.setdefault(_layout(plan, config), place)
    told = {_of_plan(found): (found.order, found.why) for found in plan.generated.layouts} if plan.generated else {}
    rows = [
        _row(plan, layout, configs, tried.get(layout), told.get(layout, (0, ""))[1])
        for layout, configs in groups.items()
    ]
    return tuple(
        sorted(
            rows,
            key=lambda row: (
                row.first_tried or math.inf,
                told.get(row.config, (math.inf, ""))[0],
                row.gpus,
                row.config.params,
            ),
        )
    )


def time_estimate(plan: StudyPlan, trials: int) -> TimeEstimate:
    """Roughly, from recorded starts of one H200 and the lengths of the workload's levels."""
    eager = dict(plan.extra).get("enforce-eager") is True
    compile_s = 0.0 if eager else COMPILE_S + GRAPHS_S
    weights = plan.shape.weight_bytes / DISK_BYTES_PER_S if plan.shape is not None else 60.0
    counts = plan.workload.requests
    ramp_s = 0.0
    if not plan.recipe.load.fixed:
        steps = math.log2(max(1.0, plan.workload.max_concurrency / START_PER_GPU)) + 1
        ramp_s = steps * RAMP_STEP_S
    return TimeEstimate(
        start_s=IMPORT_S + READY_S + compile_s + weights,
        load_s=2.5 * max(counts.level_s, 10.0),
        ramp_s=ramp_s,
        launches=trials + 2 * plan.recipe.repeats,
    )


def doubts(plan: StudyPlan) -> tuple[tuple[RuleWarning, int], ...]:
    """Warnings about the feasible configs, each reason once with how many configs it concerns, most first.

    At most `MOST_ASKED` configs are asked, evenly spread; counts are of those.
    """
    step = max(1, len(plan.feasible) // MOST_ASKED)
    found: dict[str, tuple[RuleWarning, int]] = {}
    for config in plan.feasible[::step]:
        for warning in warnings_of(config, plan.node, plan.shape, plan.context):
            first, count = found.get(warning.reason, (warning, 0))
            found[warning.reason] = (first, count + 1)
    return tuple(sorted(found.values(), key=lambda pair: -pair[1]))


MOST_ASKED = 500


def _layout(plan: StudyPlan, config: Config) -> Config:
    values = {**dict(plan.extra), **dict(plan.fixed), **config.as_dict()}
    layout: dict[str, Value] = {name: values.get(name) or 1 for name in LAYOUT_NAMES}
    if values.get(EXPERT_PARALLEL):
        layout[EXPERT_PARALLEL] = True
    return Config.of(layout)


def _of_plan(found: LayoutPlan) -> Config:
    return Config.of({name: value for name, value in found.flags.items() if name != EXPERT_PARALLEL or value})


def rule_counts(plan: StudyPlan) -> tuple[RuleCount, ...]:
    """Every rule in order, with how many configs of the space it refused and how many were left."""
    return funnel(plan.space, plan.node, plan.shape, plan.context)


def _row(plan: StudyPlan, layout: Config, configs: list[Config], first: int | None, why: str) -> LayoutRow:
    known = list(_memory(plan, configs))
    gpus = math.prod(int(size) for name in LAYOUT_NAMES if isinstance(size := layout.get(name), int))
    return LayoutRow(
        config=layout,
        gpus=gpus,
        configs=len(configs),
        kv_tokens=(min(t for t, _ in known), max(t for t, _ in known)) if known else None,
        concurrency=(min(c for _, c in known), max(c for _, c in known)) if known else None,
        first_tried=first,
        why=why,
    )


def _memory(plan: StudyPlan, configs: list[Config]) -> Iterator[tuple[int, float]]:
    """KV tokens and concurrency of one replica, of each config; of at most `MOST_ASKED` of them."""
    if not plan.node.gpus:
        return
    gpu = smallest_gpu(plan.node)
    version = parse_version(plan.vllm_version)
    for config in configs[:: max(1, len(configs) // MOST_ASKED)]:
        shape = plan.shape_of(config)
        if shape is None:
            continue
        try:
            settings = resolve(plan.complete(config), plan.node, shape, plan.vllm_version, dict(plan.extra))
            found = estimate(shape, gpu, settings, version=version)
        except (InvalidOption, ValueError):
            continue
        yield found.kv_tokens, found.max_concurrency
