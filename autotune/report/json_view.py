"""The versioned JSON of `study`, `pareto` and `show`. Figures in seconds and tokens; a missing one is null."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from autotune.records import (
    Caveat,
    EarlyEnd,
    Estimate,
    Goodput,
    Latency,
    LevelUse,
    Measurement,
    Outcome,
    ServerDelta,
    ServerFacts,
    Trial,
)
from autotune.report.certainty import certainty_document, pick_document, standing_document
from autotune.report.life import life_document
from autotune.report.quality_text import quality_document, quality_of
from autotune.report.running import gain_document, running_document
from autotune.report.view import StudyView
from autotune.search.objective import Figures, own_figures
from autotune.search.reasons import launch_reason, plain_why
from autotune.search.savings import early_count, saved_s
from autotune.search.stability import Assessment
from autotune.store.study_record import AttemptRecord

SCHEMA = 1
"""Grows when a key changes its meaning or goes; new keys may come without."""


def study_document(view: StudyView) -> dict[str, Any]:
    """One object for a whole study (`study --json`, `pareto --json`).

    `trials` holds every trial; with the figures of its own launch, `infeasible` repeats some of them. `front`,
    `baseline` and `pick` (one or null) are configs: where one was launched several times, their figures are the means
    over `runs` launches. The `reason` of a trial is its failure's class; the pick's says why it was picked.
    """
    baseline = view.baseline_trial
    found = view.assessment()
    return {
        "schema": SCHEMA,
        "study": view.name,
        "engine": view.engine,
        "simulated": view.simulated,
        "trials": [trial_document(view, trial) for trial in view.trials],
        "infeasible": [
            trial_document(view, trial)
            for trial in view.trials
            if trial.result and trial.result.outcome is Outcome.INFEASIBLE
        ],
        "front": [_config(view, trial, found) for trial in view.front_trials],
        "baseline": _config(view, baseline, found) if baseline else None,
        "pick": _pick(view, found),
        **certainty_document(found),
        "early": {"trials": early_count(view.trials), "saved_s": saved_s(view.trials) or 0.0},
        "model": view.model,
        "workload": view.workload,
        "node": view.node,
        "slo": str(view.slo) if view.slo else None,
        "running": running_document(view),
        "running_problem": view.running_problem,
        "directory": view.directory,
    }


def trial_document(view: StudyView, trial: Trial) -> dict[str, Any]:
    """One trial. `output_tok_s` is of the throughput level and the node total, `ttft_p95_s` of the Poisson level.

    `goodput_rps_per_gpu` is null unless it is the study's objective, `quality` unless the guard asked.
    """
    result = trial.result
    return {
        "number": trial.number,
        "flags": trial.config.as_dict(),
        "outcome": view.outcome(trial),
        "reason": reason_of(trial),
        **_figures(own_figures(trial)),
        "simulated": result.simulated if result else view.simulated,
        "origin": str(trial.origin),
        "launched_as": str(launch_reason(trial)),
        "why": plain_why(trial),
        "repeat_of": trial.repeat_of,
        "config_hash": trial.config.hash,
        "gpus": trial.gpus,
        "attempts": trial.attempts,
        "host": trial.result.host if trial.result else None,
        "clock": str(result.clock) if result else None,
        "on_front": trial.number in view.front,
        "limit": next((str(verdict.limit) for verdict in view.verdicts(trial)), None),
        "caveats": [caveat_document(caveat) for caveat in trial.caveats],
        "early": early_document(result.early) if result and result.early else None,
        "quality": quality_document(result.quality) if result else None,
    }


def early_document(end: EarlyEnd) -> dict[str, Any]:
    """Why a trial was abandoned before its time."""
    return {**asdict(end), "reason": str(end.reason)}


def show_document(
    view: StudyView,
    trial: Trial,
    *,
    serve_line: str | None = None,
    log_path: str | None = None,
    attempts: Sequence[AttemptRecord] = (),
) -> dict[str, Any]:
    """All the evidence of one trial (`show --json`)."""
    result = trial.result
    failure = result.failure if result else None
    return {
        "schema": SCHEMA,
        "study": view.name,
        "engine": view.engine,
        **trial_document(view, trial),
        **gain_document(view, trial),
        "serve": serve_line,
        "argv": list(trial.argv),
        "log": log_path,
        "failure": {
            "class": str(failure.kind),
            "line": failure.line,
            "remedies": list(failure.remedies),
            "facts": dict(failure.facts),
            "exit_status": failure.exit_status,
        }
        if failure
        else None,
        "limits": [
            {"limit": str(found.limit), "text": found.text, "evidence": list(found.evidence)}
            for found in view.verdicts(trial)
        ],
        "remedies": [
            {"text": advice.text, "moves": [{"parameter": m.parameter, "toward": str(m.toward)} for m in advice.moves]}
            for advice in view.remedies(trial)
        ],
        "resolved": facts_document(result.facts) if result and result.facts else None,
        "goodput": _goodput(result.goodput) if result and result.goodput else None,
        "phase_seconds": {str(phase): value for phase, value in result.phase_seconds} if result else {},
        "levels": [level_document(level) for level in result.measurements] if result else [],
        "life": life_document(attempts),
    }


def _goodput(found: Goodput) -> dict[str, Any]:
    """What the search for a goodput found, of the whole config; `open`: every rate that was tried meets the SLO."""
    return {
        "slo": str(found.slo),
        "end": str(found.end),
        "open": found.is_open,
        **_figure("rate_rps", found.rate_rps),
        **_figure("output_tok_s", found.output_tok_s),
        "levels": found.levels,
        "seconds": found.seconds,
    }


def reason_of(trial: Trial) -> str | None:
    """Why a trial has no figures that count, one word: its failure's class, what it was abandoned for, or the caveat
    by which it is void; None when measured."""
    result = trial.result
    if result is None:
        return None
    if result.failure is not None:
        return str(result.failure.kind)
    if trial.void is not None:
        return trial.void.code
    return result.caveats[0].code if result.outcome is Outcome.ABANDONED and result.caveats else None


def _pick(view: StudyView, found: Assessment) -> dict[str, Any] | None:
    trial, pick = view.picked_trial, view.pick
    if trial is None or pick is None:
        return None
    return {
        **_config(view, trial, found),
        **pick_document(found),
        "reason": pick.reason,
        "rule": str(pick.rule),
        "instead_of": pick.instead_of,
        "throughput_gain": pick.throughput_gain,
        "ttft_gain": pick.ttft_gain,
    }


def _config(view: StudyView, trial: Trial, found: Assessment) -> dict[str, Any]:
    """A trial as what stands for its config, over all launches of that."""
    means = view.joined(trial)
    return {
        **trial_document(view, trial),
        "quality": quality_document(quality_of(trial, view.trials)),
        **_figures(means),
        **gain_document(view, trial),
        "runs": means.runs,
        **standing_document(found, trial.number),
    }


def _figures(shown: Figures) -> dict[str, Any]:
    return {
        **_figure("output_tok_s", shown.output_tok_s),
        **_figure("output_tok_s_per_gpu", shown.output_tok_s_per_gpu),
        **_figure("ttft_p95_s", shown.ttft_p95_s),
        **_figure("goodput_rps_per_gpu", shown.goodput_rps_per_gpu),
    }


def _figure(name: str, figure: Estimate | None) -> dict[str, Any]:
    return {name: figure.value if figure else None, f"{name}_interval": _interval(figure)}


def _interval(figure: Estimate | None) -> list[float] | None:
    if figure is None or figure.low is None or figure.high is None:
        return None
    return [figure.low, figure.high]


def caveat_document(caveat: Caveat) -> dict[str, Any]:
    """A doubt, with its remedy; `void` where the figures beside it are no objective for it."""
    return {"code": caveat.code, "text": caveat.text, "remedy": caveat.remedy, "void": caveat.void}


def level_document(measured: Measurement) -> dict[str, Any]:
    """The figures of one load level."""
    level = measured.level
    return {
        "name": level.name,
        "role": str(level.role),
        "arrivals": str(level.arrivals),
        "concurrency": level.concurrency,
        "rate_rps": level.rate_rps,
        "cv": level.cv,
        "ramp_from": level.ramp_from,
        "ramp_to": level.ramp_to,
        "clock": str(measured.clock),
        "duration_s": measured.duration_s,
        "steady_s": measured.steady_s,
        "planned": measured.planned,
        "completed": measured.completed,
        "failed": measured.failed,
        "errors": dict(measured.errors),
        "prompt_tokens": measured.prompt_tokens,
        "output_tokens": measured.output_tokens,
        **_figure("output_tok_s", measured.output_tok_s),
        **_figure("total_tok_s", measured.total_tok_s),
        **_figure("request_rps", measured.request_rps),
        **_figure("goodput_rps", measured.goodput_rps),
        "ttft_s": _latency(measured.ttft_s),
        "ttft_from_send_s": _latency(measured.ttft_from_send_s),
        "tpot_s": _latency(measured.tpot_s),
        "itl_s": _latency(measured.itl_s),
        "e2e_s": _latency(measured.e2e_s),
        "energy_j": measured.energy_j,
        "arrival_check": asdict(measured.arrivals) if measured.arrivals else None,
        "server": _server(measured.server),
        "use": _use(measured.use),
        "caveats": [caveat_document(caveat) for caveat in measured.caveats],
    }


def _latency(found: Latency | None) -> dict[str, Any] | None:
    if found is None:
        return None
    parts = (("mean", found.mean), ("p50", found.p50), ("p90", found.p90), ("p95", found.p95), ("p99", found.p99))
    figures = {key: value for name, figure in parts for key, value in _figure(name, figure).items()}
    return {"count": found.count, **figures}


def _server(said: ServerDelta | None) -> dict[str, Any] | None:
    if said is None:
        return None
    return {
        "preemptions": said.preemptions,
        "prompt_tokens": said.prompt_tokens,
        "generation_tokens": said.generation_tokens,
        "prefix_queries": said.prefix_queries,
        "prefix_hits": said.prefix_hits,
        "prefix_hit_share": said.prefix_hit_share,
        "queue_time_mean_s": said.queue_time_mean_s,
        "kv_usage_max": said.kv_usage_max,
        "running_max": said.running_max,
        "waiting_max": said.waiting_max,
        "prefill_time_mean_s": said.prefill_time_mean_s,
        "decode_time_mean_s": said.decode_time_mean_s,
        "kv_usage_mean": said.kv_usage_mean,
        "running_mean": said.running_mean,
        "waiting_mean": said.waiting_mean,
    }


def _use(seen: LevelUse | None) -> dict[str, Any] | None:
    return None if seen is None else asdict(seen)


def facts_document(facts: ServerFacts) -> dict[str, Any]:
    """What a server resolved; what it did not say is null."""
    return {name: getattr(facts, name) for name in ServerFacts.__dataclass_fields__}
