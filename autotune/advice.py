"""The guide's remedies (G34-G38) in their order, with the numbers of one case, and the moves they stand for. Pure.

`engine.remedies` gives the orders for any log. Here the config, the model, the node and the workload are known, so each
remedy says from what to what, and one that cannot be applied any more (fp8 KV that is on already) is left out. The
moves are what the search takes from it: see `search.lessons`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autotune.bottleneck import Limit
from autotune.load.model_len import guide_model_len
from autotune.node.defaults import ResolvedSettings
from autotune.records import BF16_CAPABILITY, FP8_CAPABILITY, FailureClass, Link, ModelShape, Node, Value
from autotune.units import format_bytes

_SEQUENCES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class Toward(StrEnum):
    """Which way a parameter should go."""

    LOWER = "lower"
    RAISE = "raise"
    CHANGE = "change"
    """Any other value than the one that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change of one parameter; `parameter` without dashes."""

    parameter: str
    toward: Toward


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One remedy with this case's numbers; `moves` is empty for what no parameter of a config changes."""

    text: str
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a remedy's numbers come from; None where it is not known.

    Attributes:
        needed_len: tokens of the workload's longest request.
        facts: the numbers read from the failure.
        running_max: most requests that ran at once.
    """

    settings: ResolvedSettings
    shape: ModelShape | None = None
    node: Node | None = None
    needed_len: int | None = None
    facts: Mapping[str, Value] = field(default_factory=dict)
    running_max: float | None = None

    @property
    def spare_gpus(self) -> int:
        """GPUs of the node that the config leaves idle."""
        return 0 if self.node is None else max(0, self.node.gpu_count - self.settings.gpus)


def advise(topic: FailureClass | Limit, case: Case) -> tuple[Advice, ...]:
    """Remedies for a failure or a limit, in the order to try; empty where the guide has none of its own."""
    return tuple(advice for rule in _ORDERS.get(topic, ()) if (advice := rule(case)) is not None)


def _len_down(case: Case) -> Advice | None:
    now = case.settings.max_model_len
    told = case.facts.get("estimated_max_model_len") or case.facts.get("available_tokens")
    moves = (Move(parameter="max-model-len", toward=Toward.LOWER),)
    needed = case.needed_len
    if isinstance(told, int) and told > 0:
        fits = f"vLLM says that at most {told:,} tokens fit"
        if needed is not None and needed > told:
            return Advice(text=f"--max-model-len is {now:,} and {fits}, but the longest request has {needed:,}.")
        return Advice(text=f"Lower --max-model-len from {now:,} to {told:,} or less: {fits}.", moves=moves)
    if needed is None:
        return Advice(text=f"Lower --max-model-len from {now:,} to what requests really need.", moves=moves)
    wanted = guide_model_len(needed)
    if wanted >= now:
        wanted = needed
    if wanted >= now:
        return None
    return Advice(
        text=f"Lower --max-model-len from {now:,} to {wanted:,}: the longest request has {needed:,} tokens.",
        moves=moves,
    )


def _dtype(case: Case) -> Advice | None:
    capability = case.node.gpus[0].compute_capability if case.node is not None and case.node.gpus else None
    if case.settings.dtype == "float32":
        better = "bfloat16" if capability is None or capability >= BF16_CAPABILITY else "float16"
        return Advice(
            text=f"--dtype {better} instead of float32 halves the weights.",
            moves=(Move(parameter="dtype", toward=Toward.CHANGE),),
        )
    return None


def _quantised(case: Case) -> Advice | None:
    if case.settings.quantization is not None or (case.shape is not None and case.shape.quantization is not None):
        return None
    if case.shape is None:
        return Advice(text="Use a quantised checkpoint (AWQ, GPTQ, FP8).", moves=(_CHECKPOINT,))
    half, quarter = format_bytes(case.shape.weight_bytes / 2), format_bytes(case.shape.weight_bytes / 3.6)
    return Advice(
        text=f"Use a quantised checkpoint: {format_bytes(case.shape.weight_bytes)} of weights become about {half} "
        f"(FP8) or {quarter} (AWQ, GPTQ with 4 bit).",
        moves=(_CHECKPOINT,),
    )


_CHECKPOINT = Move(parameter="model", toward=Toward.CHANGE)
_TP_UP = Move(parameter="tensor-parallel-size", toward=Toward.RAISE)
_PP_UP = Move(parameter="pipeline-parallel-size", toward=Toward.RAISE)


def _split_more(case: Case) -> Advice | None:
    s, node = case.settings, case.node
    group = s.tensor_parallel * s.pipeline_parallel
    if node is not None and node.gpus:
        if group * 2 > node.gpu_count:
            return Advice(
                text=f"Each replica already spans {group} of {node.gpu_count} GPUs: more would need a larger node."
            )
        first = "--tensor-parallel-size" if node.link is Link.NVLINK else "--pipeline-parallel-size"
        size = s.tensor_parallel if node.link is Link.NVLINK else s.pipeline_parallel
        return Advice(
            text=f"Split the model over more GPUs: {first} {size * 2} instead of {size} "
            f"(the node has {node.gpu_count} GPUs, a replica uses {group}).",
            moves=(_TP_UP, _PP_UP),
        )
    return Advice(text="Split the model over more GPUs: raise TP or PP.", moves=(_TP_UP, _PP_UP))


def _smaller_model(_: Case) -> Advice | None:
    return Advice(text="Choose a smaller model; raising --gpu-memory-utilization usually does not help here.")


def _seqs_down(case: Case) -> Advice | None:
    now = case.settings.max_num_seqs
    lower = [count for count in _SEQUENCES if count < now]
    if not lower:
        return None
    ran = case.running_max
    wanted = max((count for count in lower if ran is None or count < ran), default=lower[0])
    seen = "" if ran is None else f" ({ran:.0f} ran at once)"
    return Advice(
        text=f"Lower --max-num-seqs from {now} to {wanted}{seen}.",
        moves=(Move(parameter="max-num-seqs", toward=Toward.LOWER),),
    )


def _seqs_up(case: Case) -> Advice | None:
    now = case.settings.max_num_seqs
    wanted = next((count for count in _SEQUENCES if count > now), None)
    if wanted is None:
        return None
    return Advice(
        text=f"Raise --max-num-seqs from {now} to {wanted}: requests wait while the KV cache has room.",
        moves=(Move(parameter="max-num-seqs", toward=Toward.RAISE),),
    )


def _fp8_kv(case: Case) -> Advice | None:
    if case.settings.kv_cache_dtype.startswith("fp8"):
        return None
    capability = case.node.gpus[0].compute_capability if case.node is not None and case.node.gpus else None
    doubt = ""
    if capability is not None and capability < FP8_CAPABILITY:
        doubt = f" (on compute capability {capability[0]}.{capability[1]} only some attention backends take it)"
    tokens = case.facts.get("kv_cache_tokens")
    doubled = f", {tokens:,} tokens become {2 * tokens:,}" if isinstance(tokens, int) else ""
    return Advice(
        text=f"--kv-cache-dtype fp8 halves the KV cache{doubled}{doubt}; "
        "compare answers on mathematics and code first.",
        moves=(Move(parameter="kv-cache-dtype", toward=Toward.CHANGE),),
    )


def _util_up(case: Case) -> Advice | None:
    now = case.settings.gpu_memory_utilization
    wanted = next((share for share in (0.88, 0.90, 0.92, 0.94) if share > now + 0.005), None)
    if wanted is None:
        return None
    gained = ""
    if case.node is not None and case.node.gpus:
        memory = min(gpu.memory_bytes for gpu in case.node.gpus)
        gained = f": {format_bytes((wanted - now) * memory)} more per GPU for the KV cache"
    return Advice(
        text=f"Raise --gpu-memory-utilization from {now:g} to {wanted:g}{gained}.",
        moves=(Move(parameter="gpu-memory-utilization", toward=Toward.RAISE),),
    )


def _util_carefully(case: Case) -> Advice | None:
    """Under load the share is a two-edged knob: up where it is low, down where it was pushed (G35, G6)."""
    now = case.settings.gpu_memory_utilization
    if now <= 0.92:
        return _util_up(case)
    return Advice(
        text=f"Lower --gpu-memory-utilization from {now:g} to 0.92 or less: a start proves nothing about the first "
        "long request.",
        moves=(Move(parameter="gpu-memory-utilization", toward=Toward.LOWER),),
    )


def _util_down(case: Case) -> Advice | None:
    now = case.settings.gpu_memory_utilization
    wanted = next((share for share in (0.94, 0.92, 0.90, 0.88, 0.85) if share < now - 0.005), None)
    if wanted is None:
        return None
    return Advice(
        text=f"Lower --gpu-memory-utilization from {now:g} to {wanted:g}: what vLLM takes for the KV cache is missing "
        "in the warm-up.",
        moves=(Move(parameter="gpu-memory-utilization", toward=Toward.LOWER),),
    )


def _batch_down(case: Case) -> Advice | None:
    now = case.settings.max_num_batched_tokens
    if now <= 2048:
        return None
    return Advice(
        text=f"Lower --max-num-batched-tokens from {now:,} to {max(2048, now // 2):,}: it sets the activation peak.",
        moves=(Move(parameter="max-num-batched-tokens", toward=Toward.LOWER),),
    )


def _batch_up(case: Case) -> Advice | None:
    now = case.settings.max_num_batched_tokens
    if now >= 32768:
        return None
    return Advice(
        text=f"Raise --max-num-batched-tokens from {now:,} to {min(32768, 2 * now):,}: longer pieces of prompts keep "
        "the matrix units busier.",
        moves=(Move(parameter="max-num-batched-tokens", toward=Toward.RAISE),),
    )


def _more_gpus(case: Case) -> Advice | None:
    s = case.settings
    if case.spare_gpus >= s.tensor_parallel * s.pipeline_parallel:
        replicas = s.data_parallel + case.spare_gpus // (s.tensor_parallel * s.pipeline_parallel)
        return Advice(
            text=f"Use the idle GPUs: --data-parallel-size {replicas} instead of {s.data_parallel}.",
            moves=(Move(parameter="data-parallel-size", toward=Toward.RAISE),),
        )
    return _split_more(case)


def _replicas(case: Case) -> Advice | None:
    s = case.settings
    if case.spare_gpus < s.tensor_parallel * s.pipeline_parallel:
        return None
    return _more_gpus(case)


def _split_less(case: Case) -> Advice | None:
    s = case.settings
    if s.tensor_parallel < 2:
        return None
    half = s.tensor_parallel // 2
    return Advice(
        text=f"Lower --tensor-parallel-size from {s.tensor_parallel} to {half} with --data-parallel-size "
        f"{s.data_parallel * 2} where the model fits, or compare --pipeline-parallel-size {s.pipeline_parallel * 2}.",
        moves=(
            Move(parameter="tensor-parallel-size", toward=Toward.LOWER),
            Move(parameter="pipeline-parallel-size", toward=Toward.RAISE),
        ),
    )


def _prefix_on(case: Case) -> Advice | None:
    if not case.settings.prefix_caching:
        return Advice(
            text="Switch --enable-prefix-caching on: prompts of this workload repeat what was computed before.",
            moves=(Move(parameter="enable-prefix-caching", toward=Toward.CHANGE),),
        )
    return Advice(
        text="Give the prefix cache more room (KV memory), or send requests of one prefix to the same replica.",
        moves=(Move(parameter="gpu-memory-utilization", toward=Toward.RAISE),),
    )


def _api_servers(case: Case) -> Advice | None:
    s = case.settings
    now = s.api_server_count or s.data_parallel
    return Advice(
        text=f"Raise --api-server-count from {now} to {now * 2}, or --stream-interval from {s.stream_interval} to "
        f"{max(4, 2 * s.stream_interval)}.",
        moves=(
            Move(parameter="api-server-count", toward=Toward.RAISE),
            Move(parameter="stream-interval", toward=Toward.RAISE),
        ),
    )


def _graphs_on(case: Case) -> Advice | None:
    if not case.settings.enforce_eager:
        return None
    return Advice(
        text="Leave out --enforce-eager: with CUDA graphs the CPU launches a step at once, not kernel by kernel.",
        moves=(Move(parameter="enforce-eager", toward=Toward.CHANGE),),
    )


def _server_cores(_: Case) -> Advice | None:
    return Advice(text="Give the server faster or free CPU cores: engine and API server need one each, per replica.")


def _power_limit(_: Case) -> Advice | None:
    return Advice(text="Raise the GPUs' power limit (nvidia-smi -pl) where cooling and supply allow it.")


def _client_cores(_: Case) -> Advice | None:
    return Advice(text="Give the load client free CPU cores, or load from another machine; then measure again.")


def _more_load(_: Case) -> Advice | None:
    return Advice(text="Offer more load (--load concurrency=N or rate=R) to see where this config's limit is.")


_Rule = Callable[[Case], Advice | None]
_ORDERS: dict[FailureClass | Limit, tuple[_Rule, ...]] = {
    FailureClass.OOM_AT_LOAD: (_len_down, _dtype, _quantised, _split_more, _smaller_model),
    FailureClass.OOM_AT_WARMUP: (_seqs_down, _util_down, _batch_down, _len_down, _quantised, _split_more),
    FailureClass.OOM_UNDER_LOAD: (_len_down, _seqs_down, _fp8_kv, _util_carefully, _split_more),
    FailureClass.KV_CACHE_NONE: (_util_up, _batch_down, _quantised, _split_more),
    FailureClass.KV_CACHE_TOO_SMALL: (_len_down, _fp8_kv, _util_up, _split_more),
    FailureClass.STATE_CACHE_TOO_SMALL: (_seqs_down, _util_up, _len_down, _split_more),
    FailureClass.KV_DTYPE_UNSUPPORTED: (
        lambda case: Advice(
            text=f"Leave --kv-cache-dtype at auto instead of {case.settings.kv_cache_dtype}, or try fp8_e5m2.",
            moves=(Move(parameter="kv-cache-dtype", toward=Toward.CHANGE),),
        ),
    ),
    FailureClass.NCCL: (_split_less,),
    Limit.KV_MEMORY: (_util_up, _seqs_down, _batch_down, _len_down, _fp8_kv, _more_gpus),
    Limit.SEQUENCE_CAP: (_seqs_up, _replicas),
    Limit.PREFILL: (_batch_up, _replicas, _quantised),
    Limit.DECODE: (_seqs_up, _fp8_kv, _quantised, _replicas),
    Limit.COMMUNICATION: (_split_less,),
    Limit.PREFIX_MISSED: (_prefix_on,),
    Limit.API_SERVER: (_api_servers,),
    Limit.HOST: (_graphs_on, _seqs_up, _server_cores),
    Limit.POWER: (_power_limit,),
    Limit.CLIENT: (_client_cores,),
    Limit.LIGHT_LOAD: (_more_load,),
}
"""OOM at load: G34. Under load: G35. NCCL: G36 (the rest of that order is not a matter of the config, and stays with
`engine.remedies`). KV_MEMORY: preemption, G37, with fp8 KV before more GPUs: with tight memory it gained 16-32 % on an
H200. The other limits: G38."""
