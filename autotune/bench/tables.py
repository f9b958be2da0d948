"""The benchmark's tables for people: one per surface, the pooled one, and who is quicker than whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.bench.document import subject
from autotune.bench.jobs import Ran
from autotune.bench.replay import MOST_LAUNCHES
from autotune.bench.summary import Comparison, Figures, Launches, by_sampler, compare, pooled
from autotune.bench.surfaces import SurfaceKind
from autotune.bench.survival import Ratio
from autotune.report.grid import Unbroken, add, column, grid, titled

_NOT_SEEN = f">{MOST_LAUNCHES}"


def tables(ran: Ran) -> Group:
    """Everything that the JSON has; of a run that was cut short, between two lines that say so."""
    studies = ran.studies
    parts: list[RenderableType] = []
    for name in dict.fromkeys(one.surface for one in studies):
        own = [one for one in studies if one.surface == name]
        parts.append(titled(f"{name} ({own[0].kind})", _table(by_sampler(own))))
    simulated = any(one.kind is SurfaceKind.SIMULATED for one in studies)
    parts.append(titled("Pooled over all simulated surfaces" if simulated else "Pooled", _table(pooled(studies))))
    found = compare(studies, subject(studies))
    if found:
        parts.append(titled(f"Launches to 95 %: {found[0].sampler} against", _comparisons(found)))
    parts.append(
        Unbroken(
            text=f"Launches are counted with those that fail; median (quartiles) by Kaplan-Meier, censored at "
            f"{MOST_LAUNCHES}; minutes are simulated."
        )
    )
    if ran.stopped is not None:
        mark = Unbroken(
            text=f"PARTIAL: {len(studies)} of {ran.asked} studies ({ran.stopped}). Samplers have unequal numbers of "
            "studies, on part of the surfaces."
        )
        parts = [mark, Text(), *parts, mark]
    return Group(*parts)


def _table(rows: Mapping[str, Figures]) -> RenderableType:
    table = grid()
    column(table, "sampler", whole=True)
    for head in (
        "studies",
        "to 90 %",
        "to 95 %",
        "censored",
        "to 99 %",
        "min to 95 %",
        "gap at 20",
        "at 40",
        "infeasible",
    ):
        column(table, head, right=True)
    for name, one in rows.items():
        add(
            table,
            name,
            str(one.studies),
            _launches(one.to[0]),
            _launches(one.to[1]),
            f"{one.to[1].censored_share:.0%}",
            _launches(one.to[2]),
            "-" if one.minutes[1] is None else f"{one.minutes[1]:.0f}",
            f"{one.gap_closed_at_20:.0%}",
            f"{one.gap_closed_at_40:.0%}",
            f"{one.infeasible_share:.0%}",
        )
    return table


def _launches(one: Launches) -> str:
    return f"{_count(one.median)} ({_count(one.q1)}-{_count(one.q3)})"


def _count(value: float | None) -> str:
    return _NOT_SEEN if value is None else f"{value:.0f}"


def _comparisons(found: Sequence[Comparison]) -> RenderableType:
    table = grid()
    column(table, "sampler", whole=True)
    for head in ("ratio of medians (95 %)", "of means up to 150 (95 %)", "log-rank p"):
        column(table, head, right=True)
    for one in found:
        add(table, one.against, _ratio(one.medians), _ratio(one.means), "-" if one.p is None else f"{one.p:.2g}")
    return table


def _ratio(one: Ratio) -> str:
    value, low, high = ("?" if part is None else f"{part:.2f}" for part in (one.value, one.low, one.high))
    return f"{value} ({low}-{high})"
