"""What held a measured config back (guide G38), from what its throughput level showed. Pure.

Each verdict names one limit with the numbers it rests on; the strongest comes first. Where the server or the client
counted something (preemptions, waiting requests, late sends), that decides, and so does what was seen of GPUs and CPUs
(`Measurement.use`). What nobody counts (how busy the matrix units and the memory were) is worked out from the figures
and the model's shape with the simulator's coefficients, and says "about".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from autotune.errors import InvalidOption
from autotune.node.defaults import ResolvedSettings, resolve
from autotune.node.kv_capacity import values_per_token
from autotune.node.layers import layer_shapes
from autotune.records import (
    Config,
    Estimate,
    Gpu,
    LevelRole,
    LevelUse,
    Link,
    Measurement,
    ModelShape,
    Node,
    ServerDelta,
    Trial,
)
from autotune.simulator.coefficients import Coefficients
from autotune.units import format_seconds, plural

STEADY_PREEMPTION_SHARE = 0.05
"""Preemptions per completed request from which they are a storm; a few are fine (G37)."""

FULL_KV = 0.95
ROOMY_KV = 0.90
QUEUE_SHARE = 0.05
"""Waiting requests, as a share of the running ones, from which a queue is one."""

BUSY_SHARE = 0.6
"""Share of a resource's time from which it is called the limit."""

MISSED_HITS_SHARE = 0.5
"""Of the prefix-cache hits that the workload allows; fewer are missed ones."""

MIN_REACHABLE_SHARE = 0.1

IDLE_GPU = 0.7
"""Share of the time in which kernels ran, below which the GPUs waited for somebody: decoding with graphs has 0.9."""

CAPPED_SHARE = 0.5
CAPPED_CLOCK = 0.95
"""The power limit counts as one when it held in half of the samples and cost a twentieth of the clock."""


