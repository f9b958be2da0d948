"""The capacity calculator: what a node holds of a model, how many users that serves, and what to change. Pure.

The verdicts follow the operators' guide: 200,000 tokens hold 48.8 requests of 4,096 tokens, so 50 users of 4K are
*tight* (the outputs and the spread of lengths come on top of an average), and 50 users of 16K are *out of reach*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from autotune.node.defaults import ResolvedSettings, Version
from autotune.node.kv_capacity import kv_value_bytes
from autotune.node.memory import CALIBRATED_VERSION, MemoryEstimate, estimate, kv_layout_of
from autotune.records import Gpu, Link, ModelShape, Node
from autotune.search.rules_base import Case, RuleContext
from autotune.search.rules_parallel import SHAPE_RULES
from autotune.units import format_bytes

HEADROOM = 1.2
"""An average needs this much more: outputs grow while a request runs, and lengths spread."""
REACHABLE = 0.5
"""Below half of what is asked for, the strongest single change on the same GPUs (fp8 KV, twice the tokens) falls
short."""
UTILISATION_STEPS = (0.90, 0.92, 0.94)
SHORTEST_LENGTH = 1024


class Verdict(StrEnum):
    """Whether so many users of so many tokens are served at once."""

    FITS = "fits"
    TIGHT = "tight"
    OUT_OF_REACH = "out of reach"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is asked for: users at once, and the tokens of each one's request, prompt and output together."""

    users: int
    tokens_per_request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What one layout holds.

    Attributes:
        settings: the layout and flags; None where only a number of tokens was given.
        memory: of one GPU; None where the KV memory or the tokens were given.
        available_kv_bytes: per GPU, of the stage that decides; None where only tokens were given.
        kv_tokens: of all replicas together.
        max_concurrency: requests of max_model_len tokens that fit at once, all replicas together; None without a
            max_model_len.
        concurrent: requests of the demand's length that fit at once; None without a demand.
        reasons: why it does not fit; empty when it does.
    """

    settings: ResolvedSettings | None
    memory: MemoryEstimate | None
    available_kv_bytes: int | None
    kv_tokens: int
    max_concurrency: float | None
    concurrent: float | None = None
    reasons: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether a server with these settings starts."""
        return not self.reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change with what it gives.

    Attributes:
        kv_tokens, concurrent: afterwards, as in `Capacity`; None where they cannot be told from what is known.
        note: what it costs, or what it depends on.
    """

    change: str
    kv_tokens: int | None
    concurrent: float | None
    note: str = ""


def verdict_of(concurrent: float, users: int) -> Verdict:
    """The guide's judgement of `users` against the requests that fit at once."""
    if concurrent >= HEADROOM * users:
        return Verdict.FITS
    return Verdict.TIGHT if concurrent >= REACHABLE * users else Verdict.OUT_OF_REACH


def of_tokens(kv_tokens: int, demand: Demand | None, max_model_len: int | None = None) -> Capacity:
    """The capacity of a server whose log says `kv_tokens`; nothing else is known about it."""
    short = max_model_len is not None and kv_tokens < max_model_len
    return Capacity(
        settings=None,
        memory=None,
        available_kv_bytes=None,
        kv_tokens=kv_tokens,
        max_concurrency=kv_tokens / max_model_len if max_model_len else None,
        concurrent=kv_tokens / demand.tokens_per_request if demand else None,
        reasons=(f"one request of {max_model_len:,} tokens needs more than {kv_tokens:,} tokens",) if short else (),
    )


