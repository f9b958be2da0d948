"""Frozen records that cross rooms. Seconds, bytes and tokens inside; a missing value is None, never 0."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

Value = bool | int | float | str | None
"""A flag's value: None leaves vLLM's own default, True/False pick `--flag` / `--no-flag`."""


class EngineKind(StrEnum):
    """Where servers come from."""

    SIMULATED = "simulated"
    PROCESS = "process"


class ClockKind(StrEnum):
    """What a duration was measured on; stored with every figure."""

    WALL = "wall"
    VIRTUAL = "virtual"


class Outcome(StrEnum):
    """How a trial ended."""

    MEASURED = "measured"
    INFEASIBLE = "infeasible"
    FAULTED = "faulted"
    ABANDONED = "abandoned"
    REJECTED = "rejected"


COUNTED_OUTCOMES = frozenset({Outcome.MEASURED, Outcome.INFEASIBLE, Outcome.FAULTED, Outcome.ABANDONED})
"""Outcomes that cost a launch and so count against `--trials`."""


class Origin(StrEnum):
    """Who proposed a trial's config."""

    BASELINE = "baseline"
    ENQUEUED = "enqueued"
    SAMPLER = "sampler"
    REPEAT = "repeat"


class Phase(StrEnum):
    """What an attempt is doing; every change is stored."""

    WAITING = "waiting"
    LAUNCHING = "launching"
    WARMING = "warming"
    MEASURING = "measuring"
    STOPPING = "stopping"
    ENDED = "ended"


class FailureClass(StrEnum):
    """Root causes, in the words of `autotune diagnose`."""

    OOM_AT_LOAD = "oom_at_load"
    OOM_AT_WARMUP = "oom_at_warmup"
    OOM_UNDER_LOAD = "oom_under_load"
    KV_CACHE_NONE = "kv_cache_none"
    KV_CACHE_TOO_SMALL = "kv_cache_too_small"
    STATE_CACHE_TOO_SMALL = "state_cache_too_small"
    GPU_BUSY = "gpu_busy"
    GPU_COUNT = "gpu_count"
    INDIVISIBLE = "indivisible"
    INVALID_FLAG = "invalid_flag"
    INVALID_COMBINATION = "invalid_combination"
    KV_DTYPE_UNSUPPORTED = "kv_dtype_unsupported"
    MODEL_ACCESS = "model_access"
    MODEL_UNKNOWN = "model_unknown"
    DRIVER = "driver"
    NCCL = "nccl"
    SHARED_MEMORY = "shared_memory"
    PORT_IN_USE = "port_in_use"
    COMPILE_CACHE = "compile_cache"
    MISSING_DEPENDENCY = "missing_dependency"
    HANG = "hang"
    CRASH = "crash"
    HEALTHY = "healthy"


STUDY_FATAL_CLASSES = frozenset(
    {
        FailureClass.DRIVER,
        FailureClass.MODEL_ACCESS,
        FailureClass.MODEL_UNKNOWN,
        FailureClass.MISSING_DEPENDENCY,
    }
)
"""No config cures these: the study stops."""

ENVIRONMENT_CLASSES = frozenset(
    {
        FailureClass.GPU_BUSY,
        FailureClass.NCCL,
        FailureClass.SHARED_MEMORY,
        FailureClass.PORT_IN_USE,
        FailureClass.COMPILE_CACHE,
        FailureClass.HANG,
        FailureClass.CRASH,
    }
)
"""The environment was bad: bounded retry, nothing taught. HANG and CRASH turn infeasible when every attempt repeats them."""

