"""Where a study begins: the baseline, and a few configs that the operators' guide would try first. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from autotune.errors import NoFeasibleConfig
from autotune.load.model_len import guide_model_len
from autotune.node.defaults import ResolvedSettings, resolve
from autotune.node.memory import MemoryEstimate
from autotune.records import FP8_CAPABILITY, Config, ModelShape, Node, Value
from autotune.search.layout_order import Layout
from autotune.search.layouts import (
    ROOMY_SHARE,
    SPARING,
    TIGHT_CONCURRENCY,
    TYPICAL,
    LayoutPlan,
    no_layout_hint,
    plan_layouts,
)
from autotune.search.parameter import is_number, same_value
from autotune.search.rules import RuleContext, check, smallest_gpu
from autotune.search.rules_base import CHECKPOINT
from autotune.search.rules_memory import try_estimate, version_of_text
from autotune.search.space import Parameter, SearchSpace
from autotune.units import format_bytes

_MOST_LAYOUTS = 4
"""Layouts among the starting points: a study of twenty trials keeps most of them for the search."""

_BALANCED: Mapping[str, Value] = {
    **TYPICAL,
    "kv-cache-dtype": "auto",
    "enable-prefix-caching": True,
    "enforce-eager": False,
}
_SPARING: Mapping[str, Value] = {**_BALANCED, **SPARING}


def baseline(
    node: Node,
    shape: ModelShape | None,
    needed_len: int | None = None,
    *,
    min_model_len: int | None = None,
    vllm_version: str | None = None,
    fixed: Iterable[tuple[str, Value]] = (),
    checkpoints: Mapping[str, ModelShape] | None = None,
) -> tuple[Config, tuple[str, ...]]:
    """vLLM's own defaults plus the fewest changes that start and serve the workload, and why each was made.

    The fewest GPUs per replica that hold the model (TP before PP, PP first on mixed cards) with room for KV where the
    node has it, one replica, and `max-model-len` cut to the workload only where the model's own length does not fit.
    Experts are dealt out whole only where they cannot be split. `fixed` flags are not changed. Where the model fits no
    layout and one of its other checkpoints does, that checkpoint is the change.
    Without a shape or without GPUs nothing can be computed, and nothing is changed.

    Args:
        needed_len: tokens of the longest request; None when no cut may be made.
        min_model_len: tokens that must be admitted besides: no cut goes below them.
        checkpoints: other checkpoints of the model by the value that names them.

    Raises:
        NoFeasibleConfig: the model does not fit the node in any layout.
    """
    if shape is None or not node.gpus:
        return Config.of({}), ()
    context = RuleContext(
        needed_len=needed_len, min_model_len=min_model_len, vllm_version=vllm_version, fixed=tuple(fixed)
    )
    found = _fewest_changes(node, shape, context)
    if found is not None:
        return found
    for name, other in sorted((checkpoints or {}).items()):
        found = _fewest_changes(node, other, context)
        if found is not None:
            config, changes = found
            change = f"{CHECKPOINT} {name}: {format_bytes(shape.weight_bytes)} of weights fit no layout of this node"
            return Config.of({**config.as_dict(), CHECKPOINT: name}), (change, *changes)
    raise NoFeasibleConfig(
        f"{shape.name} in any layout",
        node.name,
        _reasons(node, shape, context),
        hint=no_layout_hint(node, shape, context),
    )


def starting_points(
    space: SearchSpace, node: Node, shape: ModelShape | None, context: RuleContext | None = None
) -> tuple[Config, ...]:
    """A few feasible configs of `space` to try right after the baseline; fewer when the space is narrow.

    Layouts first, in the order of `plan_layouts` (those that use the whole node, at most four); then the first of them
    set for throughput, with fp8 KV where KV is tight; then set for latency. Wishes are moved to the nearest choices
    that the space has. Empty without a shape or without GPUs.
    """
    context = context or RuleContext()
    context = replace(context, fixed=(*context.fixed, *space.fixed))
    shape = _searched_shape(space, shape, context)
    if shape is None or not node.gpus:
        return ()
    plans = [plan for plan in plan_layouts(node, shape, context) if _has_layout(space, plan, context)]
    plans.sort(key=lambda plan: (plan.gpus < node.gpu_count, plan.order))
    points: dict[Config, None] = {}
    chosen: list[LayoutPlan] = []
    for plan in plans:
        idle = plan.gpus < node.gpu_count
        if len(chosen) >= _MOST_LAYOUTS or (idle and chosen):
            break
        wishes = [{**wish, **_said(space, plan)} for wish in (_BALANCED, _SPARING)]
        point = _first_allowed(space, wishes, node, shape, context)
        if point is not None:
            points.setdefault(point)
            chosen.append(plan)
    for plan in chosen[:1]:
        for wish in _variants(plan, node, shape, context):
            point = _first_allowed(space, [{**wish, **_said(space, plan)}], node, shape, context)
            if point is not None:
                points.setdefault(point)
    return tuple(points)


def _fewest_changes(node: Node, shape: ModelShape, context: RuleContext) -> tuple[Config, tuple[str, ...]] | None:
    # A layout with room for KV, else one that fits by the pessimistic estimate, else one that no rule refuses.
    for spare in (ROOMY_SHARE, 0.0, None):
        for layout in _layouts(node, shape):
            for length in _lengths(shape, context.admitted_len):
                found = _try(node, shape, context, layout, length, spare)
                if found is not None:
                    return found
    return None


def _changed(layout: Layout) -> dict[str, Value]:
    """The flags of one replica that differ from vLLM's defaults."""
    both = {"tensor-parallel-size": layout.tensor, "pipeline-parallel-size": layout.pipeline}
    sizes: dict[str, Value] = {name: size for name, size in both.items() if size > 1}
    return {**sizes, "enable-expert-parallel": True} if layout.expert_parallel else sizes


