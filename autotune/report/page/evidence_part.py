"""The third part of a study's page: the node, what servers said of themselves, what held them back, what failed. Pure.

Needs trials in full, where the first two parts do with outlines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.records import DECIDING, LevelRole, Measurement, Node, Outcome, Trial
from autotune.report.detail import offered
from autotune.report.page.front_part import SCHEMA, figure
from autotune.report.page.spread import Spread
from autotune.report.view import StudyView

MOST_CURVES = 40
"""Trials whose load curves and distributions come along; of others the page asks when somebody wants them."""


def shown_numbers(view: StudyView, steps: Sequence[int] = ()) -> tuple[int, ...]:
    """Trials whose evidence comes along: the front, pick, baseline and what runs today, then picks of other limits,
    then what was measured at more levels than the two, then the rest in order."""
    compared = [trial.number for trial in view.compared_trials]
    further = [trial.number for trial in view.trials if trial.measured and len(_levels(trial)) > 2]
    rest = [trial.number for trial in view.trials if trial.measured]
    return tuple(dict.fromkeys([*compared, *steps, *further, *rest]))[:MOST_CURVES]


def evidence_part(
    view: StudyView, *, shown: Sequence[int], spreads: Mapping[int, Spread], driver: str | None = None
) -> dict[str, Any]:
    """One JSON-able object.

    Args:
        view: with trials in full.
        shown: numbers of the trials whose curves come along.
        spreads: of the TTFT level's requests, by trial, where its raw file is still there.
        driver: of the node, where the study did not store it.
    """
    background = view.background
    return {
        "part": "evidence",
        "schema": SCHEMA,
        "node": _node(background.node, driver) if background and background.node else None,
        "servers": [_server(view, trial) for trial in view.trials if trial.result and trial.result.measurements],
        "failures": _failures(view),
        "curves": [curve_document(trial) for number in shown if (trial := view.trial(number)) is not None],
        "spreads": {str(number): spread.as_document() for number, spread in spreads.items()},
        "doubts": [
            {"trial": trial.number, "code": caveat.code, "text": caveat.text, "remedy": caveat.remedy}
            for trial in view.compared_trials
            for caveat in trial.caveats
        ],
    }


def _node(node: Node, driver: str | None) -> dict[str, Any]:
    topology = node.topology
    return {
        "name": node.name,
        "simulated": node.simulated,
        "link": str(node.link),
        "driver": node.driver or driver,
        "shm_bytes": node.shm_bytes,
        "numa_nodes": topology.numa_nodes if topology else None,
        "worst_path": str(topology.worst_path) if topology and topology.worst_path else None,
        "gpus": [
            {
                "index": gpu.index,
                "name": gpu.name,
                "memory_bytes": gpu.memory_bytes,
                "compute_capability": ".".join(map(str, gpu.compute_capability)) if gpu.compute_capability else None,
                "numa": topology.numa[place] if topology and place < len(topology.numa) else None,
            }
            for place, gpu in enumerate(node.gpus)
        ],
    }


def _server(view: StudyView, trial: Trial) -> dict[str, Any]:
    """What a launch's server resolved and counted over the levels that decide."""
    assert trial.result is not None  # its measurements are asked for
    facts = trial.result.facts
    said = [level.server for level in trial.result.measurements if level.level.role in DECIDING and level.server]
    preemptions = [one.preemptions for one in said if one.preemptions is not None]
    kv_usage = [one.kv_usage_max for one in said if one.kv_usage_max is not None]
    hits = [one.prefix_hit_share for one in said if one.prefix_hit_share is not None]
    waited = [one.queue_time_mean_s for one in said if one.queue_time_mean_s is not None]
    limits = view.verdicts(trial)
    remedies = view.remedies(trial)
    return {
        "number": trial.number,
        "kv_cache_tokens": facts.kv_cache_tokens if facts else None,
        "max_concurrency": facts.max_concurrency if facts else None,
        "startup_s": facts.startup_s if facts else None,
        "preemptions": sum(preemptions) if preemptions else None,
        "kv_usage_max": max(kv_usage) if kv_usage else None,
        "prefix_hit_share": max(hits) if hits else None,
        "queue_time_mean_s": max(waited) if waited else None,
        "limit": str(limits[0].limit) if limits else None,
        "limit_text": limits[0].text if limits else None,
        "limit_evidence": list(limits[0].evidence) if limits else [],
        "remedy": remedies[0].text if remedies else None,
    }


def _failures(view: StudyView) -> list[dict[str, Any]]:
    """Trials without figures by what became of them, the most frequent first, with the remedies of the latest one."""
    groups: defaultdict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in view.trials:
        if trial.result is not None and trial.result.failure is not None:
            groups[str(trial.result.outcome), str(trial.result.failure.kind)].append(trial)
        elif trial.result is not None and trial.result.outcome is Outcome.ABANDONED:
            reason = str(trial.result.early.reason) if trial.result.early else "abandoned"
            groups[str(trial.result.outcome), reason].append(trial)
        elif trial.void is not None:
            groups["void", trial.void.code].append(trial)
    return [
        _failure(view, outcome, kind, trials)
        for (outcome, kind), trials in sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    ]


def _failure(view: StudyView, outcome: str, kind: str, trials: Sequence[Trial]) -> dict[str, Any]:
    latest = trials[-1]
    failure = latest.result.failure if latest.result else None
    remedies = [advice.text for advice in view.remedies(latest)] if failure else []
    saved = [trial.result.early.saved_s for trial in trials if trial.result and trial.result.early]
    void = latest.void
    return {
        "outcome": outcome,
        "kind": kind,
        "trials": [trial.number for trial in trials],
        "example": latest.number,
        "line": failure.line if failure else void.text if void else None,
        "facts": dict(failure.facts) if failure else {},
        "remedies": (remedies or list(failure.remedies)) if failure else [void.remedy] if void else [],
        "saved_s": sum(value for value in saved if value is not None) or None,
    }


def _levels(trial: Trial) -> tuple[Measurement, ...]:
    return trial.result.measurements if trial.result else ()


def curve_document(trial: Trial) -> dict[str, Any]:
    """Every level that was driven, ramp included, lowest load first."""
    levels = sorted(_levels(trial), key=lambda one: one.request_rps.value if one.request_rps else 0.0)
    return {"number": trial.number, "gpus": trial.gpus, "levels": [_level(trial, one) for one in levels]}


def _level(trial: Trial, measured: Measurement) -> dict[str, Any]:
    per = 1 / max(1, trial.gpus)
    rps, tok_s = measured.request_rps, measured.output_tok_s
    ttft, tpot = measured.ttft_s, measured.tpot_s
    return {
        "name": measured.level.name,
        "role": str(measured.level.role),
        "open": measured.level.role is LevelRole.TTFT or measured.level.rate_rps is not None,
        "offered": offered(measured),
        "rate_rps_per_gpu": None if measured.level.rate_rps is None else measured.level.rate_rps * per,
        "request_rps_per_gpu": rps.value * per if rps else None,
        "output_tok_s_per_gpu": tok_s.value * per if tok_s else None,
        "ttft_p50_s": ttft.p50.value if ttft and ttft.p50 else None,
        **figure("ttft_p95_s", ttft.p95 if ttft else None),
        "tpot_p50_s": tpot.p50.value if tpot and tpot.p50 else None,
    }
