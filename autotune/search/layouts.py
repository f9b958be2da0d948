"""How a model may be spread over a node's GPUs, in the order in which it is worth trying (rows G20-G25). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.errors import InvalidOption, NoFeasibleConfig
from autotune.node.defaults import ResolvedSettings, resolve
from autotune.node.memory import MemoryEstimate
from autotune.records import Config, Link, ModelShape, Node, Value
from autotune.search.layout_order import Layout, Situation, ordered
from autotune.search.rules import RuleContext, check
from autotune.search.rules_memory import across_nodes, smallest_gpu, try_estimate, version_of_text
from autotune.search.rules_parallel import dividing_tensor_sizes

ROOMY_SHARE = 0.15
"""A replica whose KV has less than this share of vLLM's budget starts, but serves a handful of requests."""

TIGHT_CONCURRENCY = 256
"""Below this many requests in KV at once, fp8 KV is worth a try: it removes preemptions (G9)."""

TYPICAL: Mapping[str, Value] = {
    "gpu-memory-utilization": 0.92,
    "max-num-seqs": 256,
    "max-num-batched-tokens": 8192,
}
"""What the KV capacity of a layout is predicted for, where nothing else is said."""

SPARING: Mapping[str, Value] = {
    "gpu-memory-utilization": 0.94,
    "max-num-seqs": 64,
    "max-num-batched-tokens": 2048,
}
"""A layout that does not even start with these is none."""

