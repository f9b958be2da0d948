"""From the store to the parts of a study's page, for the service and for `autotune report`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, InvalidOption, StorageError
from autotune.load.records_file import level_path, read_ttft
from autotune.records import LevelRole, LoadPlan, Origin, Trial
from autotune.report.page import (
    Control,
    Facts,
    Spread,
    certainty_part,
    evidence_part,
    front_part,
    shown_numbers,
    spread_of,
)
from autotune.report.view import StudyView
from autotune.review.evidence import serve_line_of
from autotune.review.listing import state_now
from autotune.review.views import QUESTION, outlined_view_of, view_of
from autotune.search.asked import asked_objective, asked_rule
from autotune.store.places import Places
from autotune.store.repository import Store
from autotune.store.study_record import StudyRecord

RANDOM = "random"
"""The sampler that is the control of all others."""

MOST_SPREADS = 12
"""Trials whose raw files are read for a page: some hundred kilobytes each."""


class Part(StrEnum):
    """Of a study's page, in the order in which they are shown."""

    FRONT = "front"
    CERTAINTY = "certainty"
    EVIDENCE = "evidence"
    LEARNED = "learned"


def page_part(
    part: Part, store: Store, study: StudyRecord, places: Places, *, slo: str | None = None
) -> dict[str, Any]:
    """One part, as JSON-able values.

    Args:
        slo: replaces the study's own limit.

    Raises:
        InvalidOption: `slo` cannot be read.
        StorageError: the stored study cannot be read.
    """
    match part:
        case Part.FRONT:
            view = outlined_view_of(store, study, places, slo=slo, phases=True)
            return front_part(view, facts_of(store, study, view, places), control=control_of(store, study))
        case Part.CERTAINTY:
            return certainty_part(outlined_view_of(store, study, places, slo=slo), rule=asked_rule(study.spec, None))
        case Part.EVIDENCE:
            return evidence_of(view_of(store, study, places, slo=slo), places)
        case Part.LEARNED:
            return learned_of(store, study)


def facts_of(store: Store, study: StudyRecord, view: StudyView, places: Places) -> Facts:
    """What a study's page says besides its trials."""
    version = study.identity.get("vllm_version", "unknown")
    shown = view.trials if len(view.trials) <= MOST_SERVED else view.compared_trials
    return Facts(
        state=state_now(study, places),
        target=study.target_trials,
        created_at=study.created_at.isoformat(),
        seed=study.seed,
        sampler=str(study.spec.get("sampler", "prior")),
        objective=str(asked_objective(study.spec)),
        vllm_version=None if version == "unknown" else version,
        load=_load(store.get_load_plan(study.name)),
        serve={trial.number: line for trial in shown if (line := serve_line_or_none(study, trial)) is not None},
    )


def serve_line_or_none(study: StudyRecord, trial: Trial) -> str | None:
    """A trial's command line; None where a flag of it cannot stand on one, as in a study from elsewhere."""
    try:
        return serve_line_of(study, trial)
    except AutotuneError:
        return None


MOST_SERVED = 200
"""Trials up to which each has its command line with it."""


def _load(plan: LoadPlan | None) -> str | None:
    if plan is None:
        return None
    return (
        f"{plan.concurrency_per_gpu} requests in flight for throughput, {plan.rate_rps_per_gpu:.3g} requests/s Poisson "
        "for TTFT, per GPU used"
    )


def control_of(store: Store, study: StudyRecord) -> Control | None:
    """The latest random search of the same question in this database; None where there is none, or it is itself one."""
    if study.spec.get("sampler") == RANDOM:
        return None
    for one in reversed(store.studies()):
        if _is_control(one, study):
            trials = store.outlines(one.name, phases=True)
            # What the operator asked for comes before a sampler is asked: a short study ends before anything was drawn.
            if any(trial.origin is Origin.SAMPLER for trial in trials):
                return Control(name=one.name, trials=trials)
    return None


def _is_control(one: StudyRecord, study: StudyRecord) -> bool:
    same = all(one.identity.get(key) == study.identity.get(key) for key in (*QUESTION, "space"))
    # A model of vLLM is no control for a measurement, nor the other way round.
    alike = same and one.simulated == study.simulated
    return one.name != study.name and one.spec.get("sampler") == RANDOM and alike


def evidence_of(view: StudyView, places: Places, shown: Sequence[int] | None = None) -> dict[str, Any]:
    """Node, servers, failures, curves, and the distributions whose raw files are still there."""
    numbers = shown_numbers(view) if shown is None else tuple(shown)
    spreads: dict[int, Spread] = {}
    for number in numbers[:MOST_SPREADS]:
        trial = view.trial(number)
        found = None if trial is None else spread_file(trial, places, view.name)
        if found is not None:
            spreads[number] = found
    return evidence_part(view, shown=numbers, spreads=spreads)


def spread_file(trial: Trial, places: Places, study: str) -> Spread | None:
    """How a trial's TTFT is distributed; None where its raw file is gone or cannot be read: the figures stay."""
    level = trial.result.of_role(LevelRole.TTFT) if trial.result else None
    if level is None:
        return None
    # A study that was moved here has its files below this folder, not where it was measured.
    here = places.folder(study).path / Path(trial.directory or f"trial-{trial.number:04d}").name
    folders = [Path(trial.directory), here] if trial.directory else [here]
    for path in (level_path(folder, level.level) for folder in folders):
        if path.is_file():
            try:
                return spread_of(read_ttft(path))
            except StorageError:
                return None
    return None


def learned_of(store: Store, study: StudyRecord) -> dict[str, Any]:
    """What `autotune explain --json` says, without the event simulator's corrections; `failed` says why it cannot."""
    from autotune.planning.explaining import explain_study
    from autotune.report.explained import explanation_document

    trials = store.trials(study.name)
    simulated = study.simulated or any(trial.result.simulated for trial in trials if trial.result)
    try:
        found, doubts = explain_study(study, trials, store.get_load_plan(study.name), quick=True)
    except InvalidOption:
        raise
    except AutotuneError as error:
        return {"part": "learned", "failed": str(error)}
    except ValueError:  # a matrix that is not definite is one of NumPy's
        return {"part": "learned", "failed": "the trials do not determine what each flag does"}
    return {"part": "learned", **explanation_document(found, study=study.name, simulated=simulated, doubts=doubts)}
