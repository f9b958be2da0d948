"""The executor on a Ray of the tests' own, whose GPUs are numbers: the seam's suite; lost workers, nodes, tuners."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from executor_contract import *  # noqa: F403 - the suite
from executor_contract import MODEL, WHOLE, Bench, Benched, Watcher

from autotune.executor.ray_cluster import Cluster
from autotune.executor.ray_executor import RayExecutor
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.recipe import AUTO_PARALLEL, ExecutorChoice, LoadChoice, Recipe
from autotune.records import FailureClass, Origin, Outcome, Phase, PickRule
from autotune.search.pareto import pick
from autotune.search.proposer import Proposer
from autotune.session import spec_of
from autotune.store.folder import StudyFolder
from autotune.store.projection import Projection
from autotune.store.repository import Store
from autotune.store.study_record import AttemptState
from autotune.study import StudyRun

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra [ray] is not installed")

NODE = {"num_cpus": 2, "num_gpus": 2, "object_store_memory": 80_000_000}
PACE = 0.012
"""A simulated start of 80 s takes a second."""
SHARED_PACE = 0.06
"""Five seconds, in which a busy machine starts four workers."""
HELD = 2.0
"""It takes minutes: what is to be ended before its end never reaches that, however slow the machine."""
START_S = 180.0
"""Nothing waits so long but where something is broken: a busy machine needs a while to start a dozen processes."""
GPU_SERVER = f"{sys.executable} {Path(__file__).parent / 'gpu_server.py'} serve"
DRIVER = Path(__file__).parents[2] / "benchmarks" / "chaos" / "driver"
"""Its GPUs are files."""


@dataclass
class Rays:
    """The cluster and how to reach it."""

    cluster: Any
    address: str
    nodes: list[Any]
    gpus: Path


@pytest.fixture(scope="module")
def rays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rays]:
    """A head without room and two nodes, which share one machine's two GPUs.

    Its processes measure no coverage, which would double what they cost; the GPUs are made up, whatever the machine
    lets be seen of its own.
    """
    gpus = tmp_path_factory.mktemp("gpus")
    for index in range(NODE["num_gpus"]):
        (gpus / f"nvidia{index}").touch()
    own = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback only
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "500",
        "RAY_prestart_worker_first_driver": "0",  # none but those that are asked for
        "PYTHONPATH": str(DRIVER),
        "AUTOTUNE_FAKE_GPUS": str(gpus),
    }
    hidden = ("COV", "CUDA_VISIBLE_DEVICES")
    covering = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(hidden)}
    os.environ |= own
    from ray.cluster_utils import Cluster as Started

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": NODE["object_store_memory"]}
    head |= {"include_log_monitor": False, "no_monitor": True}  # nobody reads workers' logs, no node is asked for
    started = Started(initialize_head=True, head_node_args=head)
    try:
        nodes = [started.add_node(wait=False, **NODE) for _ in range(2)]
        started.wait_for_nodes()
        yield Rays(cluster=started, address=started.address, nodes=nodes, gpus=gpus)
    finally:
        started.shutdown()
        for name in own:
            del os.environ[name]
        os.environ |= covering


def plan_for(folder: Path, **values: Any) -> StudyPlan:
    here = Surroundings(environ={}, home=folder, probe=None, shm_bytes=None, has_kfd=False, cache_dir=folder / "cache")
    defaults = {
        "name": "s",
        "model": MODEL,
        "workload": "tiny",
        "space": "scheduler",
        "node": "2xH100-80GB-NVLink",
        "executor": ExecutorChoice.RAY,
        "sampler": "random",
        "retry_pause_s": 0.0,
    }
    return make_plan(Recipe(**{**defaults, **values}), here)


class Paces:
    """How fast attempts go: the next one of a held trial as good as not at all."""

    def __init__(self) -> None:
        self.held: set[int] = set()

    def __call__(self, trial: int) -> float:
        if trial not in self.held:
            return PACE
        self.held.remove(trial)
        return HELD


@contextmanager
def ray_executor(
    rays: Rays, folder: Path, plan: StudyPlan, paces: Callable[[int], float] = lambda _: PACE
) -> Iterator[tuple[RayExecutor, list[str]]]:
    told: list[str] = []
    folder.mkdir(parents=True, exist_ok=True)
    with closing(RayExecutor(plan, Cluster.join(rays.address), folder, told.append, pace=paces)) as executor:
        yield executor, told


@pytest.fixture(scope="module")
def benched(rays: Rays, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benched]:
    """One executor for the suite: connecting and asking all nodes takes a second or two."""
    folder, paces = tmp_path_factory.mktemp("ray"), Paces()
    with ray_executor(rays, folder / "studies", plan_for(folder), paces) as (executor, _), asyncio.Runner() as runner:
        begun = [0]

        def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
            async def whole() -> None:
                bench = Bench(executor=executor, folder=folder / "studies", begun=begun[0], hold=paces.held.add)
                await executor.take()
                await scenario(bench)
                begun[0] = bench.begun

            runner.run(whole())

        yield run


def test_raw_files_come_from_a_node_that_does_not_share_the_folder(benched: Benched) -> None:
    async def scenario(bench: Bench) -> None:
        executor = bench.executor
        assert isinstance(executor, RayExecutor)
        shared = dict(executor.placing.nodes)
        executor.placing.nodes = {key: replace(one, reads=False) for key, one in shared.items()}
        try:
            assignment = bench.assignment()
            run = await executor.perform(assignment, Watcher())
        finally:
            executor.placing.nodes = shared
        names = {path.name for path in assignment.order.launch.directory.iterdir()}
        assert names == {f"level-{found.level.name}.jsonl.gz" for found in run.result.measurements}

    benched(scenario)


def workers(trial: int) -> list[psutil.Process]:
    """Ray's workers that perform a trial: they are named after their task."""
    title = f"autotune s trial {trial}"
    return [one for one in psutil.process_iter(["cmdline"]) if title in " ".join(one.info["cmdline"] or ())]


