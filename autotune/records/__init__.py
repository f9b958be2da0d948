"""Frozen records that cross rooms. Seconds, bytes and tokens inside; a missing value is None, never 0."""

from autotune.records.config import (
    ENVIRONMENT_CLASSES,
    INFEASIBLE_CLASSES,
    STUDY_FATAL_CLASSES,
    ClockKind,
    Config,
    EngineKind,
    FailureClass,
    Origin,
    Outcome,
    Phase,
    Value,
)
from autotune.records.figures import Caveat, Estimate, Failure, Latency, Measurement, ServerDelta, ServerFacts
from autotune.records.load import Arrivals, LevelRole, LoadLevel, PlannedRequest, RequestRecord
from autotune.records.node import Gpu, Link, ModelShape, Node
from autotune.records.trials import LoadPlan, Pick, PickRule, Slo, Trial, TrialResult

__all__ = [
    "ClockKind",
    "Config",
    "ENVIRONMENT_CLASSES",
    "EngineKind",
    "FailureClass",
    "INFEASIBLE_CLASSES",
    "Origin",
    "Outcome",
    "Phase",
    "STUDY_FATAL_CLASSES",
    "Value",
    "Gpu",
    "Link",
    "ModelShape",
    "Node",
    "Arrivals",
    "LevelRole",
    "LoadLevel",
    "PlannedRequest",
    "RequestRecord",
    "Caveat",
    "Estimate",
    "Failure",
    "Latency",
    "Measurement",
    "ServerDelta",
    "ServerFacts",
    "LoadPlan",
    "Pick",
    "PickRule",
    "Slo",
    "Trial",
    "TrialResult",
]
