"""Figures with their intervals, and what the server said about itself."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.records.config import ClockKind, FailureClass, Value
from autotune.records.load import ArrivalCheck, LoadLevel


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
        energy_j: what the GPUs used over the level, by NVML; None where nobody read it.
        arrivals: of an open loop: what was sent, beside what was asked.
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
    energy_j: float | None = None
    arrivals: ArrivalCheck | None = None


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
