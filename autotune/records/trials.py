"""Trials, how they ended, and what is recommended."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from autotune.records.config import ClockKind, Config, Origin, Outcome, Phase
from autotune.records.figures import Caveat, Estimate, Failure, Measurement, ServerFacts
from autotune.records.load import LevelRole
from autotune.records.quality import Quality
from autotune.records.slo import Goodput

PROBING = frozenset({LevelRole.RAMP, LevelRole.GOODPUT})
"""Levels that are driven to find a load, past what the server can carry."""

DECIDING = frozenset({LevelRole.THROUGHPUT, LevelRole.TTFT, LevelRole.GOODPUT})
"""Levels that objectives are read from."""


class EarlyReason(StrEnum):
    """Why a trial was ended before its time. SATURATED: requests came faster than they were served."""

    DOMINATED = "dominated"
    SATURATED = "saturated"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyEnd:
    """What showed that another config is better in both objectives.

    Attributes:
        rival: number of the trial that stands for that config.
        ttft_s: the p95 TTFT is above this, which the rival keeps to.
        confidence: that it is, over all looks at the level; below 1.
        requests: sent until then; `planned` would have been at least.
        saved_s: about what the trial would have lasted longer; None where nothing is known of how long others last.
    """

    reason: EarlyReason
    rival: int
    ttft_s: float
    confidence: float
    requests: int
    planned: int
    saved_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """How one attempt ended, with all its evidence.

    Attributes:
        early: of an abandoned trial that was shown to be worse than another; None for any other.
        goodput: where the study's objective is the rate that meets an SLO: what the search for it found.
        quality: how much its answers differ from the reference's; None where nobody asked.
        neighbours: most other trials that ran on the node at the same time; 0 for one that had the node to itself.
        host: name of the machine that it ran on, where a study has several; None on the tuner's own.
    """

    outcome: Outcome
    clock: ClockKind
    simulated: bool
    failure: Failure | None = None
    facts: ServerFacts | None = None
    measurements: tuple[Measurement, ...] = ()
    phase_seconds: tuple[tuple[Phase, float], ...] = ()
    caveats: tuple[Caveat, ...] = ()
    goodput: Goodput | None = None
    quality: Quality | None = None
    early: EarlyEnd | None = None
    neighbours: int = 0
    host: str | None = None

    def of_role(self, role: LevelRole) -> Measurement | None:
        """The measurement taken for `role`; None when it was not reached."""
        for found in self.measurements:
            if found.level.role is role:
                return found
        return None


@dataclass(frozen=True, kw_only=True)  # no slots: what was found of its figures is kept
class Trial:
    """One config and how it ended; `result` is None while it runs.

    Attributes:
        number: 0-based; 0 is the baseline.
        gpus: GPUs the config uses (TP x PP x DP).
        why: one line for the operator: the reason it was launched; empty in trials of older versions.
        argv: the server command line as launched, without secrets; empty before the first launch.
    """

    number: int
    config: Config
    origin: Origin
    gpus: int
    attempts: int
    result: TrialResult | None
    repeat_of: int | None = None
    why: str = ""
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
        return self._per_gpu(self.output_tok_s)

    @property
    def goodput_rps_per_gpu(self) -> Estimate | None:
        """Highest rate that meets the study's SLO, requests/s per GPU used; None without such a search or rate."""
        found = self.result.goodput if self.result else None
        return self._per_gpu(found.rate_rps) if found else None

    @property
    def goodput_tok_s_per_gpu(self) -> Estimate | None:
        """Output tokens/s per GPU used at that rate: the goodput objective."""
        found = self.result.goodput if self.result else None
        return self._per_gpu(found.output_tok_s) if found else None

    def _per_gpu(self, total: Estimate | None) -> Estimate | None:
        if total is None:
            return None
        per = max(1, self.gpus)
        if per == 1:
            return total
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

    @cached_property
    def objectives(self) -> tuple[Estimate, Estimate] | None:
        """Output tokens/s per GPU and p95 TTFT; None unless the trial was measured and both are finite and above 0.

        The first is the throughput, or where the trial was searched for it, the goodput.
        """
        if self.result is None or not self.measured:
            return None
        throughput = self.output_tok_s_per_gpu if self.result.goodput is None else self.goodput_tok_s_per_gpu
        ttft = self.ttft_p95_s
        if throughput is None or ttft is None:
            return None
        usable = 0 < throughput.value < math.inf and 0 < ttft.value < math.inf
        return (throughput, ttft) if usable else None

    @property
    def counted(self) -> bool:
        """Whether it counts against `--trials`: it ended, and it repeats no other."""
        return self.result is not None and self.origin not in {Origin.REPEAT, Origin.VALIDATION, Origin.PROBE}

    @property
    def alone(self) -> bool:
        """Whether no other trial ran beside it; so is one that has not ended."""
        return self.result is None or self.result.neighbours == 0

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Doubts about it and about the levels that its figures come from, each once.

        Those of the ramp and of the search for a goodput are not: they are meant to overload the server.
        """
        if self.result is None:
            return ()
        levels = [found for found in self.result.measurements if found.level.role not in PROBING]
        return tuple(dict.fromkeys([*self.result.caveats, *(caveat for level in levels for caveat in level.caveats)]))

    @cached_property
    def measured(self) -> bool:
        """Whether both objectives are there, the trial ended as measured, and neither is the client's (`void`)."""
        return (
            self.result is not None
            and self.result.outcome is Outcome.MEASURED
            and self.output_tok_s is not None
            and self.ttft_p95_s is not None
            and self.void is None
        )

    @cached_property
    def void(self) -> Caveat | None:
        """Why the figures of a level that decides are no objective; None where they may be one."""
        if self.result is None:
            return None
        for found in self.result.measurements:
            if found.caveats and found.level.role in DECIDING and (void := found.void) is not None:
                return void
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The two levels of a study, per GPU used, fixed once the baseline's capacity is known.

    Attributes:
        concurrency_per_gpu: closed loop of the throughput level.
        rate_rps_per_gpu: Poisson rate of the TTFT level.
        capacity_rps_per_gpu: what the ramp found on the baseline; None for loads fixed by the operator.
        ttft_most_requests_per_gpu: what the TTFT level may grow to; None where it does not grow.
    """

    concurrency_per_gpu: int
    rate_rps_per_gpu: float
    throughput_requests_per_gpu: int
    ttft_requests_per_gpu: int
    warmup_requests_per_gpu: int
    capacity_rps_per_gpu: float | None = None
    ttft_most_requests_per_gpu: int | None = None


class PickRule(StrEnum):
    """How the recommended trial is chosen from the front."""

    KNEE = "knee"
    THROUGHPUT = "throughput"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The one trial we recommend, and why. Gains are ratios to the baseline (1.25: 25 % more).

    Attributes:
        instead_of: the trial that the rule alone would have taken, where launches do not tell it from this plainer one.
    """

    number: int
    rule: PickRule
    reason: str
    throughput_gain: float | None = None
    ttft_gain: float | None = None
    instead_of: int | None = None
