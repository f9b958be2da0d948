"""Performs one attempt on the node where it runs: `python -m autotune.executor.node_process`, a child of a Ray task.

A process of its own, because load that is driven from Ray's worker would share its interpreter with Ray, and because a
worker that ends kills its children: a keeper (engine/keeper.py) must be none of them, or nobody stops the server.

Standard input: a frame with the plan, one with the errand (errand.py), then `end` or `hurry` lines. Its end means that
the worker is gone: the attempt is ended. Standard output: a frame for each event.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from autotune.engine.base import Milestone, ServerIdentity
from autotune.engine.simulated import SimulatedEngine
from autotune.engine.virtual_time import PacedTime
from autotune.errors import AutotuneError, ClusterUnusable
from autotune.executor.base import Assignment
from autotune.executor.building import bound_seats, fetch_all_weights, local_executor
from autotune.executor.errand import (
    HEAD,
    Entered,
    Errand,
    Event,
    Performed,
    Placed,
    Refused,
    Told,
    Withdrawn,
    packed,
    parts,
    read_frame,
)
from autotune.executor.nodes import node_here
from autotune.executor.ray_task import WORDS
from autotune.load.loops import new_loop
from autotune.node.machine import cache_dir
from autotune.node.nvml_probe import open_probe
from autotune.planning import StudyPlan
from autotune.records import EngineKind, LoadLevel, Node, Phase
from autotune.trial import TrialRun

Tell = Callable[[Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Teller:
    """A trial's observer that sends everything to the tuner."""

    tell: Tell

    def phase(self, phase: Phase, elapsed_s: float) -> None:
        self.tell(Entered(phase=phase, elapsed_s=elapsed_s))

    def identity(self, identity: ServerIdentity) -> None:
        self.tell(identity)

    def milestone(self, milestone: Milestone) -> None:
        self.tell(milestone)

    def level(self, level: LoadLevel) -> None:
        self.tell(level)


def main() -> None:
    """Perform what standard input asks for."""
    events = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints is no frame
    asked = os.fdopen(os.dup(0), "rb")
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    plan, errand = _frame(asked), _frame(asked)
    perform(plan, errand, asked, lambda event: _write(events, event))


def _frame(stream: BinaryIO) -> Any:
    frame = read_frame(stream)
    if frame is None:
        raise SystemExit("the worker ended before it said what to do")
    return pickle.loads(frame[HEAD.size :])  # noqa: S301 - see errand.py


def _write(events: BinaryIO, event: Event) -> None:
    with suppress(BrokenPipeError):  # the worker is gone; the end of standard input says so as well
        events.write(packed(event))


def perform(plan: StudyPlan, errand: Errand, asked: BinaryIO, tell: Tell) -> None:
    """One attempt with its last event, whatever happens; `asked` is heard meanwhile."""
    order = errand.order
    folder = order.launch.directory
    if not errand.shares_folder:
        folder = Path(tempfile.mkdtemp(prefix=f"autotune-{plan.recipe.name}-{errand.trial:04d}-"))
        tell(Placed(directory=str(folder)))
    errand = replace(errand, order=replace(order, launch=replace(order.launch, directory=folder)))
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            last: Event = runner.run(_until_told(plan, errand, asked, tell))
    finally:
        if not errand.shares_folder:
            for part in parts(folder):
                tell(part)
            shutil.rmtree(folder, ignore_errors=True)
    tell(last)


async def _until_told(plan: StudyPlan, errand: Errand, asked: BinaryIO, tell: Tell) -> Event:
    work = asyncio.ensure_future(attempt(plan, errand, tell))
    loop = asyncio.get_running_loop()

    def hear() -> None:
        while True:
            word = asked.readline()
            if not word or word in WORDS.values():
                loop.call_soon_threadsafe(work.cancel)
            if not word:
                return

    threading.Thread(target=hear, daemon=True).start()
    try:
        run = await work
    except asyncio.CancelledError:
        return Withdrawn()
    except AutotuneError as error:
        return Refused(error=error)
    return Performed(run=run)


async def attempt(plan: StudyPlan, errand: Errand, tell: Tell) -> TrialRun:
    """The attempt on this machine, with its own GPUs, leases, caches and ports: those that Ray has made visible.

    Raises:
        ClusterUnusable: the GPUs here are not those that the study is planned for.
    """
    real = plan.engine is EngineKind.PROCESS
    probe = open_probe() if real and plan.node.gpus else None
    here = node_here(probe, os.environ) if real else plan.node
    check_gpus(here, plan.node, errand.shared_gpus if real else None)
    own = replace(plan, node=replace(here, name=plan.node.name), cache_dir=cache_dir(os.environ))
    await asyncio.to_thread(fetch_all_weights, own, lambda text: tell(Told(text=text)))
    executor = local_executor(own, probe, lambda text: tell(Told(text=text)))
    if errand.pace and isinstance(executor.engine, SimulatedEngine):
        executor.engine.time = PacedTime(errand.pace)
        executor.clock_s = executor.engine.now
    with closing(executor):
        await executor.take()
        demand = own.demand_of(errand.order.launch.config)
        shared = bound_seats(own, probe) if real and errand.shared_gpus else None
        seat = (shared and shared.take(demand)) or executor.floor.seats.whole(demand)
        launch = replace(errand.order.launch, gpu_indices=seat.indices, server_cores=seat.server_cores)
        order = replace(errand.order, launch=launch)
        try:
            return await executor.perform(Assignment(trial=errand.trial, order=order), _Teller(tell=tell))
        finally:
            if shared is not None:
                shared.leave(seat)


def check_gpus(here: Node, planned: Node, shared: int | None) -> None:
    """Whether these are GPUs for the study.

    Args:
        shared: how many of a node that others share; None for the whole planned one.

    Raises:
        ClusterUnusable: they are not.
    """
    of_kind = {(gpu.name, gpu.memory_bytes) for gpu in here.gpus} <= {(g.name, g.memory_bytes) for g in planned.gpus}
    if here.name != planned.name if shared is None else here.gpu_count != shared or not of_kind:
        wanted = planned.name if shared is None else f"{shared} GPUs of {planned.name}"
        raise ClusterUnusable(
            f"this node is {here.name} now, and the study is for {wanted}",
            hint="Look at its GPUs with `autotune doctor`, or leave it out with --ray-nodes.",
        )


if __name__ == "__main__":
    main()
