"""Studies and their fronts, as documents."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from autotune.web.document import Document, Flags, Instant, Interval
from autotune.web.trial_documents import Today, TrialDocument


class StudyItem(Document):
    """A study and its progress; what runs now is null where nothing does."""

    name: str
    model: str
    workload: str
    engine: str
    simulated: bool
    state: str = Field(description="running, finished, stopped, failed, or interrupted (its tuner was killed).")
    done: int = Field(description="Trials that count against `wanted`.")
    wanted: int | None
    measured: int
    infeasible: int
    trial: int | None
    phase: str | None
    elapsed_s: float | None
    pid: int | None
    created_at: Instant
    revision: str = Field(description="Another one as soon as a document of the study may be another one.")
    job: str | None = Field(description="Its latest job.")


class StudiesDocument(Document):
    """Every study, oldest first."""

    schema_version: int = Field(alias="schema")
    studies: list[StudyItem]


class SummaryDocument(StudyItem):
    """What a study was asked, and what may be done with it."""

    seed: int
    objective: str
    slo: str | None
    load_plan: dict[str, Any] | None
    identity: dict[str, str]
    made_here: bool
    can_start: bool
    why_not: str | None


class Standing(Document):
    """How sure a config's place is."""

    front_probability: float | None
    pick_probability: float | None
    tied_with: list[int] | None
    beaten_by: list[int] | None
    changes: int | None
    lossy: list[str] | None
    expected_tok_s_per_gpu: float | None
    expected_tok_s_per_gpu_interval: Interval
    expected_ttft_p95_s: float | None
    expected_ttft_p95_s_interval: Interval


class FrontConfig(Today, Standing):
    """A config with the means over its launches."""

    runs: int


class Tied(Standing):
    """A config that the data do not tell from the pick."""

    trial: int


class ValidationDocument(Document):
    """What fresh launches of the pick said."""

    state: str
    trials: list[int]
    throughput_ratio: float | None
    throughput_interval: Interval
    ttft_ratio: float | None
    ttft_interval: Interval


class PickDocument(FrontConfig):
    """The config that is recommended, and why; `reason` says why it was picked."""

    tied: list[Tied]
    validated: bool | None
    validation: ValidationDocument | None
    tied_with_baseline: bool | None
    expected_throughput_gain: float | None
    expected_throughput_gain_interval: Interval
    expected_ttft_gain: float | None
    expected_ttft_gain_interval: Interval
    rule: str
    instead_of: int | None
    throughput_gain: float | None
    ttft_gain: float | None


class Noise(Document):
    """By how much launches of one config differ, as a standard deviation of logarithms."""

    throughput_sd: float
    ttft_sd: float
    repeats: int


class TrendDocument(Document):
    """A change of the baseline over the study."""

    change: float
    interval: Interval
    found: bool
    corrected: bool
    detectable: float


class DriftDocument(Document):
    """Whether the node changed while the study ran."""

    launches: list[int]
    throughput: TrendDocument
    ttft: TrendDocument


class DifferingKey(Document):
    """What two studies do not share."""

    key: str
    there: str
    here: str


class RunningDocument(Document):
    """The promotion that runs today."""

    promotion: str
    study: str
    trial: int
    config_hash: str
    others: list[str]
    differing: list[DifferingKey]


class EarlyCount(Document):
    """Trials that ended early, and what that saved."""

    trials: int
    saved_s: float


class FrontDocument(Document):
    """Front, baseline and pick."""

    schema_version: int = Field(alias="schema")
    study: str
    simulated: bool
    slo: str | None
    front: list[FrontConfig]
    baseline: FrontConfig | None
    pick: PickDocument | None
    stable: bool | None
    noise: Noise
    drift: DriftDocument | None


class StudyDocument(FrontDocument):
    """A whole study."""

    engine: str
    trials: list[TrialDocument]
    infeasible: list[TrialDocument]
    early: EarlyCount
    model: str
    workload: str
    node: str
    running: RunningDocument | None
    running_problem: str | None = Field(description="Why it cannot be told what runs today.")
    directory: str


class TrialTimes(Document):
    """When a trial was begun and finished, by the wall's clock."""

    number: int
    begun_at: Instant
    finished_at: Instant | None


class TimesDocument(Document):
    """Of every trial, by number."""

    trials: list[TrialTimes]


class Side(Document):
    """One of two configs."""

    study: str
    trial: int
    launches: list[int]
    gpus: int
    simulated: bool
    flags: Flags


class DifferingStudy(Document):
    """What the two studies do not share."""

    key: str
    a: str
    b: str


class DifferingFlag(Document):
    """A parameter that differs; null is vLLM's default."""

    name: str
    a: bool | int | float | str | None
    b: bool | int | float | str | None


class ComparedFigure(Document):
    """A figure of both, and whether the difference is more than noise."""

    name: str
    unit: str | None
    a: float | None
    b: float | None
    ratio: float | None
    low: float | None
    high: float | None
    real: bool | None
    verdict: str | None
    launches_needed: int | None


class ComparisonDocument(Document):
    """B over A."""

    schema_version: int = Field(alias="schema")
    a: Side
    b: Side
    differing_studies: list[DifferingStudy]
    flags: list[DifferingFlag]
    figures: list[ComparedFigure]
    noise: Noise


class WhyDocument(Document):
    """Why a trial was launched."""

    number: int
    reason: str
    why: str


class ExplanationDocument(Document):
    """What a study has learnt; docs/explain.md tells of each part."""

    schema_version: int = Field(alias="schema")
    study: str
    simulated: bool
    launched: int
    measured: int
    objective: str
    prior: str
    contradicted: list[str]
    noise: Noise
    notes: list[str]
    trials: list[WhyDocument]
    parameters: list[dict[str, Any]]
    changes: list[dict[str, Any]]
    no_effect: list[dict[str, Any]]
    same_server: list[list[int]]
    untried: dict[str, Any]


class PageDocument(Document):
    """What the page draws: made for it, and changed with it. Programs use the other operations."""

    model_config = ConfigDict(extra="allow")
    part: str
    schema_version: int = Field(alias="schema")


class Stopping(Document):
    """What became of a request to end a study."""

    study: str
    state: str = Field(description="stopping, dequeued, or not running.")
