"""What a study maximises, and service level objectives: several limits that all have to be met."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from autotune.records.figures import Estimate, Latency, Measurement


class Objective(StrEnum):
    """What a study maximises per GPU used; both in output tokens/s.

    THROUGHPUT: of a saturating closed loop. GOODPUT: at the highest Poisson rate that still meets the SLO.
    """

    THROUGHPUT = "throughput"
    GOODPUT = "goodput"


class SloMetric(StrEnum):
    """What an SLO may limit, lower is better: seconds, or the share of requests that failed (0..1)."""

    TTFT_P50 = "ttft_p50"
    TTFT_P95 = "ttft_p95"
    TTFT_P99 = "ttft_p99"
    TPOT_P50 = "tpot_p50"
    TPOT_P95 = "tpot_p95"
    TPOT_P99 = "tpot_p99"
    ITL_P95 = "itl_p95"
    ITL_P99 = "itl_p99"
    E2E_P95 = "e2e_p95"
    E2E_P99 = "e2e_p99"
    ERROR_RATE = "error_rate"

    @property
    def is_time(self) -> bool:
        """Whether it is in seconds."""
        return self is not SloMetric.ERROR_RATE

    @property
    def percent(self) -> int | None:
        """The percentile it is, 0..100; None for a share."""
        return int(self.value[-2:]) if self.is_time else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One bound of an SLO, e.g. `ttft_p95<=500ms`: seconds, of an error rate a share."""

    metric: SloMetric
    bound: float

    def __str__(self) -> str:
        return f"{self.metric}<={self.bound * 1000:g}ms" if self.metric.is_time else f"{self.metric}<={self.bound:g}"

    def figure(self, measurement: Measurement) -> Estimate | None:
        """What a load level showed; None where it has no such figure.

        An error rate has no interval: of 300 requests without an error nobody can say that less than 1 % will fail, so
        that a limit of 0 could never be met by an upper bound.
        """
        if not self.metric.is_time:
            ended = measurement.completed + measurement.failed
            return Estimate(value=measurement.failed / ended) if ended else None
        name, _, point = self.metric.value.rpartition("_")
        found: Latency | None = getattr(measurement, f"{name}_s")
        figure: Estimate | None = None if found is None else getattr(found, point)
        return figure

    def is_surely_met(self, figure: Estimate | None) -> bool:
        """Judged by the upper bound of the figure's interval, by its value where it has none; a missing one is not."""
        return figure is not None and (figure.value if figure.high is None else figure.high) <= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Service level objectives, all of which have to be met: at least one limit, no metric twice."""

    limits: tuple[Limit, ...]

    @classmethod
    def of(cls, **bounds: float) -> Slo:
        """An SLO from bounds in seconds (or a share): `Slo.of(ttft_p95=0.5)`."""
        return cls.made(Limit(metric=SloMetric(name), bound=bound) for name, bound in bounds.items())

    @classmethod
    def made(cls, limits: Iterable[Limit]) -> Slo:
        """With its limits in the metrics' order, so that equal SLOs are equal however they were written."""
        order = list(SloMetric)
        return cls(limits=tuple(sorted(limits, key=lambda limit: order.index(limit.metric))))

    def __str__(self) -> str:
        return ",".join(map(str, self.limits))

    def bound(self, metric: SloMetric) -> float | None:
        """The bound of a metric; None where it is not limited."""
        return next((limit.bound for limit in self.limits if limit.metric is metric), None)

    @property
    def ttft_p95_s(self) -> float | None:
        """The bound of the p95 TTFT, which is an axis of every picture; None where it is not limited."""
        return self.bound(SloMetric.TTFT_P95)

    def meets(self, measurement: Measurement) -> bool | None:
        """Whether a level's own values are within all limits; None where it lacks one of the figures."""
        figures = [(limit, limit.figure(measurement)) for limit in self.limits]
        if any(figure is None for _, figure in figures):
            return None
        return all(figure.value <= limit.bound for limit, figure in figures if figure is not None)


class GoodputEnd(StrEnum):
    """Why the search for a config's rate ended."""

    NARROW = "narrow"
    LEVELS = "levels"
    SECONDS = "seconds"
    NEVER_MET = "never_met"
    CLIENT_LIMIT = "client_limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """The highest rate of a config that still meets the SLO, all its GPUs together; `load.goodput` finds it.

    Attributes:
        rate_rps: None where no rate that was tried meets it.
        output_tok_s: the same in output tokens/s, by the mean output of the requests that succeeded.
        levels: that were driven for it, the TTFT level aside.
        seconds: that they took.
        is_open: every rate that was tried meets it: the true one is higher.
    """

    slo: Slo
    end: GoodputEnd
    rate_rps: Estimate | None
    output_tok_s: Estimate | None
    levels: int
    seconds: float
    is_open: bool = False