class Killer:
    """An observer that kills the worker of trial 1 with -9 while that launches, the longest of its phases here."""

    def __init__(self) -> None:
        self.killed: list[int] = []
        self.notes: list[str] = []

    def trial_started(self, trial: Any, *, counted: int, target: int, repeats_left: int) -> None: ...

    def phase(self, phase: Phase, detail: str, *, number: int) -> None:
        if number == 1 and phase is Phase.LAUNCHING and not self.killed:
            (worker,) = workers(1)
            self.killed.append(worker.pid)
            worker.kill()

    def trial_ended(self, trial: Any, trials: Any) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_trial_whose_worker_is_killed_is_done_elsewhere_and_nothing_is_lost(
    rays: Rays, tmp_path: Path, own_postgres_url: str
) -> None:
    plan = plan_for(tmp_path, trials=3, repeats=1, load=LoadChoice(concurrency=4, rate_rps=20.0, requests=16))
    killer, paces = Killer(), Paces()
    paces.held.add(1)
    with (
        Store.open(own_postgres_url) as store,
        Projection.open(store) as projection,
        ray_executor(rays, tmp_path / "s", plan, paces) as (executor, _),
    ):
        run = StudyRun(
            plan=plan,
            study=store.create_or_resume_study(spec_of(plan)),
            store=store,
            folder=StudyFolder(root=tmp_path, name="s"),
            executor=executor,
            proposer=Proposer(plan.space, plan.recipe.sampler, plan.recipe.seed, configs=plan.feasible),
            projection=projection,
            observer=killer,
        )
        assert executor.floor.most == 2
        asyncio.run(run.run())
        trials = store.trials("s")
        first, second = store.attempts("s", 1)
    assert len(killer.killed) == 1
    assert sum(trial.counted for trial in trials) == 3
    assert [trial.number for trial in trials if not trial.measured] == []
    assert first.state is AttemptState.FAULTED
    assert first.result is not None
    assert first.result.failure is not None
    assert first.result.failure.kind is FailureClass.NODE_LOST
    assert second.result == trials[1].result
    nodes = [node for trial, node in executor.performed if trial == 1]
    assert len(set(nodes)) == 2
    assert {trial.result.host for trial in trials if trial.result} == {os.uname().nodename}
    assert all(trial.alone for trial in trials)
    # The first trial's node has the baseline; while it ran alone the other was idle, and then both had trials.
    assert len({node for _, node in executor.performed}) == 2