def _layouts(node: Node, shape: ModelShape) -> list[Layout]:
    """Layouts of one replica, cheapest first; those that leave GPUs over when repeated come last."""
    mixed = len({gpu.memory_bytes for gpu in node.gpus}) > 1
    count = node.gpu_count
    found = [
        Layout(tensor=tensor, pipeline=pipeline, data=1, expert_parallel=expert_parallel)
        for tensor in range(1, count + 1)
        for pipeline in range(1, min(count // tensor, shape.layers) + 1)
        for expert_parallel in ((False, True) if shape.experts is not None and tensor > 1 else (False,))
    ]
    return sorted(
        found, key=lambda x: (count % x.gpus != 0, x.gpus, x.tensor if mixed else x.pipeline, x.expert_parallel)
    )


def _lengths(shape: ModelShape, needed_len: int | None) -> Iterator[int | None]:
    """The model's own length (None), then the workload's need rounded up as the guide does, then the bare need."""
    yield None
    if needed_len is not None and needed_len < shape.max_position_embeddings:
        rounded = guide_model_len(needed_len)
        if rounded < shape.max_position_embeddings:
            yield rounded
        if rounded != needed_len:
            yield needed_len


def _try(
    node: Node, shape: ModelShape, context: RuleContext, layout: Layout, length: int | None, spare: float | None
) -> tuple[Config, tuple[str, ...]] | None:
    """The config of one layout and length with its reasons; None when it is refused or leaves less than `spare`."""
    values = _changed(layout)
    if length is not None:
        values["max-model-len"] = length
    fixed = dict(context.fixed)
    if values.keys() & fixed.keys():
        return None
    config = Config.of(values)
    if check(config, node, shape, context):
        return None
    settings = _settings(values, node, shape, context)
    gpu = smallest_gpu(node)
    if spare is not None:
        found = try_estimate(shape, gpu, settings, version_of_text(context.vllm_version))
        budget = settings.gpu_memory_utilization * gpu.memory_bytes
        if found is not None and (not found.fits or found.available_kv_bytes < spare * budget):
            return None
    return config, tuple(_why(name, values[name], node, shape, context) for name in values)


def _why(name: str, value: Value, node: Node, shape: ModelShape, context: RuleContext) -> str:
    gpu = smallest_gpu(node)
    if name == "max-model-len":
        own = _estimate({}, node, shape, context)
        needed = "more" if own is None else format_bytes(own.needed_kv_bytes)
        return (
            f"max-model-len {value}: the model's own {shape.max_position_embeddings} tokens need "
            f"{needed} of KV, which does not fit; the longest request has {context.admitted_len}"
        )
    if name == "enable-expert-parallel":
        return f"{name} {value}: an expert of {shape.name} cannot be split over this many GPUs"
    count = node.gpu_count
    # Of 2, 4 or 8 GPUs every split that is worth a word leaves none over.
    whole = f" that divide the {count} of the node" if count & (count - 1) else ""
    return (
        f"{name} {value}: {format_bytes(shape.weight_bytes)} of weights leave too little for KV, or do not fit, on "
        f"fewer GPUs of {format_bytes(gpu.memory_bytes)}{whole}"
    )


def _reasons(node: Node, shape: ModelShape, context: RuleContext) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    fixed = dict(context.fixed)
    for layout in _layouts(node, shape):
        length = context.admitted_len
        cut = length is not None and length < shape.max_position_embeddings and "max-model-len" not in fixed
        extra: dict[str, Value] = {"max-model-len": length} if cut else {}
        for violation in check(Config.of({**_changed(layout), **extra}), node, shape, context)[:1]:
            text = violation.text
            counts[text] = counts.get(text, 0) + 1
    return sorted(counts.items(), key=lambda item: -item[1])


def _settings(values: dict[str, Value], node: Node, shape: ModelShape, context: RuleContext) -> ResolvedSettings:
    return resolve(Config.of(values), node, shape, context.vllm_version, dict(context.fixed))


def _estimate(values: dict[str, Value], node: Node, shape: ModelShape, context: RuleContext) -> MemoryEstimate | None:
    settings = _settings(values, node, shape, context)
    return try_estimate(shape, smallest_gpu(node), settings, version_of_text(context.vllm_version))


def _searched_shape(space: SearchSpace, shape: ModelShape | None, context: RuleContext) -> ModelShape | None:
    """The shape of the first checkpoint that the space has, which is the study's own where it searches none."""
    searched = space.parameter(CHECKPOINT)
    name = dict(context.fixed).get(CHECKPOINT) if searched is None else searched.choices[0]
    return shape if name is None else context.shapes.get(str(name), shape)


def _has_layout(space: SearchSpace, plan: LayoutPlan, context: RuleContext) -> bool:
    """Whether the space can say this layout: by a choice of its own, by a fixed flag, or by vLLM's default."""
    fixed = dict(context.fixed)
    for name, wanted in plan.flags.items():
        parameter = space.parameter(name)
        known = parameter.choices if parameter is not None else (fixed.get(name),)
        if not any(wanted == (_layout_default(name) if value is None else value) for value in known):
            return False
    return True


def _said(space: SearchSpace, plan: LayoutPlan) -> dict[str, Value]:
    """The layout's flags as the space says them: a default that it spells as null stays null."""
    said = plan.flags
    for name, wanted in plan.flags.items():
        parameter = space.parameter(name)
        if parameter is not None and wanted not in parameter.choices and wanted == _layout_default(name):
            said[name] = None
    return said


def _layout_default(name: str) -> Value:
    return False if name == "enable-expert-parallel" else 1


def _first_allowed(
    space: SearchSpace,
    wishes: Sequence[Mapping[str, Value]],
    node: Node,
    shape: ModelShape,
    context: RuleContext,
) -> Config | None:
    for wish in wishes:
        point = _nearest(space, wish)
        if not check(point, node, shape, context):
            return point
    return None


def _variants(plan: LayoutPlan, node: Node, shape: ModelShape, context: RuleContext) -> Iterator[Mapping[str, Value]]:
    """Settings for throughput, then for latency."""
    length = context.admitted_len or shape.max_position_embeddings
    tight = plan.kv_tokens_predicted is not None and plan.kv_tokens_predicted < TIGHT_CONCURRENCY * length
    capability = smallest_gpu(node).compute_capability
    fp8 = tight and capability is not None and capability >= FP8_CAPABILITY and shape.kv_cache_dtype is None
    yield {
        **_BALANCED,
        "gpu-memory-utilization": 0.94,
        "max-num-seqs": 512,
        "max-num-batched-tokens": 16384,
        "kv-cache-dtype": "fp8" if fp8 else "auto",
    }
    yield {**_BALANCED, "max-num-seqs": 64, "max-num-batched-tokens": 2048}


def _nearest(space: SearchSpace, wish: Mapping[str, Value]) -> Config:
    """The config of the space nearest to a wish; a parameter nobody wished for takes its first choice."""
    return space.canonical({p.name: _choose(p, wish.get(p.name)) for p in space.parameters})


def _choose(parameter: Parameter, wanted: Value) -> Value:
    for choice in parameter.choices:
        if same_value(choice, wanted):
            return choice
    if is_number(wanted) and wanted > 0:
        numbers = [c for c in parameter.choices if is_number(c) and c > 0]
        if numbers:
            # By ratio: sizes double from choice to choice.
            return min(numbers, key=lambda c: abs(math.log(c / wanted)))
    return parameter.choices[0]