_SIZES = ("tensor", "pipeline", "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPlan:
    """One layout that can start on the node.

    Attributes:
        why: with the row of the guide it follows.
        kv_tokens_predicted: of one replica, as vLLM logs it; None where it cannot be computed.
        max_concurrency: requests of max-model-len tokens that one replica's KV holds at once.
        order: 0-based place among the layouts.
    """

    tensor: int
    pipeline: int
    data: int
    expert_parallel: bool
    why: str
    kv_tokens_predicted: int | None
    max_concurrency: float | None
    order: int

    @property
    def gpus(self) -> int:
        """GPUs that the layout uses."""
        return self.tensor * self.pipeline * self.data

    @property
    def flags(self) -> dict[str, Value]:
        """The four flags of the layout, defaults included."""
        return _flags(self._layout)

    @property
    def label(self) -> str:
        """`TP 4 x PP 1 x DP 2 + EP`."""
        return self._layout.label

    @property
    def _layout(self) -> Layout:
        return Layout(tensor=self.tensor, pipeline=self.pipeline, data=self.data, expert_parallel=self.expert_parallel)


def plan_layouts(
    node: Node,
    shape: ModelShape | None,
    context: RuleContext | None = None,
    *,
    tries: Sequence[Mapping[str, Value]] = (TYPICAL, SPARING),
    wide: bool = False,
) -> tuple[LayoutPlan, ...]:
    """Every layout that can start, the one to try first first; empty on a node without GPUs.

    Args:
        context: its fixed flags hold for every layout; a fixed parallel size leaves no other.
        tries: settings beside the layout; a layout counts when the rules let it pass with any of them, and its KV is
            predicted for the first of those.
        wide: also pipelines where the guide sees nothing in them.
    """
    context = context or RuleContext()
    situation = _situation(node, shape, context, tries)
    found: dict[Layout, Mapping[str, Value]] = {}
    for layout in _candidates(node, shape, context, most_stages=node.gpu_count if wide else situation.most_stages):
        settings = _passing(layout, node, shape, context, tries)
        if settings is not None:
            found[layout] = settings
    tight = frozenset(layout for layout, settings in found.items() if settings is not tries[0])
    plans: list[LayoutPlan] = []
    for order, (layout, why) in enumerate(ordered(situation, tuple(found), tight)):
        held = _estimate(layout, found[layout], node, shape, context)
        plans.append(
            LayoutPlan(
                tensor=layout.tensor,
                pipeline=layout.pipeline,
                data=layout.data,
                expert_parallel=layout.expert_parallel,
                why=why,
                kv_tokens_predicted=None if held is None else held.kv_tokens,
                max_concurrency=None if held is None else held.max_concurrency,
                order=order,
            )
        )
    return tuple(plans)


def no_layout(
    subject: str, node: Node, shape: ModelShape, context: RuleContext, tries: Sequence[Mapping[str, Value]] = (SPARING,)
) -> NoFeasibleConfig:
    """The error for a model that no layout of this node can start, with the plan across nodes where there is one."""
    counts: dict[str, int] = {}
    for layout in _candidates(node, shape, context):
        config = Config.of({**tries[-1], **_flags(layout)})
        for violation in check(config, node, shape, context)[:1]:
            counts[violation.text] = counts.get(violation.text, 0) + 1
    return NoFeasibleConfig(
        subject, node.name, sorted(counts.items(), key=lambda item: -item[1]), hint=no_layout_hint(node, shape, context)
    )


def no_layout_hint(node: Node, shape: ModelShape, context: RuleContext) -> str:
    """What to do about a model that does not fit the node: shorter requests, a smaller model, or more nodes (G24)."""
    admitted = context.admitted_len
    if admitted is not None and admitted > shape.max_position_embeddings:
        return "Choose a workload with shorter requests, or a model with a longer context."
    hint = "Name a larger --node, choose a smaller or quantised model, or give a workload with shorter requests."
    if not node.gpus:
        return hint
    length: dict[str, Value] = {} if admitted is None else {"max-model-len": admitted}
    fixed = {name: value for name, value in context.fixed if name != "max-model-len"}
    try:
        settings = resolve(Config.of({**fixed, **SPARING, **length}), node, shape, context.vllm_version)
    except InvalidOption:
        return hint
    beyond = across_nodes(shape, node, settings, version_of_text(context.vllm_version))
    if beyond is None:
        return hint
    tensor, nodes = beyond
    return (
        f"{hint} Across nodes it fits with TP {tensor} inside each node x PP {nodes} between {nodes} nodes like this "
        "one (planned and rendered, not tuned)."
    )


def _candidates(
    node: Node, shape: ModelShape | None, context: RuleContext, *, most_stages: int | None = None
) -> list[Layout]:
    """Layouts within the node's GPUs whose sizes divide the model, and no more than the guide would look at."""
    count = node.gpu_count
    if not count:
        return []
    fixed = dict(context.fixed)
    tensors = _fixed_or(fixed, "tensor", tensor_sizes(shape, count))
    pipelines = _fixed_or(fixed, "pipeline", pipeline_sizes(shape, min(count, most_stages or count)))
    expert: tuple[bool, ...] = (False, True) if shape is not None and shape.experts is not None else (False,)
    if isinstance(fixed.get("enable-expert-parallel"), bool):
        expert = (bool(fixed["enable-expert-parallel"]),)
    datas = sorted({1, *(count // (t * p) for t in tensors for p in pipelines if t * p <= count)})
    return [
        Layout(tensor=t, pipeline=p, data=d, expert_parallel=ep)
        for t in tensors
        for p in pipelines
        for d in _fixed_or(fixed, "data", datas)
        for ep in expert
        if t * p * d <= count
    ]


def tensor_sizes(shape: ModelShape | None, count: int) -> tuple[int, ...]:
    """TP sizes worth asking about on `count` GPUs: they divide the model, and the GPUs or a power of two."""
    natural = _natural(count)
    if shape is None:
        return natural
    return tuple(size for size in dividing_tensor_sizes(shape, count) if size in natural)


def pipeline_sizes(shape: ModelShape | None, count: int) -> tuple[int, ...]:
    """PP sizes worth asking about on `count` GPUs."""
    return tuple(size for size in _natural(count) if shape is None or size <= shape.layers)


def _natural(count: int) -> tuple[int, ...]:
    return tuple(size for size in range(1, count + 1) if count % size == 0 or size & (size - 1) == 0)


def _fixed_or(fixed: Mapping[str, Value], kind: str, sizes: Iterable[int]) -> tuple[int, ...]:
    value = fixed.get(f"{kind}-parallel-size")
    return (value,) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else tuple(sizes)


def _situation(
    node: Node, shape: ModelShape | None, context: RuleContext, tries: Sequence[Mapping[str, Value]]
) -> Situation:
    """What the order depends on: which replica is the smallest that fits with room."""
    count = node.gpu_count
    tensors = tensor_sizes(shape, count)
    blocked = count > 1 and max(tensors, default=1) == 1
    mixed = len({gpu.memory_bytes for gpu in node.gpus}) > 1
    replicas = sorted(
        (Layout(tensor=t, pipeline=p, data=1) for t in tensors for p in pipeline_sizes(shape, count) if t * p <= count),
        key=lambda one: (one.gpus, _preference(one, node.link, pipeline_first=mixed or blocked)),
    )
    return Situation(
        node=node,
        shape=shape,
        mixed=mixed,
        blocked=blocked,
        smallest=_smallest(replicas, node, shape, context, tries),
        largest_tensor=max((t for t in tensors if count % t == 0), default=1),
    )


def _preference(one: Layout, link: Link, *, pipeline_first: bool) -> int:
    """Among replicas of as many GPUs: TP with NVLink, TP=2 without, PP where TP is no good."""
    if pipeline_first:
        return one.tensor
    if link is Link.NVLINK or one.tensor == 2:
        return -one.tensor
    return one.tensor


def _smallest(
    replicas: Sequence[Layout],
    node: Node,
    shape: ModelShape | None,
    context: RuleContext,
    tries: Sequence[Mapping[str, Value]],
) -> Layout | None:
    """The smallest replica with room for KV, else the smallest that starts; None when none does."""
    if not node.gpus:
        return None
    starts: Layout | None = None
    for one in replicas:
        settings = _passing(one, node, shape, context, tries)
        if settings is None:
            continue
        starts = starts or one
        if shape is None:
            return one
        resolved = _resolved(one, settings, node, shape, context)
        found = _estimate(one, settings, node, shape, context)
        budget = resolved.gpu_memory_utilization * smallest_gpu(node).memory_bytes
        if found is None or (found.fits and found.available_kv_bytes >= ROOMY_SHARE * budget):
            return one
    return starts


def _passing(
    layout: Layout,
    node: Node,
    shape: ModelShape | None,
    context: RuleContext,
    tries: Sequence[Mapping[str, Value]],
) -> Mapping[str, Value] | None:
    # What this vLLM accepts is the space's question, not the layout's.
    asked = replace(context, accepted=None)
    for settings in tries:
        if not check(_config(layout, settings, context), node, shape, asked):
            return settings
    return None


def _estimate(
    layout: Layout, settings: Mapping[str, Value], node: Node, shape: ModelShape | None, context: RuleContext
) -> MemoryEstimate | None:
    if shape is None:
        return None
    resolved = _resolved(layout, settings, node, shape, context)
    return try_estimate(shape, smallest_gpu(node), resolved, version_of_text(context.vllm_version))


def _resolved(
    layout: Layout, settings: Mapping[str, Value], node: Node, shape: ModelShape, context: RuleContext
) -> ResolvedSettings:
    return resolve(_config(layout, settings, context), node, shape, context.vllm_version, dict(context.fixed))


def _config(layout: Layout, settings: Mapping[str, Value], context: RuleContext) -> Config:
    fixed = dict(context.fixed)
    free = {name: value for name, value in settings.items() if name not in fixed}
    return Config.of({**free, **_flags(layout)})


def _flags(layout: Layout) -> dict[str, Value]:
    sizes: dict[str, Value] = {f"{kind}-parallel-size": getattr(layout, kind) for kind in _SIZES}
    return {**sizes, "enable-expert-parallel": layout.expert_parallel}