class Listener:
    """An observer that hears what is noted."""

    def __init__(self) -> None:
        self.at_once: dict[int, int] = {}
        self.running: set[int] = set()

    def trial_started(self, trial: Any, *, counted: int, target: int, repeats_left: int) -> None: ...

    def phase(self, phase: Phase, detail: str, *, number: int) -> None:
        (self.running.discard if phase is Phase.ENDED else self.running.add)(number)
        self.at_once[number] = max(self.at_once.get(number, 0), len(self.running))

    def trial_ended(self, trial: Any, trials: Any) -> None: ...

    def note(self, text: str) -> None: ...


def test_trials_share_nodes_and_what_is_recommended_was_measured_alone(rays: Rays, tmp_path: Path) -> None:
    """Two nodes of two GPUs carry four trials of one GPU, two on each."""
    load = LoadChoice(concurrency=4, rate_rps=20.0, requests=16)
    plan = plan_for(tmp_path, trials=6, repeats=0, load=load, parallel=AUTO_PARALLEL)
    listener = Listener()
    with (
        Store.open(str(tmp_path / "autotune.db")) as store,
        Projection.open(store) as projection,
        ray_executor(rays, tmp_path / "s", plan, lambda _: SHARED_PACE) as (executor, _),
    ):
        run = StudyRun(
            plan=plan,
            study=store.create_or_resume_study(spec_of(plan)),
            store=store,
            folder=StudyFolder(root=tmp_path, name="s"),
            executor=executor,
            proposer=Proposer(plan.space, plan.recipe.sampler, plan.recipe.seed, configs=plan.feasible),
            projection=projection,
            observer=listener,
        )
        assert (executor.floor.most, executor.floor.shares_nodes) == (4, True)
        asyncio.run(run.run())
        trials = store.trials("s")
    assert sum(trial.counted for trial in trials) == 6
    assert all(trial.measured and trial.gpus == 1 for trial in trials)
    beside = [trial for trial in trials if not trial.alone]
    neighbours = {trial.result.neighbours for trial in beside if trial.result}
    assert 1 in neighbours <= {0, 1}  # on its node, of up to three at once; the last ones may have had none
    assert trials[0].alone
    assert [trial.origin for trial in trials].count(Origin.PROBE) == 1
    assert max(listener.at_once.values()) >= 3
    assert all(listener.at_once[trial.number] == 1 for trial in trials if trial.alone)
    chosen = pick(trials, rule=PickRule.THROUGHPUT, slo=None)
    assert chosen is not None
    assert trials[chosen.number].alone or trials[chosen.number].repeat_of is not None


def test_a_node_that_goes_is_left_for_another(rays: Rays, tmp_path: Path) -> None:
    plan, paces = plan_for(tmp_path), Paces()
    extra = rays.cluster.add_node(**NODE)
    with ray_executor(rays, tmp_path / "s", plan, paces) as (executor, _):

        async def scenario() -> None:
            bench = Bench(executor=executor, folder=tmp_path / "s")
            assignment = replace(bench.assignment(), host=os.uname().nodename)
            lost_on = executor.placing._lost  # so that it runs on the extra one
            lost_on[assignment.trial] = {node.node_id for node in rays.nodes}
            paces.held.add(assignment.trial)
            watcher = Watcher()
            lost = asyncio.ensure_future(executor.perform(assignment, watcher))
            await watcher.reached.wait()
            behind = bench.assignment()  # waits for the same node, and for no other
            lost_on[behind.trial] = lost_on[assignment.trial]
            waiting = asyncio.ensure_future(executor.perform(behind, Watcher()))
            await asyncio.sleep(1.0)
            await asyncio.to_thread(rays.cluster.remove_node, extra, allow_graceful=False)
            run = await lost
            assert run.result.outcome is Outcome.FAULTED
            assert run.result.failure is not None
            assert run.result.failure.kind is FailureClass.NODE_LOST
            assert watcher.phases[-1] is Phase.ENDED
            assert (await waiting).result.outcome is Outcome.MEASURED
            again = Watcher()
            second = await executor.perform(assignment, again)
            assert second.result.outcome is Outcome.MEASURED
            assert again.phases == WHOLE
            first, *_, then = [node for trial, node in executor.performed if trial == assignment.trial]
            assert first == extra.node_id
            assert then in {node.node_id for node in rays.nodes}

        asyncio.run(scenario())


