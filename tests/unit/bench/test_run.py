"""A whole run: interrupted anywhere it goes on where it was, with the figures of one that was not."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.bench.contenders import SamplerName
from autotune.bench.jobs import Asked, Ran, jobs_of
from autotune.bench.kept import KeptReplays
from autotune.bench.run import run, study_of
from autotune.bench.summary import Study

SURFACE = Path(__file__).parents[2] / "data" / "surfaces" / "three-configs.jsonl"


class Watch:
    """What a run told; `then` happens once, after its first study."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.counts: list[int] = []
        self.before: tuple[int, int] | None = None
        self.reasons: list[str] = []
        self._then = then

    def taken_over(self, count: int, total: int) -> None:
        self.before = count, total

    def finished(self, done: int, total: int, study: Study) -> None:
        del total, study
        self.counts.append(done)
        if len(self.counts) == 1:
            self._then()

    def not_kept(self, why: str) -> None:
        self.reasons.append(why)


@pytest.fixture
def surface(tmp_path: Path) -> Path:
    return shutil.copy(SURFACE, tmp_path / "surface.jsonl")


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[KeptReplays]:
    found = KeptReplays(tmp_path / "replays.jsonl")
    yield found
    found.close()


def asked(surface: Path, seeds: int = 12) -> Asked:
    return Asked(
        nodes=(),
        files=(surface,),
        samplers=(SamplerName.RANDOM,),
        seeds=1,
        seeds_recorded=seeds,
        cache_dir=None,
        workers=1,
    )


def replayed(what: Asked) -> tuple[Study, ...]:
    """The same studies one after the other in this process."""
    return tuple(study_of(job, None) for job in jobs_of(what))


def test_ctrl_c_gives_what_is_finished_and_the_next_run_goes_on(surface: Path, kept: KeptReplays) -> None:
    what = asked(surface)
    first = run(what, Watch(lambda: os.kill(os.getpid(), signal.SIGINT)), kept)

    assert first.stopped == "stopped by the operator"
    assert not multiprocessing.active_children()
    assert 1 <= len(first.studies) < first.asked == 12
    assert kept.path.read_bytes().count(b"\n") == len(first.studies)

    watch = Watch()
    second = run(what, watch, kept)
    assert watch.before == (len(first.studies), 12)
    assert watch.counts == list(range(len(first.studies) + 1, 13))
    assert (second.stopped, second.taken_over) == (None, len(first.studies))
    assert second.studies == replayed(what)


def test_a_killed_worker_costs_nothing_that_was_finished(surface: Path, kept: KeptReplays) -> None:
    def kill() -> None:
        for child in multiprocessing.active_children():
            child.kill()

    what = asked(surface, seeds=1000)
    first = run(what, Watch(kill), kept)

    assert first.stopped == "a worker process was killed"
    assert 1 <= len(first.studies) < 1000
    assert kept.path.read_bytes().count(b"\n") == len(first.studies)


def test_a_whole_run_is_taken_over_whole_and_only_as_far_as_it_goes(surface: Path, kept: KeptReplays) -> None:
    small = run(asked(surface, seeds=2), Watch(), kept)
    again = run(asked(surface, seeds=2), Watch(), kept)
    more = run(asked(surface, seeds=3), Watch(), kept)

    assert again == Ran(studies=small.studies, asked=2, taken_over=2)
    assert (more.asked, more.taken_over, more.studies) == (3, 2, replayed(asked(surface, seeds=3)))


def test_nothing_is_taken_from_another_recording(surface: Path, kept: KeptReplays) -> None:
    run(asked(surface, seeds=2), Watch(), kept)
    surface.write_text(surface.read_text(encoding="utf-8").replace("200.0", "199.0"), encoding="utf-8")

    assert run(asked(surface, seeds=2), Watch(), kept).taken_over == 0


def test_nothing_is_kept_of_what_changes_while_it_runs(surface: Path, kept: KeptReplays) -> None:
    def change() -> None:
        with surface.open("a", encoding="utf-8") as stream:
            stream.write("\n")

    watch = Watch(change)
    ran = run(asked(surface), watch, kept)

    assert len(ran.studies) == 12
    assert watch.reasons == ["the program's own files or a recorded study changed while it ran"]
    assert kept.path.read_bytes().count(b"\n") == 1


def test_nodes_and_recordings_have_their_own_numbers_of_studies(surface: Path) -> None:
    what = replace(asked(surface), nodes=("node",), samplers=(SamplerName.GP, SamplerName.RANDOM), seeds=7)

    found = [(job.surface, job.sampler.value) for job in jobs_of(what)]
    assert {one: found.count(one) for one in found} == {
        ("node", "gp"): 2,
        ("node", "random"): 7,
        (str(surface), "gp"): 2,
        (str(surface), "random"): 12,
    }


def test_a_surface_that_is_named_twice_is_one(surface: Path) -> None:
    what = asked(surface, seeds=2)
    twice = replace(what, files=(surface, surface))

    assert jobs_of(twice) == jobs_of(what)
