"""What requests to look at something may say: parts of paths, and queries."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from autotune.records import Outcome, PickRule
from autotune.review.page import Part

MOST_NUMBER = 10_000_000

StudyWord = Annotated[str, Field(min_length=1, max_length=64, description="Name of a study.")]
NumberWord = Annotated[int, Field(ge=0, le=MOST_NUMBER, description="Number of a trial; 0 is the baseline.")]
DeploymentWord = Annotated[str, Field(min_length=1, max_length=200, description="Name of a deployment.")]
SloWord = Annotated[
    str | None,
    Field(max_length=300, description='Limits instead of the study\'s own, e.g. "ttft_p95<=500ms".'),
]
PickWord = Annotated[PickRule | None, Field(description="How the pick is chosen, instead of the study's own rule.")]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StudyPath(_Asked):
    """A study."""

    name: StudyWord


class TrialPath(_Asked):
    """A trial of a study."""

    name: StudyWord
    number: NumberWord


class PagePath(_Asked):
    """A part of what the page shows of a study."""

    name: StudyWord
    part: Part


class FrontQuery(_Asked):
    """Limits and the rule of the pick."""

    slo: SloWord = None
    pick: PickWord = None


class PageQuery(_Asked):
    """Limits."""

    slo: SloWord = None


class TrialsQuery(_Asked):
    """Some of a study's trials."""

    outcome: Annotated[
        Outcome | Literal["running", "interrupted"] | None,
        Field(description="Only trials that ended so, that run, or that were interrupted."),
    ] = None
    after: Annotated[int, Field(ge=-1, le=MOST_NUMBER, description="Only trials of higher numbers.")] = -1
    limit: Annotated[int, Field(ge=1, le=1000, description="At most so many.")] = 1000


class LogQuery(_Asked):
    """A piece of a log."""

    offset: Annotated[
        int, Field(ge=-(2**53), le=2**53, description="First byte; negative: so many before the end.")
    ] = -65536
    limit: Annotated[int, Field(ge=1, le=1024 * 1024, description="At most so many bytes, but a whole line.")] = 65536


class CompareQuery(_Asked):
    """Two sides, each STUDY, STUDY:TRIAL, STUDY:pick or STUDY:baseline."""

    a: Annotated[str, Field(min_length=1, max_length=100)]
    b: Annotated[str, Field(min_length=1, max_length=100)]
    gpu_hour_price: Annotated[
        float | None, Field(gt=0, le=1e6, allow_inf_nan=False, description="Adds the cost of a million output tokens.")
    ] = None


class DeploymentPath(_Asked):
    """A deployment."""

    name: DeploymentWord


class VersionPath(_Asked):
    """A promotion in the history of its deployment."""

    name: DeploymentWord
    version: Annotated[int, Field(ge=1, le=MOST_NUMBER)]


class DiffQuery(_Asked):
    """Two versions; by default the newest against the one before it."""

    a: Annotated[int | None, Field(ge=1, le=MOST_NUMBER)] = None
    b: Annotated[int | None, Field(ge=1, le=MOST_NUMBER)] = None


class JobPath(_Asked):
    """A job."""

    id: Annotated[str, Field(min_length=1, max_length=20)]


class NodePath(_Asked):
    """A node."""

    name: Annotated[str, Field(min_length=1, max_length=200)]


class EventsQuery(_Asked):
    """Where a stream goes on."""

    last_event_id: Annotated[
        str | None, Field(max_length=64, description="As the header Last-Event-ID: what was seen last.")
    ] = None
