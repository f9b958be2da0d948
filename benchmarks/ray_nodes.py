"""How much sooner a Ray cluster of several nodes finishes a list of configs, and what the cluster itself costs.

`python -m benchmarks.ray_nodes [--configs 8] [--nodes 4 | --share GPUS] [--scale 10] [--json]`

A cluster on this machine, whose nodes and GPUs are numbers; the same list on one of its nodes and on all of them. With
`--share 4`: on one node of four GPUs, which each trial of one GPU has to itself or shares (`--parallel auto`).
Trials are simulated and wait in real time for 1/SCALE of what they last, so what Ray, the placement and the tuner add
to each trial is not scaled down, and weighs SCALE times as much as on real nodes. The figure is the wall clock's, from
the end of the baseline, which is measured alone, to the end of the list.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

from autotune.executor.ray_cluster import Cluster
from autotune.executor.ray_executor import RayExecutor
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.recipe import AUTO_PARALLEL, ExecutorChoice, LoadChoice, Recipe
from autotune.records import Config, Origin, Phase, Trial
from autotune.search.pareto import front_of
from autotune.search.proposer import Proposer
from autotune.session import spec_of
from autotune.store.folder import StudyFolder
from autotune.store.projection import Projection
from autotune.store.repository import Store
from autotune.study import StudyRun

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
SPACE = """
name: list
parameters:
  max-num-seqs: {choices: [16, 32, 64, 128, 256, 512], why: listed}
  max-num-batched-tokens: {choices: [2048, 4096, 8192, 16384], why: listed}
  enable-prefix-caching: {choices: [true, false], why: listed}
"""
STORE_BYTES = 100_000_000
"""Of Ray's object store, per node; raw files do not pass through it here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One way through the list.

    Attributes:
        at_once: trials.
        list_s: real seconds from the end of the baseline to the end of the list.
        trials_s: virtual seconds that its trials lasted, one after the other.
        waited_s: the same in real ones, at the scale: what one node without any cost would have needed.
    """

    nodes: int
    at_once: int
    list_s: float
    trials_s: float
    waited_s: float
    trials: int
    failed: int
    front: tuple[str, ...]


class _Watch:
    """Notes when the baseline ended and when the last of the list did."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.ends_s: list[float] = []

    def trial_started(self, trial: Trial, *, counted: int, target: int, repeats_left: int) -> None: ...

    def phase(self, phase: Phase, detail: str, *, number: int) -> None: ...

    def trial_ended(self, trial: Trial, trials: Sequence[Trial]) -> None:
        del trial, trials
        self.ends_s.append(self._clock())

    def note(self, text: str) -> None: ...


@contextmanager
def cluster_of(nodes: int, gpus: int) -> Iterator[str]:
    """A cluster on the loopback address with a head that holds nothing; its address."""
    os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    from ray.cluster_utils import Cluster as Started

    logging.getLogger("ray").setLevel(logging.CRITICAL)
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    started: Any = Started(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes):
            started.add_node(wait=False, num_cpus=1, num_gpus=gpus, object_store_memory=STORE_BYTES)
        started.wait_for_nodes()
        yield started.address
    finally:
        started.shutdown()


def plan_for(folder: Path, count: int, gpus: int, parallel: int) -> StudyPlan:
    """A study of `count` configs of one GPU, of a list."""
    space = folder / "space.yaml"
    space.write_text(SPACE, encoding="utf-8")
    listed = product((16, 32, 64, 128, 256, 512), (2048, 4096, 8192, 16384), (True, False))
    names = ("max-num-seqs", "max-num-batched-tokens", "enable-prefix-caching")
    recipe = Recipe(
        name="list",
        model=MODEL,
        workload="chat",
        space=str(space),
        node="1xH100-80GB" if gpus == 1 else f"{gpus}xH100-80GB-NVLink",
        parallel=parallel,
        trials=1 + count,
        repeats=0,
        sampler="random",
        abandon=0.0,
        load=LoadChoice(concurrency=32, rate_rps=4.0, requests=400),
        starting_points=tuple(Config.of(dict(zip(names, point, strict=True))) for point in islice(listed, count)),
        executor=ExecutorChoice.RAY,
    )
    here = Surroundings(environ={}, home=folder, probe=None, shm_bytes=None, has_kfd=False, cache_dir=folder / "cache")
    return make_plan(recipe, here)


