"""Trials as CSV for a spreadsheet: one row a trial, one column a parameter."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from autotune.records import Estimate, Trial, Value
from autotune.report.view import StudyView
from autotune.search.stability import Standing

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A spreadsheet runs a cell that opens with one of these."""

_SURE = ("front_probability", "pick_probability", "tied_with")

_QUALITY = ("quality", "perplexity_ratio", "logprob_gap", "greedy_agreement")

_FIGURES = ("output_tok_s", "output_tok_s_per_gpu", "ttft_p95_s", "goodput_rps_per_gpu")


def trials_csv(view: StudyView, trials: Sequence[Trial]) -> str:
    """RFC 4180 text with a header. Empty is missing; times are seconds; text that looks like a formula is disarmed.

    Every launch has its own figures; launches of one config share their `config_hash`, and how sure its place is.
    """
    names = sorted({name for trial in trials for name, _ in trial.config})
    head = ["study", "trial", "simulated", "engine", "outcome", "reason", "on_front", "is_pick", "gpus", "config_hash"]
    for figure in _FIGURES:
        head += [figure, f"{figure}_low", f"{figure}_high"]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\r\n")
    writer.writerow([_cell(name) for name in (*head, "caveats", "origin", "why", *_SURE, *_QUALITY, *names)])
    standings = _standings(view)
    for trial in trials:
        facts = (*_facts(view, trial), *_sure(standings.get(trial.config.hash)), *_quality(trial))
        writer.writerow([_cell(value) for value in (*facts, *(trial.config.get(name) for name in names))])
    return stream.getvalue()


def _standings(view: StudyView) -> dict[str, Standing]:
    """Of each measured config, by its hash."""
    hashes = {trial.number: trial.config.hash for trial in view.trials}
    return {hashes[standing.number]: standing for standing in view.assessment().standings}


def _sure(standing: Standing | None) -> list[Value]:
    if standing is None:
        return [None] * len(_SURE)
    tied = " ".join(map(str, standing.tied_with)) or None
    return [standing.front_probability, standing.pick_probability, tied]


def _quality(trial: Trial) -> list[Value]:
    found = trial.result.quality if trial.result else None
    if found is None:
        return [None] * len(_QUALITY)
    figures = (found.perplexity_ratio, found.logprob_gap, found.agreement)
    return [str(found.state), *(one.value if one is not None else None for one in figures)]


def _facts(view: StudyView, trial: Trial) -> list[Value]:
    result = trial.result
    row: list[Value] = [
        view.name,
        trial.number,
        result.simulated if result else view.simulated,
        view.engine,
        view.outcome(trial),
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
