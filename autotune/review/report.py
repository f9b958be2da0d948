"""A study from the store as one file: what `autotune report` writes."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import permutations
from typing import Any

from autotune import __version__
from autotune.report.compare import COMPARED_IDENTITY, Side, compare, comparison_document
from autotune.report.json_view import show_document
from autotune.report.page import certainty_part, front_part, shown_numbers
from autotune.report.page.file import report_file
from autotune.report.view import StudyView
from autotune.review.evidence import log_path
from autotune.review.history import history_of
from autotune.review.page import control_of, evidence_of, facts_of, learned_of, serve_line_or_none
from autotune.review.views import with_evidence
from autotune.search.asked import asked_rule
from autotune.store.places import Places
from autotune.store.repository import Store
from autotune.store.study_record import StudyRecord

MOST_TRIALS = 60
"""Trials whose whole evidence lies in the file, 30 kB each before compression: those of front and pick first, then
failures, then the rest."""

MOST_COMPARED = 8
"""Configs of which every pair can be compared in the file."""


def report_document(store: Store, study: StudyRecord, places: Places, view: StudyView) -> dict[str, Any]:
    """Everything that the file shows, JSON-able.

    Args:
        view: of the study, with trials in full.
    """
    certainty = certainty_part(view, rule=asked_rule(study.spec, None))
    compared = shown_numbers(view, [number for _, number, *_ in certainty["slo_steps"]])
    written = datetime.now(UTC).isoformat(timespec="minutes")
    return {
        "schema": 1,
        "study": view.name,
        "version": __version__,
        "written_at": written.replace("T", " ").replace("+00:00", " UTC"),
        "parts": {
            "front": front_part(view, facts_of(store, study, view, places), control=control_of(store, study)),
            "certainty": certainty,
            "evidence": evidence_of(view, places, compared),
            "learned": learned_of(store, study),
        },
        "trials": {str(number): _shown(store, study, view, number) for number in _numbers(view, compared)},
        "comparisons": _comparisons(study, view),
        "promotions": _promotions(store, study.name),
    }


def report_html(document: dict[str, Any], view: StudyView) -> str:
    """The file's text."""
    mark = " (simulated)" if view.simulated else ""
    pick = f"Pick: trial {view.pick.number}{mark}, {view.pick.reason}" if view.pick else "There is no pick."
    return report_file(document, title=f"{view.name}{mark} - autotune", summary=pick)


def _numbers(view: StudyView, compared: tuple[int, ...]) -> tuple[int, ...]:
    failed = [trial.number for trial in view.trials if trial.result is not None and not trial.measured]
    return tuple(dict.fromkeys([*compared, *failed, *(trial.number for trial in view.trials)]))[:MOST_TRIALS]


def _shown(store: Store, study: StudyRecord, view: StudyView, number: int) -> dict[str, Any]:
    trial = with_evidence(store, study.name, store.trial(study.name, number))
    attempts = store.attempts(study.name, number)
    document = show_document(
        view, trial, serve_line=serve_line_or_none(study, trial), log_path=log_path(trial), attempts=attempts
    )
    return {key: value for key, value in document.items() if key not in ("life", "argv", "log")}


def _comparisons(study: StudyRecord, view: StudyView) -> dict[str, Any]:
    """Every ordered pair of the configs that matter, by `A:B`."""
    identity = tuple((key, study.identity[key]) for key in COMPARED_IDENTITY if key in study.identity)
    chosen = [trial for trial in view.compared_trials if trial.measured]
    # Pick and baseline stand last there, and no comparison is asked for more often.
    sides = {trial.number: Side(view=view, trial=trial, identity=identity) for trial in chosen[-MOST_COMPARED:]}
    return {
        f"{a}:{b}": comparison_document(compare(one, other))
        for (a, one), (b, other) in permutations(sides.items(), 2)
        if one.launches and other.launches
    }


def _promotions(store: Store, study: str) -> list[dict[str, Any]]:
    """What was promoted from it, with the files as they were rendered and the gate's whole record."""
    from autotune.promote.history import current_of

    history = history_of(store)
    current = {entry.label for entry in current_of(history)}
    return [
        {
            "label": entry.label,
            "version": entry.version,
            "current": entry.label in current,
            **entry.promotion.as_document(),
        }
        for entry in history
        if entry.promotion.study == study
    ]
