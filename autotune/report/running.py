"""What runs today, and what a promotion would change against it: text and JSON.

A config's gain is told only where both were measured under the same question; where they were not, what differs is
said instead of a number.
"""

from __future__ import annotations

from typing import Any

from autotune.records import Trial
from autotune.report.view import Gain, StudyView
from autotune.report.wording import change_text, printable
from autotune.search.objective import is_goodput

COLUMN = "against today"


def marks_running(view: StudyView, trial: Trial) -> tuple[str, ...]:
    """`runs today (prod-chat@3)` for launches of the config that does."""
    running = view.running
    return (f"runs today ({printable(running.label)})",) if running is not None and running.is_of(trial) else ()


def gain_cell(view: StudyView, trial: Trial) -> str:
    """Both ratios with their intervals, one a line; `-` where nothing can be told."""
    found = view.gain_over_running(trial)
    if found is None:
        return "-"
    what = "goodput" if is_goodput([trial]) else "tok/s"
    return f"{what} {change_text(found.throughput)}\nTTFT {change_text(found.ttft)}"


def running_lines(view: StudyView) -> tuple[str, ...]:
    """What runs today, and what promoting the pick would change, or why that cannot be told; none where nothing of
    this model was promoted."""
    running = view.running
    if view.running_problem is not None:
        return (f"What runs today cannot be told: {printable(view.running_problem)}",)
    if running is None:
        return ()
    from_where = f"trial {running.trial} of study {printable(running.study)}"
    lines = [f"Runs today: {printable(running.label)}, {from_where}."]
    if running.others:
        lines.append(f"Other deployments of this model: {', '.join(map(printable, running.others))}.")
    if running.differing:
        told = "; ".join(
            f"{key}: {printable(there)} there, {printable(here)} here" for key, there, here in running.differing
        )
        lines.append(f"It was not measured under this study's question ({told}), so no gain is told.")
        return tuple(lines)
    pick = view.picked_trial
    if pick is None:
        return tuple(lines)
    if running.is_of(pick):
        lines.append("It is the pick: there is nothing to promote.")
        return tuple(lines)
    found = view.gain_over_running(pick)
    if found is None:
        lines.append("It has no launch with figures to compare with.")
        return tuple(lines)
    what = "goodput" if is_goodput([pick]) else "throughput"
    lines.append(
        f"Promoting trial {pick.number} would change {what} per GPU by {change_text(found.throughput)} and TTFT p95 by "
        f"{change_text(found.ttft)}{_noise(found)}."
    )
    return tuple(lines)


def detail_line(view: StudyView, trial: Trial) -> str | None:
    """One trial against what runs today; None where there is nothing to say."""
    running = view.running
    if running is None:
        return None
    if running.is_of(trial):
        return f"this is what runs today, as {printable(running.label)}"
    found = view.gain_over_running(trial)
    if found is None:
        return None
    what = "goodput" if is_goodput([trial]) else "throughput"
    return (
        f"{what} per GPU {change_text(found.throughput)}, TTFT p95 {change_text(found.ttft)} against "
        f"{printable(running.label)}{_noise(found)}"
    )


def _noise(found: Gain) -> str:
    real = [one for one in (found.throughput, found.ttft) if one.is_real]
    return "" if real else ", both within what launches of one config differ by"


def running_document(view: StudyView) -> dict[str, Any] | None:
    """`running` of the JSON: what runs today; null where nothing of this model was promoted."""
    running = view.running
    if running is None:
        return None
    return {
        "promotion": running.label,
        "study": running.study,
        "trial": running.trial,
        "config_hash": running.config_hash,
        "others": list(running.others),
        "differing": [{"key": key, "there": there, "here": here} for key, there, here in running.differing],
    }


def gain_document(view: StudyView, trial: Trial) -> dict[str, Any]:
    """Keys of a trial: whether it runs today, and its ratios to what does; nulls where they cannot be told."""
    running, found = view.running, view.gain_over_running(trial)
    return {
        "runs_today": running is not None and running.is_of(trial),
        "against_running": None
        if found is None
        else {
            "throughput_ratio": found.throughput.ratio,
            "throughput_interval": [found.throughput.low, found.throughput.high],
            "ttft_ratio": found.ttft.ratio,
            "ttft_interval": [found.ttft.low, found.ttft.high],
            "launches": list(found.throughput.launches),
        },
    }