class Limit(StrEnum):
    """What a config is held back by."""

    KV_MEMORY = "kv_memory"
    SEQUENCE_CAP = "sequence_cap"
    PREFILL = "prefill"
    DECODE = "decode"
    COMMUNICATION = "communication"
    PREFIX_MISSED = "prefix_missed"
    API_SERVER = "api_server"
    HOST = "host"
    POWER = "power"
    CLIENT = "client"
    LIGHT_LOAD = "light_load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One limit.

    Attributes:
        strength: 0..1, how sure and how tight; orders the verdicts of a trial.
        text: the verdict in one sentence.
        evidence: the numbers it rests on.
    """

    limit: Limit
    strength: float
    text: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a trial ran on and under; None where it is not known.

    Attributes:
        reachable_hits: share of the prompt tokens that the workload lets a prefix cache serve, 0..1.
        extra: flags beside the config.
    """

    node: Node | None = None
    shape: ModelShape | None = None
    reachable_hits: float | None = None
    vllm_version: str | None = None
    extra: Config = field(default_factory=lambda: Config.of({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    level: Measurement
    server: ServerDelta
    use: LevelUse
    settings: ResolvedSettings | None
    shape: ModelShape | None
    gpu: Gpu | None
    link: Link
    reachable_hits: float | None
    caveats: frozenset[str]

    @property
    def tpot(self) -> Estimate | None:
        """Median time per output token: a step of decoding."""
        return self.level.tpot_s.p50 if self.level.tpot_s else None


def verdicts(trial: Trial, setting: Setting) -> tuple[Verdict, ...]:
    """What held `trial` back, strongest first; empty for a trial without a throughput level.

    `LIGHT_LOAD` stands only where nothing else does: the load was too light to show a limit.
    """
    level = trial.result.of_role(LevelRole.THROUGHPUT) if trial.result else None
    if level is None:
        return ()
    evidence = _gather(trial, level, setting)
    found = [verdict for check in _CHECKS for verdict in check(evidence)]
    if not found:
        found = list(_light_load(evidence))
    return tuple(sorted(found, key=lambda verdict: -verdict.strength))


def settings_of(config: Config, setting: Setting) -> ResolvedSettings | None:
    """What the server of `config` ran with; None when that cannot be worked out."""
    if setting.node is None or setting.shape is None:
        return None
    try:
        return resolve(config, setting.node, setting.shape, setting.vllm_version, setting.extra.as_dict())
    except InvalidOption:
        return None


def _gather(trial: Trial, level: Measurement, setting: Setting) -> _Evidence:
    node = setting.node
    return _Evidence(
        level=level,
        server=level.server or ServerDelta(),
        use=level.use or LevelUse(),
        settings=settings_of(trial.config, setting),
        shape=setting.shape,
        gpu=node.gpus[0] if node is not None and node.gpus else None,
        link=node.link if node is not None else Link.NONE,
        reachable_hits=setting.reachable_hits,
        caveats=frozenset(caveat.code for caveat in level.caveats),
    )


def _client(e: _Evidence) -> Iterator[Verdict]:
    found = [caveat for caveat in e.level.caveats if caveat.void or caveat.code == "client_late"]
    if found:
        why = "it sent requests late" if found[0].code == "client_late" else "it had no CPU time left"
        yield Verdict(
            limit=Limit.CLIENT,
            strength=1.0,
            text=f"The load client was the limit: {why}, so the server's own limit was not seen.",
            evidence=tuple(caveat.text for caveat in found),
        )


def _kv_memory(e: _Evidence) -> Iterator[Verdict]:
    used, waiting, preempted = e.server.kv_usage_max, e.server.waiting_max, e.server.preemptions
    storm = preempted is not None and preempted > STEADY_PREEMPTION_SHARE * max(1, e.level.completed)
    full = used is not None and used >= FULL_KV and _queue(e)
    if not storm and not full:
        return
    evidence = []
    if preempted:
        evidence.append(f"{preempted} preemptions in {e.level.completed} requests")
    if used is not None:
        evidence.append(f"KV cache used up to {used:.0%}")
    if waiting:
        evidence.append(f"up to {waiting:.0f} requests waited")
    yield Verdict(
        limit=Limit.KV_MEMORY,
        strength=0.95 if storm else 0.85,
        text="KV memory is the limit: requests wait, or are preempted and computed again, for want of blocks.",
        evidence=tuple(evidence),
    )


def _sequence_cap(e: _Evidence) -> Iterator[Verdict]:
    running, waiting, used = e.server.running_max, e.server.waiting_max, e.server.kv_usage_max
    if e.settings is None or running is None or waiting is None or not _queue(e):
        return
    cap = e.settings.max_num_seqs * e.settings.data_parallel
    if running < 0.98 * cap or (used is not None and used >= ROOMY_KV):
        return
    room = "" if used is None else f" while the KV cache was used up to {used:.0%} only"
    yield Verdict(
        limit=Limit.SEQUENCE_CAP,
        strength=0.8,
        text="max-num-seqs is the limit: requests wait for a place in the batch, not for memory.",
        evidence=(f"{running:.0f} of {cap} places taken and up to {waiting:.0f} requests waiting{room}",),
    )


def _api_server(e: _Evidence) -> Iterator[Verdict]:
    told = e.use.cpu.api_server_share if e.use.cpu else None
    busy, evidence = _api_estimate(e) if told is None else (told, f"its busiest process took {told:.0%} of a core")
    if busy is None or busy < BUSY_SHARE:
        return
    bunched = next((caveat.text for caveat in e.level.caveats if caveat.code == "bunched_chunks"), None)
    yield Verdict(
        limit=Limit.API_SERVER,
        strength=min(0.9, busy),
        text="The API server process is near its limit: one core handles every request and every chunk.",
        evidence=(evidence,) if bunched is None else (evidence, bunched),
    )


def _api_estimate(e: _Evidence) -> tuple[float | None, str]:
    """Share of a core that each API server needs, where nobody saw it, and the words for it."""
    rate, output = e.level.request_rps, e.level.output_tok_s
    if rate is None or output is None or e.settings is None:
        return None, ""
    c, s = Coefficients(), e.settings
    servers = s.api_server_count or s.data_parallel
    prompt_tok_s = rate.value * (e.level.prompt_tokens or 0) / max(1, e.level.completed)
    per_second = rate.value * c.api_request_s + prompt_tok_s * c.api_prompt_token_s
    per_second += output.value * (c.api_token_s + c.api_chunk_s / s.stream_interval)
    busy = per_second / servers
    count = f"{servers} API server process{'es' if servers > 1 else ''}"
    return busy, f"{output.value:,.0f} output tokens/s and {rate.value:.1f} requests/s need about {busy:.0%} of {count}"


def _host(e: _Evidence) -> Iterator[Verdict]:
    """GPUs that idle while requests run: the engine's own Python, or kernels launched one by one, hold them up."""
    busy, running = e.use.gpu_busy_share, e.server.running_mean
    if busy is None or busy >= IDLE_GPU or not running or running < 1:
        return
    yield Verdict(
        limit=Limit.HOST,
        strength=min(0.8, 1.1 - busy),
        text="The CPU is the limit: the GPUs waited between steps for the server to schedule and launch the next.",
        evidence=(f"kernels ran {busy:.0%} of the time, with {running:.0f} requests in the batch on average",),
    )


def _power(e: _Evidence) -> Iterator[Verdict]:
    for gpu in e.use.gpus:
        clock, most, share = gpu.sm_clock_mean_mhz, gpu.sm_clock_limit_mhz, gpu.power_capped_share
        if clock is None or not most or share is None or share < CAPPED_SHARE or clock > CAPPED_CLOCK * most:
            continue
        power = f" at {gpu.power_mean_w:.0f} W" if gpu.power_mean_w is not None else ""
        yield Verdict(
            limit=Limit.POWER,
            strength=0.55,
            text="The power limit holds the GPU's clocks down.",
            evidence=(
                f"GPU {gpu.index} ran at {clock:.0f} of {most:.0f} MHz{power}; its power limit held in {share:.0%} of "
                "the samples",
            ),
        )
        return


def _busy_words(e: _Evidence) -> tuple[str, ...]:
    busy = e.use.gpu_busy_share
    return () if busy is None else (f"kernels ran {busy:.0%} of the time",)


def _communication(e: _Evidence) -> Iterator[Verdict]:
    s, shape, tpot = e.settings, e.shape, e.tpot
    if s is None or shape is None or tpot is None or s.tensor_parallel < 2:
        return
    c = Coefficients()
    nvlink = e.link is Link.NVLINK
    once = c.allreduce_latency_s if nvlink else c.allreduce_pcie_latency_s
    # The running requests are dealt out over the stages, and a token passes all of them one after the other.
    batch = (e.server.running_max or 1.0) / s.data_parallel / s.pipeline_parallel
    rate = c.nvlink_bytes_per_s if nvlink else c.pcie_bytes_per_s
    payload = 2 * (s.tensor_parallel - 1) / s.tensor_parallel * batch * shape.hidden_size * 2 / rate
    spent = 2 * shape.layers * (once + payload)
    share = min(1.0, spent / tpot.value)
    moved = e.use.most_traffic(nvlink=nvlink)
    full = moved is not None and moved >= BUSY_SHARE * rate
    if share < 0.25 and not full:
        return
    seen = () if moved is None else (f"one GPU moved {moved / 1e9:.1f} GB/s over the link, of about {rate / 1e9:.0f}",)
    yield Verdict(
        limit=Limit.COMMUNICATION,
        strength=0.9 if full else min(0.9, 0.4 + share),
        text="The links are the limit: a large part of each step goes into all-reduces between the GPUs.",
        evidence=(
            f"TP {s.tensor_parallel} over {'NVLink' if nvlink else 'PCIe'}: about {format_seconds(spent)} of "
            f"all-reduces in a step of {format_seconds(tpot.value)} ({share:.0%})",
            *seen,
        ),
    )


def _prefix_missed(e: _Evidence) -> Iterator[Verdict]:
    reachable = e.reachable_hits
    if reachable is None or reachable < MIN_REACHABLE_SHARE:
        return
    off = e.settings is not None and not e.settings.prefix_caching
    hits = e.server.prefix_hit_share
    if not off and (hits is None or hits >= MISSED_HITS_SHARE * reachable):
        return
    seen = "prefix caching is off" if off else f"{hits or 0:.0%} of the prompt tokens were hits"
    yield Verdict(
        limit=Limit.PREFIX_MISSED,
        strength=0.75,
        text="Prefix-cache hits are missed: prompts repeat what was computed before.",
        evidence=(f"{seen}; this workload allows about {reachable:.0%}",),
    )


def _roofline(e: _Evidence) -> Iterator[Verdict]:
    """Prefill-bound where prompts take most of the matrix units' time, decode-bound where steps take as long as
    reading weights and KV does."""
    s, shape, gpu, tpot, rate = e.settings, e.shape, e.gpu, e.tpot, e.level.request_rps
    if s is None or shape is None or gpu is None or rate is None or not e.level.completed:
        return
    if gpu.bf16_flops is None or gpu.memory_bytes_per_s is None or e.level.prompt_tokens is None:
        return
    c = Coefficients()
    active = shape.active_parameters or shape.parameters
    computed = e.level.prompt_tokens * (1 - (e.server.prefix_hit_share or 0.0))
    prompt_tok_s = rate.value * computed / e.level.completed
    prefill = prompt_tok_s * 2 * active / (gpu.bf16_flops * c.sustained_compute_share * s.gpus)
    if prefill >= 0.5:
        yield Verdict(
            limit=Limit.PREFILL,
            strength=min(0.7, prefill),
            text="Prefill is the limit: the matrix units spend most of their time on prompts.",
            evidence=(
                f"{prompt_tok_s:,.0f} prompt tokens/s keep {plural(s.gpus, 'GPU')} busy for about "
                f"{min(1.0, prefill):.0%} of the time",
                *_busy_words(e),
            ),
        )
        return
    if tpot is None or e.server.running_max is None:
        return
    context = (e.level.prompt_tokens + (e.level.output_tokens or 0) / 2) / e.level.completed
    kv_bytes = e.server.running_max / s.data_parallel * _kv_read_bytes(shape, s, context)
    weights = _weights_read_bytes(shape, s, e.server.running_max)
    # A token passes every stage: each reads its part of the weights, and the KV of its part of the requests.
    read_s = (weights / c.weight_read_share + kv_bytes / s.pipeline_parallel / c.kv_read_share) / gpu.memory_bytes_per_s
    share = min(1.0, read_s / tpot.value)
    if share >= 0.5:
        yield Verdict(
            limit=Limit.DECODE,
            strength=min(0.65, share),
            text="Decode is the limit: each step waits for weights and KV to be read from GPU memory.",
            evidence=(
                f"about {format_seconds(read_s)} of reading in a step of {format_seconds(tpot.value)} ({share:.0%})",
                *_busy_words(e),
            ),
        )


def _weights_read_bytes(shape: ModelShape, settings: ResolvedSettings, running: float) -> float:
    """Weights that one GPU reads for a token, all stages together. A batch reads every expert that one of its tokens
    passes: far more than the experts of one token; all ranks of a model share them."""
    experts_bytes = sum(layer.expert_bytes for layer in shape.decoder)
    dense = (shape.weight_bytes - experts_bytes) / settings.tensor_parallel
    if shape.experts is None or not experts_bytes:
        return dense
    share = shape.experts.per_token / shape.experts.count
    touched: float = experts_bytes * (1 - math.pow(1 - share, running))
    return dense + touched / (settings.tensor_parallel * settings.data_parallel)


def _kv_read_bytes(shape: ModelShape, settings: ResolvedSettings, context: float) -> float:
    """K and V that the GPUs of one TP rank read for the next token of a request, all layers together."""
    width = 1 if settings.kv_cache_dtype.startswith("fp8") else 2
    attentions = [layer.attention for layer in layer_shapes(shape)]
    return width * sum(
        values_per_token(one, settings.tensor_parallel) * min(context, one.window or context) for one in attentions
    )


def _light_load(e: _Evidence) -> Iterator[Verdict]:
    if _queue(e) or e.server.running_max is None:
        return
    used = e.server.kv_usage_max
    room = "" if used is None else f", KV cache used up to {used:.0%}"
    yield Verdict(
        limit=Limit.LIGHT_LOAD,
        strength=0.3,
        text="No limit was reached: the load was too light to show one.",
        evidence=(f"{e.server.running_max:.0f} requests ran at once and none waited{room}",),
    )


def _queue(e: _Evidence) -> bool:
    waiting, running = e.server.waiting_max, e.server.running_max
    return bool(waiting) and (running is None or (waiting or 0.0) > QUEUE_SHARE * running)


_CHECKS: tuple[Callable[[_Evidence], Iterator[Verdict]], ...] = (
    _client,
    _kv_memory,
    _sequence_cap,
    _api_server,
    _host,
    _power,
    _communication,
    _prefix_missed,
    _roofline,
)
