"""What Prometheus may know of the tuner. Names end in their unit; simulated figures carry a label that says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from autotune import __version__
from autotune.review.listing import INTERRUPTED, VERIFYING
from autotune.store.study_record import StudyState
from autotune.web.job import JobState
from autotune.web.route import Call
from autotune.web.service import Service
from autotune.web.study_figures import StudyFigures

STATES = (*map(str, StudyState), INTERRUPTED, VERIFYING)
"""As the list of studies has them: `interrupted` is one that is stored as running and that nobody runs."""


async def get_metrics(service: Service, call: Call) -> web.StreamResponse:
    """The text that Prometheus reads, in the format that it asks for."""
    none: list[StudyFigures] = []
    figures = await service.ask(
        lambda store: service.figures.read(store, service.settings.places, service.now()), empty=none
    )
    registry = CollectorRegistry()
    registry.register(_Told(_families(service, figures)))
    encode, kind = choose_encoder(call.request.headers.get("Accept", ""))
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
