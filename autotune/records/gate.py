"""What the verification of a candidate before a promotion found: the gate's verdict with all its evidence.

Stored and shown as JSON by `store.codec` (`encode(record)`, `decode(GateRecord, data)`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from autotune.records.config import ClockKind, Config, EngineKind, FailureClass
from autotune.records.figures import Caveat, Estimate
from autotune.records.load import LoadLevel
from autotune.records.quality import Quality


class GateVerdict(StrEnum):
    """How a verification ended.

    PASSED: every criterion holds. FAILED: at least one is broken. INCONCLUSIVE: none is broken, and at least one could
    not be decided with the launches that were made. SKIPPED: nobody looked (`--skip-gate`).
    """

    PASSED = "pass"
    FAILED = "fail"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"


class CriterionState(StrEnum):
    """What is known of one criterion; NOT_APPLICABLE ones do not count (no GPU whose memory could run out, say)."""

    HELD = "held"
    BROKEN = "broken"
    UNDECIDED = "undecided"
    NOT_APPLICABLE = "not_applicable"


class GateSideName(StrEnum):
    """Who a launch was of, in the letters of the order `ABBA`."""

    AGAINST = "A"
    CANDIDATE = "B"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFigure:
    """One figure of a criterion.

    Attributes:
        name: e.g. `candidate over against, output tokens/s`.
        unit: `s`, `tok/s per GPU`, `ratio`, `share`, `bytes`, or empty for a count.
        estimate: with its 95 % interval, launch-to-launch spread included; without bounds where it has none.
        bound: what it is held against; None where it is only shown.
    """

    name: str
    unit: str
    estimate: Estimate
    bound: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCriterion:
    """One thing that the candidate had to show.

    Attributes:
        name: stable, e.g. `slo`, `gain`, `throughput_as_claimed`, `memory`.
        asked: what was asked, as a sentence with its bound.
        found: what was seen, as a sentence with its figures.
    """

    name: str
    asked: str
    state: CriterionState
    found: str
    figures: tuple[GateFigure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSide:
    """One of the two configs.

    Attributes:
        label: for people: `trial 7 of study prod`, `baseline`, `promotion prod-chat of 2026-11-30`, a file's name.
        gpus: that it uses, at least 1.
        tok_s_per_gpu, ttft_p95_s: what the study claims of it, with intervals; None where it was measured in none.
    """

    label: str
    config: Config
    model: str
    gpus: int
    tok_s_per_gpu: Estimate | None = None
    ttft_p95_s: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLevel:
    """What one launch showed at one level; None where it has no such figure.

    Attributes:
        level: as it was driven, its seed included; levels of one name are the same in every launch.
        tok_s_per_gpu: output tokens/s per GPU used.
    """

    level: LoadLevel
    completed: int
    failed: int
    errors: tuple[tuple[str, int], ...] = ()
    tok_s_per_gpu: Estimate | None = None
    ttft_p95_s: Estimate | None = None
    preemptions: int | None = None
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLaunch:
    """One launch of the verification.

    Attributes:
        place: 1-based, in the order that they were made.
        directory: of its raw records and its server.log.
        argv: as launched, secrets taken out.
        failure, failure_kind: why it came to nothing; None when it was measured to its end.
        startup_s, stop_s: None where it did not come that far.
        stopped_cleanly: the process group ended and GPU memory came back; None where it never started.
        longest_prompt_tokens, longest_answered: of the one request that fills max-model-len.
        memory_used_bytes, memory_total_bytes: of the fullest GPU over all levels, and what that card has.
        within_slo: for each limit of the SLO, in its order, what the TTFT level showed.
    """

    place: int
    side: GateSideName
    directory: str
    argv: tuple[str, ...] = ()
    failure: str | None = None
    failure_kind: FailureClass | None = None
    startup_s: float | None = None
    stop_s: float | None = None
    stopped_cleanly: bool | None = None
    levels: tuple[GateLevel, ...] = ()
    longest_prompt_tokens: int | None = None
    longest_answered: bool | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    within_slo: tuple[Estimate | None, ...] = ()
    quality: Quality | None = None
    caveats: tuple[Caveat, ...] = ()

    def level(self, name: str) -> GateLevel | None:
        """The level of that name; None where it was not reached."""
        return next((found for found in self.levels if found.level.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLook:
    """One of the times at which a verification was judged.

    Attributes:
        launches: made by then.
        outlook: why it went on or why it did not; empty where the verdict needed no more.
    """

    launches: int
    verdict: GateVerdict
    outlook: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRecord:
    """A verification from its first launch to its verdict; immutable.

    Attributes:
        reason: the verdict in one sentence; for SKIPPED, why nobody looked.
        order: of the launches that were made, e.g. `ABBA`; empty when it was skipped.
        looks: when it was judged, the last time for the verdict; empty in records of before it could go on.
        slo: as text; None where none was asked.
        study_seed, gate_seed: the gate's prompts and arrivals come from the second, which no trial of the study had.
        clock: virtual for figures of the simulated engine, else wall.
        simulated: figures are of a model of vLLM; never to be shown as measured.
        throughput_sd, ttft_sd: the launch-to-launch deviation of the logarithms that decisions were made with.
        node: that the launches were made on, or simulated; None in records from before it was told.
        doubts: what limits the verdict, one sentence each; another node than where the candidate will run is one.
        started_at, ended_at: UTC.
    """

    verdict: GateVerdict
    reason: str
    study: str
    candidate: GateSide
    against: GateSide | None
    engine: EngineKind | None
    clock: ClockKind | None
    simulated: bool
    started_at: datetime
    ended_at: datetime
    order: str = ""
    slo: str | None = None
    study_seed: int | None = None
    gate_seed: int | None = None
    vllm_version: str | None = None
    node: str | None = None
    throughput_sd: float | None = None
    ttft_sd: float | None = None
    launches: tuple[GateLaunch, ...] = ()
    looks: tuple[GateLook, ...] = ()
    criteria: tuple[GateCriterion, ...] = ()
    doubts: tuple[str, ...] = ()

    @classmethod
    def skipped(cls, study: str, candidate: GateSide, *, why: str, at: datetime) -> GateRecord:
        """The record of a verification that was not made."""
        return cls(
            verdict=GateVerdict.SKIPPED,
            reason=why,
            study=study,
            candidate=candidate,
            against=None,
            engine=None,
            clock=None,
            simulated=False,
            started_at=at,
            ended_at=at,
        )

    def criterion(self, name: str) -> GateCriterion | None:
        """The criterion of that name; None where it was not asked."""
        return next((found for found in self.criteria if found.name == name), None)

    @property
    def broken(self) -> tuple[GateCriterion, ...]:
        """What the candidate did not show."""
        return tuple(one for one in self.criteria if one.state is CriterionState.BROKEN)

    @property
    def undecided(self) -> tuple[GateCriterion, ...]:
        """What the launches could not tell."""
        return tuple(one for one in self.criteria if one.state is CriterionState.UNDECIDED)
