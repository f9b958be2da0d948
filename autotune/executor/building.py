"""What performs a plan's trials on the machine that this runs on: engine, hold on its GPUs, floor."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from autotune.engine.base import Engine
from autotune.engine.command import CommandKind, chooses_gpus
from autotune.engine.compile_cache import CompileCaches
from autotune.engine.gpu_memory import GpuGuard
from autotune.engine.holding import NodeHold, Patience
from autotune.engine.ports import Ports
from autotune.engine.process import ProcessEngine, ProcessSettings
from autotune.engine.process_server import LoadSettings
from autotune.engine.simulated import SimulatedEngine
from autotune.errors import Interrupted
from autotune.executor.base import Floor
from autotune.executor.local import LocalExecutor
from autotune.load.tokenizing import find_tokenizer
from autotune.node.leases import NodeLeases, lease_folder, this_process
from autotune.node.machine import numa_cores, own_cores
from autotune.node.probe import GpuProbe
from autotune.node.weights_download import fetch_weights
from autotune.planning import StudyPlan
from autotune.planning.weights import weights_wanted
from autotune.recipe import AUTO_PARALLEL
from autotune.records import EngineKind
from autotune.scheduling.cores import most_beside
from autotune.scheduling.seats import CoreMap, Seats, bind_this_process


def local_executor(plan: StudyPlan, probe: GpuProbe | None, tell: Callable[[str], None]) -> LocalExecutor:
    """All of them for a study on this machine."""
    hold, guard = hold_of(plan, probe, tell)
    engine, clock_s, wait = make_engine(plan, guard, hold)
    return LocalExecutor(engine=engine, floor=floor_of(plan, engine, probe), clock_s=clock_s, wait=wait, hold=hold)


def fetch_all_weights(plan: StudyPlan, tell: Callable[[str], None]) -> None:
    """Before the first launch, whose start deadline is no time to download in.

    Raises:
        WeightsMissing: the hub does not give them, or there is no room; the study is kept as it is.
        Interrupted: Ctrl-C; what arrived is kept.
    """
    try:
        for order in weights_wanted(plan, os.environ, Path.home()):
            fetch_weights(order, os.environ, tell)
    except KeyboardInterrupt:
        raise Interrupted(
            "the download of the weights was stopped; what arrived is kept", hint="The same command goes on with it."
        ) from None


def trials_at_once(plan: StudyPlan, cores: Collection[int]) -> int:
    """How many trials a study has on its node at once.

    Args:
        cores: that this process may use; a simulation needs none.

    Returns:
        1 also for a server command that runs containers and does not say which GPUs they get.
    """
    asked, gpus = plan.recipe.parallel, plan.node.gpu_count
    if plan.command is not None and not plan.simulated and not chooses_gpus(plan.command):
        return 1
    if asked != AUTO_PARALLEL:
        return max(1, min(asked, gpus))
    return max(1, gpus) if plan.engine is EngineKind.SIMULATED else most_beside(len(cores), gpus)


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
    most = trials_at_once(plan, own_cores())
    return Floor(seats=Seats(plan.node) if most == 1 else bound_seats(plan, probe), most=most)


def bound_seats(plan: StudyPlan, probe: GpuProbe | None) -> Seats:
    """Places on a machine that trials share, each with cores of its own; those of the whole plan's GPUs."""
    # Of a machine whose other GPUs another study may use, this study's trials get these GPUs' share.
    cores = own_cores()
    count = len(probe.list_gpus()) if probe is not None else plan.node.gpu_count
    where = CoreMap(allowed=cores, of_numa=numa_cores(), gpus=max(count, plan.node.gpu_count))
    return Seats(plan.node, where, node_leases(plan), bind_client=bind_this_process(cores))


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
