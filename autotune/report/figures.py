"""The picture of a front: throughput per GPU against p95 TTFT, as PNG or SVG, the same bytes for the same study.

matplotlib's object API only: pyplot keeps figures alive and picks a display. matplotlib is slow to import, so nothing
imports this module but a command that was asked for a picture.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from autotune.records import Estimate, Outcome, Slo
from autotune.report.certainty import pick_doubt
from autotune.report.view import StudyView
from autotune.report.wording import gain, printable
from autotune.search.objective import Point, points
from autotune.units import format_seconds, plural

WIDTH_IN, HEIGHT_IN, DPI = 9.0, 5.8, 144


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours of a picture; `paper` is None for a transparent one."""

    name: str
    paper: str | None
    ink: str
    faint: str
    grid: str
    front: str
    baseline: str
    pick: str
    limit: str


LIGHT = Theme(
    name="light",
    paper="#ffffff",
    ink="#1f2733",
    faint="#687384",
    grid="#e6e9ee",
    front="#2563c9",
    baseline="#b45f06",
    pick="#137a46",
    limit="#c0362c",
)
DARK = Theme(
    name="dark",
    paper=None,
    ink="#e6e9ee",
    faint="#8f99a8",
    grid="#323a46",
    front="#78aaff",
    baseline="#f0a95b",
    pick="#55cf8e",
    limit="#ff8579",
)


def png_bytes(view: StudyView) -> bytes:
    """The front as PNG."""
    with mpl.rc_context(_settings(LIGHT)):
        figure = _draw(view, LIGHT)
        FigureCanvasAgg(figure)
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=DPI, metadata={"Software": None})
    return stream.getvalue()


def svg_text(view: StudyView, theme: Theme = LIGHT) -> str:
    """The front as SVG; text stays text, without a date and with stable ids."""
    with mpl.rc_context(_settings(theme)):
        figure = _draw(view, theme)
        FigureCanvasSVG(figure)
        stream = io.StringIO()
        unset = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", metadata=unset, transparent=theme.paper is None)
    return stream.getvalue()


def description(view: StudyView) -> str:
    """The picture in words, for those who do not see it."""
    front = _front(view, points(view.trials))
    if not front:
        return "No trial was measured yet."
    fast, most = front[0], front[-1]
    mark = "Simulated. " if view.simulated else ""
    return (
        f"{mark}{plural(len(front), 'trial')} on the front: from trial {fast.number} with {_point_words(fast)} "
        f"to trial {most.number} with {_point_words(most)}."
    )


def _settings(theme: Theme) -> Any:  # matplotlib types the keys as one long Literal
    return {
        "text.parse_math": False,  # a `$` in a name is a dollar
        "axes.unicode_minus": False,
        "svg.fonttype": "none",
        "svg.hashsalt": f"autotune-{theme.name}",
        "font.family": ["DejaVu Sans"],
        "font.size": 10,
        "axes.edgecolor": theme.faint,
        "axes.labelcolor": theme.ink,
        "text.color": theme.ink,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
    }


def _draw(view: StudyView, theme: Theme) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), facecolor=theme.paper or "none")
    axes = figure.add_axes((0.09, 0.165, 0.88, 0.655))
    axes.set_facecolor("none")
    measured = points(view.trials)
    figure.text(0.09, 0.945, _shown(f"{view.name}"), fontsize=14, fontweight="bold", va="center")
    simulated = "  ·  SIMULATED, not measured on a server" if view.simulated else ""
    subtitle = f"{view.model}  ·  {view.workload}  ·  {view.node}{simulated}"
    figure.text(0.09, 0.897, _shown(subtitle, limit=110), fontsize=10, color=theme.faint, va="center")
    figure.text(0.09, 0.028, _shown(_caption(view), limit=140), fontsize=9, color=theme.faint, va="center")
    if view.simulated:
        axes.text(
            *(0.5, 0.5, "SIMULATED"),
            transform=axes.transAxes,
            fontsize=62,
            fontweight="bold",
            color=theme.faint,
            alpha=0.16,
            rotation=24,
            ha="center",
            va="center",
            zorder=0,
        )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if not measured:
        axes.text(0.5, 0.5, "No trial was measured yet", transform=axes.transAxes, ha="center", color=theme.faint)
        axes.set_xticks([])
        axes.set_yticks([])
        return figure
    _scales(axes, view, measured, theme)
    _points(axes, view, measured, theme)
    _limit(axes, view, theme)
    # Above the axes: any corner inside may hold a trial.
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.008, 1.0),
        ncols=6,
        frameon=False,
        fontsize=9,
        handletextpad=0.4,
        columnspacing=1.6,
        borderaxespad=0.2,
    )
    return figure


