"""The whole benchmark: surfaces x samplers x seeds, in a few worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from autotune.bench.beliefs import prior_of, prior_of_closed
from autotune.bench.contenders import Known, make_contender
from autotune.bench.identity import code_hash, recorded_hash, replay_key
from autotune.bench.jobs import Asked, Job, Ran, jobs_of
from autotune.bench.kept import KeptReplays
from autotune.bench.physics import Load
from autotune.bench.recorded import RecordedStudy, read_recorded, recorded_surface
from autotune.bench.replay import MOST_LAUNCHES, replay
from autotune.bench.situations import NODES, Situation, plan_of, situation_of
from autotune.bench.summary import Study
from autotune.bench.surfaces import Surface
from autotune.bench.truth import simulated_surface
from autotune.bench.workers import Workers
from autotune.errors import StorageError
from autotune.records import Config
from autotune.search.prior.expectation import Prior
from autotune.search.space import SearchSpace

_AHEAD = 4
"""Studies handed out per worker, so that none waits."""


class Progress(Protocol):
    """Told by `run` how far it is, in its own process; each call returns at once and raises nothing."""

    def taken_over(self, count: int, total: int) -> None:
        """So many of the `total` studies were finished before; told once, before any other."""
        ...

    def finished(self, done: int, total: int, study: Study) -> None:
        """One more was replayed; `done` counts those taken over as well."""
        ...

    def not_kept(self, why: str) -> None:
        """What is finished from here on is not kept; told at most once."""
        ...


def run(asked: Asked, progress: Progress, kept: KeptReplays | None = None) -> Ran:
    """Replay all of it, but for what was finished before. Ctrl-C ends it; what is finished by then is returned.

    Args:
        kept: where finished replays are taken from and added to; None to keep none.

    Raises:
        InvalidFile: a recorded study that cannot be read.
        StorageError: `kept` cannot be read. Where it cannot be written, `progress` is told and the run goes on.
    """
    jobs = jobs_of(asked)
    for path in asked.files:  # a bad file is told before any work is done
        read_recorded(path)
    keeping = _Keeping(asked, jobs, progress, kept)
    done = keeping.finished_before()
    taken_over = len(done)
    progress.taken_over(taken_over, len(jobs))
    waiting = iter([job for job in jobs if job not in done])
    running: dict[Future[Study], Job] = {}
    stopped: str | None = None

    def ended(job: Job, study: Study) -> None:
        keeping.add(job, study)  # first, so that what Ctrl-C meets here is kept once more below
        done[job] = study
        progress.finished(len(done), len(jobs), study)

    with Workers(asked.workers) as pool:
        try:
            while len(done) < len(jobs):
                while len(running) < _AHEAD * asked.workers and (job := next(waiting, None)) is not None:
                    running[pool.submit(study_of, job, asked.cache_dir)] = job
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    ended(running[future], future.result())
                    del running[future]
        except KeyboardInterrupt:
            stopped = "stopped by the operator"
        except BrokenProcessPool:
            stopped = "a worker process was killed"
        if stopped is not None:
            for future, job in running.items():
                if future.done() and future.exception() is None and job not in done:
                    ended(job, future.result())
            pool.cut_short()
    studies = tuple(done[job] for job in jobs if job in done)
    return Ran(studies=studies, asked=len(jobs), taken_over=taken_over, stopped=stopped)


class _Keeping:
    """Which kept replay belongs to which job. Nothing is kept once what a replay follows from has changed: a worker may
    have read some of it before and some after."""

    def __init__(self, asked: Asked, jobs: Sequence[Job], progress: Progress, kept: KeptReplays | None) -> None:
        self._files, self._progress, self._kept = asked.files, progress, kept
        self._before = self._contents()
        recorded = {str(path): _recorded_identity(path) for path in asked.files}
        code = code_hash()
        self._keys = {
            job: replay_key(code, recorded.get(job.surface, job.surface), job.sampler, job.seed) for job in jobs
        }

    def finished_before(self) -> dict[Job, Study]:
        found = {} if self._kept is None else self._kept.read(self._keys.values())
        return {job: found[key] for job, key in self._keys.items() if key in found and _is_of(found[key], job)}

    def add(self, job: Job, study: Study) -> None:
        if self._kept is None:
            return
        try:
            if self._contents() == self._before:
                self._kept.add(self._keys[job], study)
                return
            why = "the program's own files or a recorded study changed while it ran"
        except (StorageError, OSError) as error:
            why = error.message if isinstance(error, StorageError) else str(error)
        self._kept = None
        self._progress.not_kept(why)

    def _contents(self) -> tuple[object, ...]:
        return code_hash(), *(path.read_bytes() for path in self._files)


def _is_of(study: Study, job: Job) -> bool:
    return study.sampler == str(job.sampler) and study.seed == job.seed


def _recorded_identity(path: Path) -> str:
    study = read_recorded(path)
    surface = recorded_surface(study)
    return recorded_hash(path.read_bytes(), surface.configs, recorded_prior(study, surface.space))


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
