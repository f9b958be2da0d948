"""Where a study begins: the baseline, and a few configs that the operators' guide would try first. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from autotune.errors import NoFeasibleConfig
from autotune.node.defaults import ResolvedSettings, resolve
from autotune.node.memory import MemoryEstimate, estimate
from autotune.records import Config, Link, ModelShape, Node, Value
from autotune.search.rules import RuleContext, check, smallest_gpu
from autotune.search.space import Parameter, SearchSpace
from autotune.units import format_bytes

_GUIDE_LENGTHS = (8192, 16384, 32768, 65536, 131072)

_ROOMY_SHARE = 0.15
"""A baseline whose KV has less than this share of vLLM's budget starts, but serves a handful of requests: every gain
over it would be flattery. 70B on two H100 leaves 8 %, 8B on one L4 leaves 20 %."""

_TIGHT_CONCURRENCY = 256
"""Below this many requests in KV at once, fp8 KV is worth a try: it removes preemptions (G9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    tensor: int
    pipeline: int

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline

    def flags(self) -> dict[str, Value]:
        """Only what differs from vLLM's default of 1."""
        both = {"tensor-parallel-size": self.tensor, "pipeline-parallel-size": self.pipeline}
        return {name: size for name, size in both.items() if size > 1}


def baseline(
    node: Node,
    shape: ModelShape | None,
    needed_len: int | None = None,
    *,
    vllm_version: str | None = None,
    fixed: Iterable[tuple[str, Value]] = (),
) -> tuple[Config, tuple[str, ...]]:
    """vLLM's own defaults plus the fewest changes that start and serve the workload, and why each was made.

    The fewest GPUs per replica that hold the model (TP before PP, PP first on mixed cards) with room for KV where the
    node has it, one replica, and `max-model-len` cut to the workload only where the model's own length does not fit.
    `fixed` flags are not changed.
    Without a shape or without GPUs nothing can be computed, and nothing is changed.

    Args:
        needed_len: tokens of the longest request; None when no cut may be made.

    Raises:
        NoFeasibleConfig: the model does not fit the node in any layout.
    """
    if shape is None or not node.gpus:
        return Config.of({}), ()
    context = RuleContext(needed_len=needed_len, vllm_version=vllm_version, fixed=tuple(fixed))
    # A layout with room for KV, else one that fits by the pessimistic estimate, else one that no rule refuses.
    for spare in (_ROOMY_SHARE, 0.0, None):
        for layout in _layouts(node, shape):
            for length in _lengths(shape, needed_len):
                found = _try(node, shape, context, layout, length, spare)
                if found is not None:
                    return found
    raise NoFeasibleConfig(
        "vLLM with any layout of this model",
        node.name,
        _reasons(node, shape, context),
        hint=_hint(needed_len, shape),
    )


def starting_points(
    space: SearchSpace, node: Node, shape: ModelShape | None, context: RuleContext | None = None
) -> tuple[Config, ...]:
    """Two to four feasible configs of `space` to try right after the baseline; fewer when the space is narrow.

    In this order: replicas of the smallest layout over all GPUs (G20); the other layout worth comparing, which is TP
    over all GPUs with NVLink (G21) and PP without (G22); the first one set for throughput; the first one set for
    latency. Wishes are moved to the nearest choices that the space has. Empty without a shape or without GPUs.
    """
    if shape is None or not node.gpus:
        return ()
    context = context or RuleContext()
    context = replace(context, fixed=(*context.fixed, *space.fixed))
    try:
        config, _ = baseline(node, shape, context.needed_len, vllm_version=context.vllm_version, fixed=context.fixed)
    except NoFeasibleConfig:
        return ()
    points: dict[Config, None] = {}
    for wish in _wishes(node, shape, context, config):
        point = _nearest(space, wish)
        if not check(point, node, shape, context):
            points.setdefault(point)
    return tuple(points)


def guide_length(needed_len: int) -> int:
    """What the guide rounds a workload's longest request up to (G7); beyond its last step the need itself."""
    return next((length for length in _GUIDE_LENGTHS if length >= needed_len), needed_len)


def _layouts(node: Node, shape: ModelShape) -> list[_Layout]:
    """Layouts of one replica, cheapest first; those that leave GPUs over when repeated come last."""
    mixed = len({gpu.memory_bytes for gpu in node.gpus}) > 1
    count = node.gpu_count
    found = [
        _Layout(tensor=tensor, pipeline=pipeline)
        for tensor in range(1, count + 1)
        for pipeline in range(1, min(count // tensor, shape.layers) + 1)
    ]
    return sorted(found, key=lambda x: (count % x.gpus != 0, x.gpus, x.tensor if mixed else x.pipeline))


def _lengths(shape: ModelShape, needed_len: int | None) -> Iterator[int | None]:
    """The model's own length (None), then the workload's need rounded up as the guide does, then the bare need."""
    yield None
    if needed_len is not None and needed_len < shape.max_position_embeddings:
        rounded = guide_length(needed_len)
        if rounded < shape.max_position_embeddings:
            yield rounded
        if rounded != needed_len:
            yield needed_len


def _try(
    node: Node, shape: ModelShape, context: RuleContext, layout: _Layout, length: int | None, spare: float | None
) -> tuple[Config, tuple[str, ...]] | None:
    """The config of one layout and length with its reasons; None when it is refused or leaves less than `spare`."""
    values = layout.flags()
    if length is not None:
        values["max-model-len"] = length
    fixed = dict(context.fixed)
    if values.keys() & fixed.keys():
        return None
    settings = _settings(values, node, shape, context)
    if settings.max_num_batched_tokens < settings.max_num_seqs and "max-num-seqs" not in fixed:
        values["max-num-seqs"] = settings.max_num_batched_tokens
    config = Config.of(values)
    if check(config, node, shape, context):
        return None
    settings = _settings(values, node, shape, context)
    gpu = smallest_gpu(node)
    if spare is not None:
        found = estimate(shape, gpu, settings)
        budget = settings.gpu_memory_utilization * gpu.memory_bytes
        if not found.fits or found.available_kv_bytes < spare * budget:
            return None
    return config, tuple(_why(name, values[name], node, shape, context) for name in values)


def _why(name: str, value: Value, node: Node, shape: ModelShape, context: RuleContext) -> str:
    gpu = smallest_gpu(node)
    if name == "max-model-len":
        needed = _estimate({}, node, shape, context).needed_kv_bytes
        return (
            f"max-model-len {value}: the model's own {shape.max_position_embeddings} tokens need "
            f"{format_bytes(needed)} of KV, which does not fit; the longest request has {context.needed_len}"
        )
    if name == "max-num-seqs":
        return f"max-num-seqs {value}: vLLM refuses more sequences than max-num-batched-tokens"
    return (
        f"{name} {value}: {format_bytes(shape.weight_bytes)} of weights leave too little for KV, or do not fit, on "
        f"fewer GPUs of {format_bytes(gpu.memory_bytes)}"
    )


def _reasons(node: Node, shape: ModelShape, context: RuleContext) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    fixed = dict(context.fixed)
    for layout in _layouts(node, shape):
        length = context.needed_len
        cut = length is not None and length < shape.max_position_embeddings and "max-model-len" not in fixed
        extra: dict[str, Value] = {"max-model-len": length} if cut else {}
        for violation in check(Config.of({**layout.flags(), **extra}), node, shape, context)[:1]:
            text = violation.text
            counts[text] = counts.get(text, 0) + 1
    return sorted(counts.items(), key=lambda item: -item[1])


def _hint(needed_len: int | None, shape: ModelShape) -> str:
    if needed_len is not None and needed_len > shape.max_position_embeddings:
        return "Choose a workload with shorter requests, or a model with a longer context."
    return "Name a larger --node, choose a smaller or quantised model, or give a workload with shorter requests."


def _settings(values: dict[str, Value], node: Node, shape: ModelShape, context: RuleContext) -> ResolvedSettings:
    return resolve(Config.of(values), node, shape, context.vllm_version, dict(context.fixed))


def _estimate(values: dict[str, Value], node: Node, shape: ModelShape, context: RuleContext) -> MemoryEstimate:
    return estimate(shape, smallest_gpu(node), _settings(values, node, shape, context))


def _wishes(node: Node, shape: ModelShape, context: RuleContext, config: Config) -> Iterator[dict[str, Value]]:
    """What the guide would try, before it is fitted to a space's choices."""
    sizes = config.as_dict()
    tensor, pipeline = (sizes.get(f"{kind}-parallel-size", 1) for kind in ("tensor", "pipeline"))
    smallest = _Layout(tensor=int(tensor or 1), pipeline=int(pipeline or 1))
    balanced: dict[str, Value] = {
        "gpu-memory-utilization": 0.92,
        "max-num-seqs": 256,
        "max-num-batched-tokens": 8192,
        "kv-cache-dtype": "auto",
        "enable-prefix-caching": True,
        "enforce-eager": False,
    }
    replicas = _spread(smallest, node)
    yield {**balanced, **replicas}
    for other in _compared(smallest, node, shape):
        yield {**balanced, **_spread(other, node)}
    length = context.needed_len or shape.max_position_embeddings
    held = _estimate(
        {**smallest.flags(), "max-model-len": min(length, shape.max_position_embeddings)},
        node,
        shape,
        replace(context, fixed=tuple(f for f in context.fixed if f[0] != "max-model-len")),
    )
    capability = smallest_gpu(node).compute_capability
    fp8 = held.max_concurrency < _TIGHT_CONCURRENCY and capability is not None and capability >= (8, 9)
    yield {
        **balanced,
        **replicas,
        "gpu-memory-utilization": 0.94,
        "max-num-seqs": 512,
        "max-num-batched-tokens": 16384,
        "kv-cache-dtype": "fp8" if fp8 else "auto",
    }
    yield {**balanced, **replicas, "max-num-seqs": 64, "max-num-batched-tokens": 2048}


def _compared(smallest: _Layout, node: Node, shape: ModelShape) -> Iterator[_Layout]:
    """The layout to compare with replicas of the smallest one; none on a single GPU."""
    count = node.gpu_count
    if count == 1:
        return
    if node.link is Link.NVLINK:
        fitting = [t for t in range(1, count + 1) if count % t == 0 and shape.heads % t == 0]
        yield _Layout(tensor=max(fitting), pipeline=1)
    elif smallest.gpus == 1:
        yield _Layout(tensor=2, pipeline=1)  # G22: try TP=2 where links are slow
    else:
        yield _Layout(tensor=1, pipeline=smallest.gpus)


def _spread(layout: _Layout, node: Node) -> dict[str, Value]:
    return {
        "tensor-parallel-size": layout.tensor,
        "pipeline-parallel-size": layout.pipeline,
        "data-parallel-size": max(1, node.gpu_count // layout.gpus),
    }


def _nearest(space: SearchSpace, wish: dict[str, Value]) -> Config:
    """The config of the space nearest to a wish; a parameter nobody wished for takes its first choice."""
    return space.canonical({p.name: _choose(p, wish.get(p.name)) for p in space.parameters})


def _choose(parameter: Parameter, wanted: Value) -> Value:
    for choice in parameter.choices:
        if isinstance(choice, bool) == isinstance(wanted, bool) and choice == wanted:
            return choice
    if isinstance(wanted, int | float) and not isinstance(wanted, bool) and wanted > 0:
        numbers = [c for c in parameter.choices if isinstance(c, int | float) and not isinstance(c, bool) and c > 0]
        if numbers:
            # By ratio: sizes double from choice to choice.
            return min(numbers, key=lambda c: abs(math.log(c / wanted)))
    return parameter.choices[0]
