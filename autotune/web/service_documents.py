"""Jobs, nodes, promotions and the service itself, as documents."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from autotune.web.document import Document, Instant


class JobDocument(Document):
    """A job of the queue."""

    id: str
    kind: str = Field(description="study, or promotion.")
    study: str
    state: str = Field(
        description="queued, running, stopping, interrupted (goes on with the service), finished, failed, or stopped."
    )
    position: int | None = Field(description="In the queue, from 1; null where it does not wait.")
    created_at: Instant
    started_at: Instant | None
    ended_at: Instant | None
    exit_code: int | None = Field(description="docs/exit-codes.md; null also where nobody saw it.")
    message: str | None = Field(description="One line on why it failed.")
    trial: int | None
    deployment: str | None


class JobsDocument(Document):
    """The queue, newest job first."""

    jobs: list[JobDocument]
    running: str | None = Field(description="The job that has the node.")
    waiting_for: str | None = Field(description="What the next job waits for, where it is no job of this service.")


class GpuDocument(Document):
    """One GPU."""

    index: int
    name: str
    memory_bytes: int
    compute_capability: str | None


class NodeDocument(Document):
    """A node; `here` is the machine of this service."""

    name: str
    here: bool
    simulated: bool
    gpus: list[GpuDocument]
    link: str
    driver: str | None
    studies: list[str]


class NodesDocument(Document):
    """This machine first."""

    nodes: list[NodeDocument]


class TopologyDocument(Document):
    """How the GPUs are wired; rows and columns follow `gpus`."""

    paths: list[list[str | None]]
    nvlinks: list[list[int]]
    numa: list[int | None]


class NodeDetail(NodeDocument):
    """A node with its wiring."""

    topology: TopologyDocument | None


class PolicyDocument(Document):
    """What requests may say: the operator's choice."""

    fields: list[str]
    refused: list[str]
    extra_args: list[str]
    starting_points: list[str]
    models: list[str]
    model_folders: list[str]
    files: list[str]
    workloads: list[str]
    spaces: list[str]
    samplers: list[str]
    nodes: list[str]
    executors: list[str]
    ray_addresses: list[str]
    targets: list[str]
    pick_rules: list[str]
    simulated_only: bool


class ServiceDocument(Document):
    """What this service is and allows."""

    version: str
    studies_dir: str
    node: NodeDocument
    policy: PolicyDocument


class Figure(Document):
    """A figure with its interval."""

    value: float | None
    low: float | None = None
    high: float | None = None


class PromotedFileDocument(Document):
    """A file of a promotion, without its text."""

    path: str
    sha256: str
    mode: int


class PromotedText(PromotedFileDocument):
    """A file of a promotion; the text is null in records of old versions."""

    text: str | None


class PromotionFields(Document):
    """A promotion in the history of its deployment."""

    label: str = Field(description="NAME@VERSION.")
    version: int
    current: bool = Field(description="It is what runs today.")
    directory: str
    schema_version: int = Field(alias="schema")
    name: str
    created_at: Any
    study: str
    trial: int
    config_hash: str
    model: str
    vllm_version: str
    targets: list[str]
    argv: list[str]
    simulated: bool
    simulated_allowed: bool
    gate: dict[str, Any] | None = Field(description="The record of the verification; docs/gate.md.")
    author: str
    reason: str
    restores: int | None
    version_measured: bool
    flags: list[Any]
    environment: list[Any]
    gpus: int
    node: str
    workload: str
    slo: str | None
    resolved: dict[str, Any] | None
    runs: int
    output_tok_s: Figure | None
    output_tok_s_per_gpu: Figure | None
    ttft_p95_s: Figure | None
    rate_rps_per_gpu: float | None
    prompt_tokens_mean: float | None
    output_tokens_mean: float | None
    prefix_hit_share: float | None


class PromotionItem(PromotionFields):
    """Without the texts of its files."""

    files: list[PromotedFileDocument]


class PromotionsDocument(Document):
    """Oldest first."""

    schema_version: int = Field(alias="schema")
    promotions: list[PromotionItem]


class PromotionDetail(PromotionFields):
    """With the texts of its files."""

    files: list[PromotedText]


class RolledBack(PromotionDetail):
    """The new version, which is an earlier one again."""

    written: list[str]
    left_behind: list[str] = Field(description="Files of what ran until now that this version does not have.")


class DifferingFact(Document):
    """What differs beside flags."""

    name: str
    a: str
    b: str


class DifferingValue(Document):
    """A flag or variable; null is vLLM's default."""

    name: str
    a: bool | int | float | str | None
    b: bool | int | float | str | None


class FileDiff(Document):
    """A unified difference."""

    path: str
    diff: str


class DiffDocument(Document):
    """What differs between two promotions."""

    schema_version: int = Field(alias="schema")
    a: str
    b: str
    flags: list[DifferingValue]
    facts: list[DifferingFact]
    files: list[FileDiff]


class PreviewFile(Document):
    """A file that would be written."""

    path: str
    text: str


class PreviewDocument(Document):
    """A promotion that nobody has made."""

    study: str
    trial: int
    name: str
    simulated: bool
    current: str | None = Field(description="What runs today under this name.")
    argv: list[str]
    reason: str
    files: list[PreviewFile]
    diff: DiffDocument | None