def _scales(axes: Axes, view: StudyView, measured: Sequence[Point], theme: Theme) -> None:
    bounds = [bound for point in measured for bound in _bounds(point.ttft_p95_s)]
    limit_s = _ttft_limit_s(view)
    if limit_s is not None:
        bounds.append(limit_s)
    low, high = min(bounds), max(bounds)
    room = max((high / low) ** 0.06, 1.04)
    axes.set_xscale("log")
    axes.set_xlim(low / room, high * room)
    axes.xaxis.set_major_locator(FixedLocator(log_ticks(low / room, high * room)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick_seconds(value)))
    rates = [bound for point in measured for bound in _bounds(point.tok_s_per_gpu)]
    spread = max(max(rates) - min(rates), 0.05 * max(rates))
    axes.set_ylim(max(0.0, min(rates) - 0.12 * spread), max(rates) + 0.14 * spread)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.grid(visible=True, color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.set_xlabel("TTFT p95 (log scale; left is better)", labelpad=8)
    goodput = any(point.goodput_rps_per_gpu is not None for point in measured)
    where = " at the highest rate within the SLO" if goodput else ""
    axes.set_ylabel(f"output tokens/s per GPU{where} (up is better)", labelpad=8)


def _ttft_limit_s(view: StudyView) -> float | None:
    """Where the limit stands on the TTFT axis; a goodput met it at another rate than that of the axis."""
    searched = any(trial.result is not None and trial.result.goodput is not None for trial in view.trials)
    return view.slo.ttft_p95_s if view.slo and not searched else None


def _limit(axes: Axes, view: StudyView, theme: Theme) -> None:
    limit_s = _ttft_limit_s(view)
    if limit_s is None:
        return
    label = f"SLO {Slo.of(ttft_p95=limit_s)}"
    axes.axvline(limit_s, color=theme.limit, linewidth=1.3, linestyle=(0, (5, 3)), zorder=2, label=label)
    axes.axvspan(limit_s, axes.get_xlim()[1], color=theme.limit, alpha=0.06, linewidth=0, zorder=0)


def _points(axes: Axes, view: StudyView, measured: Sequence[Point], theme: Theme) -> None:
    """One mark a config, at the means of its launches, which is where front and pick were decided."""
    front = _front(view, measured)
    base = _at(measured, view.baseline)
    pick = _at(measured, view.pick.number if view.pick else None)
    rest = [point for point in measured if point not in (*front, base, pick)]
    if front:
        # Between two trials of the front nothing better was seen: the line is the stair that they dominate.
        axes.step(
            [point.ttft_p95_s.value for point in front],
            [point.tok_s_per_gpu.value for point in front],
            where="post",
            color=theme.front,
            linewidth=1.8,
            alpha=0.75,
            zorder=3,
        )
    open_ones = {one.number for one in view.assessment().standings if not one.is_sure}
    others = [point for point in front if point not in (base, pick)]
    _marks(axes, [point for point in others if point.number not in open_ones], theme.front, "o", 8, "front")
    unsure = [point for point in others if point.number in open_ones]
    _marks(axes, unsure, theme.front, "o", 8, "front, not sure", hollow=True)
    if base and base is not pick:
        _marks(axes, [base], theme.baseline, "D", 8, f"baseline (trial {base.number})")
    if pick:
        _marks(axes, [pick], theme.pick, "*", 17, f"pick (trial {pick.number})")
    _marks(axes, rest, theme.faint, "o", 5.5, "other trials", hollow=True)
    for point in {point.number: point for point in (*front, *([base] if base else []))}.values():
        axes.annotate(
            f"{point.number}",
            point.values[::-1],
            xytext=(-9, 9),
            textcoords="offset points",
            fontsize=9,
            ha="right",
            zorder=6,
        )


def _front(view: StudyView, measured: Sequence[Point]) -> tuple[Point, ...]:
    found = (_at(measured, trial.number) for trial in view.front_trials)
    return tuple(point for point in found if point is not None)


def _at(measured: Sequence[Point], number: int | None) -> Point | None:
    """The config that trial `number` is a launch of."""
    return next((point for point in measured if point.is_of(number)), None)


def _marks(
    axes: Axes, shown: Sequence[Point], colour: str, shape: str, size: float, label: str, *, hollow: bool = False
) -> None:
    if not shown:
        return
    axes.errorbar(
        [point.ttft_p95_s.value for point in shown],
        [point.tok_s_per_gpu.value for point in shown],
        xerr=_errors([point.ttft_p95_s for point in shown]),
        yerr=_errors([point.tok_s_per_gpu for point in shown]),
        linestyle="none",
        marker=shape,
        markersize=size,
        color=colour,
        markerfacecolor="none" if hollow else colour,
        ecolor=colour,
        elinewidth=1.0,
        capsize=2,
        alpha=0.7 if hollow else 1.0,
        label=label,
        zorder=4 if hollow else 5,
    )


def _errors(figures: Sequence[Estimate]) -> list[list[float]]:
    """Distances below and above; a figure without an interval has none, and so shows no bar."""
    below = [max(0.0, at.value - at.low) if at.low is not None else 0.0 for at in figures]
    above = [max(0.0, at.high - at.value) if at.high is not None else 0.0 for at in figures]
    return [below, above]


def _bounds(figure: Estimate) -> list[float]:
    return [bound for bound in (figure.value, figure.low, figure.high) if bound is not None and bound > 0]


def _point_words(point: Point) -> str:
    return (
        f"{point.tok_s_per_gpu.value:,.0f} tokens/s per GPU at a p95 TTFT of {format_seconds(point.ttft_p95_s.value)}"
    )


def _caption(view: StudyView) -> str:
    measured, infeasible = view.count(Outcome.MEASURED), view.count(Outcome.INFEASIBLE)
    parts = [f"{measured} measured, {infeasible} infeasible (not shown)", "bars: 95 % intervals"]
    if any(len(point.numbers) > 1 for point in points(view.trials)):
        parts.append("repeated configs: means, bars over all runs")
    doubt = pick_doubt(view.assessment()).removeprefix(", ") if view.pick else ""
    if doubt:
        parts.append(f"pick {doubt}")
    if view.pick and view.pick.throughput_gain is not None:
        searched = any(point.goodput_rps_per_gpu is not None for point in points(view.trials))
        what = "goodput" if searched else "throughput"
        parts.append(
            f"pick against baseline: {what} {gain(view.pick.throughput_gain)}, TTFT {gain(view.pick.ttft_gain)}"
        )
    return "  ·  ".join(parts)


def log_ticks(low: float, high: float) -> list[float]:
    """Round values within low..high for a log axis; finer steps where the range is narrow."""
    for steps in (
        (1,),
        (1, 2, 5),
        (1, 1.5, 2, 3, 4, 5, 7),
        tuple(i / 4 for i in range(4, 40)),
        tuple(i / 20 for i in range(20, 200)),
    ):
        ticks = [
            step * 10.0**decade
            for decade in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for step in steps
            if low <= step * 10.0**decade <= high
        ]
        if len(ticks) >= 4:
            return ticks[:: math.ceil(len(ticks) / 10)]
    return [low, high]


def _tick_seconds(value: float) -> str:
    return f"{value * 1000:.4g} ms" if value < 1 else f"{value:.4g} s"


def _shown(text: str, *, limit: int = 90) -> str:
    """Text that the font can draw; anything else would be a warning and a box."""
    font = get_font(findfont(FontProperties(family="DejaVu Sans")))
    line = "".join(char if font.get_char_index(ord(char)) else "?" for char in printable(text))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
