"""Trials and their measurements, as documents."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from autotune.records import ArrivalCheck, EarlyEnd, LevelUse, ServerFacts
from autotune.web.document import Document, Flags, Instant, Interval


class Caveat(Document):
    """A doubt about a figure, with its remedy."""

    code: str
    text: str
    remedy: str | None
    void: bool = Field(description="The figures beside it are no objective for it.")


class Bounds(Document):
    """A figure with its interval."""

    value: float | None
    low: float | None
    high: float | None


class QualityDocument(Document):
    """Whether a config that changes numerics still answers alike."""

    state: str
    why: str
    reference: str | None
    lossy: list[str]
    prompt_set: str | None
    prompts: int
    perplexity_ratio: Bounds | None
    logprob_gap: Bounds | None
    agreement: Bounds | None
    agreement_by_subject: dict[str, float | None]
    seconds: float | None
    simulated: bool


class TrialDocument(Document):
    """One trial with the figures of its own launch: tokens/s of the throughput level, TTFT of the Poisson level."""

    number: int
    flags: Flags
    outcome: str = Field(description="measured, infeasible, faulted, abandoned, running, or interrupted.")
    reason: str | None = Field(description="Why there are no figures that count; null when measured.")
    output_tok_s: float | None = Field(description="Of all GPUs together.")
    output_tok_s_interval: Interval
    output_tok_s_per_gpu: float | None
    output_tok_s_per_gpu_interval: Interval
    ttft_p95_s: float | None
    ttft_p95_s_interval: Interval
    goodput_rps_per_gpu: float | None
    goodput_rps_per_gpu_interval: Interval
    simulated: bool
    origin: str
    launched_as: str
    why: str
    repeat_of: int | None
    config_hash: str
    gpus: int
    host: str | None = Field(description="The machine of its server, where a study has several.")
    attempts: int
    clock: str | None = Field(description="wall, or virtual where the engine is simulated.")
    on_front: bool
    limit: str | None = Field(description="What bounds this server.")
    caveats: list[Caveat]
    early: EarlyEnd | None
    quality: QualityDocument | None


class AgainstRunning(Document):
    """Ratios to what runs today."""

    throughput_ratio: float
    throughput_interval: Interval
    ttft_ratio: float
    ttft_interval: Interval
    launches: list[int]


class Today(TrialDocument):
    """A trial beside what runs today."""

    runs_today: bool
    against_running: AgainstRunning | None


class TrialsDocument(Document):
    """Some trials; `next` is the `after` of those that follow, null at the end."""

    trials: list[TrialDocument]
    total: int
    next: int | None


class LatencyDocument(Document):
    """A distribution of seconds."""

    count: int
    mean: float | None
    mean_interval: Interval
    p50: float | None
    p50_interval: Interval
    p90: float | None
    p90_interval: Interval
    p95: float | None
    p95_interval: Interval
    p99: float | None
    p99_interval: Interval


class ServerDocument(Document):
    """What the server's /metrics said of a level."""

    preemptions: float | None
    prompt_tokens: float | None
    generation_tokens: float | None
    prefix_queries: float | None
    prefix_hits: float | None
    prefix_hit_share: float | None
    queue_time_mean_s: float | None
    kv_usage_max: float | None
    running_max: float | None
    waiting_max: float | None
    prefill_time_mean_s: float | None
    decode_time_mean_s: float | None
    kv_usage_mean: float | None
    running_mean: float | None
    waiting_mean: float | None


class LevelDocument(Document):
    """The figures of one load level."""

    name: str
    role: str
    arrivals: str
    concurrency: int | None
    rate_rps: float | None
    cv: float | None
    ramp_from: float | None
    ramp_to: float | None
    clock: str
    duration_s: float
    steady_s: float | None
    planned: int
    completed: int
    failed: int
    errors: dict[str, int]
    prompt_tokens: int | None
    output_tokens: int | None
    output_tok_s: float | None
    output_tok_s_interval: Interval
    total_tok_s: float | None
    total_tok_s_interval: Interval
    request_rps: float | None
    request_rps_interval: Interval
    goodput_rps: float | None
    goodput_rps_interval: Interval
    ttft_s: LatencyDocument | None
    ttft_from_send_s: LatencyDocument | None
    tpot_s: LatencyDocument | None
    itl_s: LatencyDocument | None
    e2e_s: LatencyDocument | None
    energy_j: float | None
    arrival_check: ArrivalCheck | None
    server: ServerDocument | None
    use: LevelUse | None
    caveats: list[Caveat]


