"""What somebody is told when a study has ended: a versioned JSON object, small enough for a chat message's bot."""

from __future__ import annotations

from typing import Any

from autotune.records import Outcome, Trial
from autotune.report.view import StudyView
from autotune.search.savings import early_count, saved_s

SCHEMA = 1
"""Grows when a key changes its meaning or goes; new keys may come without."""


def summary_document(
    study: str,
    *,
    ended_by: str,
    elapsed_s: float,
    error: str | None = None,
    exit_code: int = 0,
    view: StudyView | None = None,
) -> dict[str, Any]:
    """How a run of a study ended, and what it recommends.

    Args:
        ended_by: a `budget.Ending`.
        elapsed_s: of this run, on the wall's clock.
        error: what the command says of why it failed; secrets are taken out already.
        view: None where the stored study cannot be read: then only what is known without it is told.
    """
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "study": study,
        "ended_by": ended_by,
        "exit_code": exit_code,
        "error": error,
        "elapsed_s": round(elapsed_s, 3),
    }
    if view is None:
        return told
    pick, trial = view.pick, view.picked_trial
    return {
        **told,
        "simulated": view.simulated,
        "model": view.model,
        "workload": view.workload,
        "node": view.node,
        "trials": len(view.trials),
        "outcomes": {str(outcome): view.count(outcome) for outcome in Outcome},
        "early": {"trials": early_count(view.trials), "saved_s": saved_s(view.trials) or 0.0},
        "front": [trial.number for trial in view.front_trials],
        "pick": None if pick is None or trial is None else {**_config(view, trial), "reason": pick.reason},
        "throughput_gain": pick.throughput_gain if pick else None,
        "ttft_gain": pick.ttft_gain if pick else None,
        "directory": view.directory,
    }


def _config(view: StudyView, trial: Trial) -> dict[str, Any]:
    means = view.joined(trial)
    rate, ttft = means.output_tok_s_per_gpu, means.ttft_p95_s
    return {
        "number": trial.number,
        "flags": trial.config.as_dict(),
        "output_tok_s_per_gpu": rate.value if rate else None,
        "ttft_p95_s": ttft.value if ttft else None,
    }
