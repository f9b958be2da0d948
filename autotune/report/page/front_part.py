"""The first part of a study's page: what the picture of the front, its growth and the lists are made of. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.records import Estimate, Outcome, Quality, SloMetric, Trial
from autotune.report.json_view import early_document, reason_of
from autotune.report.quality_text import quality_cell, quality_of
from autotune.report.running import gain_document, running_document, running_lines
from autotune.report.view import StudyView
from autotune.report.wording import changes, settings
from autotune.search.growth import baseline_point, growth
from autotune.search.objective import Point, answers_lost, is_goodput, own_figures, points
from autotune.search.pareto import reference_of
from autotune.search.reasons import launch_reason, plain_why

SCHEMA = 1
"""Grows when a key changes its meaning or goes; new keys may come without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the page says of a study besides its trials.

    Attributes:
        created_at: ISO 8601, UTC.
        load: the load that every config had, in words.
        serve: ready command lines by trial's number.
    """

    state: str
    target: int
    created_at: str
    seed: int
    sampler: str
    objective: str
    vllm_version: str | None = None
    load: str | None = None
    serve: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A study of the same question by random search, to hold the growth of the front against."""

    name: str
    trials: Sequence[Trial]


def front_part(view: StudyView, facts: Facts, *, control: Control | None = None) -> dict[str, Any]:
    """One JSON-able object; seconds, tokens; intervals are `[low, high]`, what is missing is null.

    `trials` are launches with their own figures, `configs` are what front and pick are decided by: means over all
    launches of a config that count.
    """
    found = points(view.trials)
    by_number = {trial.number: trial for trial in view.trials}
    return {
        "part": "front",
        "schema": SCHEMA,
        "study": _study(view, facts),
        "slo": _slo(view),
        "trials": [_trial(view, trial) for trial in view.trials],
        "configs": [_config(view, by_number, point) for point in found],
        "front": [trial.number for trial in view.front_trials],
        "baseline": standing_number(view, view.baseline),
        "pick": _pick(view),
        "running": running_document(view),
        "running_lines": list(running_lines(view)),
        "parameters": _parameters(view),
        "growth": _growth(view, control),
        "serve": {str(number): line for number, line in facts.serve.items()},
    }


def _study(view: StudyView, facts: Facts) -> dict[str, Any]:
    return {
        "name": view.name,
        "model": view.model,
        "workload": view.workload,
        "node": view.node,
        "engine": view.engine,
        "simulated": view.simulated,
        "state": facts.state,
        "target": facts.target,
        "created_at": facts.created_at,
        "seed": facts.seed,
        "sampler": facts.sampler,
        "objective": facts.objective,
        "vllm_version": facts.vllm_version,
        "load": facts.load,
        "counts": {str(outcome): view.count(outcome) for outcome in Outcome},
        "running": sum(trial.result is None for trial in view.trials),
        "counted": sum(trial.counted for trial in view.trials),
    }


def _slo(view: StudyView) -> dict[str, Any]:
    """The limit; `movable` where the page may move it: a goodput was searched under its own."""
    limits = view.slo.limits if view.slo else ()
    return {
        "text": str(view.slo) if view.slo else None,
        "ttft_p95_s": view.slo.ttft_p95_s if view.slo else None,
        "others": [str(limit) for limit in limits if limit.metric is not SloMetric.TTFT_P95],
        "movable": not is_goodput(view.trials),
    }


def _trial(view: StudyView, trial: Trial) -> dict[str, Any]:
    result, figures = trial.result, own_figures(trial)
    goodput = result.goodput if result else None
    return {
        "number": trial.number,
        "flags": {name: value for name, value in trial.config if value is not None},
        "outcome": view.outcome(trial),
        "reason": reason_of(trial),
        "void": trial.void is not None,
        **figure("output_tok_s_per_gpu", figures.output_tok_s_per_gpu),
        **figure("ttft_p95_s", figures.ttft_p95_s),
        **({} if goodput is None else figure("goodput_rps_per_gpu", figures.goodput_rps_per_gpu)),
        "origin": str(trial.origin),
        "launched_as": str(launch_reason(trial)),
        "why": plain_why(trial),
        "repeat_of": trial.repeat_of,
        "config_hash": trial.config.hash,
        "gpus": trial.gpus,
        "attempts": trial.attempts,
        "seconds": math.fsum(value for _, value in result.phase_seconds) if result and result.phase_seconds else None,
        "clock": str(result.clock) if result else None,
        "early": early_document(result.early) if result and result.early else None,
        "caveats": [caveat.code for caveat in trial.caveats],
        "simulated": result.simulated if result else view.simulated,
        "answers": _answers(result.quality if result else None),
    }


