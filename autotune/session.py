"""One tuner process working on one study: open the store, keep others out, reap what a dead tuner left, run, close."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

import psutil

from autotune.budget import Ending
from autotune.endings import Endings
from autotune.engine.base import ServerIdentity
from autotune.engine.command import shown_argv
from autotune.engine.reaping import ReapReport
from autotune.errors import AutotuneError, Interrupted, StorageError, StudyFatal
from autotune.executor.base import Executor
from autotune.executor.building import fetch_all_weights, local_executor
from autotune.executor.local import reap_here
from autotune.life import Event
from autotune.load.loops import new_loop
from autotune.node.probe import GpuProbe
from autotune.planning import StudyPlan
from autotune.planning.calibration import NodeCalibration
from autotune.planning.stored import kept_of
from autotune.recipe import ExecutorChoice
from autotune.records import ClockKind
from autotune.search.asked import asked_limits, asked_rule
from autotune.search.proposer import Proposer
from autotune.store.codec import encode
from autotune.store.folder import LockHolder, StudyFolder
from autotune.store.places import Places
from autotune.store.projection import Projection
from autotune.store.repository import Store
from autotune.store.study_record import StudyRecord, StudySpec, StudyState
from autotune.study import StudyRun
from autotune.study_attempts import StudyObserver
from autotune.trial_life import TrialLife


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """How many counted trials the study should reach; `more` counts on top of those that it has."""

    trials: int | None = None
    more: bool = False


def run_study(
    plan: StudyPlan, places: Places, target: Target, observer: StudyObserver, *, probe: GpuProbe | None
) -> Ending:
    """Create or resume the study and run it in this process until its target or another end; which of them.

    Raises:
        StudyMismatch: the study of this name asked a different question.
        StudyBusy: another tuner runs it.
        NodeBusy: somebody else uses its GPUs, for longer than it waits.
        StudyFatal, StorageError, VllmCommandError: it cannot go on; everything so far is kept.
        Interrupted: SIGINT, SIGTERM or SIGHUP; what was being measured is measured, or after a second signal, and where
            nothing was, the running server is stopped and the attempt stored as interrupted.
    """
    folder = places.folder(plan.recipe.name)
    me = LockHolder(pid=os.getpid(), started=psutil.Process().create_time())
    with _opened(places) as store:
        study = store.create_or_resume_study(spec_of(plan))
        with folder.locked(me), Projection.open(store) as projection:
            study = _aim(store, study, target)
            executor = _executor(plan, store, folder, probe, observer)
            floor = executor.floor
            if (
                plan.recipe.executor is ExecutorChoice.LOCAL
                and floor.most == 1
                and plan.recipe.parallel != 1
                and plan.node.gpu_count > 1
            ):
                observer.note(
                    "one trial at a time: too few cores, or a server command without {gpus} (docs/parallel.md)"
                )
            if floor.most > 1 and floor.shares_nodes:
                observer.note(f"up to {floor.most} trials at once; baseline and finalists are measured alone")
            run = StudyRun(
                plan=plan,
                study=study,
                store=store,
                folder=folder,
                executor=executor,
                proposer=Proposer(
                    plan.space,
                    plan.recipe.sampler,
                    plan.recipe.seed,
                    configs=plan.feasible,
                    limits=asked_limits(study.spec, plan.recipe.slo),
                    gpus_of=plan.gpus_of if floor.most > 1 or plan.recipe.max_gpu_s is not None else None,
                ),
                projection=projection,
                observer=observer,
                calibration=NodeCalibration.of(plan, platform.node()),
                endings=Endings(observer.note),
            )
            store.set_study_state(study.name, StudyState.RUNNING)
            with closing(executor):
                _execute(run, store)
            return run.ending


def _executor(
    plan: StudyPlan, store: Store, folder: StudyFolder, probe: GpuProbe | None, observer: StudyObserver
) -> Executor:
    """What performs the study's trials, when what a dead tuner left is stopped and weights are where they have to be.

    Raises:
        ClusterUnusable: Ray's nodes are not there, or differ.
        WeightsMissing, Interrupted: see `fetch_all_weights`.
        StorageError: see `reap_left_over`.
    """
    name = plan.recipe.name
    if plan.recipe.executor is ExecutorChoice.LOCAL:
        reap_left_over(store, name, observer, reap_here)
        fetch_all_weights(plan, observer.note)
        return local_executor(plan, probe, observer.note)
    from autotune.executor.ray_cluster import Cluster
    from autotune.executor.ray_executor import RayExecutor

    executor = RayExecutor(plan, Cluster.join(plan.recipe.ray_address), folder.path, observer.note)
    hosts = ", ".join(sorted(executor.hosts))
    sharing = "sharing its nodes" if executor.floor.shares_nodes else "each with a node to itself"
    observer.note(f"up to {executor.floor.most} trials at once on the Ray cluster, {sharing}: {hosts}")
    reap_left_over(store, name, observer, executor.reap)
    return executor


def _execute(run: StudyRun, store: Store) -> None:
    name = run.study.name
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_until_signalled(run))
    except asyncio.CancelledError:
        _note_state(store, name, StudyState.STOPPED)
        raise Interrupted(
            f"study {name!r} was stopped; everything measured is stored",
            hint="The same command goes on where it stopped.",
        ) from None
    except StudyFatal:
        _note_state(store, name, StudyState.FAILED)
        raise
    except AutotuneError:
        _note_state(store, name, StudyState.STOPPED)
        raise


def _note_state(store: Store, study: str, state: StudyState) -> None:
    """Where the store is what failed, the error that ended the study is the one to show."""
    with suppress(StorageError):
        store.set_study_state(study, state)


async def _until_signalled(run: StudyRun) -> None:
    """Signals may cancel the study's task: its `finally` blocks stop the server before anything else happens."""
    with run.endings.listening():
        await run.run()


