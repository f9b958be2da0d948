"""The fidelity report as people read it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound on one figure of one part of the report.

    Attributes:
        at_least: the figure must not be below the limit, rather than not above.
    """

    part: str
    figure: str
    limit: float
    at_least: bool = False

    def met(self, report: Mapping[str, Any]) -> bool | None:
        """None where the report has no such figure."""
        value = self.value(report)
        if value is None:
            return None
        return value >= self.limit if self.at_least else value <= self.limit

    def value(self, report: Mapping[str, Any]) -> float | None:
        """The figure, a share."""
        place: Any = report
        for key in (*self.part.split("."), self.figure):
            place = None if place is None else place.get(key)
        return None if place is None else float(place)


def _errors(part: str, throughput: float, tpot: float, ttft_p95: float, ending: str = "mape") -> tuple[Goal, ...]:
    limits = {"throughput": throughput, "tpot": tpot, "ttft_p95": ttft_p95}
    return tuple(Goal(part=part, figure=f"{name}_{ending}", limit=limit) for name, limit in limits.items())


GOALS: tuple[Goal, ...] = (
    *_errors("before", 0.15, 0.20, 0.40),
    *_errors("after", 0.03, 0.04, 0.10),
    *_errors("after", 0.10, 0.10, 0.30, "worst"),
    Goal(part="after", figure="pairs_right_throughput", limit=0.95, at_least=True),
    Goal(part="after", figure="pairs_right_ttft_p95", limit=0.95, at_least=True),
    Goal(part="after", figure="regret", limit=0.02),
    Goal(part="after", figure="preemptions_right", limit=1.0, at_least=True),
    *_errors("multi_gpu.data_parallel", 0.05, 0.08, 0.15),
    *_errors("multi_gpu.tensor_parallel", 0.10, 0.15, 0.20),
    *_errors("multi_gpu.pipeline_parallel", 0.10, 0.15, 0.20),
)
BLIND_SHARE = 0.5
"""Of the errors of a table that does not know the config, at most this much is to remain after calibration."""


def verdicts(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every goal with its value and whether it is met; goals without data are None."""
    found = [
        {
            "goal": f"{goal.part}.{goal.figure}",
            "limit": goal.limit,
            "value": goal.value(report),
            "met": goal.met(report),
        }
        for goal in GOALS
    ]
    for name in ("throughput", "tpot", "ttft_p95"):
        blind, own = report["config_blind"][f"{name}_mape"], report["after"][f"{name}_mape"]
        limit = None if blind is None else BLIND_SHARE * blind
        met = None if limit is None or own is None else own <= limit
        found.append({"goal": f"after.{name}_mape, of config_blind's", "limit": limit, "value": own, "met": met})
    return found


def table(report: Mapping[str, Any]) -> Iterator[str]:
    """Rows, means, goals."""
    head = "measured, then error before and after calibration"
    yield f"{'server':18}{'load':9}{'output tok/s':>23}{'TPOT p50 ms':>23}{'TTFT p95 ms':>25}   {head}"
    for row in report["rows"]:
        yield _row(row)
    yield ""
    yield f"{'mean size of error':34}{'throughput':>12}{'TPOT p50':>10}{'TTFT p95':>10}{'TTFT mean':>11}{'rows':>6}"
    for name in ("before", "before_on_rows_of_after", "after_one", "after", "config_blind", "multi_gpu"):
        if report[name] is not None:
            yield _means(name, report[name])
    for kind in ("data_parallel", "tensor_parallel", "pipeline_parallel"):
        part = (report["multi_gpu"] or {}).get(kind)
        if part is not None:
            yield _means(kind, part)
    yield ""
    for name in ("after_one", "after"):
        if report[name] is not None:
            yield f"{name}: calibrated on {', '.join(report[name]['calibrated_on'])}"
    yield ""
    for verdict in report["goals"]:
        word = {True: "met", False: "MISSED", None: "no data"}[verdict["met"]]
        yield f"{verdict['goal']:52}{_percent(verdict['value']):>9} against {_percent(verdict['limit']):>7}  {word}"


def _row(row: Mapping[str, Any]) -> str:
    truth, mark = row["measured"], "" if row["judged_after"] else "  (calibrated on)"
    cells = "".join(
        f"{value:{width}.1f}{_signed(row['errors'][key]):>7}{_signed(row['errors_after'][key]):>7}"
        for value, width, key in (
            (truth["output_tok_s"], 9, "throughput"),
            (truth["tpot_p50_s"] * 1e3, 9, "tpot"),
            (truth["ttft_p95_s"] * 1e3, 11, "ttft_p95"),
        )
    )
    return f"{row['name']:18}{row['load']:9}{cells}{mark}"


def _means(name: str, part: Mapping[str, Any]) -> str:
    cells = "".join(
        f"{_percent(part[f'{key}_mape']):>{width}}"
        for key, width in (("throughput", 12), ("tpot", 10), ("ttft_p95", 10), ("ttft_mean", 11))
    )
    return f"{name:34}{cells}{part['rows']:6}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _signed(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.0f}%"
