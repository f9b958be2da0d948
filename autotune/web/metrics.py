"""What Prometheus may know of the tuner. Names end in their unit; simulated figures carry a label that says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from autotune import __version__
from autotune.budget import gpu_seconds
from autotune.records import Outcome, Trial
from autotune.report.studies import StudyRow
from autotune.review.listing import study_row
from autotune.search.objective import own_figures
from autotune.store.outlines import Tally
from autotune.store.repository import Store
from autotune.web.job import JobState
from autotune.web.service import Service

STATES = ("running", "finished", "stopped", "failed", "interrupted")
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

    def read(self, service: Service, store: Store) -> list[StudyFigures]:
        """Of the newest studies, oldest first."""
        studies = store.studies()[-MOST_STUDIES:]
        pulses, tallies = store.pulses(), store.tallies([study.name for study in studies])
        figures = []
        for study in studies:
            row = study_row(store, study, tallies.get(study.name, Tally()), service.settings.places)
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


async def get_metrics(service: Service, book: FigureBook, request: web.Request) -> web.Response:
    """The text that Prometheus reads, in the format that it asks for."""
    none: list[StudyFigures] = []
    figures = await service.ask(lambda store: book.read(service, store), empty=none)
    registry = CollectorRegistry()
    registry.register(_Told(_families(service, figures)))
    encode, kind = choose_encoder(request.headers.get("Accept", ""))
    body = encode(registry)
    return web.Response(body=body, headers={"Content-Type": kind, "Cache-Control": "no-store"})


class _Told(Collector):
    def __init__(self, families: Iterator[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _families(service: Service, figures: list[StudyFigures]) -> Iterator[Metric]:
    build = GaugeMetricFamily("autotune_build_info", "The version that runs.", labels=["version"])
    build.add_metric([__version__], 1)
    yield build
    states = GaugeMetricFamily("autotune_studies", "Studies by state.", labels=["state"])
    for state in STATES:
        states.add_metric([state], sum(one.row.state == state for one in figures))
    yield states
    yield from _study_families(figures)
    jobs = service.queue.jobs
    yield GaugeMetricFamily("autotune_queue_length", "Jobs that wait for the node.", value=len(jobs.waiting()))
    by_state = GaugeMetricFamily("autotune_jobs", "Jobs that are remembered, by state.", labels=["state"])
    for job_state in JobState:
        by_state.add_metric([str(job_state)], sum(job.state is job_state for job in jobs.jobs))
    yield by_state
    yield GaugeMetricFamily("autotune_event_readers", "Event streams that are open.", value=service.feed.readers)


def _study_families(figures: list[StudyFigures]) -> Iterator[Metric]:
    labels = ["study", "model", "simulated"]
    trials = GaugeMetricFamily("autotune_trials", "Trials that have ended, by outcome.", labels=[*labels, "outcome"])
    phase = GaugeMetricFamily("autotune_study_phase", "1 for what the running trial does.", labels=[*labels, "phase"])
    rate = GaugeMetricFamily(
        "autotune_best_output_tokens_per_second_per_gpu",
        "The highest output rate per GPU that a trial of the study measured.",
        labels=labels,
    )
    ttft = GaugeMetricFamily(
        "autotune_best_ttft_p95_seconds",
        "The lowest 95th percentile of the time to the first token that a trial of the study measured.",
        labels=labels,
    )
    gpu = CounterMetricFamily(
        "autotune_gpu_seconds",
        "Seconds times GPUs that a study has used, on its clock.",
        labels=labels,
    )
    target = GaugeMetricFamily("autotune_trials_wanted", "Trials that a study is to reach.", labels=labels)
    for one in figures:
        row = one.row
        values = [row.name, row.model, "true" if row.simulated else "false"]
        for outcome, count in one.outcomes.items():
            trials.add_metric([*values, outcome], count)
        if row.phase is not None:
            phase.add_metric([*values, row.phase], 1)
        if one.best_tok_s_per_gpu is not None:
            rate.add_metric(values, one.best_tok_s_per_gpu)
        if one.best_ttft_s is not None:
            ttft.add_metric(values, one.best_ttft_s)
        if row.wanted is not None:
            target.add_metric(values, row.wanted)
        gpu.add_metric(values, one.gpu_s)
    yield from (trials, phase, rate, ttft, gpu, target)
