"""The whole benchmark: surfaces x samplers x seeds, in a few worker processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from autotune.bench.beliefs import prior_of, prior_of_closed
from autotune.bench.contenders import Known, SamplerName, make_contender
from autotune.bench.physics import Load
from autotune.bench.recorded import RecordedStudy, read_recorded, recorded_surface
from autotune.bench.replay import MOST_LAUNCHES, replay
from autotune.bench.situations import NODES, Situation, plan_of, situation_of
from autotune.bench.summary import Study
from autotune.bench.surfaces import Surface
from autotune.bench.truth import simulated_surface
from autotune.records import Config
from autotune.search.prior.expectation import Prior
from autotune.search.space import SearchSpace

SEEDS = 7
"""Per surface and sampler: 56 studies pooled over eight nodes."""

SEEDS_SLOW = 2
SLOW = frozenset({SamplerName.GP})
QUICK_NODES = ("1xH100-8B-chat", "4xA100-70B-chat", "4xL40S-70B-PCIe")
QUICK_SEEDS = 3
WORKERS = 2
_AHEAD = 4
"""Studies handed out per worker: enough that none waits, few enough that Ctrl-C is heard soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One study to replay.

    Attributes:
        surface: the name of a node of `situations.NODES`, or the path of a recorded study.
    """

    surface: str
    sampler: SamplerName
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to run.

    Attributes:
        nodes: names out of `situations.NODES`.
        files: recorded studies.
        cache_dir: where truths are kept; None for nowhere.
    """

    nodes: tuple[str, ...]
    files: tuple[Path, ...]
    samplers: tuple[SamplerName, ...]
    seeds: int
    cache_dir: Path | None
    workers: int = WORKERS


def jobs_of(asked: Asked) -> tuple[Job, ...]:
    """All studies, surface by surface, the slow samplers of each first."""
    surfaces = (*asked.nodes, *map(str, asked.files))
    return tuple(
        Job(surface=surface, sampler=sampler, seed=seed)
        for surface in surfaces
        for sampler in asked.samplers
        for seed in range(min(asked.seeds, SEEDS_SLOW) if sampler in SLOW else asked.seeds)
    )


def run(asked: Asked, progress: Callable[[int, int, Study], None]) -> tuple[Study, ...]:
    """Replay all of it; results in the order of `jobs_of`, whatever finished first.

    Args:
        progress: told after each study: how many are done, of how many, and that study.

    Raises:
        InvalidFile: a recorded study that cannot be read.
    """
    jobs = jobs_of(asked)
    for path in asked.files:  # a bad file is told before any work is done
        study = read_recorded(path)
        recorded_prior(study, recorded_surface(study).space)
    done: dict[Job, Study] = {}
    waiting = iter(jobs)
    # Spawned, not forked: the parent may hold threads and locks of its libraries.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.workers, mp_context=context, initializer=_one_thread) as pool:
        running: dict[Future[Study], Job] = {}
        try:
            while len(done) < len(jobs):
                while len(running) < _AHEAD * asked.workers and (job := next(waiting, None)) is not None:
                    running[pool.submit(study_of, job, asked.cache_dir)] = job
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    job = running.pop(future)
                    done[job] = future.result()
                    progress(len(done), len(jobs), done[job])
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return tuple(done[job] for job in jobs)


def study_of(job: Job, cache_dir: Path | None) -> Study:
    """Replay one study in this process."""
    surface, known = _subject(job.surface, cache_dir)
    contender = make_contender(job.sampler, known, job.seed)
    return Study(
        surface=surface.name,
        kind=surface.kind,
        sampler=str(job.sampler),
        seed=job.seed,
        replay=replay(surface, contender, job.seed),
    )


@lru_cache(maxsize=2)
def _subject(name: str, cache_dir: Path | None) -> tuple[Surface, Known]:
    """A surface, and what a study of it knows: two things that meet in `replay` only."""
    spec = next((one for one in NODES if one.name == name), None)
    if spec is None:
        study = read_recorded(Path(name))
        surface = recorded_surface(study)
        return surface, _recorded_known(study, surface.space, surface.configs, surface.configs[surface.baseline])
    situation = situation_of(spec)
    surface = simulated_surface(spec, situation, cache_dir)
    return surface, _known(situation, surface.load)


def _known(situation: Situation, load: Load | None) -> Known:
    return Known(
        space=situation.space,
        configs=situation.configs,
        baseline=situation.baseline,
        recipes=situation.recipes,
        budget=MOST_LAUNCHES,
        prior=None if load is None else prior_of(situation.plan, situation.space, load),
    )


def _recorded_known(study: RecordedStudy, space: SearchSpace, configs: tuple[Config, ...], baseline: Config) -> Known:
    """From the recording's header and the configs that may be launched; none of its figures."""
    return Known(
        space=space,
        configs=configs,
        baseline=baseline,
        recipes=(),
        budget=MOST_LAUNCHES,
        prior=recorded_prior(study, space),
    )


def recorded_prior(study: RecordedStudy, space: SearchSpace) -> Prior | None:
    """The prior of the study that a recording's header describes; None where it lacks one of node, model, workload and
    concurrency.

    Raises:
        AutotuneError: a name that `autotune plan` does not know.
    """
    if study.node is None or study.model is None or study.workload is None or study.concurrency_per_gpu is None:
        return None
    plan = plan_of(study.node, study.model, study.workload)
    if study.rate_rps_per_gpu is None:
        return prior_of_closed(plan, space, study.concurrency_per_gpu)
    return prior_of(plan, space, Load(concurrency=study.concurrency_per_gpu, rate_rps=study.rate_rps_per_gpu))


def _one_thread() -> None:
    """Before numpy is used for anything large: workers are as many as cores already."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def slow_first(samplers: Sequence[SamplerName]) -> tuple[SamplerName, ...]:
    """The order in which they run: the slowest study must not be the last one."""
    return tuple(sorted(samplers, key=lambda one: one not in SLOW))