class LevelsDocument(Document):
    """The load levels of one trial, in the order in which they were driven."""

    levels: list[LevelDocument]


class FailureDocument(Document):
    """Why a launch failed."""

    failure_class: str = Field(alias="class")
    line: str | None
    remedies: list[str]
    facts: dict[str, bool | int | float | str | None]
    exit_status: int | None


class LimitDocument(Document):
    """A verdict on what bounds the server."""

    limit: str
    text: str
    evidence: list[str]


class MoveDocument(Document):
    """A parameter, and which way to turn it."""

    parameter: str
    toward: str


class RemedyDocument(Document):
    """What to change."""

    text: str
    moves: list[MoveDocument]


class GoodputDocument(Document):
    """What the search for the highest rate within the SLO found."""

    slo: str
    end: str
    open: bool
    rate_rps: float | None
    rate_rps_interval: Interval
    output_tok_s: float | None
    output_tok_s_interval: Interval
    levels: int
    seconds: float


class LifeMove(Document):
    """A move of a trial's life."""

    before: str
    event: str
    after: str
    reason: str | None
    at: Instant
    elapsed_s: float | None
    clock: str | None


class AttemptDocument(Document):
    """One launch of a trial."""

    attempt: int
    state: str
    started_at: Instant
    ended_at: Instant | None
    directory: str
    host: str | None
    moves: list[LifeMove]


class ShowDocument(Today):
    """All the evidence of one trial."""

    schema_version: int = Field(alias="schema")
    study: str
    engine: str
    serve: str | None = Field(description="The command line, ready to paste.")
    argv: list[str]
    log: str | None = Field(description="Path of the server's log on the service's machine.")
    failure: FailureDocument | None
    limits: list[LimitDocument]
    remedies: list[RemedyDocument]
    resolved: ServerFacts | None
    goodput: GoodputDocument | None
    phase_seconds: dict[str, float]
    levels: list[LevelDocument]
    life: list[AttemptDocument]


class Log(Document):
    """Whole lines of a log, secrets taken out; `next_offset` is where to go on."""

    text: str
    offset: int
    next_offset: int
    size: int
    complete: bool = Field(description="Nothing more will be written.")


class TrialLog(Log):
    """Of a trial's server."""

    trial: int


class GateEntry(Document):
    """A verification; the record is null while it runs, and where it was ended before its verdict."""

    count: int = Field(description="1 for the first of the trial.")
    launches: int = Field(description="That were begun.")
    record: dict[str, Any] | None = Field(description="The record of the verification; docs/gate.md.")


class GatesDocument(Document):
    """The latest verifications of a trial, the first one first."""

    gates: list[GateEntry]


class CurveLevel(Document):
    """A load level in a picture."""

    name: str
    role: str
    open: bool = Field(description="Requests came at a rate, and not when others had ended.")
    offered: str
    rate_rps_per_gpu: float | None = Field(description="Offered; null where the load is a number in flight.")
    request_rps_per_gpu: float | None
    output_tok_s_per_gpu: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p95_s_interval: Interval
    tpot_p50_s: float | None


class SpreadDocument(Document):
    """How TTFT is distributed over the requests of the TTFT level; bins are equal in logarithms."""

    count: int
    bins: list[tuple[int, int]] = Field(description="Place and requests; a place is log10(seconds) * bins_per_decade.")
    quantiles: list[tuple[float, float]] = Field(description="Percent and seconds.")
    bins_per_decade: int


class CurveDocument(Document):
    """What the page draws of a trial's load levels."""

    number: int
    gpus: int
    levels: list[CurveLevel]
    spread: SpreadDocument | None = Field(description="Null where the request records are gone.")
