"""Trials as CSV for a spreadsheet: one row a trial, one column a parameter."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from autotune.records import Estimate, Trial, Value
from autotune.report.view import StudyView

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A spreadsheet runs a cell that opens with one of these."""

_FIGURES = ("output_tok_s", "output_tok_s_per_gpu", "ttft_p95_s", "goodput_rps_per_gpu")


def trials_csv(view: StudyView, trials: Sequence[Trial]) -> str:
    """RFC 4180 text with a header. Empty is missing; times are seconds; text that looks like a formula is disarmed.

    Every launch has its own figures; launches of one config share their `config_hash`.
    """
    names = sorted({name for trial in trials for name, _ in trial.config})
    head = ["study", "trial", "simulated", "engine", "outcome", "reason", "on_front", "is_pick", "gpus", "config_hash"]
    for figure in _FIGURES:
        head += [figure, f"{figure}_low", f"{figure}_high"]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\r\n")
    writer.writerow([_cell(name) for name in (*head, "caveats", "origin", "why", *names)])
    for trial in trials:
        writer.writerow([_cell(value) for value in (*_facts(view, trial), *(trial.config.get(name) for name in names))])
    return stream.getvalue()


def _facts(view: StudyView, trial: Trial) -> list[Value]:
    result = trial.result
    row: list[Value] = [
        view.name,
        trial.number,
        result.simulated if result else view.simulated,
        view.engine,
        str(result.outcome) if result else "running",
        str(result.failure.kind) if result and result.failure else None,
        trial.number in view.front,
        view.pick is not None and view.pick.number == trial.number,
        trial.gpus,
        trial.config.hash,
    ]
    for figure in (trial.output_tok_s, trial.output_tok_s_per_gpu, trial.ttft_p95_s, trial.goodput_rps_per_gpu):
        row += _bounds(figure)
    return [*row, " ".join(caveat.code for caveat in trial.caveats) or None, str(trial.origin), trial.why or None]


def _bounds(figure: Estimate | None) -> list[Value]:
    return [figure.value, figure.low, figure.high] if figure else [None, None, None]


def _cell(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA_SIGNS) else value
    return str(value)