def _answers(found: Quality | None) -> dict[str, str] | None:
    """What the quality guard found, in the words of its column; null where it did not ask."""
    return None if found is None else {"state": str(found.state), "text": quality_cell(found), "why": found.why}


def _is_open(point: Point, trials: Mapping[int, Trial]) -> bool:
    """Whether a launch met the SLO at every rate that was tried: its goodput is at least what is told."""
    results = (trials[number].result for number in point.numbers)
    return any(result is not None and result.goodput is not None and result.goodput.is_open for result in results)


def _config(view: StudyView, trials: Mapping[int, Trial], point: Point) -> dict[str, Any]:
    trial = trials[point.number]
    own = view.baseline is not None and point.is_of(view.baseline)
    base = view.baseline_trial
    changed = settings(trial.config) if base is None else () if own else changes(trial.config, base)
    return {
        "number": point.number,
        "launches": list(point.numbers),
        **figure("output_tok_s_per_gpu", point.tok_s_per_gpu),
        **figure("ttft_p95_s", point.ttft_p95_s),
        **figure("goodput_rps_per_gpu", point.goodput_rps_per_gpu),
        **({"goodput_open": _is_open(point, trials)} if point.goodput_rps_per_gpu is not None else {}),
        "gpus": trial.gpus,
        "on_front": point.number in view.front,
        "changes": list(changed),
        "answers": _answers(quality_of(trial, view.trials)),
        "answers_lost": answers_lost(point, view.trials),
        **gain_document(view, trial),
    }


def standing_number(view: StudyView, number: int | None) -> int | None:
    """Number of the config that a trial is a launch of; None where none of its launches has figures that count."""
    return next((point.number for point in points(view.trials) if point.is_of(number)), None)


def _pick(view: StudyView) -> dict[str, Any] | None:
    if view.pick is None:
        return None
    return {
        "number": standing_number(view, view.pick.number),
        "rule": str(view.pick.rule),
        "reason": view.pick.reason,
        "throughput_gain": view.pick.throughput_gain,
        "ttft_gain": view.pick.ttft_gain,
        "instead_of": view.pick.instead_of,
    }


def _parameters(view: StudyView) -> list[dict[str, Any]]:
    """Flags that the study varied, each with the values that were launched, in the order of parallel coordinates."""
    values: dict[str, list[Any]] = {}
    configs = {trial.config.hash: trial.config.as_dict() for trial in view.trials}
    names = sorted({name for config in configs.values() for name in config})
    for name in names:
        seen = {_key(config.get(name)): config.get(name) for config in configs.values()}
        values[name] = [seen[key] for key in sorted(seen)]
    return [{"name": name, "values": found} for name, found in values.items() if len(found) > 1]


def _key(value: Any) -> tuple[int, float, str]:
    """Unset first, then off and on, numbers by size, words by the alphabet."""
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, bool):
        return 1, float(value), ""
    if isinstance(value, int | float):
        return 2, float(value), ""
    return 3, 0.0, str(value)


def _growth(view: StudyView, control: Control | None) -> dict[str, Any]:
    """The curve, and that of a random search under the same reference where there was one."""
    base = baseline_point(view.trials)
    if base is None:
        return {"steps": [], "control": None, "reference": None}
    reference = reference_of(base)
    return {
        "reference": list(reference),
        "steps": [[one.number, one.volume, one.elapsed_s] for one in growth(view.trials, reference)],
        "control": None
        if control is None
        else {
            "name": control.name,
            "steps": [[one.number, one.volume, one.elapsed_s] for one in growth(control.trials, reference)],
        },
    }


def figure(name: str, found: Estimate | None) -> dict[str, Any]:
    """A figure and its interval, as in the versioned JSON of `pareto`."""
    interval = None if found is None or found.low is None or found.high is None else [found.low, found.high]
    return {name: found.value if found else None, f"{name}_interval": interval}
