"""How much sooner a list of configs is done when a node measures several at once: `python -m benchmarks.parallel`.

The node is simulated, in virtual time: every trial takes as long as the simulation says that it would on such a node
(a start of about 80 s, the load, the stop), and those that run beside each other overlap. The same study is run one
trial after the other and with `--parallel auto`, and both must end with the same front. In virtual time a neighbour
costs nothing; what it costs on a real node, each study measures for itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from autotune.executor.building import local_executor
from autotune.planning import Surroundings, make_plan
from autotune.recipe import AUTO_PARALLEL, LoadChoice, Recipe
from autotune.records import Config, Phase, Trial, Value
from autotune.search.pareto import front_of
from autotune.search.proposer import Proposer
from autotune.session import spec_of
from autotune.store.folder import StudyFolder
from autotune.store.projection import Projection
from autotune.store.repository import Store
from autotune.study import StudyRun

NODE = "8xH200-141GB"
CHOICES: dict[str, tuple[Value, ...]] = {
    "quantization": (None, "fp8"),
    "async-scheduling": (True, False),
    "enforce-eager": (False, True),
    "max-num-seqs": (2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32),
}
"""All of one GPU; 96 together, no two of them as good as each other within the noise of a launch, or the front would
hang on that. Asynchronous scheduling gives more tokens and later first ones, so there are two on the front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One way of measuring the list.

    Attributes:
        at_once: most trials at the same time.
        list_s: virtual seconds from the first trial's start to the end of the list's last.
        study_s: until the study's end: with all that was measured alone.
        real_s: how long this machine computed.
        front: the front's configs, as text.
        launches: of all kinds.
    """

    at_once: int
    list_s: float
    study_s: float
    real_s: float
    front: tuple[str, ...]
    launches: int


class _Watch:
    """Remembers when the list was done."""

    def __init__(self, clock: list[StudyRun]) -> None:
        self.run = clock
        self.list_s = 0.0

    def trial_started(self, trial: Trial, *, counted: int, target: int, repeats_left: int) -> None: ...

    def phase(self, phase: Phase, detail: str, *, number: int) -> None: ...

    def trial_ended(self, trial: Trial, trials: Sequence[Trial]) -> None:
        if trials[trial.number].counted:
            self.list_s = self.run[0].executor.now()

    def note(self, text: str) -> None: ...


def configs(count: int) -> tuple[Config, ...]:
    """The first `count` configs of the list, all of one GPU."""
    return tuple(Config.of(dict(zip(CHOICES, values, strict=True))) for values in product(*CHOICES.values()))[:count]


def measure(folder: Path, count: int, parallel: int, *, node: str = NODE, requests: int = 48) -> Ran:
    """Run the study in `folder`, which must be new."""
    folder.mkdir(parents=True)
    space = folder / "list.yaml"
    parameters = {name: {"choices": list(choices), "why": "a list to measure"} for name, choices in CHOICES.items()}
    space.write_text(json.dumps({"name": "list", "parameters": parameters}), encoding="utf-8")
    recipe = Recipe(
        name="list",
        model="meta-llama/Llama-3.1-8B",
        workload="tiny",
        space=str(space),
        node=node,
        trials=1 + count,
        repeats=0,
        sampler="random",
        parallel=parallel,
        load=LoadChoice(concurrency=32, rate_rps=8.0, requests=requests),
        starting_points=configs(count),
    )
    here = Surroundings(environ={}, home=folder, probe=None, shm_bytes=None, has_kfd=False, cache_dir=folder / "cache")
    plan = make_plan(recipe, here)
    begun, runs = time.perf_counter(), list[StudyRun]()
    watch = _Watch(runs)
    with Store.open(str(folder / "autotune.db")) as store, Projection.open(store) as projection:
        executor = local_executor(plan, None, lambda _: None)
        runs.append(
            StudyRun(
                plan=plan,
                study=store.create_or_resume_study(spec_of(plan)),
                store=store,
                folder=StudyFolder(root=folder, name="list"),
                executor=executor,
                proposer=Proposer(plan.space, "random", 0),
                projection=projection,
                observer=watch,
            )
        )
        asyncio.run(runs[0].run())
        trials = store.trials("list")
    numbers = front_of(trials)
    return Ran(
        at_once=executor.floor.most,
        list_s=watch.list_s,
        study_s=executor.now(),
        real_s=time.perf_counter() - begun,
        front=tuple(sorted(str(trial.config) for trial in trials if trial.number in numbers)),
        launches=len(trials),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where the fronts differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description=__doc__)
    parser.add_argument("--configs", type=int, default=96, help="configs of the list, at most 96")
    parser.add_argument("--node", default=NODE)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        serial = measure(Path(folder) / "serial", given.configs, 1, node=given.node)
        beside = measure(Path(folder) / "parallel", given.configs, AUTO_PARALLEL, node=given.node)
    same = serial.front == beside.front
    if given.json:
        found = {"configs": given.configs, "node": given.node, "simulated": True, "same_front": same}
        speed = {"list": serial.list_s / beside.list_s, "study": serial.study_s / beside.study_s}
        print(json.dumps(found | {"serial": asdict(serial), "parallel": asdict(beside), "speed_up": speed}, indent=2))
    else:
        _print(given.configs, given.node, serial, beside, same=same)
    return 0 if same else 1


def _print(count: int, node: str, serial: Ran, beside: Ran, *, same: bool) -> None:
    print(f"{count} one-GPU configs on {node}, SIMULATED, in virtual time")
    print(f"{'trials at once':>16}{'launches':>10}{'the list':>14}{'the study':>14}{'computed in':>14}")
    for ran in (serial, beside):
        hours = [f"{seconds / 3600:.2f} h" for seconds in (ran.list_s, ran.study_s)]
        print(f"{ran.at_once:>16}{ran.launches:>10}{hours[0]:>14}{hours[1]:>14}{ran.real_s:>12.1f} s")
    list_x, study_x = serial.list_s / beside.list_s, serial.study_s / beside.study_s
    print(f"{'sooner by':>16}{'':>10}{list_x:>13.2f}x{study_x:>13.2f}x")
    print(f"front of {len(serial.front)}: {'the same' if same else 'NOT the same'}")
    if not same:
        print("  serial:  ", *serial.front, sep="\n    ")
        print("  parallel:", *beside.front, sep="\n    ")


if __name__ == "__main__":
    sys.exit(main())