def spec_of(plan: StudyPlan) -> StudySpec:
    """The plan as the question that the store keeps."""
    recipe = plan.recipe
    return StudySpec(
        name=recipe.name,
        seed=recipe.seed,
        engine=plan.engine,
        simulated=plan.simulated,
        clock=ClockKind.VIRTUAL if plan.simulated else ClockKind.WALL,
        target_trials=recipe.trials,
        identity=plan.identity,
        choices=tuple((parameter.name, parameter.choices) for parameter in plan.space.parameters),
        spec={
            "node": encode(plan.node),
            "shapes": {name: encode(shape) for name, shape in plan.shapes},
            "needed_len": plan.workload.max_model_len_needed,
            "reachable_hits": plan.reachable_hits,
            "workload": plan.workload.name,
            "command": list(shown_argv(plan.command.words)) if plan.command else ["vllm", "serve"],
            "extra_args": list(recipe.extra_args),
            "slo": str(plan.slo) if plan.slo else None,
            "objective": str(recipe.objective),
            "pick_rule": asked_rule({}, plan.pick_rule).value,
            "sampler": recipe.sampler,
            "baseline_changes": list(plan.baseline_changes),
            **kept_of(plan),
        },
    )


def _aim(store: Store, study: StudyRecord, target: Target) -> StudyRecord:
    if target.trials is None:
        return study
    done = sum(trial.counted for trial in store.trials(study.name))
    store.set_target(study.name, done + target.trials if target.more else target.trials)
    return store.study(study.name)


def reap_left_over(
    store: Store, study: str, observer: StudyObserver, reap: Callable[[ServerIdentity], ReapReport | None]
) -> None:
    """Stop what attempts of a killed tuner left running, and store those attempts as interrupted.

    What cannot be looked at now, on a machine that is away, is left to the next holder of its GPUs' leases there.

    Raises:
        StorageError: something could not be stopped; launching beside it would measure nonsense.
    """
    for attempt in store.unfinished_attempts(study):
        if attempt.identity is not None:
            report = reap(attempt.identity)
            at = f" on {attempt.identity.host}" if attempt.identity.host else ""
            if report is None:
                observer.note(f"what trial {attempt.trial} of an ended tuner may have left{at} cannot be looked at now")
            elif report.found:
                pids = ", ".join(str(found.pid) for found in report.found)
                observer.note(f"stopped what trial {attempt.trial} of an ended tuner left running{at} (pid {pids})")
            if report is not None and report.remaining:
                pids = ", ".join(map(str, report.remaining))
                raise StorageError(
                    f"process {pids}{at}, left by trial {attempt.trial} of an ended tuner, cannot be stopped",
                    hint="End it by hand (it may be stuck in the driver), then run the same command again.",
                )
        TrialLife(store, study, attempt.trial).cut_off(Event.LOST)


@contextmanager
def _opened(places: Places) -> Iterator[Store]:
    try:
        places.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{places.root}: {error.strerror}",
            hint="Choose a writable place with --studies-dir (or AUTOTUNE_STUDIES_DIR).",
        ) from None
    with Store.open(places.database, busy_timeout_s=places.busy_timeout_s) as store:
        yield store
