"""The guide's decision procedure: which layout first, and why (rows G20-G25). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.records import AttentionKind, Link, ModelShape, Node
from autotune.search.rules_memory import smallest_gpu
from autotune.units import format_bytes, plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of the three splits, and whether experts are dealt out whole."""

    tensor: int
    pipeline: int
    data: int
    expert_parallel: bool = False

    @property
    def gpus(self) -> int:
        """GPUs used."""
        return self.tensor * self.pipeline * self.data

    @property
    def label(self) -> str:
        """`TP 4 x PP 1 x DP 2 + EP`."""
        sizes = f"TP {self.tensor} x PP {self.pipeline} x DP {self.data}"
        return f"{sizes} + EP" if self.expert_parallel else sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the order of layouts depends on.

    Attributes:
        mixed: cards of different memory.
        blocked: no TP above 1 divides the model.
        smallest: the smallest replica that starts, with room for KV if any has it; None when none starts.
        largest_tensor: the largest TP that divides both the model and the node.
    """

    node: Node
    shape: ModelShape | None
    mixed: bool
    blocked: bool
    smallest: Layout | None
    largest_tensor: int

    @property
    def count(self) -> int:
        """GPUs of the node."""
        return self.node.gpu_count

    @property
    def one_is_enough(self) -> bool:
        """Whether one GPU holds the model with room for KV."""
        return self.smallest is not None and self.smallest.gpus == 1

    @property
    def mixture(self) -> bool:
        """Whether the model has experts."""
        return self.shape is not None and self.shape.experts is not None

    @property
    def most_stages(self) -> int:
        """Pipeline stages beyond which the guide sees no use: NVLink makes TP the better split of what fits."""
        if self.mixed or self.blocked or self.smallest is None:
            return self.count
        if self.node.link is not Link.NVLINK:
            return 2 if self.one_is_enough else self.count
        return 1 if self.one_is_enough else max(2, self.smallest.pipeline)

    def filled(self, tensor: int, pipeline: int = 1, *, expert_parallel: bool = False) -> Layout:
        """As many replicas of a split as the node has room for."""
        data = max(1, self.count // (tensor * pipeline))
        return Layout(tensor=tensor, pipeline=pipeline, data=data, expert_parallel=expert_parallel)


def ordered(
    situation: Situation, layouts: Sequence[Layout], tight: frozenset[Layout] = frozenset()
) -> Iterator[tuple[Layout, str]]:
    """Every one of `layouts` once with its reason: what the guide would try, then the rest, idle GPUs last.

    Args:
        tight: those that start with sparing settings only; among the rest they come behind.
    """
    waiting = dict.fromkeys(layouts)
    for layout, why in _preferred(situation):
        if layout in waiting:
            del waiting[layout]
            yield layout, why + (_TIGHT if layout in tight else "")
    for layout in sorted(waiting, key=lambda one: (one in tight, *_rest_key(one, situation))):
        yield layout, _rest_why(layout, situation) + (_TIGHT if layout in tight else "")


_TIGHT = "; starts with small steps and high utilisation only"


def _preferred(s: Situation) -> Iterator[tuple[Layout, str]]:
    if s.count <= 1 or s.smallest is None:
        return
    if s.one_is_enough:
        yield from _replicas_first(s)
    elif s.mixed or s.blocked:
        yield from _pipeline_first(s)
    elif s.mixture:
        yield from _experts_first(s)
    elif s.node.link is Link.NVLINK:
        yield from _tensor_first(s)
    else:
        yield from _pairs_first(s)


def _replicas_first(s: Situation) -> Iterator[tuple[Layout, str]]:
    """G20: one GPU holds the model."""
    n = s.count
    fits = f"{_weights(s)} fit one GPU of {_memory(s)} with room for KV"
    yield s.filled(1), f"G20: {fits}: DP {n}, {'experts split over all' if s.mixture else 'no split'}"
    if s.mixture:
        yield (
            s.filled(1, expert_parallel=True),
            f"G4: the same with {_experts(s)} dealt out over {n} GPUs, which leaves more for KV",
        )
    if s.mixed:
        yield s.filled(1, n), "G23: cards of different memory: stages compared with replicas"
        return
    if s.blocked:
        yield s.filled(1, 2), "G23: TP cannot divide this model: two stages compared with replicas"
        return
    if s.node.link is Link.NVLINK:
        t = s.largest_tensor
        if s.mixture:
            yield s.filled(t, expert_parallel=True), f"G4: EP over TP {t}, compared with EP over DP {n}"
        yield s.filled(t), f"G25: TP {t} over NVLink: shorter steps for one request, compared with {n} replicas"
        if t > 2:
            yield s.filled(2), "G25: the smallest TP, between one GPU per replica and all of them"
        return
    yield s.filled(2), "G22: no NVLink: TP 2 is the most to try, compared with replicas"
    yield s.filled(1, 2), "G22: two stages instead of TP 2: little traffic over PCIe"


def _pipeline_first(s: Situation) -> Iterator[tuple[Layout, str]]:
    """G23: TP cannot divide, or the cards are mixed."""
    small = _of(s)
    because = "cards of different memory" if s.mixed else "TP cannot divide this model"
    yield s.filled(small.tensor, small.pipeline), f"G23: {because}: PP first; {_too_large(s)}"
    yield s.filled(1, s.count), f"G23: {because}: one stage per GPU"
    if s.largest_tensor > 1:
        yield s.filled(s.largest_tensor), "G23: TP to compare with the stages"


def _experts_first(s: Situation) -> Iterator[tuple[Layout, str]]:
    """G4: EP against TP. DP deals experts out over all its ranks, so it helps a model that no GPU holds."""
    n, t = s.count, s.largest_tensor
    latent = s.shape is not None and any(x.attention.kind is AttentionKind.LATENT for x in s.shape.decoder)
    kept = " each GPU keeps latents of its own requests, which TP would store on all" if latent else ""
    slow = s.node.link is not Link.NVLINK
    small = _of(s)
    if slow and small.pipeline > 1:
        yield from _pairs_first(s)
    else:
        yield s.filled(t, expert_parallel=True), f"G21: {_too_large(s)}: TP {t}, {_experts(s)} dealt out whole (EP)"
    yield (
        s.filled(1, expert_parallel=True),
        f"G4: DP {n} with EP, compared with TP:{kept or ' no all-reduce in attention'}",
    )
    yield s.filled(t), f"G4: TP {t} with every expert split, compared with EP"
    if small.gpus < n:
        yield (
            s.filled(small.tensor, small.pipeline, expert_parallel=True),
            f"G25: the smallest replica that fits, {small.gpus} GPUs each, experts over all of them",
        )
        yield s.filled(small.tensor, small.pipeline), f"G25: the smallest replica that fits, {small.gpus} GPUs each"
    elif t > 2:
        yield s.filled(t // 2, expert_parallel=True), f"G4: between the two: attention over {t // 2} GPUs, EP over all"


def _tensor_first(s: Situation) -> Iterator[tuple[Layout, str]]:
    """G21: NVLink, and one GPU is not enough."""
    small, t = _of(s), s.largest_tensor
    if small.pipeline == 1:
        yield s.filled(small.tensor), f"G21: {_too_large(s)}: NVLink, so TP first, the smallest that fits with room"
    elif small.tensor == 1:
        yield s.filled(1, small.pipeline), f"G23: {_too_large(s)}: no TP divides both the model and {s.count} GPUs"
    else:
        yield s.filled(small.tensor, small.pipeline), f"G21: {_too_large(s)}: TP as far as it divides, PP for the rest"
    if t > 1:
        yield s.filled(t), f"G21: TP over {t} GPUs: most KV for one replica, shortest steps"
    if t > 2:
        yield s.filled(t // 2, 2), f"G25: TP {t // 2} x PP 2: half the all-reduce partners, compared with TP {t}"
        yield s.filled(t // 2), f"G25: TP {t // 2}: fewer GPUs per replica, less to communicate"


def _pairs_first(s: Situation) -> Iterator[tuple[Layout, str]]:
    """G22: no NVLink, and one GPU is not enough."""
    small = _of(s)
    if small.gpus == 2:
        yield s.filled(2), f"G22: {_too_large(s)}: no NVLink, TP 2 first"
        yield (
            s.filled(1, 2),
            "G22: PP 2 compared with TP 2: one hand-over per stage instead of two all-reduces per layer",
        )
    else:
        half = small.gpus // 2
        if s.largest_tensor % 2 == 0:
            yield s.filled(2, half), f"G22: {_too_large(s)}: no NVLink, TP 2 in pairs, PP {half} between them"
        yield s.filled(1, small.gpus), f"G22: PP {small.gpus} alone: least traffic over PCIe"
        yield s.filled(small.gpus), f"G22: TP {small.gpus} to compare: two all-reduces per layer over PCIe"
    if small.gpus < s.count:
        yield s.filled(1, s.count), f"G22: PP {s.count}: most KV with little traffic"


def _rest_key(layout: Layout, s: Situation) -> tuple[int, ...]:
    split = layout.pipeline if s.node.link is Link.NVLINK and not (s.mixed or s.blocked) else layout.tensor
    small = s.smallest.gpus if s.smallest is not None else 1
    replica = layout.tensor * layout.pipeline
    return (
        s.count - layout.gpus,
        split,
        abs(replica - small),
        int(layout.expert_parallel),
        layout.tensor,
        layout.pipeline,
    )


def _rest_why(layout: Layout, s: Situation) -> str:
    if s.count <= 1:
        return "one GPU is visible"
    experts = ", experts dealt out whole" if layout.expert_parallel else ""
    if layout.gpus < s.count:
        return f"G25: smaller than the node, {layout.gpus} of {s.count} GPUs{experts}"
    replica = layout.tensor * layout.pipeline
    return f"G25: to compare, {plural(replica, 'GPU')} per replica{experts}"


def _of(s: Situation) -> Layout:
    assert s.smallest is not None  # `_preferred` asks nothing where no replica starts
    return s.smallest


def _weights(s: Situation) -> str:
    return "the model" if s.shape is None else f"{format_bytes(s.shape.weight_bytes)} of weights"


def _memory(s: Situation) -> str:
    return format_bytes(smallest_gpu(s.node).memory_bytes)


def _too_large(s: Situation) -> str:
    return f"{_weights(s)} leave too little of one GPU of {_memory(s)}"


def _experts(s: Situation) -> str:
    assert s.shape is not None  # only a mixture is asked
    assert s.shape.experts is not None
    return f"{s.shape.experts.count} experts"