# --- the whole program ------------------------------------------------------------------------------------------------


@dataclass
class Tuner:
    """`autotune study` on the cluster with real processes for servers, as an operator runs it."""

    folder: Path
    address: str

    def start(self) -> subprocess.Popen[bytes]:
        words = [
            *("study", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--workload", "tiny", "--space", "scheduler"),
            *("--engine", "process", "--vllm-command", GPU_SERVER, "--executor", "ray"),
            *("--ray-address", self.address, "--name", "s", "--trials", "3", "--repeats", "0", "--sampler", "random"),
            *("--load", "concurrency=4,rate=20,requests=64", "--", "--sim-start-s", "0.6", "--sim-stop-s", "0.2"),
        ]
        with (self.folder / "err").open("ab") as err:
            return subprocess.Popen(
                [sys.executable, "-m", "autotune", *words],
                cwd=self.folder,
                env=os.environ | {"HOME": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=err,
            )

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        database = self.folder / "studies" / "autotune.db"
        if not database.exists():
            return []
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            try:
                return connection.execute(query).fetchall()
            except sqlite3.OperationalError:
                return []

    def until_measuring(self, trial: int, attempt: int, tuner: subprocess.Popen[bytes]) -> str:
        """The marker of an attempt's server, which is measured now."""
        latest = (
            "SELECT json_extract(a.identity, '$.marker'), t.after FROM autotune_transitions t "
            "JOIN autotune_attempts a ON a.id = t.attempt_id JOIN autotune_trials r ON r.id = a.trial_id "
            f"WHERE a.state = 'open' AND r.number = {trial} AND a.number = {attempt} ORDER BY t.id DESC LIMIT 1"
        )
        deadline = time.monotonic() + START_S
        while True:
            assert tuner.poll() is None, (self.folder / "err").read_text()[-3000:]
            assert time.monotonic() < deadline, (self.folder / "err").read_text()[-3000:]
            for marker, phase in self.rows(latest):
                if phase == "measuring":
                    return str(marker)
            time.sleep(0.1)


def test_a_killed_tuner_leaves_nothing_and_goes_on_and_ctrl_c_ends_it_soon_or_now(
    rays: Rays, tmp_path: Path, nothing_left: Callable[..., bool]
) -> None:
    """On GPUs, which both nodes have: their leases keep the trials of one from those of the other."""
    tuner = Tuner(folder=tmp_path, address=rays.address)
    killed = tuner.start()
    marker = tuner.until_measuring(0, 1, killed)
    killed.kill()
    killed.wait(10)
    assert nothing_left(marker, within_s=START_S)

    ended = tuner.start()
    tuner.until_measuring(0, 2, ended)
    ended.send_signal(signal.SIGTERM)  # Ray has handlers of its own for it
    assert ended.wait(START_S) == 130
    outcomes = "SELECT r.number, r.outcome, count(a.id) FROM autotune_trials r JOIN autotune_attempts a"
    outcomes += " ON a.trial_id = r.id GROUP BY r.id"
    assert tuner.rows(outcomes) == [(0, "measured", 2)]  # what was measured when it was asked to end

    ended = tuner.start()
    marker = tuner.until_measuring(1, 1, ended)
    ended.send_signal(signal.SIGINT)
    time.sleep(0.5)
    ended.send_signal(signal.SIGINT)
    assert ended.wait(START_S) == 130
    assert nothing_left(marker, within_s=START_S)
    states = tuner.rows("SELECT DISTINCT state FROM autotune_attempts WHERE trial_id > 1")
    assert set(states) <= {("interrupted",), ("ended",)}  # one whose server was being stopped already keeps its result
    told = (tmp_path / "err").read_text()
    assert "Traceback" not in told
    assert "2xH100-80GB" in told
    assert not (rays.gpus / "collisions").exists()
    assert tuner.rows("SELECT DISTINCT json_extract(identity, '$.host') FROM autotune_attempts WHERE identity NOT NULL")