INFEASIBLE_CLASSES = frozenset(FailureClass) - STUDY_FATAL_CLASSES - ENVIRONMENT_CLASSES - {FailureClass.HEALTHY}
"""The config is bad: the sampler learns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One value per parameter, ordered by name.

    A parameter is a `vllm serve` flag without its dashes (`max-num-seqs`) or an environment variable of the server
    (`env:VLLM_CPU_KVCACHE_SPACE`).
    """

    params: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Config:
        """A config from a mapping; order of keys does not matter."""
        return cls(params=tuple(sorted(values.items())))

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        return iter(self.params)

    def get(self, name: str, default: Value = None) -> Value:
        """The value of a parameter, or `default` when the config does not name it."""
        return dict(self.params).get(name, default)

    def as_dict(self) -> dict[str, Value]:
        """A fresh mapping of the parameters."""
        return dict(self.params)

    @property
    def hash(self) -> str:
        """Canonical hash, 12 hex digits. A None value (vLLM's default) hashes like an absent parameter."""
        given = {name: value for name, value in self.params if value is not None}
        text = json.dumps(given, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


# --- node and model -------------------------------------------------------------------------------------------------


class Link(StrEnum):
    """How the GPUs of a node reach each other; the slowest pair decides."""

    NONE = "none"
    PCIE = "pcie"
    NVLINK = "nvlink"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. Peaks are the vendor's dense figures; None where unknown."""

    index: int
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None = None
    bf16_flops: float | None = None
    fp8_flops: float | None = None
    memory_bytes_per_s: float | None = None
    uuid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a study runs on. `gpus` holds the visible GPUs only (`--gpus`, CUDA_VISIBLE_DEVICES)."""

    name: str
    gpus: tuple[Gpu, ...]
    link: Link
    simulated: bool
    driver: str | None = None
    shm_bytes: int | None = None

    @property
    def gpu_count(self) -> int:
        """Visible GPUs; 0 on a CPU-only machine."""
        return len(self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What `config.json` says about a dense decoder.

    Attributes:
        weight_bytes: all weights as loaded in `dtype`, summed over the model.
        kv_bytes_per_token: K and V of all layers for one token in 16 bit, whole model, before any TP split.
    """

    name: str
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    weight_bytes: int
    parameters: int
    tie_word_embeddings: bool = False
    dtype: str = "bfloat16"

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


# --- workload and load ----------------------------------------------------------------------------------------------


class Arrivals(StrEnum):
    """How requests of a level are started."""

    CLOSED = "closed"
    CONSTANT = "constant"
    POISSON = "poisson"


class LevelRole(StrEnum):
    """What a level is measured for."""

    RAMP = "ramp"
    WARMUP = "warmup"
    THROUGHPUT = "throughput"
    TTFT = "ttft"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLevel:
    """One load level of a trial, already scaled to the GPUs that the config uses.

    Attributes:
        concurrency: closed loop only: requests in flight.
        rate_rps: open loop only: requests per second.
        requests: how many requests are sent.
        seed: of prompts' content and of arrival times; differs between levels and trials in content, never in shape.
    """

    name: str
    role: LevelRole
    arrivals: Arrivals
    requests: int
    seed: int
    concurrency: int | None = None
    rate_rps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request to send.

    Attributes:
        scheduled_s: when it is due, seconds after the level's start; None in a closed loop.
        prompt_tokens: whole prompt, shared prefix included.
        output_tokens: exact number to generate (`ignore_eos`).
        prefix_id: which shared prefix it opens with; None for none.
        prefix_tokens: length of that prefix.
        content_seed: seeds the words of the rest of the prompt.
    """

    index: int
    prompt_tokens: int
    output_tokens: int
    content_seed: int
    scheduled_s: float | None = None
    prefix_id: int | None = None
    prefix_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """What happened to one request. Times are seconds after the level's start on one monotonic clock.

    Attributes:
        scheduled_s: when it should have been sent: the absolute schedule, or (closed loop) when its slot came free.
        token_times_s: arrival of every chunk that carried at least one token, first to last.
        output_tokens: from `usage`; None when the server did not say.
        counted_tokens: token-carrying chunks seen by the client, the flagged fallback.
        error: None for success, else one of the kinds in load/client.py.
    """

    index: int
    scheduled_s: float
    sent_s: float | None
    first_byte_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    done_s: float | None
    token_times_s: tuple[float, ...]
    prompt_tokens: int | None
    output_tokens: int | None
    counted_tokens: int
    wanted_output_tokens: int
    finish_reason: str | None = None
    status: int | None = None
    error: str | None = None
    message: str | None = None


# --- figures --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its 95 % bootstrap interval; the bounds are None when there were too few samples to say."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A latency distribution over `count` requests (or gaps, for ITL), seconds."""

    count: int
    mean: Estimate
    p50: Estimate
    p90: Estimate
    p95: Estimate
    p99: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Caveat:
    """A doubt about a measurement, stored and printed beside it.

    Attributes:
        code: stable name, e.g. `client_late`, `too_few_samples`, `no_usage`, `prefix_hits`.
        text: what was seen, with its number.
        remedy: what to do about it.
    """

    code: str
    text: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDelta:
    """What the server's own `/metrics` said over one level; None where it did not say."""

    preemptions: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    prefix_queries: int | None = None
    prefix_hits: int | None = None
    queue_time_mean_s: float | None = None
    kv_usage_max: float | None = None
    running_max: float | None = None
    waiting_max: float | None = None

    @property
    def prefix_hit_share(self) -> float | None:
        """Share of queried prompt tokens that came from the prefix cache, 0..1."""
        if not self.prefix_queries or self.prefix_hits is None:
            return None
        return self.prefix_hits / self.prefix_queries


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The figures of one load level. Throughput counts successful requests only, over the steady window.

    Attributes:
        ttft_s: from the scheduled time; the objective uses its p95.
        ttft_from_send_s: from the moment the request was written.
        duration_s: first due request to last completion; `steady_s` is the window that throughput was counted over.
    """

    level: LoadLevel
    clock: ClockKind
    duration_s: float
    steady_s: float
    planned: int
    completed: int
    failed: int
    errors: tuple[tuple[str, int], ...]
    prompt_tokens: int | None
    output_tokens: int | None
    output_tok_s: Estimate | None
    total_tok_s: Estimate | None
    request_rps: Estimate | None
    goodput_rps: Estimate | None
    ttft_s: Latency | None
    ttft_from_send_s: Latency | None
    tpot_s: Latency | None
    itl_s: Latency | None
    e2e_s: Latency | None
    server: ServerDelta | None = None
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Resolved settings and capacities that the server told us, by log or HTTP; None where it did not."""

    vllm_version: str | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    available_kv_bytes: int | None = None
    weights_bytes: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_dtype: str | None = None
    dtype: str | None = None
    attention_backend: str | None = None
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    startup_s: float | None = None
    load_s: float | None = None
    compile_s: float | None = None
    graph_capture_s: float | None = None
    non_default_args: str | None = None
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The first root cause of a failure, never its wrapper; secrets already redacted.

    Attributes:
        line: the log line that says it; None when there was only silence or an exit status.
        facts: the numbers read from it, e.g. ("needed_kv_bytes", 25769803776).
        remedies: what to change, in the order to try.
    """

    kind: FailureClass
    line: str | None
    remedies: tuple[str, ...] = ()
    facts: tuple[tuple[str, Value], ...] = ()
    exit_status: int | None = None


# --- trials ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """How one attempt ended, with all its evidence."""

    outcome: Outcome
    clock: ClockKind
    simulated: bool
    failure: Failure | None = None
    facts: ServerFacts | None = None
    measurements: tuple[Measurement, ...] = ()
    phase_seconds: tuple[tuple[Phase, float], ...] = ()
    caveats: tuple[Caveat, ...] = ()

    def of_role(self, role: LevelRole) -> Measurement | None:
        """The measurement taken for `role`; None when it was not reached."""
        return next((m for m in self.measurements if m.level.role is role), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One config and how it ended; `result` is None while it runs.

    Attributes:
        number: 0-based; 0 is the baseline.
        gpus: GPUs the config uses (TP x PP x DP).
        argv: the server command line as launched, without secrets; empty before the first launch.
    """

    number: int
    config: Config
    origin: Origin
    gpus: int
    attempts: int
    result: TrialResult | None
    repeat_of: int | None = None
    argv: tuple[str, ...] = ()
    directory: str | None = None

    @property
    def output_tok_s(self) -> Estimate | None:
        """Output tokens/s of the throughput level, all GPUs of the config together."""
        found = self.result.of_role(LevelRole.THROUGHPUT) if self.result else None
        return found.output_tok_s if found else None

    @property
    def output_tok_s_per_gpu(self) -> Estimate | None:
        """Output tokens/s per GPU used: the throughput objective."""
        total = self.output_tok_s
        if total is None:
            return None
        per = max(1, self.gpus)
        low, high = total.low, total.high
        return Estimate(
            value=total.value / per,
            low=None if low is None else low / per,
            high=None if high is None else high / per,
        )

    @property
    def ttft_p95_s(self) -> Estimate | None:
        """p95 TTFT of the open-loop level, from the scheduled time: the latency objective."""
        found = self.result.of_role(LevelRole.TTFT) if self.result else None
        return found.ttft_s.p95 if found and found.ttft_s else None

    @property
    def measured(self) -> bool:
        """Whether both objectives are there and the trial ended as measured."""
        return (
            self.result is not None
            and self.result.outcome is Outcome.MEASURED
            and self.output_tok_s is not None
            and self.ttft_p95_s is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The two levels of a study, per GPU used, fixed once the baseline's capacity is known.

    Attributes:
        concurrency_per_gpu: closed loop of the throughput level.
        rate_rps_per_gpu: Poisson rate of the TTFT level.
        capacity_rps_per_gpu: what the ramp found on the baseline; None for loads fixed by the operator.
    """

    concurrency_per_gpu: int
    rate_rps_per_gpu: float
    throughput_requests_per_gpu: int
    ttft_requests_per_gpu: int
    warmup_requests_per_gpu: int
    capacity_rps_per_gpu: float | None = None


class PickRule(StrEnum):
    """How the recommended trial is chosen from the front."""

    KNEE = "knee"
    THROUGHPUT = "throughput"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """One service level objective, e.g. `ttft_p95<=500ms`: `metric` is `ttft_p95` here, `limit_s` its bound."""

    metric: str
    limit_s: float

    def __str__(self) -> str:
        return f"{self.metric}<={self.limit_s * 1000:g}ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The one trial we recommend, and why. Gains are ratios to the baseline (1.25 = 25 % more); None without a baseline."""

    number: int
    rule: PickRule
    reason: str
    throughput_gain: float | None = None
    ttft_gain: float | None = None