def of_memory(
    shape: ModelShape,
    settings: ResolvedSettings,
    available_kv_bytes: int,
    demand: Demand | None,
    version: Version = CALIBRATED_VERSION,
) -> Capacity:
    """The capacity of `available_kv_bytes` per GPU, as a log states it.

    Raises:
        ValueError: a KV dtype whose size is not known.
    """
    reasons = indivisible(shape, settings)
    layout = kv_layout_of(shape, settings)
    block_bytes = max(layout.stage_block_bytes)
    blocks, per_request = max(0, available_kv_bytes // block_bytes), layout.blocks_per_request(settings, version)
    if blocks < per_request:
        reasons += (_too_small(settings, per_request * block_bytes, available_kv_bytes),)
    return Capacity(
        settings=settings,
        memory=None,
        available_kv_bytes=available_kv_bytes,
        kv_tokens=layout.tokens(blocks, per_request, settings, version) * settings.data_parallel,
        max_concurrency=blocks / per_request * settings.data_parallel,
        concurrent=_concurrent(shape, settings, blocks, demand, version),
        reasons=reasons,
    )


def of_gpu(
    shape: ModelShape,
    gpu: Gpu,
    settings: ResolvedSettings,
    demand: Demand | None,
    version: Version = CALIBRATED_VERSION,
) -> Capacity:
    """The capacity of a layout on GPUs like `gpu`, the smallest of the node.

    Raises:
        ValueError: a KV dtype whose size is not known.
    """
    memory = estimate(shape, gpu, settings, version=version)
    layout = kv_layout_of(shape, settings)
    reasons = indivisible(shape, settings)
    if memory.available_kv_bytes <= 0:
        reasons += (
            f"{format_bytes(memory.weights_bytes_per_gpu)} of weights, {format_bytes(memory.activation_peak_bytes)} of "
            f"activations and {format_bytes(memory.non_torch_bytes + memory.graph_bytes)} beside them leave nothing of "
            f"{settings.gpu_memory_utilization:g} x {format_bytes(gpu.memory_bytes)} for KV",
        )
    elif not memory.fits:
        reasons += (_too_small(settings, memory.needed_kv_bytes, memory.available_kv_bytes),)
    blocks = round(memory.max_concurrency * layout.blocks_per_request(settings, version))
    return Capacity(
        settings=settings,
        memory=memory,
        available_kv_bytes=memory.available_kv_bytes,
        kv_tokens=memory.kv_tokens * settings.data_parallel,
        max_concurrency=memory.max_concurrency * settings.data_parallel,
        concurrent=_concurrent(shape, settings, blocks, demand, version),
        reasons=reasons,
    )


def indivisible(shape: ModelShape, settings: ResolvedSettings) -> tuple[str, ...]:
    """Why the layout cannot split the model, by the same rules that refuse a config; empty when it can."""
    nowhere = Node(name="any node", gpus=(), link=Link.NONE, simulated=False)
    case = Case(values={}, settings=settings, node=nowhere, shape=shape, context=RuleContext())
    # The others spare a launch of the same config under a second name: that one starts.
    asked = [rule for rule in SHAPE_RULES if rule.needs_shape]
    return tuple(f"{finding.reason}: {finding.text}" for rule in asked for finding in rule.judge(case))


def layouts(node: Node, settings: ResolvedSettings) -> tuple[ResolvedSettings, ...]:
    """Every TP x PP x DP that uses all GPUs of the node or an even part of them, fewest GPUs and most TP first."""
    count = node.gpu_count
    divisors = [n for n in range(1, count + 1) if count % n == 0]
    found = [
        replace(settings, tensor_parallel=tp, pipeline_parallel=pp, data_parallel=dp)
        for tp in divisors
        for pp in divisors
        for dp in divisors
        if count % (tp * pp * dp) == 0
    ]
    return tuple(sorted(found, key=lambda s: (s.gpus, -s.tensor_parallel, -s.pipeline_parallel)))


def largest(capacities: Sequence[Capacity]) -> Capacity:
    """The one that fits and holds the most tokens; of equals the first, which uses the fewest GPUs."""
    return max(capacities, key=lambda one: (one.fits, one.kv_tokens))


def remedies(
    capacity: Capacity,
    demand: Demand,
    *,
    again: Callable[[ResolvedSettings], Capacity] | None,
    shape: ModelShape | None = None,
    gpus: int | None = None,
) -> tuple[Remedy, ...]:
    """What to change, in the guide's order, with what each change gives in this case.

    Args:
        again: the capacity under other settings; None where only tokens are known, which fp8 still doubles.
        gpus: of the node; None where it is not known.
    """
    if again is None or capacity.settings is None or shape is None:
        return _remedies_of_tokens(capacity, demand)
    if capacity.memory is not None and capacity.memory.available_kv_bytes <= 0:
        return tuple(_less_weight(shape, capacity.settings, again, gpus))
    found = [*_shorter(capacity.settings, demand, again)]
    if kv_value_bytes(shape, capacity.settings) > 1:
        found.append(_remedy("kv-cache-dtype fp8", again(replace(capacity.settings, kv_cache_dtype="fp8")), "quality"))
    if capacity.memory is not None:
        found += _more_memory(capacity.settings, again)
        found += _more_gpus(shape, capacity.settings, again, gpus)
    return tuple(found)


def _less_weight(
    shape: ModelShape, settings: ResolvedSettings, again: Callable[[ResolvedSettings], Capacity], gpus: int | None
) -> Iterator[Remedy]:
    """Where the weights leave nothing, no flag of the KV cache gives a token: another checkpoint, or more GPUs."""
    if shape.quantization is None:
        note = f"{format_bytes(shape.weight_bytes)} in 16 bit are about a quarter in 4; name it with --model"
        yield Remedy(change="a quantised checkpoint", kv_tokens=None, concurrent=None, note=note)
    splits = sorted(((tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 3, 4, 6, 8)), key=lambda s: (s[0] * s[1], s[1]))
    for tensor, pipeline in splits:
        larger = replace(settings, tensor_parallel=tensor, pipeline_parallel=pipeline, data_parallel=1)
        if larger.gpus <= settings.tensor_parallel * settings.pipeline_parallel or indivisible(shape, larger):
            continue
        then = again(larger)
        if then.kv_tokens > 0:
            yield _remedy(f"TP {tensor} x PP {pipeline}", then, _needs(larger, gpus))
            return


def _shorter(
    settings: ResolvedSettings, demand: Demand, again: Callable[[ResolvedSettings], Capacity]
) -> Iterator[Remedy]:
    length = max(SHORTEST_LENGTH, 1 << (demand.tokens_per_request - 1).bit_length())
    if length < settings.max_model_len:
        then = again(replace(settings, max_model_len=length))
        each = "-" if then.max_concurrency is None else f"{then.max_concurrency:,.1f}"
        yield _remedy(
            f"max-model-len {length}", then, f"no request can take more; {each} of the full length fit at once"
        )


def _more_memory(settings: ResolvedSettings, again: Callable[[ResolvedSettings], Capacity]) -> Iterator[Remedy]:
    now = settings.gpu_memory_utilization
    after = next((step for step in UTILISATION_STEPS if step > now + 0.001), None)
    if after is not None:
        then = again(replace(settings, gpu_memory_utilization=after))
        yield _remedy(f"gpu-memory-utilization {now:g} -> {after:g}", then, "less room for CUDA graphs and bursts")


def _more_gpus(
    shape: ModelShape, settings: ResolvedSettings, again: Callable[[ResolvedSettings], Capacity], gpus: int | None
) -> Iterator[Remedy]:
    for label, field, size in (
        ("TP", "tensor_parallel", settings.tensor_parallel),
        ("PP", "pipeline_parallel", settings.pipeline_parallel),
        ("DP", "data_parallel", settings.data_parallel),
    ):
        larger = replace(settings, **{field: 2 * size})  # type: ignore[arg-type]  # the fields are all whole numbers
        if indivisible(shape, larger):
            continue
        yield _remedy(f"{label} {2 * size}", again(larger), _needs(larger, gpus))


def _needs(larger: ResolvedSettings, gpus: int | None) -> str:
    lacking = gpus is not None and larger.gpus > gpus
    return f"needs {larger.gpus} GPUs" + (f", the node has {gpus}" if lacking else "")


def _remedy(change: str, then: Capacity, note: str = "") -> Remedy:
    return Remedy(change=change, kv_tokens=then.kv_tokens, concurrent=then.concurrent, note=note)


def _remedies_of_tokens(capacity: Capacity, demand: Demand) -> tuple[Remedy, ...]:
    tokens = capacity.kv_tokens
    short = max(SHORTEST_LENGTH, 1 << (demand.tokens_per_request - 1).bit_length())
    return (
        Remedy(
            change=f"max-model-len {short}",
            kv_tokens=tokens,
            concurrent=tokens / demand.tokens_per_request,
            note=f"no request can take more; {tokens / short:,.1f} of the full length fit at once",
        ),
        Remedy(
            change="kv-cache-dtype fp8",
            kv_tokens=2 * tokens,
            concurrent=2 * tokens / demand.tokens_per_request,
            note="where the KV cache is in 16 bit now; check the quality",
        ),
        Remedy(
            change="gpu-memory-utilization 0.90 -> 0.92",
            kv_tokens=None,
            concurrent=None,
            note="2 % of the card's memory more; name --model and --node for the number",
        ),
        Remedy(
            change="twice the replicas (DP)",
            kv_tokens=2 * tokens,
            concurrent=2 * tokens / demand.tokens_per_request,
            note="twice the GPUs; TP gives more than twice, since the weights are shared",
        ),
    )


def _concurrent(
    shape: ModelShape, settings: ResolvedSettings, blocks: int, demand: Demand | None, version: Version
) -> float | None:
    """Requests of the demand's length at once: sliding layers and states do not grow with the length."""
    if demand is None:
        return None
    one = replace(settings, max_model_len=demand.tokens_per_request)
    return blocks / kv_layout_of(shape, settings).blocks_per_request(one, version) * settings.data_parallel


def _too_small(settings: ResolvedSettings, needed: int, available: int) -> str:
    return (
        f"one request of {settings.max_model_len:,} tokens needs {format_bytes(needed)} of KV per GPU, "
        f"{format_bytes(available)} are left"
    )
