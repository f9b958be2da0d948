"""One tuner process working on one study: open the store, keep others out, reap what a dead tuner left, run, close."""

from __future__ import annotations

import asyncio
import math
import os
import platform
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.budget import Ending
from autotune.endings import Endings
from autotune.engine.base import Engine
from autotune.engine.command import CommandKind, shown_argv
from autotune.engine.compile_cache import CompileCaches
from autotune.engine.gpu_memory import GpuGuard
from autotune.engine.holding import NodeHold, Patience
from autotune.engine.ports import Ports
from autotune.engine.process import ProcessEngine, ProcessSettings
from autotune.engine.process_server import LoadSettings
from autotune.engine.reaping import reap
from autotune.engine.simulated import SimulatedEngine
from autotune.errors import AutotuneError, Interrupted, StorageError, StudyFatal
from autotune.life import Event
from autotune.load.loops import new_loop
from autotune.load.tokenizing import find_tokenizer
from autotune.node.leases import NodeLeases, lease_folder, this_process
from autotune.node.machine import numa_cores, own_cores
from autotune.node.probe import GpuProbe
from autotune.node.weights_download import fetch_weights
from autotune.planning import StudyPlan
from autotune.planning.calibration import NodeCalibration
from autotune.planning.stored import kept_of
from autotune.planning.weights import weights_wanted
from autotune.records import ClockKind, EngineKind
from autotune.scheduling.seats import CoreMap, Seats, bind_this_process
from autotune.search.asked import asked_limits, asked_rule
from autotune.search.proposer import Proposer
from autotune.store.codec import encode
from autotune.store.folder import LockHolder
from autotune.store.places import Places
from autotune.store.projection import Projection
from autotune.store.repository import Store
from autotune.store.study_record import StudyRecord, StudySpec, StudyState
from autotune.study import StudyObserver, StudyRun
from autotune.study_parallel import Floor, trials_at_once
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
            reap_left_over(store, study.name, observer)
            fetch_all_weights(plan, observer)
            hold, guard = hold_of(plan, probe, observer.note)
            engine, clock, sleep = make_engine(plan, guard, hold)
            floor = floor_of(plan, engine, probe)
            if floor.most == 1 and plan.recipe.parallel != 1 and plan.node.gpu_count > 1:
                observer.note(
                    "one trial at a time: too few cores, or a server command without {gpus} (docs/parallel.md)"
                )
            if floor.most > 1:
                observer.note(f"up to {floor.most} trials at once; baseline and finalists are measured alone")
            run = StudyRun(
                plan=plan,
                study=study,
                store=store,
                folder=folder,
                engine=engine,
                proposer=Proposer(
                    plan.space,
                    plan.recipe.sampler,
                    plan.recipe.seed,
                    configs=plan.feasible,
                    limits=asked_limits(study.spec, plan.recipe.slo),
                ),
                projection=projection,
                observer=observer,
                clock=clock,
                sleep=sleep,
                calibration=NodeCalibration.of(plan, platform.node()),
                hold=hold,
                endings=Endings(observer.note),
                floor=floor,
            )
            store.set_study_state(study.name, StudyState.RUNNING)
            with closing(hold):
                _execute(run, store)
            return run.ending


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


def reap_left_over(store: Store, study: str, observer: StudyObserver) -> None:
    """Stop what attempts of a killed tuner left running, and store those attempts as interrupted.

    Raises:
        StorageError: something could not be stopped; launching beside it would measure nonsense.
    """
    for attempt in store.unfinished_attempts(study):
        if attempt.identity is not None:
            report = reap(attempt.identity)
            if report.found:
                pids = ", ".join(str(found.pid) for found in report.found)
                observer.note(f"stopped what trial {attempt.trial} of an ended tuner left running (pid {pids})")
            if report.remaining:
                pids = ", ".join(map(str, report.remaining))
                raise StorageError(
                    f"process {pids}, left by trial {attempt.trial} of an ended tuner, cannot be stopped",
                    hint="End it by hand (it may be stuck in the driver), then run the same command again.",
                )
        TrialLife(store, study, attempt.trial).cut_off(Event.LOST)


