"""What cannot start on this node, said before it is launched. Pure.

A rule refuses only what surely fails. Where arithmetic has an error (memory), the config gets the benefit of
`MEMORY_TOLERANCE_SHARE`; where a version or a backend decides (fp8 KV below compute capability 8.9 works with some
attention backends and not with others), there is no rule: a launch finds out. Feasibility is never assumed monotone.
The rule ids are the rows of the operators' guide that they come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from autotune.engine.flags import AcceptedFlags
from autotune.errors import InvalidOption, NoFeasibleConfig
from autotune.node.defaults import ResolvedSettings, resolve
from autotune.node.memory import (
    ONE_BYTE_KV_DTYPES,
    TWO_BYTE_KV_DTYPES,
    MemoryEstimate,
    estimate,
    padded_vocab,
)
from autotune.records import Config, Gpu, ModelShape, Node, Value
from autotune.search.space import SearchSpace
from autotune.units import format_bytes

MEMORY_TOLERANCE_SHARE = 0.02
"""Share of a GPU's memory by which the estimate may be too pessimistic: 1.7 % on the worst publicly logged start of
tests/data/memory (an older engine), 0.02 % on the recorded ones."""

MAX_UTILIZATION = 0.99
"""From here on a server that starts runs out of memory under load: CUDA graphs and NCCL come on top of the share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One rule that a config breaks.

    Attributes:
        rule: id of the guide's row, e.g. `G5`.
        reason: the rule without this config's numbers; what refusals are counted by.
        text: what is wrong, with the numbers of this config.
        remedy: what to change.
    """

    rule: str
    reason: str
    text: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """What a config is judged against, besides node and model.

    Attributes:
        needed_len: tokens of the workload's longest request, prompt and output together.
        fixed: flags that every launch of the study has beside its config.
    """

    needed_len: int | None = None
    vllm_version: str | None = None
    accepted: AcceptedFlags | None = None
    fixed: tuple[tuple[str, Value], ...] = ()


def check(
    config: Config, node: Node, shape: ModelShape | None, context: RuleContext | None = None
) -> tuple[Violation, ...]:
    """Every rule that `config` breaks, the most basic first; empty when nothing speaks against a launch.

    Without a shape only the rules that need none are asked; on a node without GPUs those about GPUs are not.
    """
    context = context or RuleContext()
    merged = Config.of({**dict(context.fixed), **{name: value for name, value in config if value is not None}})
    found = list(_flag_rules(merged, context.accepted))
    if found:
        return tuple(found)
    try:
        settings = resolve(merged, node, shape or _UNKNOWN_SHAPE, context.vllm_version)
    except InvalidOption as error:
        return (Violation(rule="flags", reason="a flag's value has the wrong type", text=str(error), remedy="fix it"),)
    found += _gpu_rules(settings, node)
    found += _scheduler_rules(settings, length_known=shape is not None or "max-model-len" in merged.as_dict())
    if shape is None:
        return tuple(found)
    found += _length_rules(settings, shape, merged, context)
    indivisible = list(_shape_rules(settings, shape))
    found += indivisible
    if node.gpus and not indivisible and settings.gpus <= node.gpu_count:
        found += _memory_rules(settings, shape, node)
    return tuple(found)


def feasible(
    space: SearchSpace | Iterable[Config], node: Node, shape: ModelShape | None, context: RuleContext | None = None
) -> tuple[tuple[Config, ...], tuple[tuple[str, int], ...]]:
    """The configs that no rule refuses, in the space's order, and how many each reason refused (most first).

    A config counts once, for the first rule it breaks. A space's own fixed flags are taken into account.
    """
    context = context or RuleContext()
    if isinstance(space, SearchSpace) and space.fixed:
        context = replace(context, fixed=(*context.fixed, *space.fixed))
    kept: list[Config] = []
    reasons: Counter[str] = Counter()
    for config in space:
        violations = check(config, node, shape, context)
        if violations:
            reasons[violations[0].reason] += 1
        else:
            kept.append(config)
    return tuple(kept), tuple(reasons.most_common())


def require_feasible(
    space: SearchSpace, node: Node, shape: ModelShape | None, context: RuleContext | None = None
) -> tuple[tuple[Config, ...], tuple[tuple[str, int], ...]]:
    """As `feasible`, but at least one config.

    Raises:
        NoFeasibleConfig: there is none; carries the reasons with their counts.
    """
    configs, reasons = feasible(space, node, shape, context)
    if not configs:
        raise NoFeasibleConfig(
            f"search space {space.name!r}",
            node.name,
            reasons,
            hint="Change the space, name a larger --node, or choose a smaller model or a shorter workload.",
        )
    return configs, reasons


_UNKNOWN_SHAPE = ModelShape(
    name="unknown",
    layers=1,
    hidden_size=1,
    intermediate_size=1,
    heads=1,
    kv_heads=1,
    head_dim=1,
    vocab_size=1,
    max_position_embeddings=2**31,
    weight_bytes=0,
    parameters=0,
)


def _flag_rules(config: Config, accepted: AcceptedFlags | None) -> Iterator[Violation]:
    if accepted is None:
        return
    for name, value in config:
        problem = accepted.problem(name, value)
        if problem is not None:
            yield Violation(
                rule="flags",
                reason=f"this vLLM does not accept --{name} as given",
                text=problem,
                remedy="take it out of the search space, or use a vLLM that has it",
            )


def _gpu_rules(settings: ResolvedSettings, node: Node) -> Iterator[Violation]:
    if not node.gpus:
        if settings.gpus > 1:
            yield Violation(
                rule="G5",
                reason="TP x PP x DP above 1 needs GPUs, and none is visible",
                text=f"TP {settings.tensor_parallel} x PP {settings.pipeline_parallel} x DP {settings.data_parallel} "
                f"= {settings.gpus} GPUs, none is visible",
                remedy="leave the parallel sizes at 1, or check --gpus and CUDA_VISIBLE_DEVICES",
            )
        return
    if settings.gpus > node.gpu_count:
        yield Violation(
            rule="G5",
            reason="TP x PP x DP is more GPUs than are visible",
            text=f"TP {settings.tensor_parallel} x PP {settings.pipeline_parallel} x DP {settings.data_parallel} "
            f"= {settings.gpus} GPUs, {node.gpu_count} are visible",
            remedy="make one of the three smaller, or check --gpus and CUDA_VISIBLE_DEVICES",
        )
    if settings.gpu_memory_utilization >= MAX_UTILIZATION:
        yield Violation(
            rule="G6",
            reason=f"gpu-memory-utilization of {MAX_UTILIZATION} or more leaves no room under load",
            text=f"gpu-memory-utilization {settings.gpu_memory_utilization:g} leaves nothing for CUDA graphs and NCCL",
            remedy="0.88-0.92 to start with, up to 0.95 on a dedicated node",
        )
    capability = node.gpus[0].compute_capability
    if settings.dtype == "bfloat16" and capability is not None and capability < (8, 0):
        yield Violation(
            rule="G12",
            reason="bfloat16 needs compute capability 8.0",
            text=f"dtype bfloat16 on {node.gpus[0].name} (compute capability {capability[0]}.{capability[1]})",
            remedy="dtype float16",
        )


def _scheduler_rules(settings: ResolvedSettings, *, length_known: bool) -> Iterator[Violation]:
    tokens, seqs = settings.max_num_batched_tokens, settings.max_num_seqs
    if tokens < seqs:
        yield Violation(
            rule="G8",
            reason="max-num-batched-tokens is below max-num-seqs",
            text=f"max-num-batched-tokens {tokens} < max-num-seqs {seqs}: a step cannot give every sequence a token",
            remedy="raise max-num-batched-tokens or lower max-num-seqs",
        )
    # With chunked prefill (vLLM's default) a prompt longer than the budget takes several steps, which is legal.
    if length_known and not settings.chunked_prefill and tokens < settings.max_model_len:
        yield Violation(
            rule="G10",
            reason="without chunked prefill max-num-batched-tokens must reach max-model-len",
            text=f"max-num-batched-tokens {tokens} < max-model-len {settings.max_model_len} with chunked prefill off",
            remedy="leave chunked prefill on, raise max-num-batched-tokens, or cut max-model-len",
        )


def _length_rules(
    settings: ResolvedSettings, shape: ModelShape, config: Config, context: RuleContext
) -> Iterator[Violation]:
    length = settings.max_model_len
    # vLLM refuses more than config.json allows, unless rope scaling is overridden or the check is switched off.
    lifted = config.get("hf-overrides") or config.get("env:VLLM_ALLOW_LONG_MAX_MODEL_LEN")
    if length > shape.max_position_embeddings and not lifted:
        yield Violation(
            rule="G7",
            reason="max-model-len is beyond the model's positions",
            text=f"max-model-len {length} > {shape.max_position_embeddings} positions of {shape.name}",
            remedy=f"max-model-len {shape.max_position_embeddings} at most",
        )
    if context.needed_len is not None and length < context.needed_len:
        yield Violation(
            rule="G7",
            reason="the workload's longest request does not fit max-model-len",
            text=f"the longest request has {context.needed_len} tokens, max-model-len is {length}",
            remedy=f"max-model-len {context.needed_len} or more, or a shorter workload",
        )


def _shape_rules(settings: ResolvedSettings, shape: ModelShape) -> Iterator[Violation]:
    tp, pp = settings.tensor_parallel, settings.pipeline_parallel
    remedy = "choose a tensor-parallel-size that divides it, or split by pipeline-parallel-size"
    uneven = (
        ("attention heads", shape.heads, shape.heads % tp),
        ("KV heads", shape.kv_heads, shape.kv_heads % tp if tp <= shape.kv_heads else tp % shape.kv_heads),
        ("MLP columns", shape.intermediate_size, shape.intermediate_size % tp),
        ("padded vocabulary", padded_vocab(shape.vocab_size), padded_vocab(shape.vocab_size) % tp),
    )
    for what, count, rest in uneven:
        if rest:
            more = " (nor is it a multiple of them)" if what == "KV heads" else ""
            yield Violation(
                rule="G1",
                reason=f"tensor-parallel-size does not divide the model's {what}",
                text=f"{count} {what} of {shape.name} cannot be split over {tp} GPUs{more}",
                remedy=remedy,
            )
    if pp > shape.layers:
        yield Violation(
            rule="G2",
            reason="more pipeline stages than layers",
            text=f"pipeline-parallel-size {pp} > {shape.layers} layers of {shape.name}",
            remedy=f"pipeline-parallel-size {shape.layers} at most",
        )


def _memory_rules(settings: ResolvedSettings, shape: ModelShape, node: Node) -> Iterator[Violation]:
    if settings.kv_cache_dtype not in ONE_BYTE_KV_DTYPES | TWO_BYTE_KV_DTYPES:
        return
    gpu = smallest_gpu(node)
    # The most hopeful estimate: the graph already compiled.
    found = estimate(shape, gpu, settings, compiled=True)
    if surely_fits_not(found, gpu):
        share = f"{settings.gpu_memory_utilization:g} x {format_bytes(gpu.memory_bytes)}"
        layout = f"TP {settings.tensor_parallel} x PP {settings.pipeline_parallel}"
        if found.available_kv_bytes <= 0:
            yield Violation(
                rule="G34",
                reason="weights and activations do not fit the GPU",
                text=f"{layout}: {format_bytes(found.weights_bytes_per_gpu)} of weights and "
                f"{format_bytes(found.activation_peak_bytes)} of activations per GPU leave nothing of {share} for KV",
                remedy="more GPUs per replica (TP or PP), fewer batched tokens, a quantised checkpoint",
            )
            return
        yield Violation(
            rule="G33",
            reason="KV memory does not hold one request of max-model-len",
            text=f"{layout}: one request of {settings.max_model_len} tokens needs {format_bytes(found.needed_kv_bytes)}"
            f" of KV per GPU, about {format_bytes(found.available_kv_bytes)} of {share} are left",
            remedy="cut max-model-len, raise gpu-memory-utilization, kv-cache-dtype fp8, more GPUs per replica",
        )


def smallest_gpu(node: Node) -> Gpu:
    """The GPU that decides on a mixed node. The node must have one."""
    return min(node.gpus, key=lambda gpu: gpu.memory_bytes)


def surely_fits_not(found: MemoryEstimate, gpu: Gpu) -> bool:
    """Whether one request does not fit even if the estimate is off by the tolerance."""
    return found.available_kv_bytes + MEMORY_TOLERANCE_SHARE * gpu.memory_bytes < found.needed_kv_bytes