def run_list(
    folder: Path, address: str, nodes: int, count: int, scale: float, *, gpus: int = 1, parallel: int = 1
) -> Ran:
    """The list on so many of the cluster's nodes."""
    folder.mkdir()
    plan = plan_for(folder, count, gpus, parallel)
    watch = _Watch(time.monotonic)
    with (
        Store.open(str(folder / "autotune.db")) as store,
        Projection.open(store) as projection,
        closing(RayExecutor(plan, Cluster.join(address), folder, watch.note, pace=lambda _: 1.0 / scale)) as executor,
    ):
        executor.placing.limit_to(nodes)
        run = StudyRun(
            plan=plan,
            study=store.create_or_resume_study(spec_of(plan)),
            store=store,
            folder=StudyFolder(root=folder, name="list"),
            executor=executor,
            proposer=Proposer(plan.space, "random", 0),
            projection=projection,
            observer=watch,
        )
        at_once = executor.floor.most
        asyncio.run(run.run())
        trials = store.trials("list")
    listed = [trial for trial in trials[1:] if trial.origin in (Origin.ENQUEUED, Origin.PROBE)]
    lasted = [sum(seconds for _, seconds in trial.result.phase_seconds) for trial in listed if trial.result]
    numbers = front_of(trials)
    return Ran(
        nodes=nodes,
        at_once=at_once,
        list_s=watch.ends_s[len(listed)] - watch.ends_s[0],
        trials_s=sum(lasted),
        waited_s=sum(lasted) / scale,
        trials=len(trials),
        failed=sum(not trial.measured for trial in trials),
        front=tuple(sorted({str(trial.config) for trial in trials if trial.number in numbers})),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=int, default=8, help="length of the list, at most 48")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--share", type=int, metavar="GPUS", help="one node of so many GPUs, for one trial or several")
    parser.add_argument("--scale", type=float, default=10.0, help="virtual seconds in a real one")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    gpus = asked.share or 1
    ways = [(1, 1), (1, AUTO_PARALLEL)] if asked.share else [(1, 1), (asked.nodes, 1)]
    with tempfile.TemporaryDirectory() as folder, cluster_of(max(nodes for nodes, _ in ways), gpus) as address:
        one, many = (
            run_list(
                Path(folder) / str(place), address, nodes, asked.configs, asked.scale, gpus=gpus, parallel=parallel
            )
            for place, (nodes, parallel) in enumerate(ways)
        )
    speedup = one.list_s / many.list_s
    same = one.front == many.front
    if asked.json:
        ran = [{key: value for key, value in asdict(found).items() if key != "front"} for found in (one, many)]
        print(json.dumps({"scale": asked.scale, "speedup": speedup, "same_front": same, "ran": ran}, indent=2))
        return
    print(f"{asked.configs} configs of one GPU; trials wait 1/{asked.scale:g} of what they last (simulated)")
    print("| nodes | trials at once | the list | trials alone, at this scale | added to each trial |")
    print("|---|---|---|---|---|")
    for found in (one, many):
        added = (found.list_s * found.at_once - found.waited_s) / asked.configs
        print(f"| {found.nodes} | {found.at_once} | {found.list_s:.1f} s | {found.waited_s:.1f} s | {added:.1f} s |")
    where = f"{many.at_once} at once" if asked.share else f"on {many.nodes} nodes"
    print(f"{speedup:.2f}x sooner {where}; the same front: {'yes' if same else 'no'}")


if __name__ == "__main__":
    main()
