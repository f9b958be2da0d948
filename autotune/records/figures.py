"""Figures with their intervals, and what the server said about itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotune.records.config import ClockKind, FailureClass, Value
from autotune.records.load import ArrivalCheck, LoadLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its 95 % bootstrap interval; the bounds are None when there were too few samples to say."""

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Estimate:
        """Value and interval times `factor`, which is above 0."""
        return Estimate(
            value=self.value * factor,
            low=None if self.low is None else self.low * factor,
            high=None if self.high is None else self.high * factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A latency distribution over `count` requests (or gaps, for ITL), seconds. Of a trial that was read in brief
    (`Store.outlines`) all but the p95 may be None: not read."""

    count: int
    mean: Estimate | None
    p50: Estimate | None
    p90: Estimate | None
    p95: Estimate
    p99: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caveat:
    """A doubt about a measurement, stored and printed beside it.

    Attributes:
        code: stable name, e.g. `client_late`, `too_few_samples`, `no_usage`, `prefix_hits`.
        text: what was seen, with its number.
        remedy: what to do about it.
        void: the figures are the client's, not the server's: they are shown, and are never an objective.
    """

    code: str
    text: str
    remedy: str
    void: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDelta:
    """What the server's own `/metrics` said over one level; None where it did not say.

    Attributes:
        queue_time_mean_s: of a request, before its first prefill; prefill and decode are the other parts of its stay.
        kv_usage_mean: of the samples taken while the level ran, ramp and tail included; so are the other gauges' means.
    """

    preemptions: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    prefix_queries: int | None = None
    prefix_hits: int | None = None
    queue_time_mean_s: float | None = None
    kv_usage_max: float | None = None
    running_max: float | None = None
    waiting_max: float | None = None
    prefill_time_mean_s: float | None = None
    decode_time_mean_s: float | None = None
    kv_usage_mean: float | None = None
    running_mean: float | None = None
    waiting_mean: float | None = None

    @property
    def prefix_hit_share(self) -> float | None:
        """Share of queried prompt tokens that came from the prefix cache, 0..1."""
        if not self.prefix_queries or self.prefix_hits is None:
            return None
        return self.prefix_hits / self.prefix_queries


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """What one GPU did over a level, by samples of NVML; None where the card or its driver does not say.

    Attributes:
        index: the physical one.
        samples: how many readings the figures are of.
        busy_share: share of the time in which any kernel ran, 0..1; says nothing of how well it used the GPU.
        memory_busy_share: share of the time in which GPU memory was read or written, 0..1.
        power_limit_w: the enforced one.
        sm_clock_limit_mhz: the highest clock of the card.
        power_capped_share: share of the samples in which the power limit held the clocks down, 0..1; common under load.
        slowed_share: share of the samples in which heat, a power brake or the hardware did, 0..1; never right.
        memory_used_max_bytes: whoever owns it.
        pcie_tx_bytes_per_s: sent by the GPU, mean.
        nvlink_tx_bytes_per_s: all links together, payload only, mean.
    """

    index: int
    samples: int
    busy_share: float | None = None
    memory_busy_share: float | None = None
    power_mean_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mean_mhz: float | None = None
    sm_clock_limit_mhz: float | None = None
    power_capped_share: float | None = None
    slowed_share: float | None = None
    memory_used_max_bytes: int | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    """CPU time spent beside a level, as shares of one core (1.0 is a core); None where it could not be told.

    Attributes:
        client_share: of the load client's busiest process.
        loop_lag_p99_s: how much later than asked the client's event loop woke up.
        api_server_share: of the server's busiest API process, which handles every request and every chunk.
        server_cores: of all processes of the server together, engine and workers included.
    """

    client_share: float | None = None
    loop_lag_p99_s: float | None = None
    api_server_share: float | None = None
    server_cores: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelUse:
    """What was seen beside a level: GPUs, CPUs, and the server's log.

    Attributes:
        gpus: those of the trial, by index; empty where there are none or the driver does not answer.
        jit_compiles: kernels that the server's log says it compiled meanwhile (vLLM 0.21 and newer say so); None where
            there is no log.
    """

    gpus: tuple[GpuUse, ...] = ()
    cpu: CpuUse | None = None
    jit_compiles: int | None = None

    @property
    def gpu_busy_share(self) -> float | None:
        """Mean share of the time in which kernels ran, over the GPUs that told, 0..1."""
        told = [gpu.busy_share for gpu in self.gpus if gpu.busy_share is not None]
        return sum(told) / len(told) if told else None

    def most_traffic(self, *, nvlink: bool) -> float | None:
        """Bytes per second, sent or received over NVLink or else PCIe, of the GPU and direction that had most."""
        told = [
            (gpu.nvlink_tx_bytes_per_s, gpu.nvlink_rx_bytes_per_s)
            if nvlink
            else (gpu.pcie_tx_bytes_per_s, gpu.pcie_rx_bytes_per_s)
            for gpu in self.gpus
        ]
        return max((value for pair in told for value in pair if value is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The figures of one load level. Throughput counts successful requests only, over the steady window.

    Attributes:
        ttft_s: from the scheduled time; the objective uses its p95.
        ttft_from_send_s: from the moment the request was written.
        duration_s: first due request to last completion; `steady_s` is the window that throughput was counted over.
        energy_j: what the GPUs used over the level, by NVML; None where nobody read it.
        use: what GPUs and CPUs did meanwhile; None where nobody looked.
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
    use: LevelUse | None = None
    arrivals: ArrivalCheck | None = None

    @property
    def void(self) -> Caveat | None:
        """Why its figures are no objective: the client was the limit; None where they may be one."""
        for caveat in self.caveats:
            if caveat.void:
                return caveat
        return None


class CompileStart(StrEnum):
    """Where a start had its compiled graphs from.

    COLD: compiled. WARM: all read from the cache. PARTLY: some of each. REBUILT: what the cache held could not be read
    (damaged, or of another source), which the server noticed itself, and compiled again.
    """

    COLD = "cold"
    PARTLY = "partly"
    REBUILT = "rebuilt"
    WARM = "warm"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Resolved settings and capacities that the server told us, by log or HTTP; None where it did not.

    Attributes:
        compile_start: None where nothing is compiled (`--enforce-eager`), and where the log does not say.
    """

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
    compile_start: CompileStart | None = None
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