def fetch_all_weights(plan: StudyPlan, observer: StudyObserver) -> None:
    """Before the first launch, whose start deadline is no time to download in.

    Raises:
        WeightsMissing: the hub does not give them, or there is no room; the study is kept as it is.
        Interrupted: Ctrl-C; what arrived is kept.
    """
    try:
        for order in weights_wanted(plan, os.environ, Path.home()):
            fetch_weights(order, os.environ, observer.note)
    except KeyboardInterrupt:
        raise Interrupted(
            "the download of the weights was stopped; what arrived is kept", hint="The same command goes on with it."
        ) from None


def hold_of(plan: StudyPlan, probe: GpuProbe | None, tell: Callable[[str], None]) -> tuple[NodeHold, GpuGuard]:
    """The study's hold on its GPUs, and who watches their memory; both do nothing for a study without real GPUs."""
    real = () if plan.engine is EngineKind.SIMULATED else plan.node.gpus
    guard = GpuGuard(probe if real else None, on_baseline=lambda index, used_bytes: hold.seen_free(index, used_bytes))
    limit_s = min(plan.recipe.gpu_busy_s, plan.recipe.max_time_s or math.inf)
    hold = NodeHold(real, node_leases(plan), guard, tell=tell, patience=Patience(limit_s=limit_s))
    return hold, guard


def floor_of(plan: StudyPlan, engine: Engine, probe: GpuProbe | None) -> Floor:
    """How the study's trials share the node."""
    if isinstance(engine, SimulatedEngine):
        return Floor(seats=Seats(plan.node), most=trials_at_once(plan, ()), turns=engine.time)
    cores = own_cores()
    most = trials_at_once(plan, cores)
    if most == 1:
        return Floor(seats=Seats(plan.node))
    # Of a machine whose other GPUs another study may use, this study's trials get these GPUs' share.
    count = len(probe.list_gpus()) if probe is not None else plan.node.gpu_count
    where = CoreMap(allowed=cores, of_numa=numa_cores(), gpus=max(count, plan.node.gpu_count))
    return Floor(seats=Seats(plan.node, where, node_leases(plan), bind_client=bind_this_process(cores)), most=most)


def node_leases(plan: StudyPlan) -> NodeLeases:
    """What this tuner leases on this node for the study."""
    return NodeLeases(lease_folder(os.environ), this_process(plan.recipe.name))


def make_engine(
    plan: StudyPlan, guard: GpuGuard, hold: NodeHold
) -> tuple[Engine, Callable[[], float], Callable[[float], Awaitable[None]]]:
    """The plan's engine, its clock, and how to wait on that clock."""
    if plan.engine is EngineKind.SIMULATED:
        assert plan.shape is not None  # planning refuses a simulation without a shape
        simulated = SimulatedEngine(
            node=plan.node,
            shape=plan.shape,
            shapes=dict(plan.checkpoints),
            seed=plan.recipe.seed,
            fixed=plan.extra,
        )

        return simulated, simulated.now, simulated.time.sleep
    assert plan.command is not None  # planning always finds one for real servers
    settings = ProcessSettings(
        command=plan.command,
        load=LoadSettings(
            api=plan.workload.api,
            study_salt=plan.recipe.seed,
            api_key_env="VLLM_API_KEY",
            tokenizer=find_tokenizer(plan.recipe.model).tokenizer,
            vocab_size=plan.shape.vocab_size if plan.shape else None,
            texts=plan.workload.texts,
        ),
        accepted=plan.accepted,
        grace_s=plan.recipe.stop_grace_s,
        caches=_compile_caches(plan),
    )
    process = ProcessEngine(settings, guard=guard, hold=hold, ports=Ports(leases=node_leases(plan)))
    return process, process.now, asyncio.sleep


def _compile_caches(plan: StudyPlan) -> CompileCaches | None:
    """None for servers whose version or files are not known here: containers and wrappers."""
    command, version = plan.command, plan.vllm_version
    if plan.cache_dir is None or version is None or command is None or command.kind is CommandKind.TEMPLATE:
        return None
    return CompileCaches.of(
        plan.cache_dir, version=version, command=command.words[0], node=plan.node.name, environ=os.environ
    )


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
