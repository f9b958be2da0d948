"""A few figures of each study, for those who watch many: worked out once for each of its revisions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from autotune.budget import gpu_seconds
from autotune.records import Outcome, Trial
from autotune.report.studies import StudyRow
from autotune.review.listing import study_row
from autotune.search.objective import own_figures
from autotune.store.listing import Tally
from autotune.store.places import Places
from autotune.store.repository import Store

MOST_STUDIES = 200
"""The newest; a series for each study of years would be more than anybody looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFigures:
    """What is told of one study; None where nothing was measured."""

    row: StudyRow
    outcomes: dict[str, int]
    best_tok_s_per_gpu: float | None
    best_ttft_s: float | None
    gpu_s: float


class FigureBook:
    """Figures by a study's revision, so that a scrape reads no trial that it has read before."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, dict[str, int], float | None, float | None, float]] = {}

    def read(self, store: Store, places: Places, now: datetime) -> list[StudyFigures]:
        """Of the newest studies, oldest first, as they stand at `now` (aware)."""
        studies = store.studies()[-MOST_STUDIES:]
        pulses, tallies = store.pulses(), store.tallies([study.name for study in studies])
        figures = []
        for study in studies:
            row = study_row(study, tallies.get(study.name, Tally()), places, store.attempts, now=now)
            revision = pulses[study.name].revision if study.name in pulses else ""
            known = self._found.get(study.name)
            if known is None or known[0] != revision:
                trials = store.outlines(study.name)
                gpus = {trial.number: trial.gpus for trial in trials}
                attempts = store.study_attempts(study.name)
                spent = gpu_seconds((gpus.get(attempt.trial, 0), attempt) for attempt in attempts)
                known = self._found[study.name] = (revision, *_best(trials), spent)
            _, outcomes, rate, ttft, gpu_s = known
            figures.append(
                StudyFigures(row=row, outcomes=outcomes, best_tok_s_per_gpu=rate, best_ttft_s=ttft, gpu_s=gpu_s)
            )
        return figures


def _best(trials: Iterable[Trial]) -> tuple[dict[str, int], float | None, float | None]:
    outcomes = {str(outcome): 0 for outcome in Outcome}
    rates: list[float] = []
    ttfts: list[float] = []
    for trial in trials:
        if trial.result is None:
            continue
        outcomes[str(trial.result.outcome)] += 1
        if trial.measured:
            figures = own_figures(trial)
            rates += [figures.output_tok_s_per_gpu.value] if figures.output_tok_s_per_gpu else []
            ttfts += [figures.ttft_p95_s.value] if figures.ttft_p95_s else []
    return outcomes, max(rates, default=None), min(ttfts, default=None)
